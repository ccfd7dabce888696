"""Record batches: what a producer packs, every broker carries as the same bytes, and a reader unpacks.

A batch is a 61-byte header (`record_header`: Kafka's, field for field) and a payload (`columns`: Arrow's columns in a
msgpack array), compressed as one block (`compression`). `docs/record-batch.md` specifies it for other languages.

Brokers work per batch, never per record: the leader calls `validate` once, then `stamp`; followers `check_crc`; the
log reads headers. Records come into being at the edges: `encode` and `RecordBatch` here.

What is *not* here: anything about a partition: which offset is next, whose sequence it is, how far ahead a clock is.
"""

from __future__ import annotations

import enum
from array import array
from collections.abc import Sequence
from typing import Any

import msgspec

from . import columns
from .columns import Columns, Header
from .compression import compress, decompress
from .config import MAX_BATCH_DECOMPRESSED_BYTES
from .errors import CorruptBatch, InvalidRequest
from .ports import Buffer
from .record_header import (
    HEADER_BYTES,
    LENGTH_OVERHEAD,
    MAGIC,
    BatchHeader,
    Codec,
    attributes_of,
    check_crc,
    parse_header,
    payload_crc,
    split_batches,
    stamp,
)

__all__ = [
    "HEADER_BYTES",
    "LENGTH_OVERHEAD",
    "MAGIC",
    "BatchHeader",
    "Codec",
    "Header",
    "Record",
    "RecordBatch",
    "check_crc",
    "encode",
    "encode_control",
    "parse_header",
    "split_batches",
    "stamp",
    "validate",
]


class Record(msgspec.Struct, frozen=True, gc=False):
    """One record. `timestamp_ms`: milliseconds since 1970; a `None` value is a tombstone."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: list[Header]


def encode(
    values: Sequence[bytes | None],
    *,
    keys: Sequence[bytes | None] | None = None,
    timestamps_ms: Sequence[int] | None = None,
    headers: Sequence[Sequence[tuple[str | bytes, bytes | None]] | None] | None = None,
    codec: Codec = Codec.NONE,
    base_timestamp_ms: int,
    base_offset: int = 0,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
) -> bytes:
    """One batch of these records. Without `timestamps_ms` every record has `base_timestamp_ms`."""
    count = len(values)
    if count == 0:
        raise InvalidRequest("invalid_request", "a batch has at least one record")
    for name, column in (("keys", keys), ("timestamps_ms", timestamps_ms), ("headers", headers)):
        if column is not None and len(column) != count:
            raise InvalidRequest("invalid_request", f"{len(column)} {name} for {count} values")
    base_timestamp, max_timestamp, deltas = _timestamps(timestamps_ms, base_timestamp_ms)
    pieces = columns.pack_columns(
        deltas,
        None if keys is None else columns.pack_binary(keys),
        columns.pack_binary(values),
        None if headers is None else columns.pack_headers(headers),
    )
    if codec is not Codec.NONE:
        pieces = [compress(codec, b"".join(pieces))]
    length = sum(memoryview(piece).nbytes for piece in pieces)
    header = BatchHeader(
        base_offset=base_offset,
        batch_length=HEADER_BYTES - LENGTH_OVERHEAD + length,
        leader_epoch=-1,
        magic=MAGIC,
        crc=0,
        attributes=attributes_of(codec, transactional=transactional),
        last_offset_delta=count - 1,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        record_count=count,
    )
    header.crc = payload_crc(header, pieces)
    return b"".join([header.pack(), *pieces])


class ControlKind(enum.IntEnum):
    """What a control batch says."""

    ABORT = 0
    COMMIT = 1


class ControlEntry(msgspec.Struct, array_like=True, frozen=True):
    """Up to which offset (named, exclusive) a producer's records are meant."""

    producer_id: int
    producer_epoch: int
    end_offset: int


class Control(msgspec.Struct, array_like=True, frozen=True):
    """A control batch's payload."""

    version: int
    kind: int
    entries: list[ControlEntry]


_CONTROL_VERSION = 1


