"""Pages of records in JSON from stored batches: from an offset on, up to a number of records and bytes.

A reader may ask for an offset inside a batch, but batches are stored and fetched whole, so records below it are left
out here. So are control batches, which hold no user records, and with `read_committed` the records of aborted
transactions (S13). A corrupt batch ends the page before it; if it is the first, the reader gets an error.

A page is planned first, from the sizes of its batches and records, and encoded slice by slice as its reader takes it: a
few hundred stored bytes may be a hundred megabytes of JSON, so a reader that does not read holds the stored bytes and
one slice.

Pure, and safe to run in a thread.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Any

import msgspec

from http_api.web.compression import compressor
from http_api.web.limits import OFFLOAD_BYTES, SLICE_BYTES, SLICE_RECORDS
from raftlog.errors import CorruptBatch, DiskFailed, RaftlogError
from raftlog.json_values import Show, Shown, show_column
from raftlog.ports import Buffer, FileRegion, Part
from raftlog.records.batch import Codec, RecordBatch, check_crc, parse_header, split_batches
from raftlog.wire import AbortedBatches, AbortedRange

_RECORD_COST = 64
"""Encoding a record takes about as long as parsing this number of bytes."""
_INFLATED_COST = 32
"""The same for a compressed byte."""
_BYTE_COST = 4


class ReadHeader(msgspec.Struct, gc=False):
    key: str
    value: Shown


class ReadRecord(msgspec.Struct, gc=False):
    offset: int
    timestamp: int
    key: Shown
    value: Shown
    headers: Sequence[ReadHeader]


class Columns(msgspec.Struct, frozen=True):
    """A decoded batch with the stored bytes that it came from."""

    stored: Buffer
    offsets: Sequence[int]
    timestamps_ms: Sequence[int]
    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]
    headers: Sequence[Sequence[tuple[str, bytes | None]]]


Rows = Callable[[Columns, slice], list[Any]]
"""Makes the JSON documents of some records of a batch."""


class PageOptions(msgspec.Struct, frozen=True):
    """The options of a reader. `max_bytes` counts keys, values and headers; at least one record is always returned."""

    max_records: int
    max_bytes: int
    rows: Rows
    lines: bool
    """Whether records are JSON lines; otherwise they are the elements of a JSON array."""
    can_show: Callable[[bytes | None], bool] | None = None
    """Whether `rows` can show a key or value; None: it shows every one. A page ends before a record with another."""
    end_offset: int | None = None
    """A page ends before the record with this offset; None: nowhere."""


def native_rows(show_key: Show, show_value: Show) -> Rows:
    """Return what makes the documents of the native API."""

    def rows(columns: Columns, chosen: slice) -> list[Any]:
        return list(
            map(
                ReadRecord,
                columns.offsets[chosen],
                columns.timestamps_ms[chosen],
                show_column(show_key, columns.keys[chosen]),
                show_column(show_value, columns.values[chosen]),
                [_headers(pairs, show_value) if pairs else () for pairs in columns.headers[chosen]],
            )
        )

    return rows


class Run(msgspec.Struct, frozen=True):
    """Some consecutive records of a stored batch, by their places in it."""

    batch: Buffer
    start: int
    end: int
    next_offset: int
    """The offset behind its last record: that of the next record of its batch, or the batch's end."""
    size: int
    """Bytes of their keys, values and headers."""

    @property
    def is_slice(self) -> bool:
        """Whether they are encoded at once: a call that encodes holds the GIL."""
        count = self.end - self.start
        return count <= 1 or (count <= SLICE_RECORDS and self.size <= SLICE_BYTES)


class Page(msgspec.Struct):
    """The plan of a page. `next_offset`: the offset of the next page."""

    next_offset: int
    records: int = 0
    size: int = 0
    """Bytes of keys, values and headers."""
    hidden: bool = False
    """Whether it ends before a record that the reader's format cannot show."""
    runs: list[Run] = []
    """Its records; each run is of another batch."""

    @property
    def is_slice(self) -> bool:
        """Whether the page is encoded at once."""
        return not self.runs or (len(self.runs) == 1 and self.runs[0].is_slice)


