"""The results of a consumer: single records, or batches whose columns are decoded on demand.

A fetched batch may begin below the requested position (batches are stored and served whole). `ConsumedBatch` shows only
the records at or above it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import repeat
from typing import TYPE_CHECKING

import msgspec

from raftlog.ports import Buffer
from raftlog.records.batch import BatchHeader, Header, RecordBatch
from raftlog.trace_context import TraceContext, trace_of

if TYPE_CHECKING:
    import pandas
    import pyarrow


class ConsumerRecord(msgspec.Struct, frozen=True, gc=False):
    """One record with its place; a value of None is a tombstone."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]

    @property
    def trace_context(self) -> TraceContext | None:
        """The W3C trace context that the record's headers carry; None if there is none, or it is invalid."""
        return trace_of(self.headers) if self.headers else None


class ConsumedBatch:
    """The records of one batch with offsets in `[start_offset, end_offset)`.

    Columns are lists (`values`, `keys`, ...) or Arrow (`to_arrow`), built by each call. Raises `CorruptBatch` if they
    cannot be decoded; the CRC was checked when the batch arrived.
    """

    __slots__ = ("_buffer", "_decoded", "header", "high_watermark", "partition", "start_offset", "topic")

    def __init__(
        self, topic: str, partition: int, start_offset: int, buffer: Buffer, header: BatchHeader, high_watermark: int
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.start_offset = start_offset
        """The first offset shown; not below the batch's base offset."""
        self.header = header
        self.high_watermark = high_watermark
        """The partition's high watermark when the leader sent this batch."""
        self._buffer = buffer
        self._decoded: RecordBatch | None = None

    @property
    def end_offset(self) -> int:
        """The offset after the batch's last one: where the next batch begins."""
        return self.header.end_offset

    @property
    def size_bytes(self) -> int:
        """Size of the batch as stored."""
        return self.header.total_bytes

    @property
    def record_batch(self) -> RecordBatch:
        """The whole batch, including records below `start_offset`."""
        if self._decoded is None:
            self._decoded = RecordBatch(self._buffer, crc_checked=True)
        return self._decoded

    def offsets(self) -> Sequence[int]:
        """Return the offsets: increasing, with gaps where compaction removed records."""
        return self.record_batch.offsets()[self._first() :]

    def timestamps_ms(self) -> list[int]:
        """Return the timestamps in milliseconds since 1970."""
        return self.record_batch.timestamps_ms()[self._first() :]

    def keys(self) -> list[bytes | None]:
        return self.record_batch.keys()[self._first() :]

    def values(self) -> list[bytes | None]:
        first = self._first()
        values = self.record_batch.values()
        return values[first:] if first else values

    def headers(self) -> list[tuple[Header, ...]]:
        return self.record_batch.headers()[self._first() :]

    def records(self) -> list[ConsumerRecord]:
        """Return every record as an object: convenient, and several times slower than columns."""
        return list(
            map(
                ConsumerRecord,
                repeat(self.topic),
                repeat(self.partition),
                self.offsets(),
                self.timestamps_ms(),
                self.keys(),
                self.values(),
                self.headers(),
            )
        )

    def to_arrow(self) -> pyarrow.RecordBatch:
        """Return columns offset, timestamp, key, value and headers, which share the memory of the fetched batch."""
        whole, first = self.record_batch.to_arrow(), self._first()
        return whole.slice(first) if first else whole

    def to_pandas(self) -> pandas.DataFrame:
        """Return the columns of `to_arrow` as a pandas data frame. Raises `ImportError` if pandas is not installed."""
        return self.to_arrow().to_pandas()

    def __len__(self) -> int:
        """Return the number of records shown."""
        return len(self.record_batch.offsets()) - self._first()

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition} [{self.start_offset}, {self.end_offset})"

    def _first(self) -> int:
        """Return the number of records below `start_offset`."""
        if self.start_offset <= self.header.base_offset:
            return 0
        return bisect_left(self.record_batch.offsets(), self.start_offset)
