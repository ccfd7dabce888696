"""Record batches: packed by producers, carried unchanged by every broker, unpacked by readers.

A batch is a 61-byte header (`header`: Kafka's, field for field) and a payload (`columns`: Arrow's columns in a msgpack
array), compressed as one block (`compression`). `docs/record-batch.md` specifies it for other languages.

Brokers work per batch, never per record. The leader calls `validate` once and then `stamp`; followers call `check_crc`;
the log reads headers. Records exist only at the edges, in `encode` and `RecordBatch`, which use one of two twins:
`columns` for small batches, `arrow` from `ARROW_FROM` records on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from raftlog.config import MAX_BATCH_DECOMPRESSED_BYTES
from raftlog.errors import CorruptBatch, InvalidRequest
from raftlog.ports import Buffer

from . import columns
from .columns import NO_TIMESTAMP, Columns, Header, HeadersIn, Twin
from .compression import compress, decompress
from .control import Control, ControlKind, decode_control, encode_control
from .header import (
    HEADER_BYTES,
    LENGTH_OVERHEAD,
    MAGIC,
    BatchHeader,
    Codec,
    attributes_of,
    check_crc,
    parse_header,
    parse_whole,
    seal,
    split_batches,
    stamp,
)

if TYPE_CHECKING:
    import pyarrow

__all__ = [
    "HEADER_BYTES",
    "LENGTH_OVERHEAD",
    "MAGIC",
    "BatchHeader",
    "Codec",
    "Control",
    "ControlKind",
    "Header",
    "Record",
    "RecordBatch",
    "check_crc",
    "encode",
    "encode_control",
    "load_arrow",
    "parse_header",
    "split_batches",
    "stamp",
    "validate",
]

ARROW_FROM = 200
"""Number of records from which pyarrow is the faster twin."""

BytesColumn: TypeAlias = "Sequence[bytes | None] | pyarrow.Array | pyarrow.ChunkedArray"
IntegerColumn: TypeAlias = "Sequence[int] | pyarrow.Array | pyarrow.ChunkedArray"


def load_arrow() -> Twin:
    """Import pyarrow (0.15 s, 44 MB) now instead of at the first large batch, for processes that must not stall."""
    from . import arrow as record_arrow

    return record_arrow


def _twin(count: int) -> Twin:
    return columns if count < ARROW_FROM else load_arrow()


def _is_arrow(column: object) -> bool:
    """Return whether a column is Arrow's, judged by its class's module, so that pyarrow is not imported."""
    return type(column).__module__.startswith("pyarrow")


class Record(msgspec.Struct, frozen=True, gc=False):
    """One record. `timestamp_ms` is milliseconds since 1970, -1 for none; a value of None is a tombstone."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]


# --- Writing ---------------------------------------------------------------------------------------------------------


def encode(
    values: BytesColumn,
    *,
    keys: BytesColumn | None = None,
    timestamps_ms: IntegerColumn | None = None,
    headers: HeadersIn | None = None,
    codec: Codec = Codec.NONE,
    base_timestamp_ms: int,
    base_offset: int = 0,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
) -> bytes:
    """Return one batch of these records. Each column has one entry per record; values and keys may be Arrow's.

    Without `timestamps_ms` every record has `base_timestamp_ms`; with them `base_timestamp_ms` is ignored, and the base
    is the first record's timestamp. A value or key of None is null; text is encoded as UTF-8. The same arguments give
    the same bytes.

    Raises `InvalidRequest` for columns of unequal length, no records or an invalid timestamp, and `TypeError` for
    entries of another type. The size is not checked here, because the limit is the topic's.
    """
    count = len(values)
    if not count:
        raise InvalidRequest("invalid_request", "a batch needs at least one record")
    for name, column in (("keys", keys), ("timestamps", timestamps_ms), ("headers", headers)):
        if column is not None and len(column) != count:
            raise InvalidRequest("invalid_request", f"{len(column)} {name} for {count} values")
    arrow = _is_arrow(values) or _is_arrow(keys) or _is_arrow(timestamps_ms)
    twin = load_arrow() if arrow else _twin(count)
    base = least = greatest = base_timestamp_ms
    deltas = None
    if timestamps_ms is not None:
        base, least, greatest, deltas = twin.pack_timestamps(timestamps_ms)
    if least < NO_TIMESTAMP or greatest > columns.MAX_TIMESTAMP:
        raise columns.timestamp_refused()
    payload = columns.join_payload(
        deltas,
        None if keys is None else twin.pack_binary(keys, nil_if_all_null=True),
        twin.pack_binary(values),
        None if headers is None else twin.pack_headers(headers),
    )
    if codec != Codec.NONE:
        payload = [compress(Codec(codec), b"".join(payload))]
    header = BatchHeader(
        base_offset=base_offset,
        batch_length=0,
        leader_epoch=-1,
        magic=MAGIC,
        crc=0,
        attributes=attributes_of(codec, transactional=transactional),
        last_offset_delta=count - 1,
        base_timestamp=base,
        max_timestamp=greatest,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        record_count=count,
    )
    return seal(header, payload)


