"""The batches at the end of a log that are still in memory: those not yet written, and the last ones that were.

Followers and consumers at the end of a log are served from here without touching a file. Batches that no file holds yet
stay in any case; written ones stay as long as `FetchCache`, which all logs of a node share, has room: when it has none,
those written longest ago go first, whichever log they are of.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass

from partitions.files.segment import Segment, SegmentIndex
from raftlog.model import Offset
from raftlog.ports import Buffer
from raftlog.records.batch import BatchHeader

_COMPACT_AFTER = 512

INDEX_CACHE_BYTES = 16 * 1024 * 1024
"""Indexes of sealed segments that readers used last, over all logs: those of some hundred segments of usual batches."""


@dataclass(slots=True, eq=False)
class TailBatch:
    """A batch in memory, and where in the files it is or will be."""

    header: BatchHeader
    end_offset: Offset
    buffers: Sequence[Buffer]
    length: int
    segment: Segment
    position: int
    tail: BatchTail
    dropped: bool = False
    """Truncated away, or evicted."""

    def drop(self) -> None:
        self.dropped = True
        self.buffers = ()


class BatchTail:
    """Consecutive batches up to the log's end, found by offset.

    Invariant: each begins where the one before it ends, and the last ends at the log's end.
    """

    def __init__(self) -> None:
        self._batches: list[TailBatch] = []
        self._bases: list[int] = []
        self._head = 0
        """Those before it were evicted."""

    def __len__(self) -> int:
        return len(self._batches) - self._head

    def first_offset(self, log_end_offset: Offset) -> Offset:
        """From here on everything is in memory; the log's end where nothing is."""
        return Offset(self._bases[self._head]) if len(self) else log_end_offset

    def append(self, batch: TailBatch) -> None:
        self._batches.append(batch)
        self._bases.append(batch.header.base_offset)

    def read(
        self, start_offset: Offset, end_offset: Offset, max_bytes: int, max_batches: int, *, min_one: bool
    ) -> list[TailBatch]:
        """As `find_region`, in memory; `start_offset` is in the tail."""
        index = self._index_holding(start_offset)
        found: list[TailBatch] = []
        length = 0
        for batch in self._batches[index : index + max_batches]:
            length += batch.length
            if batch.end_offset > end_offset or (length > max_bytes and not (min_one and not found)):
                break
            found.append(batch)
        return found

    def from_offset(self, offset: Offset) -> list[TailBatch]:
        """All batches that begin at `offset` or later."""
        return self._batches[bisect_left(self._bases, offset, self._head) :]

    def holding(self, offset: Offset) -> TailBatch:
        """The batch that holds `offset`, which lies in the tail."""
        return self._batches[self._index_holding(offset)]

    def truncate(self, end_offset: Offset) -> None:
        """Drop the batches that begin at `end_offset` or later."""
        keep = bisect_left(self._bases, end_offset, self._head)
        for batch in self._batches[keep:]:
            batch.drop()
        del self._batches[keep:], self._bases[keep:]
        self._compact()

    def evict_through(self, batch: TailBatch) -> None:
        """Let go of this batch and the ones before it; all of them are in files."""
        while self._head < len(self._batches) and self._bases[self._head] <= batch.header.base_offset:
            self._batches[self._head].drop()
            self._head += 1
        self._compact()

    def forget_below(self, end_offset: Offset) -> None:
        """Let go of the batches below `end_offset`, where one ends; all of them are in files."""
        while self._head < len(self._batches) and self._bases[self._head] < end_offset:
            self._batches[self._head].drop()
            self._head += 1
        self._compact()

    def _index_holding(self, offset: Offset) -> int:
        index = bisect_right(self._bases, offset, self._head) - 1
        assert index >= self._head, (offset, self._bases[self._head : self._head + 1])
        return index

    def _compact(self) -> None:
        if self._head == len(self._batches) or (self._head > _COMPACT_AFTER and self._head * 2 > len(self._batches)):
            del self._batches[: self._head], self._bases[: self._head]
            self._head = 0


class FetchCache:
    """What the logs of a node keep in memory for readers, in bytes: written batches, and indexes of sealed segments.

    Invariant: between calls `batch_bytes <= capacity_bytes` and `index_bytes <= INDEX_CACHE_BYTES`.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.batch_bytes = 0
        self.index_bytes = 0
        self._batches: deque[TailBatch] = deque()
        self._indexes: OrderedDict[Segment, SegmentIndex] = OrderedDict()

    def written(self, batches: Sequence[TailBatch]) -> None:
        """These are in files now, in this order; they may be evicted from now on."""
        for batch in batches:
            if not batch.dropped:
                self._batches.append(batch)
                self.batch_bytes += batch.length
        while self.batch_bytes > self.capacity_bytes:
            oldest = self._batches.popleft()
            self.batch_bytes -= oldest.length
            if not oldest.dropped:
                oldest.tail.evict_through(oldest)

    def index(self, segment: Segment) -> SegmentIndex | None:
        """The index of a sealed segment, if it is here."""
        found = self._indexes.get(segment)
        if found is not None:
            self._indexes.move_to_end(segment)
        return found

    def keep_index(self, segment: Segment, index: SegmentIndex) -> None:
        self.forget(segment)
        self._indexes[segment] = index
        self.index_bytes += index.memory_bytes
        while self.index_bytes > INDEX_CACHE_BYTES:
            self._drop_index(next(iter(self._indexes)))

    def forget(self, segment: Segment) -> None:
        """The segment is no more."""
        if segment in self._indexes:
            self._drop_index(segment)

    def _drop_index(self, segment: Segment) -> None:
        self.index_bytes -= self._indexes.pop(segment).memory_bytes
