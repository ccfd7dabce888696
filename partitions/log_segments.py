"""The segments of a log in order, and what becomes of them when its end is dropped.

A truncation drops batches in memory at once. Where files may hold anything of them (a job was given it) a `Cut` tells
the next job, the segment that it goes through ends there for good, and the log goes on in a new one. Where no file can
hold them the last segment just becomes shorter.

What is *not* here: the offsets of the log (`log.py`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise

from raftlog.errors import InvariantViolation
from raftlog.model import Offset
from raftlog.ports import Disk
from raftlog.record_batch import BatchHeader

from .batch_tail import BatchTail, FetchCache
from .batch_walk import HeaderWalk, skip_to
from .index_files import read_index, rebuild_index
from .leader_epochs import LeaderEpochHistory
from .log_job import Cut
from .recovery_scan import ScannedSegment
from .segment import Segment, SegmentFile, SegmentIndex, segment_name


class LogSegments:
    """Invariant: each begins where the one before it ends; never empty; the last one has its index in memory."""

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
        """The one that grows."""
        return self.all[-1]

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self.all)

    def holding(self, offset: Offset) -> Segment:
        """The segment that holds `offset`, which is not below the first one's base."""
        return self.all[bisect_right(self.all, offset, key=lambda segment: segment.base_offset) - 1]

    def roll(self, base_offset: Offset) -> None:
        """The log goes on in a new segment."""
        file = SegmentFile(self.disk, f"{self.path}/{segment_name(base_offset)}")
        index = SegmentIndex.empty(base_offset, self.interval_bytes)
        self.all.append(Segment(base_offset, file, base_offset, index=index))

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
        """Drop the batches that reach beyond `end_offset`, which lies in the log. Where it ends then, and what the disk
        has to be told. Raises `CorruptBatch` and `DiskFailed`, with nothing changed."""
        log_end = self.active.end_offset
        kept_end, position = self._boundary(end_offset, log_end)
        cut_through = self.holding(kept_end)
        times = None
        if cut_through.base_offset < kept_end < cut_through.end_offset:
            times = self._shortened_index(cut_through, kept_end, position, log_end)
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

    def headers_from(self, offset: Offset, log_end: Offset) -> Iterator[BatchHeader]:
        """Of all batches from the one that holds `offset` on. Blocks; nothing may change meanwhile."""
        tail_start = self.tail.first_offset(log_end)
        while offset < tail_start:
            segment = self.holding(offset)
            file = segment.file.acquire()
            try:
                floor_offset, floor_position = self._index(segment).offsets.floor(offset)
                walk = HeaderWalk(file.pread, self.epochs, floor_position, floor_offset, segment.size)
                skip_to(walk, offset)
                while walk.offset < tail_start and (header := walk.peek()) is not None:
                    walk.step(header)
                    yield header
                offset = walk.offset
            finally:
                segment.file.release()
        for batch in self.tail.from_offset(offset):
            yield batch.header

    def check_invariants(self, log_start: Offset, log_end: Offset) -> None:
        """Raises `InvariantViolation`."""
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
        """Close what the log itself holds open."""
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
            on_disk=True,
        )

    def _drop(self, segment: Segment) -> None:
        segment.dropped = True
        self.cache.forget(segment)
        segment.unpin()

    def _boundary(self, end_offset: Offset, log_end: Offset) -> tuple[Offset, int]:
        """The greatest end of a batch that is at most `end_offset`, and its position in the segment that holds it."""
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

    def _shortened_index(self, segment: Segment, end_offset: Offset, size: int, log_end: Offset) -> SegmentIndex:
        """The index of the part of a segment that stays."""
        index = self._index(segment).copy()
        begin = index.truncate(end_offset, size)
        for header in self.headers_from(begin, log_end):
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
        """From memory, else from its files, else from its batches. Blocks."""
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