# --- The leader's check ----------------------------------------------------------------------------------------------


def validate(
    batch: Buffer, *, max_batch_bytes: int, max_decompressed_bytes: int = MAX_BATCH_DECOMPRESSED_BYTES
) -> BatchHeader:
    """Check everything about a producer's batch that does not depend on the partition's state, once per batch.

    The batch must be whole, with the right CRC. Every column must have `record_count` valid entries, offsets must be
    dense (S2: a producer leaves no holes), and base and max timestamp must be the first and the greatest. The producer
    fields must be consistent, and no field may have a value that only brokers write.

    Raises `InvalidRequest` (`batch_too_large`) and, for everything else, `CorruptBatch`. Allocates at most
    `max_decompressed_bytes`, and a small multiple of the size of the columns' integers.
    """
    view = memoryview(batch).cast("B")
    if view.nbytes > max_batch_bytes:
        detail = f"the batch has {view.nbytes} bytes, but max.message.bytes is {max_batch_bytes}"
        raise InvalidRequest("batch_too_large", detail)
    wrong = _not_a_producers(check_crc(view))
    if wrong:
        raise CorruptBatch(f"a producer's batch {wrong}")
    decoded = RecordBatch(view, crc_checked=True, max_decompressed_bytes=max_decompressed_bytes)
    decoded.check()
    return decoded.header


def _not_a_producers(header: BatchHeader) -> str:
    """Return what is wrong with a producer's header, such as a value that only a broker writes; empty if nothing is."""
    if header.is_control:
        return "must not be a control batch"
    if header.log_append_time or header.has_delete_horizon:
        return "must not set the log append time or delete horizon attribute"
    if not header.record_count:
        return "must have at least one record"
    if header.record_count != header.last_offset_delta + 1:
        return f"must be dense: {header.record_count} records cannot end at offset delta {header.last_offset_delta}"
    if header.producer_id >= 0:
        if header.producer_epoch < 0 or header.base_sequence < 0:
            return "with a producer id must have an epoch and a sequence"
    elif header.producer_epoch != -1 or header.base_sequence != -1 or header.is_transactional:
        return "without a producer id must not have an epoch, a sequence or a transaction"
    return ""


# --- Reading ---------------------------------------------------------------------------------------------------------


