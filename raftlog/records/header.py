"""The 61-byte header of every record batch, and the operations on a batch that need only its header.

The layout is Kafka's record batch v2 header, field for field, big-endian (KIP-98):

    position  field              CRC    position  field              CRC
    0         base_offset        no     27        base_timestamp     yes
    8         batch_length       no     35        max_timestamp      yes
    12        leader_epoch       no     43        producer_id        yes
    16        magic              no     51        producer_epoch     yes
    17        crc                -      53        base_sequence      yes
    21        attributes         yes    57        record_count       yes
    23        last_offset_delta  yes    61        the payload        yes

`batch_length` counts what follows it: a batch has `batch_length + 12` bytes. The CRC-32C begins at `attributes`, so a
leader stamps base offset and leader epoch without computing it again. The fields that the CRC does not cover are
checked against other state: the log checks them against neighbouring batches and the leader-epoch history.

A broker needs only this module to handle batches, apart from the leader's one full check (`batch.validate`).
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator, Sequence
from operator import attrgetter

import msgspec
from crc32c import crc32c

from raftlog.errors import CorruptBatch, InvalidRequest
from raftlog.ports import Buffer

HEADER_BYTES = 61
LENGTH_OVERHEAD = 12
"""Bytes of a batch that its `batch_length` does not count: the base offset and the length itself."""
MAGIC = 82
"""The format of the payload: Arrow columns in a msgpack array. Kafka's rows would be 2; any other value is corruption.
"""

_HEADER = struct.Struct(">qiibIhiqqqhii")
_STAMP = struct.Struct(">qii")
_LENGTH = struct.Struct(">i")
_LENGTH_POSITION = 8
_CRC_START = 21
_CODEC_POSITION = 22
"""Position of the lower byte of the attributes."""
_MAX_OFFSET = 2**63 - 1
_MAX_LENGTH = 2**31 - 1
_JOIN_FIRST = 16 * 1024
"""Payload size in bytes below which copying it once more costs less than a CRC call for each of its pieces."""

_CODEC_BITS = 0x07
_LOG_APPEND_TIME = 0x08
_TRANSACTIONAL = 0x10
_CONTROL = 0x20
_DELETE_HORIZON = 0x40
_KNOWN_ATTRIBUTES = _CODEC_BITS | _LOG_APPEND_TIME | _TRANSACTIONAL | _CONTROL | _DELETE_HORIZON


class Codec(enum.IntEnum):
    """Compression of the payload: the lowest three bits of the attributes, with Kafka's numbers."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


_CODECS = tuple(Codec)


class BatchHeader(msgspec.Struct):
    """The header of a record batch, with Kafka's names. Lengths are in bytes, timestamps in milliseconds since 1970.

    Invariant (if `parse_header` returned it): every field is in the range that the format allows.
    """

    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def total_bytes(self) -> int:
        """Size of the whole batch, including the header."""
        return self.batch_length + LENGTH_OVERHEAD

    @property
    def last_offset(self) -> int:
        """Offset of the last record."""
        return self.base_offset + self.last_offset_delta

    @property
    def end_offset(self) -> int:
        """The offset after the last record, at which the next batch begins."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> Codec:
        return _CODECS[self.attributes & _CODEC_BITS]

    @property
    def log_append_time(self) -> bool:
        """Whether every record's timestamp is `max_timestamp`, the leader's clock at the append."""
        return bool(self.attributes & _LOG_APPEND_TIME)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & _TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        """Whether the payload is for brokers and readers of transactions, and holds no user's records."""
        return bool(self.attributes & _CONTROL)

    @property
    def has_delete_horizon(self) -> bool:
        """Whether `base_timestamp` is the time from which tombstones may be removed (KIP-534), set by compaction."""
        return bool(self.attributes & _DELETE_HORIZON)

    def pack(self) -> bytes:
        """Return the 61 bytes."""
        return _HEADER.pack(*_fields_of(self))


_fields_of = attrgetter(*BatchHeader.__struct_fields__)


def attributes_of(codec: Codec, *, transactional: bool = False, control: bool = False) -> int:
    """Return the attribute bits of a producer's batch."""
    return codec | (_TRANSACTIONAL if transactional else 0) | (_CONTROL if control else 0)


def is_compressed(batch: Buffer) -> bool:
    """Return whether the attributes of this unchecked batch name a codec. False for a truncated batch."""
    view = memoryview(batch)
    return view.nbytes >= HEADER_BYTES and bool(view[_CODEC_POSITION] & _CODEC_BITS)


def parse_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """Parse the header at `position`; the rest of the batch need not be present.

    Raises `CorruptBatch` if the header is cut, has another magic or a field out of range. The CRC is not checked.
    """
    try:
        fields = _HEADER.unpack_from(buffer, position)
    except struct.error:
        there = max(0, memoryview(buffer).nbytes - position)
        raise CorruptBatch(f"a batch header has {HEADER_BYTES} bytes, but the buffer holds only {there}") from None
    # Local variables, because reading attributes of an object would double the time of this function.
    base, length, epoch, magic, _, attributes, last_delta, base_time, max_time, producer, life, first, count = fields
    if (
        magic == MAGIC
        and length >= HEADER_BYTES - LENGTH_OVERHEAD
        and 0 <= base <= _MAX_OFFSET - last_delta
        and last_delta >= 0
        and 0 <= count <= last_delta + 1
        and epoch >= -1
        and base_time >= -1
        and max_time >= -1
        and producer >= -1
        and life >= -1
        and first >= -1
        and attributes & _CODEC_BITS <= Codec.ZSTD
        and not attributes & ~_KNOWN_ATTRIBUTES
    ):
        return BatchHeader(*fields)
    raise CorruptBatch(_what_is_wrong(BatchHeader(*fields)))


