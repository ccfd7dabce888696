"""The payload of a record batch: columns in Apache Arrow's layout, in one msgpack array. This is the plain twin.

    payload = [offset deltas | nil, timestamp deltas | nil, keys | nil, values, headers | nil]

    offset deltas      bin: int32 each; nil: 0, 1, 2 ...
    timestamp deltas   bin: int64 each, milliseconds from the base timestamp; nil: all 0
    keys, values       binary column = [validity bitmap bin | nil, int32 offsets bin, data bin]; keys nil: all null
    headers            [int32 list offsets bin, keys: binary column, values: binary column]; nil: no record has any

Integers are little-endian, and there is no padding. A binary column of n entries has n + 1 offsets, from 0 to the
length of its data. In a bitmap, bit i % 8 of byte i // 8 is set if entry i is not null; the bitmap is nil if no entry
is null.

Two twins write and read these bytes (`Twin`). This one uses only the standard library. It is faster for small batches,
for which pyarrow would cost 20 us a call and 0.15 s to import. The other, `arrow`, is for large batches and for readers
that want Arrow. Neither loops over records in Python: the work per record is in calls inside `map`, `join`,
`accumulate` and the like (nulls in small batches, and headers, cost a comprehension).

Reading copies as little as possible: `split_payload` returns views, and every length is checked before it is used.
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
"""Headers of each record as a caller may pass them: None and empty are equivalent."""

MAX_TIMESTAMP = 2**63 - 1
NO_TIMESTAMP = -1
"""The smallest valid timestamp, which means that the record has none."""


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
        """Number of headers of all records together, according to the keys' offsets."""
        return max(0, self.keys.offsets.nbytes // 4 - 1)


class Columns(msgspec.Struct, array_like=True, forbid_unknown_fields=True, gc=False):
    """An unpacked payload: unchecked views of its bytes."""

    offset_deltas: memoryview | None
    timestamp_deltas: memoryview | None
    keys: BinaryColumn | None
    values: BinaryColumn
    headers: HeadersColumn | None


class Twin(Protocol):
    """The interface of both twins.

    Writers return pieces, to be joined once. Readers raise `CorruptBatch` unless there are exactly `count` valid
    entries. `name` is the column's, for the error text.
    """

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
    """Return the columns in a payload, without copying. Raises `CorruptBatch` if they do not have the form above."""
    try:
        return _decoder.decode(payload)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise CorruptBatch(f"the payload is not an array of columns: {error}") from None


def join_payload(
    timestamp_deltas: Buffer | None, keys: list[Buffer] | None, values: list[Buffer], headers: list[Buffer] | None
) -> list[Buffer]:
    """Return the payload of a dense batch in pieces."""
    pieces: list[Buffer] = [_ARRAY_5, NIL]
    pieces += [NIL] if timestamp_deltas is None else pack_buffer(timestamp_deltas)
    pieces += [NIL] if keys is None else keys
    pieces += values
    pieces += [NIL] if headers is None else headers
    return pieces


def pack_buffer(buffer: Buffer) -> list[Buffer]:
    """Return a msgpack bin in pieces, built by hand so that the bytes are copied only when they are joined.

    Pieces are bytes, or views of single bytes: their `len` is their size.
    """
    length = len(buffer)
    if length < 1 << 8:
        return [struct.pack(">BB", 0xC4, length), buffer]
    if length < 1 << 16:
        return [struct.pack(">BH", 0xC5, length), buffer]
    return [struct.pack(">BI", 0xC6, length), buffer]


def pack_buffers(validity: Buffer | None, offsets: Buffer, data: Buffer) -> list[Buffer]:
    """Return a binary column in pieces."""
    return [
        _ARRAY_3,
        *([NIL] if validity is None else pack_buffer(validity)),
        *pack_buffer(offsets),
        *pack_buffer(data),
    ]


# --- Writing ---------------------------------------------------------------------------------------------------------


def pack_binary(entries: Sequence[bytes | None], *, nil_if_all_null: bool = False) -> list[Buffer]:
    """Return a binary column; text is encoded as UTF-8.

    Raises `TypeError` for anything but bytes, text and None, and `InvalidRequest` for text that has no UTF-8.
    """
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
    """Return the error for text with a lone surrogate."""
    return InvalidRequest("invalid_request", f"text cannot be encoded as UTF-8: {error.reason}")


def int32_offsets(lengths: Iterable[int]) -> bytes:
    """Return the start of each entry, for entries of these lengths, and the end of the last one."""
    offsets = list(accumulate(lengths, initial=0))
    try:
        return struct.pack(f"<{len(offsets)}i", *offsets)
    except struct.error:
        raise InvalidRequest("batch_too_large", "a column must be smaller than 2 GiB") from None


_DIGITS = bytes.maketrans(b"\x00\x01", b"01")


def bitmap(flags: bytes) -> bytes:
    """Pack flags (one byte each, 0 or 1) like Arrow: the first is the lowest bit of the first byte."""
    number = int(flags[::-1].translate(_DIGITS) or b"0", 2)
    return number.to_bytes((len(flags) + 7) // 8, "little")


def pack_timestamps(timestamps: Sequence[int]) -> tuple[int, int, int, Buffer | None]:
    """Return the base (the first timestamp), the least, the greatest, and the deltas, or None if all are equal."""
    base, least, greatest = index(timestamps[0]), min(timestamps), max(timestamps)
    if least == greatest:
        return base, least, greatest, None
    return base, least, greatest, int64_column(list(map(sub, timestamps, repeat(base))))


def int64_column(numbers: Sequence[int]) -> bytes:
    """Return numbers as int64.

    Raises `InvalidRequest` for a number that does not fit, and `TypeError` for anything but a whole number.
    """
    try:
        return struct.pack(f"<{len(numbers)}q", *numbers)
    except struct.error:
        if all(isinstance(number, int) for number in numbers):
            raise timestamp_refused() from None
        raise TypeError("a timestamp is a whole number of milliseconds") from None


def timestamp_refused() -> InvalidRequest:
    """Return the error for a timestamp outside the format's range."""
    detail = f"a timestamp must be between {NO_TIMESTAMP} (none) and {MAX_TIMESTAMP} milliseconds since 1970"
    return InvalidRequest("timestamp_out_of_range", detail)


def pack_headers(headers: HeadersIn) -> list[Buffer]:
    """Return a column of headers; nil if no record has any."""
    lengths, keys, values = flatten_headers(headers)
    if not keys:
        return [NIL]
    return pack_list(int32_offsets(lengths), pack_binary(keys), pack_binary(values))


def pack_list(offsets: Buffer, keys: list[Buffer], values: list[Buffer]) -> list[Buffer]:
    """Return the column of headers in pieces."""
    return [_ARRAY_3, *pack_buffer(offsets), *keys, *values]


def flatten_headers(headers: HeadersIn) -> tuple[list[int], list[bytes | None], list[bytes | None]]:
    """Return the number of headers of each record, and the keys and the values of all.

    Raises `TypeError` for a key of None, `InvalidRequest` for one that is not UTF-8.
    """
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
    """Return the entries of a binary column."""
    entries = cut(column.data, _read_lengths(column.offsets, count, column.data.nbytes, name))
    if column.validity is None:
        return entries  # type: ignore[return-value]
    return apply_validity(entries, read_validity(column.validity, count, name))


def check_binary(column: BinaryColumn, count: int, name: str) -> None:
    """Check that the column is valid."""
    _read_lengths(column.offsets, count, column.data.nbytes, name)
    if column.validity is not None:
        read_validity(column.validity, count, name)


def cut(data: Buffer, lengths: Iterable[int]) -> list[bytes]:
    """Cut data into pieces of these lengths.

    A stream's `read` is the fastest call that creates one bytes object. A slice takes three times as long, because it
    is an object of its own.
    """
    return list(map(BytesIO(data).read, lengths))


def _read_lengths(offsets: memoryview, count: int, end: int, name: str) -> list[int]:
    starts = read_integers(offsets, "i", count + 1, f"the offsets of {name}")
    lengths = list(map(sub, starts[1:], starts))
    if starts[0] != 0 or starts[-1] != end or min(lengths, default=0) < 0:
        raise offsets_refused(name, end)
    return lengths


def offsets_refused(name: str, end: int) -> CorruptBatch:
    """Return the error for offsets that do not rise or point outside the column."""
    return CorruptBatch(f"the offsets of {name} do not rise from 0 to {end}, the end of the data")


def read_integers(column: memoryview, typecode: Literal["i", "q"], count: int, name: str) -> list[int]:
    """Return the integers of a buffer, which must hold `count` of them."""
    check_length(column, count * struct.calcsize(typecode), count, name)
    return column.cast(typecode).tolist()


def check_length(column: memoryview, needed: int, count: int, name: str) -> None:
    """Check that a buffer has exactly the length that its entries need."""
    if column.nbytes != needed:
        raise CorruptBatch(f"{name} have {column.nbytes} bytes; {count} of them need {needed}")


_BITS = [bytes(byte >> bit & 1 for bit in range(8)) for byte in range(256)]
"""A byte of a validity bitmap → its eight flags."""


def read_validity(validity: memoryview, count: int, name: str) -> bytes:
    """Return a bitmap with one byte (0 or 1) for each entry."""
    check_length(validity, (count + 7) // 8, count, f"the validity bits of {name}")
    return b"".join(map(_BITS.__getitem__, validity))[:count]


def apply_validity(entries: Sequence[bytes], valid: bytes) -> list[bytes | None]:
    """Replace every entry whose flag is 0 by None."""
    return list(map(getitem, zip(repeat(None), entries), valid))


def read_timestamps(deltas: memoryview, base: int, count: int) -> list[int]:
    """Return the timestamps of all records."""
    column = read_integers(deltas, "q", count, "timestamp deltas")
    check_timestamp_range(base, min(column, default=0), max(column, default=0))
    return list(map(base.__add__, column))


def check_timestamps(deltas: memoryview, base: int, count: int) -> tuple[int, int]:
    """Return the first and the greatest timestamp; `count` is not 0."""
    timestamps = read_timestamps(deltas, base, count)
    return timestamps[0], max(timestamps)


def check_timestamp_range(base: int, least_delta: int, greatest_delta: int) -> None:
    """Check that no timestamp leaves the range of the format."""
    if base + least_delta < NO_TIMESTAMP or base + greatest_delta > MAX_TIMESTAMP:
        raise CorruptBatch("a timestamp delta leads below -1 or out of 64 bits")


def read_offsets(deltas: memoryview, base: int, count: int, last_delta: int) -> list[int]:
    """Return the offsets of all records."""
    column = read_integers(deltas, "i", count, "offset deltas")
    if column and not (column[0] >= 0 and column[-1] <= last_delta and all(map(lt, column, column[1:]))):
        raise deltas_refused(last_delta)
    return list(map(base.__add__, column))


def check_offsets(deltas: memoryview, base: int, count: int, last_delta: int) -> None:
    """Check that the offset deltas are valid."""
    read_offsets(deltas, base, count, last_delta)


def deltas_refused(last_delta: int) -> CorruptBatch:
    """Return the error for offset deltas that do not rise strictly, or point outside the batch."""
    return CorruptBatch(f"offset deltas do not rise, one by one, within 0 to {last_delta}")


def read_headers(column: HeadersColumn, count: int) -> list[tuple[Header, ...]]:
    """Return the headers of each record."""
    entries = column.entries
    lengths = _read_lengths(column.offsets, count, entries, "headers")
    keys = read_header_keys(read_binary(column.keys, entries, "header keys"))
    pairs = zip(keys, read_binary(column.values, entries, "header values"), strict=True)
    return deal(tuple(pairs), lengths)


def deal(pairs: tuple[Header, ...], lengths: Iterable[int]) -> list[tuple[Header, ...]]:
    """Distribute headers to records: the given number to each, in order."""
    ends = list(accumulate(lengths, initial=0))
    return list(map(pairs.__getitem__, map(slice, ends, ends[1:])))


def check_headers(column: HeadersColumn, count: int) -> None:
    """Check that the headers are valid and their keys are text."""
    read_headers(column, count)


def read_header_keys(keys: list[bytes | None]) -> list[str]:
    """Return header keys as text; each must exist and be UTF-8."""
    try:
        return list(map(bytes.decode, keys))  # type: ignore[arg-type]
    except TypeError:
        raise CorruptBatch("a header has no key") from None
    except UnicodeDecodeError as error:
        raise CorruptBatch(f"a header's key is not UTF-8: {error.reason}") from None
