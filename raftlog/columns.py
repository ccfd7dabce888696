"""The payload of a record batch: columns, as Apache Arrow lays them out, in one msgpack array. The plain twin.

    payload = [offset deltas | nil, timestamp deltas | nil, keys | nil, values, headers | nil]

    offset deltas      bin: int32 each; nil: 0, 1, 2 ...
    timestamp deltas   bin: int64 each, milliseconds from the base timestamp; nil: all 0
    keys, values       binary column = [validity bitmap bin | nil, int32 offsets bin, data bin]; keys nil: all null
    headers            [int32 list offsets bin, keys: binary column, values: binary column]; nil: no record has any

Integers are little-endian, nothing is padded. A binary column of n entries has n + 1 offsets, from 0 to the length of
its data; a bitmap has bit i % 8 of byte i // 8 set where entry i is there, and is nil where all are.

Two twins write these bytes, and read them. This one uses nothing but calls of the standard library that work on whole
columns; importing pyarrow costs 0.15 s and calling it some 20 us a batch, so it also is the faster one for small
batches. The other one, `record_arrow`, is for large batches and for readers who want Arrow.

What is *not* here: the header (`record_header`), compression, offsets and timestamps as such (`record_batch`).
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate, chain, repeat
from operator import getitem, itemgetter
from typing import TypeAlias

import msgspec

from .errors import CorruptBatch, InvalidRequest
from .ports import Buffer

assert sys.byteorder == "little", "raftlog reads columns in place, and they are little-endian"

Header: TypeAlias = tuple[str, bytes | None]
"""Key and value of one header of a record."""

MAX_INT32 = 2**31 - 1


class BinaryColumn(msgspec.Struct, array_like=True, forbid_unknown_fields=True, gc=False):
    """Arrow's buffers of a column of byte strings."""

    validity: memoryview | None
    offsets: memoryview
    data: memoryview


class HeadersColumn(msgspec.Struct, array_like=True, forbid_unknown_fields=True, gc=False):
    """Arrow's buffers of a column of lists of (key, value)."""

    offsets: memoryview
    keys: BinaryColumn
    values: BinaryColumn


class Columns(msgspec.Struct, array_like=True, forbid_unknown_fields=True, gc=False):
    """A payload taken apart: views of its bytes, of which nothing was looked at."""

    offset_deltas: memoryview | None
    timestamp_deltas: memoryview | None
    keys: BinaryColumn | None
    values: BinaryColumn
    headers: HeadersColumn | None


_decoder = msgspec.msgpack.Decoder(Columns)

_NIL = b"\xc0"
_ARRAY_3 = b"\x93"
_ARRAY_5 = b"\x95"

_BITS = [bytes(byte >> bit & 1 for bit in range(8)) for byte in range(256)]
"""A byte of a validity bitmap → its eight flags."""


def split_payload(payload: Buffer) -> Columns:
    """The columns in a payload, none of it copied. Raises `CorruptBatch` where they are not of the form above."""
    try:
        return _decoder.decode(payload)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise CorruptBatch(f"the payload is not an array of columns: {error}") from None


# --- Writing ---------------------------------------------------------------------------------------------------------


def pack_columns(
    timestamp_deltas: Buffer | None,
    keys: list[Buffer] | None,
    values: list[Buffer],
    headers: list[Buffer] | None,
    offset_deltas: Buffer | None = None,
) -> list[Buffer]:
    """The payload in pieces, from columns in pieces."""
    pieces: list[Buffer] = [_ARRAY_5]
    for deltas in (offset_deltas, timestamp_deltas):
        pieces += [_NIL] if deltas is None else [bin_head(memoryview(deltas).nbytes), deltas]
    pieces += [_NIL] if keys is None else keys
    pieces += values
    pieces += [_NIL] if headers is None else headers
    return pieces


def bin_head(length: int) -> bytes:
    """What msgpack puts in front of that many bytes: the shortest form."""
    if length < 1 << 8:
        return struct.pack(">BB", 0xC4, length)
    if length < 1 << 16:
        return struct.pack(">BH", 0xC5, length)
    return struct.pack(">BI", 0xC6, length)


def pack_buffers(validity: Buffer | None, offsets: Buffer, data: Buffer) -> list[Buffer]:
    """A binary column in pieces, from its buffers."""
    pieces: list[Buffer] = [_ARRAY_3]
    if validity is None:
        pieces.append(_NIL)
    else:
        pieces += [bin_head(memoryview(validity).nbytes), validity]
    pieces += [bin_head(memoryview(offsets).nbytes), offsets, bin_head(memoryview(data).nbytes), data]
    return pieces


