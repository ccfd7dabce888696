"""The journal's byte format: records with two checksums, and the queries that recovery makes of them.

A journal file is a sequence of records. Each begins with a fixed head:

    u32 magic | u8 kind | 3 zero bytes | u32 payload length | u64 sequence | u64 synced | u32 payload CRC | u32 head CRC

All numbers are big-endian, and both checksums are CRC-32C. The head has a checksum of its own, so that a corrupt
length is not trusted. `sequence` counts the records of the file from 0, which exposes missing and duplicate records.
`synced` is how many bytes of this file were known durable when the record was written: a valid record proves that
everything before its `synced` was fsynced once and must be present now.
"""

from __future__ import annotations

import enum
import struct
from typing import Annotated

import msgspec
from crc32c import crc32c

from raftlog.errors import InvariantViolation
from raftlog.ports import Buffer

FORMAT_VERSION = 3
READABLE_VERSIONS = (1, 2, 3)
"""Version 1 had no configurations: its voters were fixed. Versions 1 and 2 had no witness."""
WITNESSED_SINCE = 3
MAGIC = 0x8A524C4A
_MAGIC_BYTES = struct.pack(">I", MAGIC)

_HEAD = struct.Struct(">IB3xIQQI")
_CHECKSUM = struct.Struct(">I")
HEAD_BYTES = _HEAD.size + _CHECKSUM.size

MAX_PAYLOAD_BYTES = 8 * 1024 * 1024
"""The largest payload, in bytes. It is above the largest command: a longer length is damage."""

UNWRITTEN = bytes(16)
"""A run of zero bytes as left by a write that never arrived. No valid record that can be torn contains one.

No head and no entry has a run this long, and the first record of a file, which might have one, is always fsynced.
"""

_ENTRY = struct.Struct(">QQ")
_STATE = struct.Struct(">Qq")
_INDEX = struct.Struct(">Q")

NO_VOTE = -1


class Kind(enum.IntEnum):
    """The kinds of records."""

    HEADER = 0
    """The first record of every file: the journal's owner, the base of its log, and the hard state."""
    ENTRY = 1
    """The next entry of the log."""
    TRUNCATE = 2
    """The removal of the entries from an index on."""
    STATE = 3
    """A new term and vote."""
    MARK = 4
    """A record without payload: its `synced` says that everything before it is durable. It ends a file's first
    content."""


_LAST_KIND = max(Kind)


class Header(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """The payload of a HEADER. The log begins *after* `base_index`, whose entry had `base_term`."""

    version: Annotated[int, msgspec.Meta(ge=0, le=2**31)]
    cluster_id: Annotated[str, msgspec.Meta(max_length=64)]
    node_id: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
    directory_id: Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
    voters: tuple[int, ...]
    base_index: Annotated[int, msgspec.Meta(ge=1)]
    base_term: Annotated[int, msgspec.Meta(ge=0)]
    term: Annotated[int, msgspec.Meta(ge=0)]
    vote: Annotated[int, msgspec.Meta(ge=NO_VOTE)]
    configuration: bytes = b""
    """The encoded configuration in effect at `base_index`. If empty, it is `voters`, the initial ones."""


class Record(msgspec.Struct, frozen=True):
    """A complete, valid record found at byte `position`."""

    position: int
    end: int
    kind: Kind
    sequence: int
    synced: int
    payload: bytes


_header_encoder = msgspec.msgpack.Encoder()
_header_decoder = msgspec.msgpack.Decoder(Header)


def encode(kind: Kind, payload: Buffer, *, sequence: int, synced: int) -> list[Buffer]:
    """Encode one record as buffers to be written one after the other."""
    length = memoryview(payload).nbytes
    if length > MAX_PAYLOAD_BYTES:
        raise InvariantViolation(f"a journal record of {length} bytes is larger than {MAX_PAYLOAD_BYTES}")
    head = _HEAD.pack(MAGIC, kind, length, sequence, synced, crc32c(bytes(payload)))
    return [head + _CHECKSUM.pack(crc32c(head)), payload]


def decode(content: bytes, position: int) -> Record | None:
    """Return the record at `position`, or None if there is no complete, valid one."""
    start = position + HEAD_BYTES
    if start > len(content):
        return None
    head = content[position : position + _HEAD.size]
    magic, kind, length, sequence, synced, payload_crc = _HEAD.unpack(head)
    (head_crc,) = _CHECKSUM.unpack_from(content, position + _HEAD.size)
    if magic != MAGIC or crc32c(head) != head_crc or length > MAX_PAYLOAD_BYTES or kind > _LAST_KIND:
        return None
    if start + length > len(content):
        return None
    payload = content[start : start + length]
    if crc32c(payload) != payload_crc:
        return None
    return Record(position, start + length, Kind(kind), sequence, synced, payload)


def claimed_end(content: bytes, position: int) -> int | None:
    """Return the end that a valid head at `position` claims for its record, or None if the head is invalid."""
    if position + HEAD_BYTES > len(content):
        return None
    head = content[position : position + _HEAD.size]
    magic, _, length, _, _, _ = _HEAD.unpack(head)
    (head_crc,) = _CHECKSUM.unpack_from(content, position + _HEAD.size)
    return position + HEAD_BYTES + length if magic == MAGIC and crc32c(head) == head_crc else None


def witness_after(content: bytes, position: int) -> Record | None:
    """Return a valid record beyond `position` which proves that the byte at `position` was durable, or None."""
    at = content.find(_MAGIC_BYTES, position + 1)
    while at >= 0:
        record = decode(content, at)
        if record is not None and record.synced > position:
            return record
        at = content.find(_MAGIC_BYTES, at + 1)
    return None


def encode_header(header: Header) -> bytes:
    """Encode the payload of a HEADER."""
    return _header_encoder.encode(header)


def decode_header(payload: bytes) -> Header:
    """Decode a HEADER. Raises `InvariantViolation`: since the record's checksum was right, another version wrote it."""
    try:
        header = _header_decoder.decode(payload)
    except (msgspec.MsgspecError, ValueError) as error:
        raise InvariantViolation(f"the quorum's journal begins with a header that cannot be read: {error}") from None
    if header.version not in READABLE_VERSIONS:
        raise InvariantViolation(
            f"the quorum's journal has format {header.version}, this raftlog knows {FORMAT_VERSION}"
        )
    return header


def encode_entry(index: int, term: int, command: bytes) -> bytes:
    """Encode the payload of an ENTRY."""
    return _ENTRY.pack(index, term) + command


def decode_entry(payload: bytes) -> tuple[int, int, bytes]:
    """Decode an ENTRY into (index, term, command)."""
    index, term = _ENTRY.unpack_from(payload)
    return index, term, payload[_ENTRY.size :]


def encode_state(term: int, vote: int) -> bytes:
    """Encode the payload of a STATE."""
    return _STATE.pack(term, vote)


def decode_state(payload: bytes) -> tuple[int, int]:
    """Decode a STATE into (term, vote)."""
    term, vote = _STATE.unpack(payload)
    return term, vote


def encode_index(index: int) -> bytes:
    """Encode the payload of a TRUNCATE."""
    return _INDEX.pack(index)


def decode_index(payload: bytes) -> int:
    (index,) = _INDEX.unpack(payload)
    return int(index)
