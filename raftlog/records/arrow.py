"""The payload of a record batch through pyarrow: the twin of `columns` for large batches, and the conversion to Arrow.

Buffers of the batch become buffers of arrays without copying; only what Arrow wants aligned (int32 and int64 columns, a
few percent of the bytes) is copied. Such buffers may point anywhere, so each array is validated in full before any
other use, at about a nanosecond an entry.

The arrays share the batch's memory: a reference to one keeps the batch alive, and the memory must not be written.

Import this module inside a function, at first use: it loads pyarrow (0.15 s, 44 MB).
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from raftlog.errors import CorruptBatch, InvalidRequest
from raftlog.ports import Buffer

from . import columns as plain
from .columns import (
    MAX_TIMESTAMP,
    NIL,
    BinaryColumn,
    Columns,
    Header,
    HeadersColumn,
    HeadersIn,
    apply_validity,
    bitmap,
    check_length,
    check_timestamp_range,
    cut,
    deal,
    deltas_refused,
    flatten_headers,
    int32_offsets,
    int64_column,
    offsets_refused,
    pack_buffers,
    pack_list,
    read_validity,
    text_refused,
    timestamp_refused,
)
from .header import BatchHeader

_BINARY = pa.binary()
_INT32 = pa.int32()
_INT64 = pa.int64()
_TIMESTAMP = pa.timestamp("ms")
_HEADER = pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", _BINARY)])

SCHEMA = pa.schema(
    [
        pa.field("offset", _INT64, nullable=False),
        pa.field("timestamp", _TIMESTAMP, nullable=False),
        pa.field("key", _BINARY),
        pa.field("value", _BINARY),
        pa.field("headers", pa.list_(_HEADER), nullable=False),
    ]
)
"""The schema of `RecordBatch.to_arrow`."""

TO_PYLIST_IS_FAST = int(pa.__version__.partition(".")[0]) >= 26
"""From 26 on, `to_pylist` creates no scalar for each entry and takes half the time of `columns.cut`; before, it took
ten times that."""

_NO_HEADERS = pa.array([], _HEADER)


def is_arrow(column: object) -> bool:
    """Return whether a column is an Arrow array."""
    return isinstance(column, pa.Array | pa.ChunkedArray)


# --- Writing ---------------------------------------------------------------------------------------------------------


def pack_binary(entries: Sequence[bytes | None], *, nil_if_all_null: bool = False) -> list[Buffer]:
    """Pack like the twin; also accepts Arrow columns of bytes and text."""
    column = _to_binary(entries)
    if nil_if_all_null and column.null_count == len(column):
        return [NIL]
    return _pack_array(column)


def _to_binary(entries: Any) -> Any:
    try:
        column = entries if is_arrow(entries) else pa.array(entries, type=_BINARY)
        if isinstance(column, pa.ChunkedArray):
            column = column.combine_chunks()
        if isinstance(column, pa.ChunkedArray):  # a chunked result has more bytes than int32 offsets can address
            raise InvalidRequest("batch_too_large", "a column must be smaller than 2 GiB")
        return column if column.type.equals(_BINARY) else column.cast(_BINARY)
    except UnicodeEncodeError as error:
        raise text_refused(error) from None
    except (pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise TypeError(f"keys and values are bytes: {error}") from None
    except (pa.ArrowInvalid, pa.ArrowCapacityError) as error:
        raise InvalidRequest("batch_too_large", f"a column must be smaller than 2 GiB: {error}") from None


def _pack_array(column: Any) -> list[Buffer]:
    """Return the buffers of an array, which may be a slice, with no data behind nulls."""
    validity = None
    if column.null_count:
        flags = pc.cast(pc.is_valid(column), pa.uint8())
        validity = bitmap(bytes(_items(flags, 1)))
        column = pc.fill_null(column, b"")
    _, offsets_buffer, data = column.buffers()
    count = len(column)
    offsets = pa.Array.from_buffers(_INT32, count + 1, [None, offsets_buffer], offset=column.offset)
    first, last = offsets[0].as_py(), offsets[count].as_py()
    if first:
        offsets = pc.subtract(offsets, pa.scalar(first, _INT32))
    view = memoryview(data).cast("B")[first:last] if last > first else memoryview(b"")
    return pack_buffers(validity, _items(offsets, 4), view)


def _items(column: Any, size: int) -> memoryview:
    """Return the bytes of an array of fixed-width entries without nulls."""
    data = memoryview(column.buffers()[1]).cast("B")
    return data[column.offset * size : (column.offset + len(column)) * size]


def pack_timestamps(timestamps: Sequence[int]) -> tuple[int, int, int, Buffer | None]:
    """Pack like the twin; also accepts Arrow columns of integers and timestamps."""
    column = _to_int64(timestamps)
    if column.null_count:
        raise TypeError("a timestamp is a number of milliseconds, not None")
    base = column[0].as_py()
    least, greatest = _min_max(column)
    if least == greatest:
        return base, least, greatest, None
    if greatest - base > MAX_TIMESTAMP or base - least > MAX_TIMESTAMP:
        raise timestamp_refused()
    return base, least, greatest, _items(pc.subtract(column, pa.scalar(base, _INT64)), 8)


def _to_int64(timestamps: Any) -> Any:
    if not is_arrow(timestamps):
        numbers = int64_column(timestamps)
        return pa.Array.from_buffers(_INT64, len(timestamps), [None, pa.py_buffer(numbers)])
    column = timestamps.combine_chunks() if isinstance(timestamps, pa.ChunkedArray) else timestamps
    is_time = pa.types.is_timestamp(column.type)
    if not (is_time or pa.types.is_integer(column.type)):
        raise TypeError(f"a timestamp is a whole number of milliseconds or an Arrow timestamp, not {column.type}")
    try:
        if is_time:
            milliseconds = pa.timestamp("ms", column.type.tz)
            column = pc.cast(column, options=pc.CastOptions(milliseconds, allow_time_truncate=True))
        return column.cast(_INT64)
    except pa.ArrowInvalid:
        raise timestamp_refused() from None


def _min_max(column: Any) -> tuple[int, int]:
    found = pc.min_max(column)
    return found["min"].as_py(), found["max"].as_py()


def pack_headers(headers: HeadersIn) -> list[Buffer]:
    """Pack like the twin: headers are Python objects, and usually few."""
    lengths, keys, values = flatten_headers(headers)
    if not keys:
        return [NIL]
    return pack_list(int32_offsets(lengths), plain.pack_binary(keys), pack_binary(values))


# --- Reading ---------------------------------------------------------------------------------------------------------


def _sound(column: Any, name: str) -> Any:
    try:
        column.validate(full=True)
    except pa.ArrowException as error:
        raise CorruptBatch(f"{name} are invalid: {error}") from None
    return column


def _offsets_buffer(offsets: memoryview, count: int, end: int, name: str) -> Any:
    """Return aligned int32 offsets whose first and last are checked; whether they rise is checked later."""
    check_length(offsets, 4 * (count + 1), count + 1, f"the offsets of {name}")
    aligned = bytes(offsets)
    (first,) = struct.unpack_from("<i", aligned)
    (last,) = struct.unpack_from("<i", aligned, 4 * count)
    if first != 0 or last != end:
        raise offsets_refused(name, end)
    return pa.py_buffer(aligned)


def binary_array(column: BinaryColumn, count: int, name: str, kind: Any = _BINARY) -> Any:
    """Return the column as an array that shares the payload's data."""
    offsets = _offsets_buffer(column.offsets, count, column.data.nbytes, name)
    validity = None
    if column.validity is not None:
        check_length(column.validity, (count + 7) // 8, count, f"the validity bits of {name}")
        validity = pa.py_buffer(bytes(column.validity))
    return _sound(pa.Array.from_buffers(kind, count, [validity, offsets, pa.py_buffer(column.data)]), name)


def check_binary(column: BinaryColumn, count: int, name: str) -> None:
    binary_array(column, count, name)


def read_binary(column: BinaryColumn, count: int, name: str) -> list[bytes | None]:
    entries_array = binary_array(column, count, name)
    if TO_PYLIST_IS_FAST:
        return entries_array.to_pylist()  # type: ignore[no-any-return]
    entries = cut(column.data, _lengths(entries_array))
    if column.validity is None:
        return entries  # type: ignore[return-value]
    return apply_validity(entries, read_validity(column.validity, count, name))


def _lengths(column: Any) -> list[int]:
    """Return the length of each entry, null or not."""
    count = len(column)
    offsets = pa.Array.from_buffers(_INT32, count + 1, [None, column.buffers()[1]])
    lengths: list[int] = _items(pc.subtract(offsets[1:], offsets[:-1]), 4).cast("i").tolist()
    return lengths


def _integers(deltas: memoryview, kind: Any, size: int, count: int, name: str) -> Any:
    check_length(deltas, size * count, count, name)
    return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(bytes(deltas))])