def parse_whole(batch: Buffer) -> BatchHeader:
    """Parse the header of exactly one whole batch. Raises `CorruptBatch`. The CRC is not checked."""
    view = memoryview(batch)
    header = parse_header(view)
    if header.total_bytes != view.nbytes:
        raise CorruptBatch(f"batch_length says {header.total_bytes} bytes in all, but the batch has {view.nbytes}")
    return header


def check_crc(batch: Buffer) -> BatchHeader:
    """Check one whole batch against its CRC-32C, and return its header. Raises `CorruptBatch`."""
    view = memoryview(batch).cast("B")
    header = parse_whole(view)
    found = crc32c(view[_CRC_START:])
    if found != header.crc:
        raise CorruptBatch(f"CRC-32C of the batch is {found:#010x}, its header says {header.crc:#010x}")
    return header


def seal(header: BatchHeader, payload: Sequence[Buffer]) -> bytes:
    """Return the whole batch, joined from pieces (of single bytes), with `batch_length` and CRC set in the header.

    Raises `InvalidRequest` (`batch_too_large`) if the batch has 2 GiB or more.
    """
    header.batch_length = HEADER_BYTES - LENGTH_OVERHEAD + sum(map(len, payload))
    if header.batch_length > _MAX_LENGTH:
        raise InvalidRequest("batch_too_large", f"a batch must be smaller than 2 GiB, not {header.batch_length} bytes")
    if header.batch_length < _JOIN_FIRST:
        payload = [b"".join(payload)]
    header.crc = _crc(header, payload)
    return b"".join([header.pack(), *payload])


def _crc(header: BatchHeader, payload: Sequence[Buffer]) -> int:
    """Return the CRC-32C of a batch in pieces: the header from `attributes` on, then the payload."""
    crc: int = crc32c(memoryview(header.pack())[_CRC_START:])
    for piece in payload:
        crc = crc32c(piece, crc)
    return crc


def stamp(batch: Buffer, base_offset: int, leader_epoch: int, log_append_time_ms: int | None = None) -> list[Buffer]:
    """Return the batch as its leader appends it, in pieces that share the batch's memory except for the first one.

    `log_append_time_ms` is given if the topic has `message.timestamp.type=LogAppendTime`; then attributes,
    `max_timestamp` and CRC are rewritten. The batch must have passed `batch.validate`.
    """
    view = memoryview(batch).cast("B")
    if log_append_time_ms is None:
        (batch_length,) = _LENGTH.unpack_from(view, _LENGTH_POSITION)
        return [_STAMP.pack(base_offset, batch_length, leader_epoch), view[_STAMP.size :]]
    header = parse_header(view)
    header.base_offset = base_offset
    header.leader_epoch = leader_epoch
    header.attributes |= _LOG_APPEND_TIME
    header.max_timestamp = log_append_time_ms
    payload = view[HEADER_BYTES:]
    header.crc = _crc(header, [payload])
    return [header.pack(), payload]


def split_batches(buffer: Buffer) -> Iterator[memoryview]:
    """Yield consecutive batches, each as a view. Raises `CorruptBatch` at one that is not whole."""
    view = memoryview(buffer).cast("B")
    position, end = 0, view.nbytes
    while position < end:
        if end - position < HEADER_BYTES:
            raise CorruptBatch(f"{end - position} bytes are left over after the last whole batch")
        (batch_length,) = _LENGTH.unpack_from(view, position + _LENGTH_POSITION)
        total = batch_length + LENGTH_OVERHEAD
        if total < HEADER_BYTES:
            raise CorruptBatch(f"batch_length {batch_length} is too small for a header")
        if total > end - position:
            raise CorruptBatch(f"a batch of {total} bytes is cut: {end - position} bytes are left")
        yield view[position : position + total]
        position += total


def _what_is_wrong(header: BatchHeader) -> str:
    """Return the first field that is out of range, and the reason."""
    checks = (
        ("magic", header.magic, header.magic == MAGIC, f"not {MAGIC}"),
        ("batch_length", header.batch_length, header.batch_length >= HEADER_BYTES - LENGTH_OVERHEAD, "too small"),
        ("last_offset_delta", header.last_offset_delta, header.last_offset_delta >= 0, "negative"),
        ("base_offset", header.base_offset, header.base_offset >= 0, "negative"),
        ("base_offset", header.base_offset, header.last_offset <= _MAX_OFFSET, "too great for the offsets after it"),
        ("record_count", header.record_count, header.record_count >= 0, "negative"),
        (
            "record_count",
            header.record_count,
            header.record_count <= header.last_offset_delta + 1,
            f"more than last_offset_delta {header.last_offset_delta} has offsets for",
        ),
        ("leader_epoch", header.leader_epoch, header.leader_epoch >= -1, "below -1"),
        ("base_timestamp", header.base_timestamp, header.base_timestamp >= -1, "below -1"),
        ("max_timestamp", header.max_timestamp, header.max_timestamp >= -1, "below -1"),
        ("producer_id", header.producer_id, header.producer_id >= -1, "below -1"),
        ("producer_epoch", header.producer_epoch, header.producer_epoch >= -1, "below -1"),
        ("base_sequence", header.base_sequence, header.base_sequence >= -1, "below -1"),
        ("codec", header.attributes & _CODEC_BITS, header.attributes & _CODEC_BITS <= Codec.ZSTD, "not a codec"),
        ("attributes", header.attributes, not header.attributes & ~_KNOWN_ATTRIBUTES, "more bits than are known"),
    )
    return next(f"{name} {value} of the batch is {reason}" for name, value, holds, reason in checks if not holds)
