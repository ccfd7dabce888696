"""A batch that is being filled: its columns and their estimated cost. A pure core of the accumulator.

Costs are upper bounds of what `record_batch.encode` produces, before compression, so a batch with room for a record
never turns out too large for its topic. Each record costs its bytes plus one row per column; a column that starts late
(the first key in a batch without keys) also costs one row for every record before it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from operator import add
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

D = TypeVar("D")
"""Type of the object that a producer returns for a batch."""

Headers: TypeAlias = Sequence[tuple[str, bytes | None]]
Slot: TypeAlias = str | tuple[str, int]
"""Key of an open batch: a topic (partition not chosen yet), or a topic and partition."""

UNASSIGNED = -1
"""Partition number of a batch without a partition yet."""

FRAME_BYTES = 256
"""Upper bound of a batch's header and of the container around its columns, in bytes."""
VALUE_ROW_BYTES = 5
"""Bytes of a record beside its value: an int32 offset and its share of the validity bitmap."""
KEY_ROW_BYTES = 5
TIMESTAMP_ROW_BYTES = 8
HEADERS_ROW_BYTES = 5
HEADER_BYTES = 10
"""Bytes of one header of a record beside its name and value."""
ROWS_A_LOOK = 1_024
"""Records whose lengths are added up together.

Their objects fit into the processor's cache and are found there again when the batch is built; fetching a record from
memory costs as much as everything else that is done to it.
"""


class Columns(NamedTuple):
    """Records for one partition (`UNASSIGNED`: any), as lists or pyarrow arrays.

    Keys and timestamps may be None, for all records.
    """

    partition: int
    values: Any
    keys: Any
    timestamps: Any

    @property
    def rows(self) -> int:
        return len(self.values)

    def part(self, start: int, stop: int) -> Columns:
        """Return the records in `[start, stop)`."""
        partition, *columns = self
        return Columns(partition, *(None if column is None else column[start:stop] for column in columns))


@dataclass(slots=True, eq=False)
class Batch(Generic[D]):
    """Records for one partition.

    Invariant: optional columns are None or no longer than `values`; `columns()` pads the missing end.
    """

    topic: str
    partition: int
    capacity: int
    """Bytes of its records: spent + `room` + `ungranted`."""
    delivery: D
    opened_at: float
    timestamp_ms: int
    values: Any = field(default_factory=list)
    """A list of `bytes | None`, or a pyarrow array (then `keys` is one, too)."""
    keys: Any = None
    timestamps: list[int] | None = None
    headers: list[Headers | None] | None = None
    room: int = 0
    ungranted: int = field(init=False)
    row_bytes: int = VALUE_ROW_BYTES
    # Memory:
    reserved: int = 0
    counted: int = 0
    # Fields of the sequencer:
    expires_at: float = 0.0
    attempt: int = 0
    number: int = -1
    maybe_applied: bool = False
    resent: bool = False
    """Whether this attempt is marked as a resend: an earlier one may have been applied."""
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1

    def __post_init__(self) -> None:
        self.ungranted = self.capacity

    @property
    def count(self) -> int:
        """Number of records."""
        return len(self.values)

    @property
    def size_bytes(self) -> int:
        """Upper bound of its encoded size before compression, in bytes."""
        return FRAME_BYTES + self.capacity - self.room - self.ungranted

    def row_bytes_with(self, keys: bool, timestamps: bool, headers: bool) -> int:
        """Return the bytes that each record would cost beside its content with these columns as well."""
        row_bytes = self.row_bytes
        if keys and self.keys is None:
            row_bytes += KEY_ROW_BYTES
        if timestamps and self.timestamps is None:
            row_bytes += TIMESTAMP_ROW_BYTES
        if headers and self.headers is None:
            row_bytes += HEADERS_ROW_BYTES
        return row_bytes

    def add(self, value: bytes | None, key: bytes | None, timestamp_ms: int | None, headers: Headers | None) -> None:
        """Add one record."""
        count = self.count
        if key is not None:
            self.keys = _padded(self.keys, count, None)
            self.keys.append(key)
        if timestamp_ms is not None:
            self.timestamps = _padded(self.timestamps, count, self.timestamp_ms)
            self.timestamps.append(timestamp_ms)
        if headers:
            self.headers = _padded(self.headers, count, None)
            self.headers.append(headers)
        self.values.append(value)

    def add_many(self, columns: Columns) -> None:
        """Add records by the column."""
        count = self.count
        if columns.keys is not None:
            self.keys = _padded(self.keys, count, None)
            self.keys.extend(columns.keys)
        if columns.timestamps is not None:
            self.timestamps = _padded(self.timestamps, count, self.timestamp_ms)
            self.timestamps.extend(columns.timestamps)
        self.values.extend(columns.values)

    def columns(self) -> tuple[Any, Any, list[int] | None, list[Headers | None] | None]:
        """Return values, keys, timestamps and headers, each of full length or None."""
        count = self.count
        if isinstance(self.keys, list):
            self.keys = _padded(self.keys, count, None)
        if self.timestamps is not None:
            self.timestamps = _padded(self.timestamps, count, self.timestamp_ms)
        if self.headers is not None:
            self.headers = _padded(self.headers, count, None)
        return self.values, self.keys, self.timestamps, self.headers

    def __str__(self) -> str:
        return (
            f"{self.topic}/{self.partition} {self.count} records attempt={self.attempt} "
            f"producer={self.producer_id}/{self.producer_epoch} sequence={self.base_sequence}"
        )