def encode_control(
    kind: int,
    entries: Sequence[tuple[int, int, int]],
    *,
    base_timestamp_ms: int,
    base_offset: int = 0,
    transactional: bool = True,
) -> bytes:
    """One control batch: (producer id, producer epoch, named offset) each. It takes one offset of the log."""
    payload: Buffer = msgspec.msgpack.encode(
        Control(_CONTROL_VERSION, kind, [ControlEntry(*entry) for entry in entries])
    )
    header = BatchHeader(
        base_offset=base_offset,
        batch_length=HEADER_BYTES - LENGTH_OVERHEAD + len(payload),
        leader_epoch=-1,
        magic=MAGIC,
        crc=0,
        attributes=attributes_of(Codec.NONE, transactional=transactional, control=True),
        last_offset_delta=0,
        base_timestamp=base_timestamp_ms,
        max_timestamp=base_timestamp_ms,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        record_count=1,
    )
    header.crc = payload_crc(header, [payload])
    return b"".join([header.pack(), payload])


def _timestamps(timestamps: Sequence[int] | None, base: int) -> tuple[int, int, Buffer | None]:
    if timestamps is None:
        return base, base, None
    base = timestamps[0]
    greatest = max(timestamps)
    if min(timestamps) == greatest:
        return base, base, None
    return base, greatest, memoryview(array("q", [timestamp - base for timestamp in timestamps]))


def validate(
    batch: Buffer, *, max_batch_bytes: int, max_decompressed_bytes: int = MAX_BATCH_DECOMPRESSED_BYTES
) -> BatchHeader:
    """The leader's check of a producer's batch, once."""
    view = memoryview(batch).cast("B")
    if view.nbytes > max_batch_bytes:
        raise InvalidRequest("batch_too_large", f"the batch has {view.nbytes} bytes, the topic takes {max_batch_bytes}")
    check_crc(view)
    decoded = RecordBatch(view, max_decompressed_bytes=max_decompressed_bytes)
    decoded.records()
    return decoded.header


class RecordBatch:
    """A batch to read from. Raises `CorruptBatch`, when it is made or when a column is read, and nothing else."""

    __slots__ = ("_columns", "header")

    def __init__(self, batch: Buffer, *, max_decompressed_bytes: int = MAX_BATCH_DECOMPRESSED_BYTES) -> None:
        view = memoryview(batch).cast("B")
        self.header = parse_header(view)
        if self.header.total_bytes != view.nbytes:
            raise CorruptBatch(f"batch_length says {self.header.total_bytes} bytes in all, here are {view.nbytes}")
        payload = decompress(self.header.codec, view[HEADER_BYTES:], max_decompressed_bytes)
        self._columns: Columns = columns.split_payload(payload)

    def values(self) -> list[bytes | None]:
        return columns.read_binary(self._columns.values, self.header.record_count, "values")

    def keys(self) -> list[bytes | None]:
        if self._columns.keys is None:
            return [None] * len(self.values())
        return columns.read_binary(self._columns.keys, self.header.record_count, "keys")

    def timestamps_ms(self) -> list[int]:
        count = self.header.record_count
        if self.header.log_append_time:
            return [self.header.max_timestamp] * count
        if self._columns.timestamp_deltas is None:
            return [self.header.base_timestamp] * count
        deltas = columns.read_integers(self._columns.timestamp_deltas, "q", count, "timestamp deltas")
        return list(map(self.header.base_timestamp.__add__, deltas))

    def offsets(self) -> Sequence[int]:
        count = self.header.record_count
        if self._columns.offset_deltas is None:
            return range(self.header.base_offset, self.header.base_offset + count)
        deltas = columns.read_integers(self._columns.offset_deltas, "i", count, "offset deltas")
        return list(map(self.header.base_offset.__add__, deltas))

    def headers(self) -> list[list[Header]]:
        if self._columns.headers is None:
            return [[] for _ in self.values()]
        return columns.read_headers(self._columns.headers, self.header.record_count)

    def records(self) -> list[Record]:
        values = self.values()
        return list(map(Record, self.offsets(), self.timestamps_ms(), self.keys(), values, self.headers()))

    def to_arrow(self) -> Any:
        raise NotImplementedError
