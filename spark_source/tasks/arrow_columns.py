"""Conversion of the log's batches into Spark's: a batch of the log holds keys and values in Arrow's layout, so they are
used directly. No record is touched, and no byte of columns that were not requested.

One Arrow batch costs Spark about as much as a few thousand records. So small batches of the log are combined into one
of up to `ROWS` rows, which copies them column by column. Large batches are not copied.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from raftlog.client.consuming.records import ConsumedBatch
from raftlog.errors import InvalidRequest
from raftlog.records import arrow as record_arrow
from raftlog.records.batch import BatchHeader
from raftlog.records.columns import Columns
from spark_source.reading.offsets import PartitionRange

ROWS = 8_192
"""Small batches of the log are combined up to this number of rows."""
MERGED_BYTES = 4 << 20
"""Small batches are combined up to this number of bytes, as stored in the log."""

_TIME = pa.timestamp("us", "UTC")
_HEADERS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
TYPES: dict[str, pa.DataType] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": _TIME,
    "timestampType": pa.int32(),
    "headers": _HEADERS,
}
"""Name → Arrow type that Spark expects for a column of `record_columns.TYPES`."""

CREATE_TIME, LOG_APPEND_TIME = 0, 1
"""Kafka's numbers of timestamp types."""
_KINDS = {kind: pa.repeat(pa.scalar(kind, pa.int32()), ROWS) for kind in (CREATE_TIME, LOG_APPEND_TIME)}
_MAX_TIMESTAMP_MS = (2**63 - 1) // 1000


class ArrowColumns:
    """Converts the batches of one range into Spark's."""

    def __init__(self, one: PartitionRange, columns: Sequence[str]) -> None:
        self._range = one
        self._columns = tuple(columns)
        self._schema = pa.schema([pa.field(name, TYPES[name]) for name in columns])

    def batches(self, consumed: Iterable[ConsumedBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the records of these batches that lie in the range. Raises `CorruptBatch`."""
        parts: list[pa.RecordBatch] = []
        rows = size = 0
        for one in consumed:
            part = self._part(one)
            if not part.num_rows:
                continue
            if parts and (rows + part.num_rows > ROWS or size + one.size_bytes > MERGED_BYTES):
                yield self._whole(parts)
                parts, rows, size = [], 0, 0
            parts.append(part)
            rows += part.num_rows
            size += one.size_bytes
        if parts:
            yield self._whole(parts)

    # --- Of one batch of the log --------------------------------------------------------------------------------------

    def _part(self, consumed: ConsumedBatch) -> pa.RecordBatch:
        """Return the columns that differ from record to record, cut to the range."""
        batch = consumed.record_batch
        header, found = batch.header, batch.columns
        if found is None:
            return pa.RecordBatch.from_arrays([pa.nulls(0)], names=["rows"])
        first, count = self._rows(header, found, max(consumed.start_offset, self._range.start))
        # A batch without any column has no rows, so there is always one.
        arrays: dict[str, pa.Array] = {"rows": pa.nulls(header.record_count)}
        for name in self._columns:
            read = _READERS.get(name)
            if read is not None:
                arrays[name] = read(header, found)
        return pa.RecordBatch.from_pydict(arrays).slice(first, count)

    def _rows(self, header: BatchHeader, found: Columns, start: int) -> tuple[int, int]:
        """Return the first row in the range, and the number of rows."""
        if found.offset_deltas is None:
            first = min(max(start - header.base_offset, 0), header.record_count)
            end = min(max(self._range.end - header.base_offset, first), header.record_count)
            return first, end - first
        offsets = record_arrow.offsets_column(header, found)
        first, end = (pc.sum(pc.less(offsets, bound)).as_py() or 0 for bound in (start, self._range.end))
        return first, max(end - first, 0)

    # --- Together -----------------------------------------------------------------------------------------------------

    def _whole(self, parts: list[pa.RecordBatch]) -> pa.RecordBatch:
        rows = sum(part.num_rows for part in parts)
        arrays = [
            _joined(name, [part.column(name) for part in parts]) if name in _READERS else self._constant(name, rows)
            for name in self._columns
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _constant(self, name: str, rows: int) -> pa.Array:
        value = self._range.topic if name == "topic" else self._range.partition
        return pa.repeat(pa.scalar(value, TYPES[name]), rows)


def _joined(name: str, arrays: list[pa.Array]) -> pa.Array:
    joined = arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)
    return joined if name != "timestamp" else pc.multiply(joined, pa.scalar(1000, pa.int64())).view(_TIME)


def _milliseconds(header: BatchHeader, found: Columns) -> pa.Array:
    """Return timestamps as int64; they become Spark's microseconds once batches are combined."""
    if max(header.max_timestamp, header.base_timestamp) > _MAX_TIMESTAMP_MS:
        where = f"offsets {header.base_offset} to {header.last_offset}"
        raise InvalidRequest(
            "timestamp_out_of_range",
            f"{where} have timestamps of up to {header.max_timestamp} ms, and Spark counts microseconds in 64 bits: "
            "leave that column out (option columns)",
        )
    return record_arrow.timestamps_column(header, found).view(pa.int64())


def _timestamp_types(header: BatchHeader, found: Columns) -> pa.Array:
    kinds = _KINDS[LOG_APPEND_TIME if header.log_append_time else CREATE_TIME]
    if header.record_count > len(kinds):
        return pa.repeat(kinds[0], header.record_count)
    return kinds[: header.record_count]


def _headers(header: BatchHeader, found: Columns) -> pa.Array:
    return record_arrow.headers_column(header, found).cast(_HEADERS)


_READERS = {
    "key": record_arrow.keys_column,
    "value": record_arrow.values_column,
    "offset": record_arrow.offsets_column,
    "timestamp": _milliseconds,
    "timestampType": _timestamp_types,
    "headers": _headers,
}
"""Columns that differ from record to record."""
