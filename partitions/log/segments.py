"""The segments of a log in order, and their change when the log's end is dropped.

A truncation drops batches in memory at once. If files may hold any of them (a job had received them), a `Cut` goes to
the next job, the segment that the cut goes through ends there permanently, and the log continues in a new one. If no
file can hold them, the last segment just becomes shorter.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise

import msgspec

from partitions.files.batch_walk import HeaderWalk, skip_to
from partitions.files.index_files import read_index, rebuild_index
from partitions.files.leader_epochs import LeaderEpochHistory
from partitions.files.segment import Segment, SegmentFile, SegmentIndex, segment_name
from partitions.producers.control_batches import checked_control_of, control_in_file
from partitions.recovery.scan import ScannedSegment
from raftlog.errors import CorruptBatch, InvariantViolation
from raftlog.model import FilePosition, Offset
from raftlog.ports import Disk
from raftlog.records.batch import BatchHeader, Control

from .job import Cut
from .tail import BatchTail, FetchCache, TailBatch


class HeadersFile(msgspec.Struct, frozen=True):
    """A segment with batches that are no longer in memory."""

    base_offset: Offset
    size: int
    index: SegmentIndex | None
    """The index; None if it has to be read from its files."""


class HeaderSource(msgspec.Struct, frozen=True):
    """The headers of a log at one moment, for any thread: names, numbers and copies."""

    disk: Disk
    path: str
    epochs: LeaderEpochHistory
    start_offset: Offset
    end_offset: Offset
    files: Sequence[HeadersFile]
    tail_start: Offset
    """The offset from which on batches are in `tail`, whether or not they are in files."""
    tail: Sequence[TailBatch]

    def headers_from(self, offset: Offset) -> Iterator[BatchHeader]:
        """Iterate over the headers as `batches_from` does."""
        return (header for header, _ in self.batches_from(offset))

    def batches_from(self, offset: Offset) -> Iterator[tuple[BatchHeader, Control | None]]:
        """Iterate from the batch that holds `offset` on; with a control batch comes its content. Blocks.

        Raises `CorruptBatch`, `DiskFailed`, and `FileNotFoundError` if a segment was removed meanwhile.
        """
        while offset < self.tail_start:
            segment = self.files[self._number_holding(offset)]
            with contextlib.closing(self.disk.open(f"{self.path}/{segment_name(segment.base_offset)}")) as file:
                floor_offset, floor_position = self._floor(segment, offset)
                walk = HeaderWalk(file.pread, self.epochs, floor_position, floor_offset, segment.size)
                skip_to(walk, offset)
                while walk.offset < self.tail_start and (header := walk.peek()) is not None:
                    control = control_in_file(file.pread, header, walk.position)
                    walk.step(header)
                    yield header, control
            if walk.offset <= offset:
                raise CorruptBatch(f"segment {segment.base_offset} ends before offset {offset}")
            offset = walk.offset
        for batch in self.tail:
            if batch.end_offset > offset:
                yield batch.header, checked_control_of(batch.header, batch.buffers)

    def base_holding(self, offset: Offset) -> Offset:
        """Return the base of the segment that holds `offset`, as far as there are files."""
        return self.files[self._number_holding(offset)].base_offset if self.files else self.start_offset

    def _number_holding(self, offset: Offset) -> int:
        return max(0, bisect_right(self.files, offset, key=lambda file: file.base_offset) - 1)

    def _floor(self, segment: HeadersFile, offset: Offset) -> tuple[Offset, FilePosition]:
        index = segment.index or read_index(self.disk, self.path, segment.base_offset, interval_bytes=0)
        if index is None or index.size != segment.size:
            return segment.base_offset, FilePosition(0)
        return index.offsets.floor(offset)


class LogSegments:
    """The segments of a log in order.

    Invariant: each begins where the one before it ends; never empty; the last one has its index in memory.
    """

    def __init__(
        self,
        disk: Disk,
        path: str,
        interval_bytes: int,
        epochs: LeaderEpochHistory,
        tail: BatchTail,
        cache: FetchCache,
        scanned: Sequence[ScannedSegment],
    ) -> None:
        self.disk = disk
        self.path = path
        self.interval_bytes = interval_bytes
        self.epochs = epochs
        self.tail = tail
        self.cache = cache
        self.all = [self._opened(one, last=one is scanned[-1]) for one in scanned]

    def __len__(self) -> int:
        return len(self.all)

    @property
    def active(self) -> Segment:
        """The segment that grows."""
        return self.all[-1]

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self.all)

    def holding(self, offset: Offset) -> Segment:
        """Return the segment that holds `offset`, which is not below the first one's base."""
        return self.all[bisect_right(self.all, offset, key=lambda segment: segment.base_offset) - 1]

    def floor_offset(self, offset: Offset) -> Offset:
        """Return the base of a batch at or below `offset`, as near as is known without reading the disk."""
        segment = self.holding(offset)
        index = segment.index or self.cache.index(segment)
        return segment.base_offset if index is None else index.offsets.floor(offset)[0]

    def roll(self, base_offset: Offset) -> None:
        """Start a new segment."""
        file = SegmentFile(self.disk, f"{self.path}/{segment_name(base_offset)}")
        index = SegmentIndex.empty(base_offset, self.interval_bytes)
        self.all.append(Segment(base_offset, file, base_offset, index=index))

    def from_base(self, base_offset: Offset, count: int) -> list[Segment]:
        """Return at most `count` segments, from the one with this base offset on; none if there is no such segment."""
        first = bisect_left(self.all, base_offset, key=lambda segment: segment.base_offset)
        found = self.all[first : first + count]
        return found if found and found[0].base_offset == base_offset else []

    def replace(self, olds: Sequence[Segment], new: Segment) -> None:
        """Put one segment with the same offsets, and the first one's name, in place of the old ones."""
        first = self.all.index(olds[0])
        self.all[first : first + len(olds)] = [new]
        for old in olds:
            self._drop(old)

    def drop_first(self) -> Segment:
        segment = self.all.pop(0)
        self._drop(segment)
        return segment

    def drop_all_and_start_at(self, offset: Offset) -> None:
        self.tail.truncate(Offset(0))
        while self.all:
            self._drop(self.all.pop())
        self.roll(offset)

    def drop_from(self, end_offset: Offset, issued_offset: Offset) -> tuple[Offset, Cut | None]:
        """Drop the batches that reach beyond `end_offset`, which lies in the log.

        Returns the new end, and the cut for the disk. Raises `CorruptBatch` and `DiskFailed`, with nothing changed.
        """
        log_end = self.active.end_offset
        kept_end, position = self._boundary(end_offset, log_end)
        cut_through = self.holding(kept_end)
        times = None
        if cut_through.base_offset < kept_end < cut_through.end_offset:
            times = self._shortened_index(cut_through, kept_end, position)
        self.tail.truncate(kept_end)
        if kept_end >= issued_offset:
            while self.active.base_offset > kept_end:
                self._drop(self.all.pop())
            self._shorten(self.active, kept_end, times)
            return kept_end, None
        while self.all and self.active.base_offset >= kept_end:
            self._drop(self.all.pop())
        cut = Cut(kept_end, None, 0)
        if times is not None:
            self._shorten(self.active, kept_end, times)
            cut = Cut(kept_end, self.active.base_offset, position)
        self.roll(kept_end)
        return kept_end, cut

    def header_source(self) -> HeaderSource:
        """Return the source of all batches as they are now."""
        log_end = self.active.end_offset
        tail_start = self.tail.first_offset(log_end)
        files = []
        for segment in self.all:
            if segment.base_offset < tail_start:
                # A sealed index does not change; the owner may change the others at any time.
                index = self.cache.index(segment) if segment.index is None else segment.index.copy()
                files.append(HeadersFile(segment.base_offset, segment.size, index))
        return HeaderSource(
            disk=self.disk,
            path=self.path,
            epochs=self.epochs.copy(),
            start_offset=self.all[0].base_offset,
            end_offset=log_end,
            files=files,
            tail_start=tail_start,
            tail=self.tail.from_offset(tail_start),
        )

    def check_invariants(self, log_start: Offset, log_end: Offset) -> None:
        """Raise `InvariantViolation` if an invariant does not hold."""
        good = (
            self.all[0].base_offset <= log_start
            and self.active.end_offset == log_end
            and self.active.index is not None
            and all(one.end_offset == two.base_offset for one, two in pairwise(self.all))
            and all(not segment.dropped for segment in self.all)
        )
        if not good:
            raise InvariantViolation(f"{self.path}: {log_start} to {log_end}: {[str(one) for one in self.all]}")

    def let_go(self) -> None:
        """Close the files that the log itself holds open."""
        self.tail.truncate(Offset(0))
        for segment in self.all:
            self.cache.forget(segment)
            segment.unpin()

    # --- Parts ---

    def _opened(self, scanned: ScannedSegment, *, last: bool) -> Segment:
        return Segment(
            base_offset=scanned.base_offset,
            file=SegmentFile(self.disk, f"{self.path}/{segment_name(scanned.base_offset)}"),
            end_offset=scanned.end_offset,
            size=scanned.size,
            max_timestamp=scanned.index.times.max_timestamp,
            first_timestamp=scanned.first_timestamp,
            index=scanned.index if last else None,
            on_disk=scanned.on_disk,
        )

    def _drop(self, segment: Segment) -> None:
        segment.dropped = True
        self.cache.forget(segment)
        segment.unpin()

    def _boundary(self, end_offset: Offset, log_end: Offset) -> tuple[Offset, int]:
        """Return the greatest batch end that is at most `end_offset`, and its position in the segment that holds it."""
        if end_offset >= self.tail.first_offset(log_end):
            batch = self.tail.holding(end_offset)
            return Offset(batch.header.base_offset), batch.position
        segment = self.holding(end_offset)
        file = segment.file.acquire()
        try:
            floor_offset, floor_position = self._index(segment).offsets.floor(end_offset)
            walk = HeaderWalk(file.pread, self.epochs, floor_position, floor_offset, segment.size)
            skip_to(walk, end_offset)
            return walk.offset, walk.position
        finally:
            segment.file.release()

    def _shortened_index(self, segment: Segment, end_offset: Offset, size: int) -> SegmentIndex:
        """Return the index of the part of a segment that stays."""
        index = self._index(segment).copy()
        begin = index.truncate(end_offset, size)
        for header in self.header_source().headers_from(begin):
            if header.base_offset >= end_offset:
                break
            index.add_time(header)
        return index

    def _shorten(self, segment: Segment, end_offset: Offset, index: SegmentIndex | None) -> None:
        if index is None:
            if segment.end_offset == end_offset:
                return
            index = SegmentIndex.empty(segment.base_offset, self.interval_bytes)
        self.cache.forget(segment)
        segment.index = index
        segment.end_offset, segment.size = index.end_offset, index.size
        segment.max_timestamp = index.times.max_timestamp

    def _index(self, segment: Segment) -> SegmentIndex:
        """Return the index from memory, else from its files, else from the batches. Blocks."""
        index = segment.index or self.cache.index(segment)
        if index is None:
            index = read_index(self.disk, self.path, segment.base_offset, self.interval_bytes)
        if index is None or index.size != segment.size:
            file = segment.file.acquire()
            try:
                index = rebuild_index(file, segment.base_offset, segment.size, self.epochs, self.interval_bytes)
            finally:
                segment.file.release()
        return index
