"""The journal's bytes: records with two checksums, and the questions recovery asks of them.

A journal file is a row of records. Each begins with a fixed head:

    u32 magic | u8 kind | 3 zero bytes | u32 payload length | u64 sequence | u64 synced | u32 payload CRC | u32 head CRC

all big-endian, both checksums CRC-32C. The head has a checksum of its own, so that a rotten length is not believed.
`sequence` counts the records of the file from 0: a record that is missing or came twice is seen. `synced` is how many
bytes of this file were known durable when the record was written: a valid record is the witness that everything
before its `synced` was once fsynced, and must be there now.
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass
from typing import Annotated

import msgspec
from crc32c import crc32c

from raftlog.errors import InvariantViolation
from raftlog.ports import Buffer

FORMAT_VERSION = 3
READABLE_VERSIONS = (1, 2, 3)
"""1 knew no configurations: its voters were fixed. 1 and 2 had no witness beside them."""
WITNESSED_SINCE = 3
MAGIC = 0x8A524C4A
_MAGIC_BYTES = struct.pack(">I", MAGIC)

_HEAD = struct.Struct(">IB3xIQQI")
_CHECKSUM = struct.Struct(">I")
HEAD_BYTES = _HEAD.size + _CHECKSUM.size

MAX_PAYLOAD_BYTES = 8 * 1024 * 1024
"""Above the largest command: a longer length is damage."""

UNWRITTEN = bytes(16)
"""So many zero bytes in a row are found where a write never arrived, and not in a record of ours: no head and no
entry has a run as long, and the first record of a file, which might, is always synced."""

_ENTRY = struct.Struct(">QQ")
_STATE = struct.Struct(">Qq")
_INDEX = struct.Struct(">Q")

NO_VOTE = -1


class Kind(enum.IntEnum):
    """What a record says."""

    HEADER = 0
    """First in every file: whose journal this is, where its log begins, the hard state."""
    ENTRY = 1
    """The log's next entry."""
    TRUNCATE = 2
    """Entries from this index on are no more."""
    STATE = 3
    """Term and vote."""
    MARK = 4
    """Nothing but its `synced`: what came before is durable. Ends what a file begins with."""


_LAST_KIND = max(Kind)


class Header(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """Payload of a HEADER. The log begins *after* `base_index`, whose entry had `base_term`."""

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
    """In effect at `base_index`; empty: `voters`, the initial ones."""


@dataclass(frozen=True, slots=True)
class Record:
    """A whole, valid record found at `position`."""

    position: int
    end: int
    kind: Kind
    sequence: int
    synced: int
    payload: bytes


_header_encoder = msgspec.msgpack.Encoder()
_header_decoder = msgspec.msgpack.Decoder(Header)


def encode(kind: Kind, payload: Buffer, *, sequence: int, synced: int) -> list[Buffer]:
    """One record, as buffers to be written one after the other."""
    length = memoryview(payload).nbytes
    if length > MAX_PAYLOAD_BYTES:
        raise InvariantViolation(f"a journal record of {length} bytes is larger than {MAX_PAYLOAD_BYTES}")
    head = _HEAD.pack(MAGIC, kind, length, sequence, synced, crc32c(bytes(payload)))
    return [head + _CHECKSUM.pack(crc32c(head)), payload]


def decode(content: bytes, position: int) -> Record | None:
    """The record at `position`, or None if there is no whole, valid one."""
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
    """Where the record at `position` would end, if its head is valid."""
    if position + HEAD_BYTES > len(content):
        return None
    head = content[position : position + _HEAD.size]
    magic, _, length, _, _, _ = _HEAD.unpack(head)
    (head_crc,) = _CHECKSUM.unpack_from(content, position + _HEAD.size)
    return position + HEAD_BYTES + length if magic == MAGIC and crc32c(head) == head_crc else None


def witness_after(content: bytes, position: int) -> Record | None:
    """A valid record beyond `position` that says that the byte at `position` was durable before it was written."""
    at = content.find(_MAGIC_BYTES, position + 1)
    while at >= 0:
        record = decode(content, at)
        if record is not None and record.synced > position:
            return record
        at = content.find(_MAGIC_BYTES, at + 1)
    return None


def encode_header(header: Header) -> bytes:
    """Payload of a HEADER record."""
    return _header_encoder.encode(header)


def decode_header(payload: bytes) -> Header:
    """Raises `InvariantViolation`: the record's checksum was right, so another version wrote it."""
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
    """Payload of an ENTRY."""
    return _ENTRY.pack(index, term) + command


def decode_entry(payload: bytes) -> tuple[int, int, bytes]:
    """(index, term, command)."""
    index, term = _ENTRY.unpack_from(payload)
    return index, term, payload[_ENTRY.size :]


def encode_state(term: int, vote: int) -> bytes:
    """Payload of a STATE."""
    return _STATE.pack(term, vote)


def decode_state(payload: bytes) -> tuple[int, int]:
    """(term, vote)."""
    term, vote = _STATE.unpack(payload)
    return term, vote


def encode_index(index: int) -> bytes:
    """Payload of a TRUNCATE."""
    return _INDEX.pack(index)


def decode_index(payload: bytes) -> int:
    (index,) = _INDEX.unpack(payload)
    return int(index)
