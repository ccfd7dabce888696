"""The content of segment and index files, batch by batch, for people (`raftlog debug dump-segment`).

Any copy of a file will do: nothing is changed, no lock is taken, and the node may run. A segment whose last bytes are
an incomplete batch has a *torn tail*: a crash leaves one, and so does a node that is writing just now. Anything else
that is not what was written is damage; behind a header that is damaged the start of the next batch is unknown.

Indexes beside a segment are compared with it: each entry must name the beginning of a batch.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator
from operator import itemgetter
from typing import BinaryIO, TypeAlias

import msgspec

from partitions.files.checkpoint import DamagedFile
from partitions.files.offset_index import OffsetIndex
from partitions.files.segment import LOG_SUFFIX, OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, parse_segment_name
from partitions.files.time_index import NO_TIMESTAMP, TimeIndex
from raftlog.config import MAX_BATCH_BYTES, MIB
from raftlog.errors import CorruptBatch, InvalidRequest
from raftlog.model import Offset
from raftlog.records.batch import HEADER_BYTES, BatchHeader, Record, RecordBatch, check_crc, parse_header
from raftlog.records.control import Control, ControlKind

MAX_INDEX_BYTES = 256 * MIB
SUFFIXES = (LOG_SUFFIX, OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX)


class DumpedBatch(msgspec.Struct, frozen=True, tag="batch", tag_field="kind"):
    """One batch of a segment."""

    position: int
    """Where it begins in the file, in bytes."""
    size: int
    base_offset: int
    last_offset: int
    record_count: int
    leader_epoch: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    codec: str
    is_transactional: bool
    is_control: bool
    log_append_time: bool
    magic: int
    crc: int
    is_valid: bool
    """Whether the CRC is right and, with records, the payload can be decoded."""
    control: str | None = None
    """The decision of a control batch, and the producers that it names."""
    records: list[Record] | None = None


class DumpedEntry(msgspec.Struct, frozen=True, tag="entry", tag_field="kind"):
    """One entry of an index. An offset index has a position, a time index a timestamp."""

    offset: int
    position: int | None = None
    timestamp_ms: int | None = None


class Problem(msgspec.Struct, frozen=True, tag="problem", tag_field="kind"):
    """Bytes that are not those written."""

    file: str
    position: int
    """Where it is in the file, in bytes; -1: the file as a whole."""
    detail: str
    is_torn_tail: bool = False
    """Whether a crash explains it, so that it is no damage."""

    def __str__(self) -> str:
        where = f" at byte {self.position}" if self.position >= 0 else ""
        return f"{self.file}{where}: {self.detail}"


Dumped: TypeAlias = DumpedBatch | DumpedEntry | Problem


def dump_file(path: str, *, with_records: bool = False) -> Iterator[Dumped]:
    """Yield the content of a segment (`.log`) or of one of its indexes, and the problems in it.

    Raises `InvalidRequest` if it is no such file or cannot be read.
    """
    name = os.path.basename(path)
    suffix = next((suffix for suffix in SUFFIXES if name.endswith(suffix)), None)
    base = None if suffix is None else parse_segment_name(name, suffix)
    if suffix is None or base is None:
        told = f"{path} is no segment and no index: the name has 20 digits, and then {' or '.join(SUFFIXES)}"
        raise InvalidRequest("invalid_request", told)
    try:
        if suffix == LOG_SUFFIX:
            yield from _Segment(path, base, with_records).dump()
        elif suffix == OFFSET_INDEX_SUFFIX:
            index = _offset_index(path, base)
            yield from [index] if isinstance(index, Problem) else [DumpedEntry(o, p) for o, p in index.entries()]
        else:
            times = _time_index(path, base)
            yield from [times] if isinstance(times, Problem) else [DumpedEntry(o, None, t) for t, o in times.entries()]
    except OSError as error:
        raise InvalidRequest("invalid_request", f"cannot read {path}: {error.strerror}") from None


class _Segment:
    """One pass over a segment."""

    def __init__(self, path: str, base: Offset, with_records: bool) -> None:
        self._path = path
        self._base = base
        self._with_records = with_records
        self._starts: dict[int, int] = {}
        """Base offset → position of every batch that may have an entry in the index."""
        self._times: list[tuple[int, int]] = []
        """End offset and largest timestamp up to there, of every batch."""
        self._end = int(base)

    def dump(self) -> Iterator[Dumped]:
        with open(self._path, "rb") as file:
            damaged = False
            for found in self._batches(file):
                damaged = damaged or isinstance(found, Problem)
                yield found
        if not damaged:
            yield from self._indexes()

    def _batches(self, file: BinaryIO) -> Iterator[DumpedBatch | Problem]:
        size, position = os.fstat(file.fileno()).st_size, 0
        while position < size:
            file.seek(position)
            head = file.read(HEADER_BYTES)
            if len(head) < HEADER_BYTES:
                yield self._torn(position, f"{len(head)} of the {HEADER_BYTES} bytes of a batch's header")
                return
            try:
                header = parse_header(head)
            except CorruptBatch as error:
                yield self._problem(position, self._zeros(file, position, size) or error.detail)
                return
            if header.total_bytes > MAX_BATCH_BYTES:
                yield self._problem(position, f"a batch of {header.total_bytes} bytes, more than any can have")
                return
            if position + header.total_bytes > size:
                yield self._torn(position, f"{size - position} of the {header.total_bytes} bytes of a batch")
                return
            if header.base_offset < self._end:
                told = f"a batch begins at offset {header.base_offset}, but the one before it ends at {self._end}"
                yield self._problem(position, told)
                return
            yield from self._batch(position, header, head + file.read(header.total_bytes - HEADER_BYTES))
            position += header.total_bytes

    def _batch(self, position: int, header: BatchHeader, whole: bytes) -> Iterator[DumpedBatch | Problem]:
        problem, records, control = None, None, None
        try:
            check_crc(whole)
            if header.is_control or self._with_records:
                decoded = RecordBatch(whole, crc_checked=True)
                control = None if decoded.control is None else _shown(decoded.control)
                records = decoded.records() if self._with_records else None
        except CorruptBatch as error:
            problem = self._problem(position, error.detail)
        self._starts[header.base_offset] = position
        latest = max(header.max_timestamp, self._times[-1][1] if self._times else NO_TIMESTAMP)
        self._times.append((header.end_offset, latest))
        self._end = header.end_offset
        yield DumpedBatch(
            position, header.total_bytes, header.base_offset, header.last_offset, header.record_count,
            header.leader_epoch, header.base_timestamp, header.max_timestamp, header.producer_id, header.producer_epoch,
            header.base_sequence, header.codec.name.lower(), header.is_transactional, header.is_control,
            header.log_append_time, header.magic, header.crc, problem is None, control, records,
        )  # fmt: skip
        if problem is not None:
            yield problem

    def _indexes(self) -> Iterator[Problem]:
        """Compare the indexes beside the segment with it, as far as they cover it."""
        stem = self._path.removesuffix(LOG_SUFFIX)
        path = f"{stem}{OFFSET_INDEX_SUFFIX}"
        if os.path.exists(path):
            index = _offset_index(path, self._base)
            if isinstance(index, Problem):
                yield index
            else:
                yield from (_whole(path, why) for why in self._offset_mismatches(index))
        path = f"{stem}{TIME_INDEX_SUFFIX}"
        if os.path.exists(path):
            times = _time_index(path, self._base)
            if isinstance(times, Problem):
                yield times
            else:
                yield from (_whole(path, why) for why in self._time_mismatches(times))

    def _offset_mismatches(self, index: OffsetIndex) -> Iterator[str]:
        for offset, position in index.entries():
            found = self._starts.get(offset)
            if found != position:
                is_there = "no batch begins there" if found is None else f"that batch begins at byte {found}"
                yield f"it says that the batch at offset {offset} begins at byte {position}: {is_there}"
                return
        if index.end_offset > self._end:
            yield f"it covers offsets up to {index.end_offset}, and the segment ends at {self._end}"

    def _time_mismatches(self, index: TimeIndex) -> Iterator[str]:
        if index.end_offset > self._end:
            yield f"it covers offsets up to {index.end_offset}, and the segment ends at {self._end}"
            return
        for timestamp, offset in (*index.entries(), (index.max_timestamp, index.end_offset)):
            before = bisect_right(self._times, offset, key=itemgetter(0))
            latest = self._times[before - 1][1] if before else NO_TIMESTAMP
            if latest != timestamp:
                yield f"it says that no record before offset {offset} is later than {timestamp}: one is of {latest}"
                return

    def _zeros(self, file: BinaryIO, position: int, size: int) -> str:
        """Return what to say if nothing but zeros is left."""
        file.seek(position)
        while piece := file.read(MIB):
            if any(piece):
                return ""
        return f"the last {size - position} bytes are zeros: written, but not there after a crash of the machine"

    def _torn(self, position: int, what: str) -> Problem:
        told = f"torn tail: the file ends after {what}. A crash leaves this, and a start of the node cuts it off"
        return Problem(self._path, position, told, is_torn_tail=True)

    def _problem(self, position: int, detail: str) -> Problem:
        return Problem(self._path, position, detail)


def _shown(control: Control) -> str:
    kinds = {kind.value: kind.name.lower() for kind in ControlKind}
    producers = ", ".join(f"producer {entry.producer_id} epoch {entry.producer_epoch}" for entry in control.entries)
    return f"{kinds.get(control.kind, f'kind {control.kind}')}: {producers or 'no producer'}"


def _offset_index(path: str, base: Offset) -> OffsetIndex | Problem:
    try:
        index = OffsetIndex.decode(_content(path), 0)
    except DamagedFile as error:
        return _whole(path, str(error))
    return index if index.base_offset == base else _whole(path, f"it is the index of segment {index.base_offset}")


def _time_index(path: str, base: Offset) -> TimeIndex | Problem:
    try:
        index = TimeIndex.decode(_content(path))
    except DamagedFile as error:
        return _whole(path, str(error))
    return index if index.base_offset == base else _whole(path, f"it is the index of segment {index.base_offset}")


def _content(path: str) -> bytes:
    with open(path, "rb") as file:
        content = file.read(MAX_INDEX_BYTES + 1)
    if len(content) > MAX_INDEX_BYTES:
        raise DamagedFile(f"it is longer than {MAX_INDEX_BYTES} bytes")
    return content


def _whole(path: str, detail: str) -> Problem:
    return Problem(path, -1, detail)
