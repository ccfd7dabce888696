"""The search for the lost records of a damaged log: the offsets that no read returns any more.

The search proceeds as reads do: from batch to batch by their headers, each batch with its CRC; behind a bad header it
continues with the next batch that the segment's index knows. So the lost ranges are exactly what a reader has to skip;
a whole batch that cannot be reached is lost with the others.

It runs in steps of bounded bytes, for a worker that has other work too, and changes nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Generator
from typing import NamedTuple

from partitions.files.batch_walk import check_placement
from partitions.files.index_files import read_index
from partitions.files.offset_index import OffsetIndex
from partitions.files.segment import segment_name
from raftlog.config import KIB, MIB
from raftlog.errors import CorruptBatch, DiskFailed
from raftlog.model import FilePosition, LeaderEpoch, Offset
from raftlog.ports import File
from raftlog.records.batch import HEADER_BYTES, BatchHeader, check_crc, parse_header

from .scrub_plan import PlannedSegment, ScrubPlan

STEP_BYTES = 4 * MIB
STEP_BATCHES = 2_000
"""Bounds of one step: some tens of milliseconds."""

_WINDOW_BYTES = 256 * KIB

RANGES_SHOWN = 8


class LostRange(NamedTuple):
    """The offsets from `first` up to `end`, exclusive."""

    first: Offset
    end: Offset

    def __str__(self) -> str:
        return f"{self.first} to {self.end - 1}" if self.end - self.first > 1 else str(self.first)


class LossSearch:
    """The search in some segments of one log. For one worker at a time."""

    def __init__(self, plan: ScrubPlan, damaged: Collection[Offset], interval_bytes: int) -> None:
        """`damaged` are base offsets of segments; those that the plan does not have are skipped."""
        self.lost: list[LostRange] = []
        """The ranges found so far, in order; adjacent ones are merged."""
        self.damaged = frozenset(damaged)
        self._plan = plan
        self._interval_bytes = interval_bytes
        self._work = self._run([s for s in plan.segments if s.base_offset in damaged and s.end_offset is not None])

    def step(self) -> bool:
        """Search on; return False when all is done. Blocks."""
        left = STEP_BYTES
        least = STEP_BYTES // STEP_BATCHES
        for size in self._work:
            left -= max(size, least)
            if left <= 0:
                return True
        return False

    def _run(self, segments: Collection[PlannedSegment]) -> Generator[int, None, None]:
        for segment in segments:
            try:
                file = self._plan.disk.open(f"{self._plan.path}/{segment_name(segment.base_offset)}")
            except (FileNotFoundError, DiskFailed):
                self._lose(segment.base_offset, _end_of(segment))
                continue
            with contextlib.closing(file):
                index = read_index(self._plan.disk, self._plan.path, segment.base_offset, self._interval_bytes)
                yield from self._segment(_Batches(file, self._plan), segment, index.offsets if index else None)

    def _segment(
        self, batches: _Batches, segment: PlannedSegment, index: OffsetIndex | None
    ) -> Generator[int, None, None]:
        offset = segment.base_offset
        position = FilePosition(0)
        end = _end_of(segment)
        while offset < end:
            header = batches.header_at(position, offset)
            whole = header is not None and batches.is_whole(position, header)
            if header is not None and (whole or _leads_on(batches, position, header, end)):
                if not whole:
                    self._lose(offset, Offset(header.end_offset))
                yield header.total_bytes
                offset, position = Offset(header.end_offset), _behind(position, header)
                continue
            resumed = _by_index(batches, index, offset)
            self._lose(offset, end if resumed is None else min(end, resumed[0]))
            yield 0
            offset, position = (end, position) if resumed is None else resumed

    def _lose(self, first: Offset, end: Offset) -> None:
        if self.lost and self.lost[-1].end == first:
            first = self.lost.pop().first
        self.lost.append(LostRange(first, end))


class _Batches:
    """The batches of one file, read through a window."""

    def __init__(self, file: File, plan: ScrubPlan) -> None:
        self._file = file
        self._epochs = plan.epochs
        self._window = b""
        self._window_at = 0

    def header_at(self, position: int, offset: Offset) -> BatchHeader | None:
        """Return the header at `position` if it belongs to the batch at this offset."""
        try:
            data = self._read(position, HEADER_BYTES)
            header = parse_header(data)
            check_placement(header, offset, LeaderEpoch(self._epochs.epoch_at(offset)))
        except (CorruptBatch, DiskFailed):
            return None
        return header

    def is_whole(self, position: int, header: BatchHeader) -> bool:
        """Whether all of the batch's bytes are as they were written."""
        try:
            check_crc(self._read(position, header.total_bytes))
        except (CorruptBatch, DiskFailed):
            return False
        return True

    def _read(self, position: int, length: int) -> bytes:
        """Read `length` bytes, fewer at the end of the file. Raises `DiskFailed`."""
        within = position - self._window_at
        if not 0 <= within <= len(self._window) - length:
            try:
                self._window = self._file.pread(max(length, _WINDOW_BYTES), position)
            except DiskFailed:
                # A later sector may be bad; it must not cost the bytes before it.
                self._window = self._file.pread(length, position)
            self._window_at = position
            within = 0
        return self._window[within : within + length]


def _end_of(segment: PlannedSegment) -> Offset:
    assert segment.end_offset is not None, "of a log in service every end is known"
    return segment.end_offset


def _behind(position: FilePosition, header: BatchHeader) -> FilePosition:
    return FilePosition(position + header.total_bytes)


def _leads_on(batches: _Batches, position: FilePosition, header: BatchHeader, end: Offset) -> bool:
    """Whether the header of a damaged batch still gives its true end."""
    behind = Offset(header.end_offset)
    return behind == end or (behind < end and batches.header_at(_behind(position, header), behind) is not None)


def _by_index(batches: _Batches, index: OffsetIndex | None, offset: Offset) -> tuple[Offset, FilePosition] | None:
    """Return the place of the next batch that the index knows and that is there."""
    entry = index.after(offset) if index is not None else None
    while index is not None and entry is not None and batches.header_at(entry[1], entry[0]) is None:
        entry = index.after(entry[0])
    return entry


def describe(lost: Collection[LostRange]) -> str:
    """Return a text for people: `offsets 3 to 7, 12 (6 in all)`."""
    shown = ", ".join(map(str, list(lost)[:RANGES_SHOWN]))
    more = f" and {len(lost) - RANGES_SHOWN} more ranges" if len(lost) > RANGES_SHOWN else ""
    return f"offsets {shown}{more} ({sum(one.end - one.first for one in lost)} in all)"