def pack_binary(entries: Sequence[bytes | None]) -> list[Buffer]:
    """A binary column in pieces. Raises `TypeError` for an entry that is neither bytes nor None."""
    validity: bytes | None = None
    try:
        lengths = list(map(len, entries))  # type: ignore[arg-type]
    except TypeError:
        validity = bitmap([entry is not None for entry in entries])
        entries = [b"" if entry is None else entry for entry in entries]
        lengths = list(map(len, entries))  # type: ignore[arg-type]
    data = b"".join(entries)  # type: ignore[arg-type]
    if len(data) != sum(lengths):
        raise TypeError("keys and values are bytes; a memoryview of wider items is not")
    return pack_buffers(validity, int32_offsets(lengths), data)


def int32_offsets(lengths: Iterable[int]) -> array[int]:
    """Where entries of these lengths begin, and where the last one ends."""
    try:
        return array("i", accumulate(lengths, initial=0))
    except OverflowError:
        raise InvalidRequest("batch_too_large", f"a column holds at most {MAX_INT32} bytes") from None


def bitmap(flags: Sequence[bool]) -> bytes:
    """Flags as Arrow packs them: the first one is the lowest bit of the first byte."""
    digits = "".join(["1" if flag else "0" for flag in reversed(flags)])
    return int(digits or "0", 2).to_bytes((len(flags) + 7) // 8, "little")


def pack_headers(headers: Sequence[Sequence[tuple[str | bytes, bytes | None]] | None]) -> list[Buffer] | None:
    """A column of headers in pieces; None where no record has any."""
    flat = list(chain.from_iterable(filter(None, headers)))
    if not flat:
        return None
    offsets = int32_offsets([len(of_record) if of_record else 0 for of_record in headers])
    keys = [key.encode() if isinstance(key, str) else key for key in map(itemgetter(0), flat)]
    return [
        _ARRAY_3,
        bin_head(memoryview(offsets).nbytes),
        offsets,
        *pack_binary(keys),
        *pack_binary(list(map(itemgetter(1), flat))),
    ]


# --- Reading ---------------------------------------------------------------------------------------------------------


def read_integers(column: Buffer, typecode: str, count: int, name: str) -> list[int]:
    """The integers of a buffer that must hold `count` of them."""
    view = memoryview(column)
    size = struct.calcsize(typecode)
    if view.nbytes != count * size:
        raise CorruptBatch(f"{name}: {view.nbytes} bytes are not {count} integers of {size}")
    return view.cast(typecode).tolist()


def read_offsets(column: Buffer, count: int, data_length: int, name: str) -> list[int]:
    """The offsets of a column of `count` entries, which must rise from 0 to the length of its data."""
    offsets = read_integers(column, "i", count + 1, f"{name} offsets")
    if offsets[0] != 0 or offsets[-1] != data_length or sorted(offsets) != offsets:
        raise CorruptBatch(f"{name}: offsets do not rise from 0 to the {data_length} entries or bytes that they share")
    return offsets


def read_validity(validity: Buffer, count: int, name: str) -> bytes:
    """A bitmap as one byte (1 or 0) an entry."""
    view = memoryview(validity)
    if view.nbytes != (count + 7) // 8:
        raise CorruptBatch(f"{name}: a validity bitmap of {view.nbytes} bytes is not for {count} entries")
    return b"".join(map(_BITS.__getitem__, view))[:count]


def read_binary(column: BinaryColumn, count: int, name: str) -> list[bytes | None]:
    """The entries of a binary column. Raises `CorruptBatch` where it has not exactly `count` sound ones."""
    data = bytes(column.data)
    offsets = read_offsets(column.offsets, count, len(data), name)
    entries = list(map(data.__getitem__, map(slice, offsets, offsets[1:])))
    if column.validity is None:
        return entries  # type: ignore[return-value]
    return apply_validity(entries, read_validity(column.validity, count, name))


def apply_validity(entries: Sequence[bytes], valid: bytes) -> list[bytes | None]:
    """None in place of every entry whose flag is 0."""
    return list(map(getitem, zip(repeat(None), entries), valid))


def read_headers(column: HeadersColumn, count: int) -> list[list[Header]]:
    """The headers of each record. Raises `CorruptBatch` where they are not sound."""
    entries = memoryview(column.keys.offsets).nbytes // 4 - 1
    offsets = read_offsets(column.offsets, count, entries, "headers")
    keys = read_header_keys(read_binary(column.keys, entries, "header keys"))
    pairs = list(zip(keys, read_binary(column.values, entries, "header values"), strict=True))
    return list(map(pairs.__getitem__, map(slice, offsets, offsets[1:])))


def read_header_keys(keys: list[bytes | None]) -> list[str]:
    """Header keys as text: each is there, and UTF-8."""
    if None in keys:
        raise CorruptBatch("a header has no key")
    try:
        return list(map(bytes.decode, keys))  # type: ignore[arg-type]
    except UnicodeDecodeError as error:
        raise CorruptBatch(f"a header's key is not UTF-8: {error.reason}") from None