class PageEncoder:
    """Encodes a page slice by slice, as JSON lines or as the elements of a JSON array, between a head and a tail.

    Calls may be made in different threads, one at a time.
    """

    def __init__(
        self, plan: Page, options: PageOptions, *, head: bytes = b"", tail: bytes = b"", coding: str = ""
    ) -> None:
        """`coding`: the content coding (`web/compression.py`); empty: none."""
        self._options = options
        self._runs = deque(plan.runs)
        self._head, self._tail = head, tail
        self._compressor = compressor(coding) if coding else None
        self._separator = b""
        self._decoded: Columns | None = None
        self.ended = False
        """Whether everything was returned."""
        self.last: Run | None = None
        """The records of the piece that was returned last."""

    def next(self) -> bytes:
        """Return the next piece: a slice, with the head or the tail where it is the first or the last."""
        head, self._head = self._head, b""
        self.last = self._next_slice() if self._runs else None
        records = self._encode(self.last) if self.last is not None else b""
        piece = head + self._separator + records if records else head
        if records and not self._options.lines:
            self._separator = b","
        self.ended = not self._runs
        if self.ended:
            piece += self._tail
            self.forget()
        if self._compressor is None:
            return piece
        packed = self._compressor.compress(piece)
        return packed + self._compressor.flush() if self.ended else packed

    def forget(self) -> None:
        """Drop the decoded batch, because the reader does not read: it is decoded again for its next slice."""
        self._decoded = None

    def _next_slice(self) -> Run:
        """Remove the next slice from what is left."""
        run = self._runs.popleft()
        if run.is_slice:
            return run
        first, *rest = _slices(self._columns_of(run.batch), run)
        self._runs.extendleft(reversed(rest))
        return first

    def _encode(self, part: Run) -> bytes:
        options = self._options
        records = options.rows(self._columns_of(part.batch), slice(part.start, part.end))
        return _encoder.encode_lines(records) if options.lines else _encoder.encode(records)[1:-1]

    def _columns_of(self, batch: Buffer) -> Columns:
        decoded = self._decoded
        if decoded is None or decoded.stored is not batch:
            decoded = self._decoded = _decode(batch)
        return decoded


def _decode(stored: Buffer) -> Columns:
    batch = RecordBatch(stored, crc_checked=True)
    return Columns(stored, batch.offsets(), batch.timestamps_ms(), batch.keys(), batch.values(), batch.headers())


_encoder = msgspec.json.Encoder()


def join_parts(parts: Sequence[Part]) -> bytes:
    """Return the bytes of a fetched body in one piece; its regions stay held. Raises `DiskFailed`."""
    return b"".join(read_region(part) if isinstance(part, FileRegion) else part for part in parts)


def read_region(region: FileRegion, start: int = 0, length: int | None = None) -> bytes:
    """Return the bytes of a region, which stays held. Raises `DiskFailed` if the file is shorter."""
    wanted = region.length - start if length is None else length
    read = region.file.pread(wanted, region.position + start)
    if len(read) < wanted:
        raise DiskFailed(f"the file ends {wanted - len(read)} bytes before the region does")
    return read


def weight(batches: bytes) -> int:
    """Return the approximate work of a page in bytes. The count stops once it is enough for a thread, because counting
    thousands of small batches would be work itself. A corrupt batch counts as nothing."""
    total = 0
    try:
        for batch in split_batches(batches):
            header = parse_header(batch)
            cost = _BYTE_COST if header.codec is Codec.NONE else _INFLATED_COST
            total += cost * header.total_bytes + _RECORD_COST * header.record_count
            if total > OFFLOAD_BYTES:
                break
    except CorruptBatch:
        return total
    return total