class RecordBatch:
    """A whole batch from which columns and records are read. The columns are views of `batch`, which must not change.

    The constructor and the reading methods raise `CorruptBatch` and nothing else. Each call decodes again. A control
    batch has no records, only `control`.
    """

    __slots__ = ("_columns", "_count", "control", "header")

    def __init__(
        self,
        batch: Buffer,
        *,
        crc_checked: bool = False,
        max_decompressed_bytes: int = MAX_BATCH_DECOMPRESSED_BYTES,
    ) -> None:
        view = memoryview(batch).cast("B")
        self.header = parse_whole(view) if crc_checked else check_crc(view)
        payload = view[HEADER_BYTES:]
        self._count = self.header.record_count
        self._columns: Columns | None = None
        self.control: Control | None = None
        if self.header.is_control:
            self.control = decode_control(self.header, payload)
            return
        self._columns = columns.split_payload(decompress(self.header.codec, payload, max_decompressed_bytes))
        # From here on the payload bounds everything that is allocated `record_count` times.
        entries = self._count + 1
        columns.check_length(self._columns.values.offsets, 4 * entries, entries, "the offsets of values")

    @property
    def columns(self) -> Columns | None:
        """The unpacked and still unchecked payload; None for a control batch."""
        return self._columns

    @property
    def payload_bytes(self) -> int:
        """Bytes of keys, values and headers together, without decoding them."""
        found = self._columns
        if found is None:
            return 0
        columns = [found.values]
        if found.keys is not None:
            columns.append(found.keys)
        if found.headers is not None:
            columns += [found.headers.keys, found.headers.values]
        return sum(column.data.nbytes for column in columns)

    def values(self) -> list[bytes | None]:
        """Return the records' values."""
        if self._columns is None:
            return []
        return _twin(self._count).read_binary(self._columns.values, self._count, "values")

    def keys(self) -> list[bytes | None]:
        """Return the records' keys."""
        if self._columns is None:
            return []
        if self._columns.keys is None:
            return [None] * self._count
        return _twin(self._count).read_binary(self._columns.keys, self._count, "keys")

    def timestamps_ms(self) -> list[int]:
        """Return the records' timestamps in milliseconds since 1970."""
        if self._columns is None:
            return []
        if self.header.log_append_time:
            return [self.header.max_timestamp] * self._count
        if self._columns.timestamp_deltas is None:
            return [self.header.base_timestamp] * self._count
        base = self.header.base_timestamp
        return _twin(self._count).read_timestamps(self._columns.timestamp_deltas, base, self._count)

    def offsets(self) -> Sequence[int]:
        """Return the records' offsets."""
        if self._columns is None:
            return []
        base, last_delta = self.header.base_offset, self.header.last_offset_delta
        if self._columns.offset_deltas is None:
            return range(base, base + self._count)
        return _twin(self._count).read_offsets(self._columns.offset_deltas, base, self._count, last_delta)

    def headers(self) -> list[tuple[Header, ...]]:
        """Return the records' headers."""
        if self._columns is None:
            return []
        if self._columns.headers is None:
            return [()] * self._count
        return _twin(self._count).read_headers(self._columns.headers, self._count)

    def records(self) -> list[Record]:
        """Return the records as objects."""
        return list(map(Record, self.offsets(), self.timestamps_ms(), self.keys(), self.values(), self.headers()))

    def to_arrow(self) -> pyarrow.RecordBatch:
        """Return offset, timestamp, key, value and headers (`arrow.SCHEMA`), which share this batch's memory."""
        from . import arrow as record_arrow

        if self._columns is None:
            return record_arrow.no_records()
        return record_arrow.to_arrow(self.header, self._columns)

    def check(self) -> None:
        """Check that every column is valid and matches the header. Raises `CorruptBatch`."""
        if self._columns is None:
            return
        header, count, found, twin = self.header, self._count, self._columns, _twin(self._count)
        twin.check_binary(found.values, count, "values")
        if found.keys is not None:
            twin.check_binary(found.keys, count, "keys")
        if found.headers is not None:
            # A record may have any number of headers. A few bytes of a decompression bomb hold millions, for which only
            # Arrow is compact enough.
            _twin(max(count, found.headers.entries)).check_headers(found.headers, count)
        if found.offset_deltas is not None:
            twin.check_offsets(found.offset_deltas, header.base_offset, count, header.last_offset_delta)
        if not count:
            self.timestamps_ms()
            return
        first = greatest = header.base_timestamp
        if found.timestamp_deltas is not None:
            first, greatest = twin.check_timestamps(found.timestamp_deltas, header.base_timestamp, count)
        if header.log_append_time or header.has_delete_horizon:
            return
        if (first, greatest) != (header.base_timestamp, header.max_timestamp):
            said = f"base {header.base_timestamp} and max {header.max_timestamp}"
            raise CorruptBatch(f"timestamps begin with {first} and reach {greatest}, the header says {said}")
