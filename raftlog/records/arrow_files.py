"""Records as an Arrow IPC stream or as a Parquet file, written batch by batch: some columns of some records.

Only the wanted columns, and those of the filter, are made. With `raftlog/records/arrow.py`, this is where stored
batches become Arrow; imports pyarrow, like that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from raftlog.ports import Buffer

from .arrow import SCHEMA, headers_column, keys_column, offsets_column, timestamps_column, values_column
from .batch import RecordBatch
from .record_filter import RecordFilter

_READERS = {
    "offset": offsets_column,
    "timestamp": timestamps_column,
    "key": keys_column,
    "value": values_column,
    "headers": headers_column,
}


class ArrowFile:
    """Writes records, and returns the bytes of the stream or file as they become ready.

    Calls may be made in different threads, one at a time.
    """

    def __init__(self, names: Sequence[str], where: RecordFilter, *, is_parquet: bool) -> None:
        """`names`: the columns, of `COLUMNS`, in the order of the result."""
        self._names = tuple(names)
        self._where = where
        self._sink = _Pieces()
        self._schema = pa.schema([SCHEMA.field(name) for name in self._names])
        self._file: Any = pa.PythonFile(self._sink, mode="w")
        self._writer: Any = self._parquet() if is_parquet else pa.ipc.new_stream(self._file, self._schema)
        self._decoded: RecordBatch | None = None
        self._stored: Buffer | None = None

    def write(self, stored: Buffer, start: int, end: int) -> bytes:
        """Write the records of a stored batch from place `start` to before `end`. Raises `CorruptBatch`."""
        if self._stored is not stored or self._decoded is None:
            self._decoded, self._stored = RecordBatch(stored), stored
        chosen = self._chosen(self._decoded, start, end)
        if chosen.num_rows:
            self._writer.write_batch(chosen)
        return self._sink.take()

    def close(self) -> bytes:
        """End the stream or file, and return the rest."""
        self.forget()
        self._writer.close()
        self._file.close()
        return self._sink.take()

    def forget(self) -> None:
        """Drop the decoded batch: it is decoded again for its next records."""
        self._decoded = self._stored = None

    def _parquet(self) -> Any:
        import pyarrow.parquet as pq  # 70 ms, where it is wanted: a node that starts does not wait for it

        return pq.ParquetWriter(self._file, self._schema, compression="zstd")

    def _chosen(self, batch: RecordBatch, start: int, end: int) -> Any:
        header, columns = batch.header, batch.columns
        assert columns is not None, "a control batch has no records"
        made: dict[str, Any] = {}

        def column(name: str) -> Any:
            if name not in made:
                made[name] = _READERS[name](header, columns).slice(start, end - start)
            return made[name]

        masks = []
        where = self._where
        if where.key is not None:
            masks.append(pc.equal(column("key"), pa.scalar(where.key, SCHEMA.field("key").type)))
        if where.end_offset is not None:
            masks.append(pc.less(column("offset"), where.end_offset))
        if where.start_timestamp_ms is not None:
            masks.append(pc.greater_equal(column("timestamp").cast(pa.int64()), where.start_timestamp_ms))
        if where.end_timestamp_ms is not None:
            masks.append(pc.less(column("timestamp").cast(pa.int64()), where.end_timestamp_ms))
        chosen = pa.RecordBatch.from_arrays([column(name) for name in self._names], schema=self._schema)
        for mask in masks[1:]:
            masks[0] = pc.and_(masks[0], mask)
        return chosen.filter(masks[0]) if masks else chosen  # a null in the mask leaves a record out


class _Pieces:
    """A file that keeps what was written until it is taken."""

    closed = False

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._position = 0

    def write(self, data: Any) -> int:
        piece = bytes(data)
        self._pieces.append(piece)
        self._position += len(piece)
        return len(piece)

    def tell(self) -> int:
        return self._position

    def flush(self) -> None:
        """Do nothing: what was written is ready."""

    def writable(self) -> bool:
        return True

    def close(self) -> None:
        self.closed = True

    def take(self) -> bytes:
        """Return what was written since the last call."""
        pieces, self._pieces = self._pieces, []
        return b"".join(pieces)