def timestamp_array(deltas: memoryview, base: int, count: int) -> Any:
    """Return timestamps as int64 milliseconds."""
    column = _integers(deltas, _INT64, 8, count, "timestamp deltas")
    if count:
        check_timestamp_range(base, *_min_max(column))
    return pc.add(column, pa.scalar(base, _INT64))


def read_timestamps(deltas: memoryview, base: int, count: int) -> list[int]:
    return _items(timestamp_array(deltas, base, count), 8).cast("q").tolist()


def check_timestamps(deltas: memoryview, base: int, count: int) -> tuple[int, int]:
    column = timestamp_array(deltas, base, count)
    return column[0].as_py(), _min_max(column)[1]


def offset_array(deltas: memoryview, base: int, count: int, last_delta: int) -> Any:
    """Return offsets as int64."""
    column = _integers(deltas, _INT32, 4, count, "offset deltas")
    if count and not (
        column[0].as_py() >= 0
        and column[count - 1].as_py() <= last_delta
        and (count == 1 or pc.all(pc.less(column[:-1], column[1:])).as_py())
    ):
        raise deltas_refused(last_delta)
    return pc.add(column.cast(_INT64), pa.scalar(base, _INT64))


def read_offsets(deltas: memoryview, base: int, count: int, last_delta: int) -> list[int]:
    return _items(offset_array(deltas, base, count, last_delta), 8).cast("q").tolist()