def page(batches: bytes, offset: int, options: PageOptions, aborted: Sequence[AbortedRange] = ()) -> Page:
    """Plan a page of the records from `offset` on without the `aborted` ones.

    Raises `RaftlogError("internal_error")` when the first batch is corrupt.
    """
    result = Page(offset)
    dropped = AbortedBatches(aborted)
    try:
        for batch in split_batches(batches):
            header = parse_header(batch)
            if options.end_offset is not None and header.base_offset >= options.end_offset:
                result.next_offset = max(result.next_offset, options.end_offset)
                break
            if header.is_control or header.end_offset <= offset or header in dropped:
                result.next_offset = max(result.next_offset, header.end_offset)
                continue
            check_crc(batch)
            if not _add(result, batch, options):
                break
    except CorruptBatch as error:
        if result.next_offset == offset:
            raise RaftlogError(
                "internal_error", f"the stored batch at offset {offset} is corrupt: {error.detail}"
            ) from None
    return result


def _add(result: Page, stored: Buffer, options: PageOptions) -> bool:
    """Add a stored batch's records to the page. Returns False if it is full."""
    batch = RecordBatch(stored, crc_checked=True)
    count, size = batch.header.record_count, batch.payload_bytes
    if (
        options.can_show is None
        and options.end_offset is None
        and batch.header.base_offset >= result.next_offset
        and count <= options.max_records - result.records
        and size <= options.max_bytes - result.size
    ):  # All of it, which its header tells: its records are not decoded before they are encoded.
        if count:
            result.runs.append(Run(stored, 0, count, batch.header.end_offset, size))
        result.records += count
        result.size += size
        result.next_offset = batch.header.end_offset
        return result.records < options.max_records and result.size < options.max_bytes
    offsets = batch.offsets()
    keys, values, headers = batch.keys(), batch.values(), batch.headers()
    first = bisect_left(offsets, result.next_offset)
    sizes = list(accumulate(map(_size, keys[first:], values[first:], headers[first:])))
    room = bisect_right(sizes, options.max_bytes - result.size)
    if room == 0 and result.records == 0:
        room = 1
    count = min(room, options.max_records - result.records, len(sizes))
    if options.end_offset is not None:
        count = min(count, bisect_left(offsets, options.end_offset) - first)
    if options.can_show is not None:
        shown = _shown(options.can_show, keys[first : first + count], values[first : first + count])
        result.hidden, count = shown < count, shown
    if count:
        end = first + count
        next_offset = offsets[end] if end < len(offsets) else batch.header.end_offset
        result.runs.append(Run(stored, first, end, next_offset, sizes[count - 1]))
        result.records += count
        result.size += sizes[count - 1]
    if first + count < len(offsets):
        result.next_offset = offsets[first + count]
        return False
    result.next_offset = batch.header.end_offset
    return result.records < options.max_records and result.size < options.max_bytes


def _shown(
    can_show: Callable[[bytes | None], bool], keys: Sequence[bytes | None], values: Sequence[bytes | None]
) -> int:
    """Return the number of records before the first that cannot be shown."""
    for count, (key, value) in enumerate(zip(keys, values, strict=True)):
        if not (can_show(key) and can_show(value)):
            return count
    return len(keys)


def _size(key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes | None]]) -> int:
    size = len(key or b"") + len(value or b"")
    return size + sum(len(name) + len(text or b"") for name, text in headers) if headers else size


def _slices(columns: Columns, run: Run) -> Iterator[Run]:
    """Cut a run into slices."""
    first, chosen = run.start, slice(run.start, run.end)
    sizes = list(accumulate(map(_size, columns.keys[chosen], columns.values[chosen], columns.headers[chosen])))
    start, before = 0, 0
    while start < len(sizes):
        end = min(max(start + 1, bisect_right(sizes, before + SLICE_BYTES, lo=start)), start + SLICE_RECORDS)
        end = min(end, len(sizes))
        next_offset = run.next_offset if end == len(sizes) else columns.offsets[first + end]
        yield Run(run.batch, first + start, first + end, next_offset, sizes[end - 1] - before)
        start, before = end, sizes[end - 1]


def _headers(pairs: Sequence[tuple[str, bytes | None]], show: Show) -> list[ReadHeader]:
    return [ReadHeader(name, show(value)) for name, value in pairs]
