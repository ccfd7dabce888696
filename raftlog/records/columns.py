"""The payload of a record batch: columns, as Apache Arrow lays them out, in one msgpack array. The plain twin.

    payload = [offset deltas | nil, timestamp deltas | nil, keys | nil, values, headers | nil]

    offset deltas      bin: int32 each; nil: 0, 1, 2 ...
    timestamp deltas   bin: int64 each, milliseconds from the base timestamp; nil: all 0
    keys, values       binary column = [validity bitmap bin | nil, int32 offsets bin, data bin]; keys nil: all null
    headers            [int32 list offsets bin, keys: binary column, values: binary column]; nil: no record has any

Integers are little-endian, nothing is padded. A binary column of n entries has n + 1 offsets, from 0 to the length of
its data; a bitmap has bit i % 8 of byte i // 8 set where entry i is there, and is nil where all are.

Two twins write these bytes, and read them (`Twin`). This one makes do with the standard library; it is the faster one
for small batches, for which alone pyarrow would cost 20 us a call and 0.15 s to import. The other, `record_arrow`, is
for large batches and for readers who want Arrow. Neither loops over records in Python: what is repeated per record are
calls inside `map`, `join`, `accumulate` and the like (nulls in small batches, and headers, cost a comprehension).

Reading copies no more than it must: `split_payload` gives views, and every length is checked before it is believed.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterable, Sequence
from io import BytesIO
from itertools import accumulate, chain, repeat
from operator import getitem, index, itemgetter, lt, sub
from typing import Literal, Protocol, TypeAlias

import msgspec

from raftlog.errors import CorruptBatch, InvalidRequest
from raftlog.ports import Buffer

assert sys.byteorder == "little", "columns are read in place, and they are little-endian"

Header: TypeAlias = tuple[str, bytes | None]
"""Key and value of one header of a record."""

HeadersIn: TypeAlias = Sequence[Sequence[tuple[str | bytes, bytes | None]] | None]
"""Headers of each record as a caller may give them: None and empty are the same."""

MAX_TIMESTAMP = 2**63 - 1
NO_TIMESTAMP = -1
"""The least timestamp that a record may have: it says that it has none."""


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

    @property
    def entries(self) -> int:
        """Headers of all records together, as far as the keys' offsets tell."""
        return max(0, self.keys.offsets.nbytes // 4 - 1)


class Columns(msgspec.Struct, array_like=True, forbid_unknown_fields=True, gc=False):
    """A payload taken apart: views of its bytes, at which nobody has looked yet."""

    offset_deltas: memoryview | None
    timestamp_deltas: memoryview | None
    keys: BinaryColumn | None
    values: BinaryColumn
    headers: HeadersColumn | None


class Twin(Protocol):
    """What both twins do. Writers give pieces, to be joined once; readers raise `CorruptBatch` for what is not
    exactly `count` sound entries. `name` is the column's, for the error."""

    def pack_binary(self, entries: Sequence[bytes | None], *, nil_if_all_null: bool = False) -> list[Buffer]: ...
    def pack_timestamps(self, timestamps: Sequence[int]) -> tuple[int, int, int, Buffer | None]: ...
    def pack_headers(self, headers: HeadersIn) -> list[Buffer]: ...

    def read_binary(self, column: BinaryColumn, count: int, name: str) -> list[bytes | None]: ...
    def read_timestamps(self, deltas: memoryview, base: int, count: int) -> list[int]: ...
    def read_offsets(self, deltas: memoryview, base: int, count: int, last_delta: int) -> list[int]: ...
    def read_headers(self, column: HeadersColumn, count: int) -> list[tuple[Header, ...]]: ...

    def check_binary(self, column: BinaryColumn, count: int, name: str) -> None: ...
    def check_timestamps(self, deltas: memoryview, base: int, count: int) -> tuple[int, int]: ...
    def check_offsets(self, deltas: memoryview, base: int, count: int, last_delta: int) -> None: ...
    def check_headers(self, column: HeadersColumn, count: int) -> None: ...


# --- msgpack ---------------------------------------------------------------------------------------------------------

_decoder = msgspec.msgpack.Decoder(Columns)

NIL = b"\xc0"
_ARRAY_3 = b"\x93"
_ARRAY_5 = b"\x95"


def split_payload(payload: Buffer) -> Columns:
    """The columns in a payload, none of it copied. Raises `CorruptBatch` where they are not of the form above."""
    try:
        return _decoder.decode(payload)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise CorruptBatch(f"the payload is not an array of columns: {error}") from None


def join_payload(
    timestamp_deltas: Buffer | None, keys: list[Buffer] | None, values: list[Buffer], headers: list[Buffer] | None
) -> list[Buffer]:
    """The payload of a dense batch in pieces, from its columns."""
    pieces: list[Buffer] = [_ARRAY_5, NIL]
    pieces += [NIL] if timestamp_deltas is None else pack_buffer(timestamp_deltas)
    pieces += [NIL] if keys is None else keys
    pieces += values
    pieces += [NIL] if headers is None else headers
    return pieces


def pack_buffer(buffer: Buffer) -> list[Buffer]:
    """A msgpack bin in pieces: written by hand, so that nothing copies the bytes before they are joined. (Pieces are
    bytes, or views of single bytes: their `len` is what they take.)"""
    length = len(buffer)
    if length < 1 << 8:
        return [struct.pack(">BB", 0xC4, length), buffer]
    if length < 1 << 16:
        return [struct.pack(">BH", 0xC5, length), buffer]
    return [struct.pack(">BI", 0xC6, length), buffer]


def pack_buffers(validity: Buffer | None, offsets: Buffer, data: Buffer) -> list[Buffer]:
    """A binary column in pieces, from its buffers."""
    return [
        _ARRAY_3,
        *([NIL] if validity is None else pack_buffer(validity)),
        *pack_buffer(offsets),
        *pack_buffer(data),
    ]


# --- Writing ---------------------------------------------------------------------------------------------------------


def pack_binary(entries: Sequence[bytes | None], *, nil_if_all_null: bool = False) -> list[Buffer]:
    """A binary column. Text is taken as its UTF-8; raises `TypeError` for anything but bytes, text and None, and
    `InvalidRequest` for text that has no UTF-8."""
    validity = None
    try:
        lengths = list(map(len, entries))  # type: ignore[arg-type]
        data = b"".join(entries)  # type: ignore[arg-type]
        if len(data) != sum(lengths):
            raise TypeError("a view of items wider than a byte")
    except TypeError:
        flags = bytes(entry is not None for entry in entries)
        if nil_if_all_null and not any(flags):
            return [NIL]
        validity = None if all(flags) else bitmap(flags)
        there = [b"" if entry is None else _as_bytes(entry) for entry in entries]
        lengths = list(map(len, there))
        data = b"".join(there)
    return pack_buffers(validity, int32_offsets(lengths), data)


def _as_bytes(entry: object) -> bytes:
    if isinstance(entry, str):
        try:
            return entry.encode()
        except UnicodeEncodeError as error:
            raise text_refused(error) from None
    if isinstance(entry, bytes | bytearray | memoryview):
        return bytes(entry)
    raise TypeError(f"keys and values are bytes, not {type(entry).__name__}")


def text_refused(error: UnicodeEncodeError) -> InvalidRequest:
    """The error for text with half a character in it."""
    return InvalidRequest("invalid_request", f"text has no UTF-8: {error.reason}")


def int32_offsets(lengths: Iterable[int]) -> bytes:
    """Where entries of these lengths begin, and where the last one ends."""
    offsets = list(accumulate(lengths, initial=0))
    try:
        return struct.pack(f"<{len(offsets)}i", *offsets)
    except struct.error:
        raise InvalidRequest("batch_too_large", "a column holds less than 2 GiB") from None


_DIGITS = bytes.maketrans(b"\x00\x01", b"01")


def bitmap(flags: bytes) -> bytes:
    """Flags, one byte (0 or 1) each, as Arrow packs them: the first is the lowest bit of the first byte."""
    number = int(flags[::-1].translate(_DIGITS) or b"0", 2)
    return number.to_bytes((len(flags) + 7) // 8, "little")


def pack_timestamps(timestamps: Sequence[int]) -> tuple[int, int, int, Buffer | None]:
    """The base (the first one's), the least and the greatest, and the deltas: None where all are equal."""
    base, least, greatest = index(timestamps[0]), min(timestamps), max(timestamps)
    if least == greatest:
        return base, least, greatest, None
    return base, least, greatest, int64_column(list(map(sub, timestamps, repeat(base))))


def int64_column(numbers: Sequence[int]) -> bytes:
    """Numbers as int64. Raises `InvalidRequest` for one that is none, `TypeError` for what is not a whole number."""
    try:
        return struct.pack(f"<{len(numbers)}q", *numbers)
    except struct.error:
        if all(isinstance(number, int) for number in numbers):
            raise timestamp_refused() from None
        raise TypeError("a timestamp is a whole number of milliseconds") from None


def timestamp_refused() -> InvalidRequest:
    """The error for a timestamp that the format has no room for."""
    detail = f"a timestamp is between {NO_TIMESTAMP} (none) and {MAX_TIMESTAMP} milliseconds since 1970"
    return InvalidRequest("timestamp_out_of_range", detail)


def pack_headers(headers: HeadersIn) -> list[Buffer]:
    """A column of headers; nil where no record has any."""
    lengths, keys, values = flatten_headers(headers)
    if not keys:
        return [NIL]
    return pack_list(int32_offsets(lengths), pack_binary(keys), pack_binary(values))


def pack_list(offsets: Buffer, keys: list[Buffer], values: list[Buffer]) -> list[Buffer]:
    """The headers' column in pieces, from its parts."""
    return [_ARRAY_3, *pack_buffer(offsets), *keys, *values]


def flatten_headers(headers: HeadersIn) -> tuple[list[int], list[bytes | None], list[bytes | None]]:
    """How many headers each record has, and the keys and the values of all. Raises `TypeError` for a key of None,
    `InvalidRequest` for one that is not UTF-8."""
    flat = list(chain.from_iterable(filter(None, headers)))
    lengths = [len(of_record) if of_record else 0 for of_record in headers]
    keys: list[bytes | None] = [_as_bytes(key) for key in map(itemgetter(0), flat)]
    try:
        read_header_keys(keys)
    except CorruptBatch as error:
        raise InvalidRequest("invalid_request", error.detail) from None
    return lengths, keys, list(map(itemgetter(1), flat))


# --- Reading ---------------------------------------------------------------------------------------------------------


def read_binary(column: BinaryColumn, count: int, name: str) -> list[bytes | None]:
    """The entries of a binary column."""
    entries = cut(column.data, _read_lengths(column.offsets, count, column.data.nbytes, name))
    if column.validity is None:
        return entries  # type: ignore[return-value]
    return apply_validity(entries, read_validity(column.validity, count, name))


def check_binary(column: BinaryColumn, count: int, name: str) -> None:
    """That the column is sound."""
    _read_lengths(column.offsets, count, column.data.nbytes, name)
    if column.validity is not None:
        read_validity(column.validity, count, name)


def cut(data: Buffer, lengths: Iterable[int]) -> list[bytes]:
    """Data in pieces of these lengths. A stream's `read` is the fastest call that makes one bytes object: three times
    that of a slice, which is an object of its own."""
    return list(map(BytesIO(data).read, lengths))


def _read_lengths(offsets: memoryview, count: int, end: int, name: str) -> list[int]:
    starts = read_integers(offsets, "i", count + 1, f"the offsets of {name}")
    lengths = list(map(sub, starts[1:], starts))
    if starts[0] != 0 or starts[-1] != end or min(lengths, default=0) < 0:
        raise offsets_refused(name, end)
    return lengths


def offsets_refused(name: str, end: int) -> CorruptBatch:
    """The error for a column's offsets that lead out of it, or back."""
    return CorruptBatch(f"the offsets of {name} do not rise from 0 to {end}, where they end")


def read_integers(column: memoryview, typecode: Literal["i", "q"], count: int, name: str) -> list[int]:
    """The integers of a buffer that must hold `count` of them."""
    check_length(column, count * struct.calcsize(typecode), count, name)
    return column.cast(typecode).tolist()


def check_length(column: memoryview, needed: int, count: int, name: str) -> None:
    """That a buffer is as long as its entries need."""
    if column.nbytes != needed:
        raise CorruptBatch(f"{name} have {column.nbytes} bytes; {count} of them have {needed}")


_BITS = [bytes(byte >> bit & 1 for bit in range(8)) for byte in range(256)]
"""A byte of a validity bitmap → its eight flags."""


def read_validity(validity: memoryview, count: int, name: str) -> bytes:
    """A bitmap as one byte (0 or 1) an entry."""
    check_length(validity, (count + 7) // 8, count, f"the validity bits of {name}")
    return b"".join(map(_BITS.__getitem__, validity))[:count]


def apply_validity(entries: Sequence[bytes], valid: bytes) -> list[bytes | None]:
    """None in place of every entry whose flag is 0."""
    return list(map(getitem, zip(repeat(None), entries), valid))


def read_timestamps(deltas: memoryview, base: int, count: int) -> list[int]:
    """The timestamps of all records."""
    column = read_integers(deltas, "q", count, "timestamp deltas")
    check_timestamp_range(base, min(column, default=0), max(column, default=0))
    return list(map(base.__add__, column))


def check_timestamps(deltas: memoryview, base: int, count: int) -> tuple[int, int]:
    """The first and the greatest timestamp; `count` is not 0."""
    timestamps = read_timestamps(deltas, base, count)
    return timestamps[0], max(timestamps)


def check_timestamp_range(base: int, least_delta: int, greatest_delta: int) -> None:
    """That no timestamp leaves what 64 bits and the format have room for."""
    if base + least_delta < NO_TIMESTAMP or base + greatest_delta > MAX_TIMESTAMP:
        raise CorruptBatch("a timestamp delta leads below -1 or out of 64 bits")


def read_offsets(deltas: memoryview, base: int, count: int, last_delta: int) -> list[int]:
    """The offsets of all records."""
    column = read_integers(deltas, "i", count, "offset deltas")
    if column and not (column[0] >= 0 and column[-1] <= last_delta and all(map(lt, column, column[1:]))):
        raise deltas_refused(last_delta)
    return list(map(base.__add__, column))


def check_offsets(deltas: memoryview, base: int, count: int, last_delta: int) -> None:
    """That the offset deltas are sound."""
    read_offsets(deltas, base, count, last_delta)


def deltas_refused(last_delta: int) -> CorruptBatch:
    """The error for offset deltas that are not strictly rising, or out of the batch."""
    return CorruptBatch(f"offset deltas do not rise, one by one, within 0 to {last_delta}")


def read_headers(column: HeadersColumn, count: int) -> list[tuple[Header, ...]]:
    """The headers of each record."""
    entries = column.entries
    lengths = _read_lengths(column.offsets, count, entries, "headers")
    keys = read_header_keys(read_binary(column.keys, entries, "header keys"))
    pairs = zip(keys, read_binary(column.values, entries, "header values"), strict=True)
    return deal(tuple(pairs), lengths)


def deal(pairs: tuple[Header, ...], lengths: Iterable[int]) -> list[tuple[Header, ...]]:
    """Headers to records: so many to each, in order."""
    ends = list(accumulate(lengths, initial=0))
    return list(map(pairs.__getitem__, map(slice, ends, ends[1:])))


def check_headers(column: HeadersColumn, count: int) -> None:
    """That the headers are sound, and their keys text."""
    read_headers(column, count)


def read_header_keys(keys: list[bytes | None]) -> list[str]:
    """Header keys as text: each is there, and UTF-8."""
    try:
        return list(map(bytes.decode, keys))  # type: ignore[arg-type]
    except TypeError:
        raise CorruptBatch("a header has no key") from None
    except UnicodeDecodeError as error:
        raise CorruptBatch(f"a header's key is not UTF-8: {error.reason}") from None