def check_offsets(deltas: memoryview, base: int, count: int, last_delta: int) -> None:
    offset_array(deltas, base, count, last_delta)


def headers_array(column: HeadersColumn, count: int) -> Any:
    """Return the headers as an array of lists of (key, value)."""
    entries = column.entries
    keys = binary_array(column.keys, entries, "header keys", pa.string())
    if keys.null_count:
        raise CorruptBatch("a header has no key")
    values = binary_array(column.values, entries, "header values")
    pairs = pa.StructArray.from_arrays([keys, values], fields=list(_HEADER))
    offsets = _offsets_buffer(column.offsets, count, entries, "headers")
    lists = pa.Array.from_buffers(SCHEMA.field("headers").type, count, [None, offsets], children=[pairs])
    return _sound(lists, "headers")


def check_headers(column: HeadersColumn, count: int) -> None:
    headers_array(column, count)


def read_headers(column: HeadersColumn, count: int) -> list[tuple[Header, ...]]:
    lists = headers_array(column, count)
    keys = map(bytes.decode, read_binary(column.keys, column.entries, "header keys"))  # type: ignore[arg-type]
    pairs = tuple(zip(keys, read_binary(column.values, column.entries, "header values"), strict=True))
    return deal(pairs, _lengths(lists))


# --- To Arrow --------------------------------------------------------------------------------------------------------

_MOST_KEPT = 1 << 20
_LEAST_KEPT = 1 << 14


class _Prefixes:
    """A column that differs between batches only in its length: created once and sliced, by several threads at once."""

    def __init__(self, make: Callable[[int], Any]) -> None:
        self._make = make
        self._column = make(0)

    def __call__(self, count: int) -> Any:
        column = self._column
        if count > len(column):
            room = max(count, _LEAST_KEPT)
            column = self._make(room)
            if room <= _MOST_KEPT:
                self._column = column
        return column.slice(0, count)


def _make_no_headers(count: int) -> Any:
    offsets = pa.py_buffer(bytes(4 * (count + 1)))
    return pa.Array.from_buffers(SCHEMA.field("headers").type, count, [None, offsets], children=[_NO_HEADERS])


_count_to = _Prefixes(lambda room: pa.Array.from_buffers(_INT64, room, [None, pa.py_buffer(array("q", range(room)))]))
"""0, 1, 2 ... as int64, to be added to a base offset."""
_no_keys = _Prefixes(lambda room: pa.nulls(room, _BINARY))
_no_headers = _Prefixes(_make_no_headers)


def _all_at(timestamp: int, count: int) -> Any:
    """Return a column of equal timestamps. `pa.repeat` takes five times as long."""
    return pa.Array.from_buffers(_TIMESTAMP, count, [None, pa.py_buffer(struct.pack("=q", timestamp) * count)])


def offsets_column(header: BatchHeader, columns: Columns) -> Any:
    """Return the records' offsets as int64."""
    if columns.offset_deltas is None:
        return pc.add(_count_to(header.record_count), pa.scalar(header.base_offset, _INT64))
    return offset_array(columns.offset_deltas, header.base_offset, header.record_count, header.last_offset_delta)


def timestamps_column(header: BatchHeader, columns: Columns) -> Any:
    """Return the records' timestamps in milliseconds."""
    count = header.record_count
    if header.log_append_time:
        return _all_at(header.max_timestamp, count)
    if columns.timestamp_deltas is None:
        return _all_at(header.base_timestamp, count)
    return timestamp_array(columns.timestamp_deltas, header.base_timestamp, count).view(_TIMESTAMP)


def keys_column(header: BatchHeader, columns: Columns) -> Any:
    """Return the records' keys."""
    count = header.record_count
    return _no_keys(count) if columns.keys is None else binary_array(columns.keys, count, "keys")


def values_column(header: BatchHeader, columns: Columns) -> Any:
    """Return the records' values."""
    return binary_array(columns.values, header.record_count, "values")


def headers_column(header: BatchHeader, columns: Columns) -> Any:
    """Return the records' headers."""
    count = header.record_count
    return _no_headers(count) if columns.headers is None else headers_array(columns.headers, count)


def to_arrow(header: BatchHeader, columns: Columns) -> Any:
    """Return the whole batch as a `pyarrow.RecordBatch` of `SCHEMA`."""
    readers = (offsets_column, timestamps_column, keys_column, values_column, headers_column)
    return pa.RecordBatch.from_arrays([read(header, columns) for read in readers], schema=SCHEMA)


def no_records() -> Any:
    """Return a batch of `SCHEMA` without rows."""
    return pa.RecordBatch.from_pylist([], schema=SCHEMA)