@dataclass(frozen=True, slots=True)
class ParkedRecord(Generic[D]):
    """A record whose partition is unknown until its topic is known.

    `delivery` belongs to this record alone.
    """

    value: bytes | None
    key: bytes | None
    partition: int
    timestamp_ms: int | None
    headers: Headers | None
    delivery: D
    reserved: int

    @property
    def count(self) -> int:
        """Number of records: one."""
        return 1


def _padded(column: list[Any] | None, count: int, padding: Any) -> list[Any]:
    """Return the column padded to `count` entries; make it if it is None."""
    if column is None:
        return [padding] * count
    column.extend([padding] * (count - len(column)))
    return column


def payload_bytes(value: bytes | None, key: bytes | None, headers: Headers | None) -> int:
    """Return the bytes that a record takes in a batch, beside its row in each column."""
    total = (len(value) if value is not None else 0) + (len(key) if key is not None else 0)
    if headers:
        for name, content in headers:
            total += len(name.encode()) + (len(content) if content is not None else 0) + HEADER_BYTES
    return total


def payload_lengths(values: Sequence[bytes | None], keys: Sequence[bytes | None] | None) -> list[int]:
    """Return the length of value plus key of each record, in bytes."""
    return _lengths(values) if keys is None else list(map(add, _lengths(values), _lengths(keys)))


def row_bytes_of(columns: Columns) -> int:
    """Return the bytes of each record beside its value and key."""
    keys = KEY_ROW_BYTES if columns.keys is not None else 0
    return VALUE_ROW_BYTES + keys + (TIMESTAMP_ROW_BYTES if columns.timestamps is not None else 0)


def rows_that_fit(columns: Columns, start: int, room: int, row_bytes: int) -> tuple[int, int]:
    """Return how many records from `start` on fit into `room` bytes, and the bytes of their values and keys."""
    count = payload = 0
    while start + count < columns.rows:
        part = columns.part(start + count, start + count + ROWS_A_LOOK)
        lengths = payload_lengths(part.values, part.keys)
        size = sum(lengths)
        left = room - payload - count * row_bytes
        if size + len(lengths) * row_bytes > left:
            ends = list(accumulate(lengths))
            fit = bisect_right(range(len(ends)), left, key=lambda row: ends[row] + (row + 1) * row_bytes)
            return count + fit, payload + (ends[fit - 1] if fit else 0)
        count += len(lengths)
        payload += size
    return count, payload


def _lengths(column: Sequence[bytes | None]) -> list[int]:
    try:
        return list(map(len, column))  # type: ignore[arg-type]
    except TypeError:
        return [0 if entry is None else len(entry) for entry in column]
