"""The batches at the end of a log that are still in memory: those not yet written, and the last ones that were.

Followers and consumers at the end of a log are served from here without a file access. Batches that no file holds yet
always stay; written ones stay as long as `FetchCache`, which all logs of a node share, has room. When it has none, the
batches written longest ago are evicted first, whatever their log.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict, deque
from collections.abc import Sequence

import msgspec

from partitions.files.segment import Segment, SegmentIndex
from raftlog.model import Offset
from raftlog.ports import Buffer
from raftlog.records.batch import BatchHeader

_COMPACT_AFTER = 512

INDEX_CACHE_BYTES = 16 * 1024 * 1024
"""Bound, in bytes, on the indexes of sealed segments that readers used last, over all logs.

Enough for some hundred segments of usual batches.
"""


class TailBatch(msgspec.Struct, eq=False):
    """A batch in memory, and its present or future place in the files."""

    header: BatchHeader
    end_offset: Offset
    buffers: Sequence[Buffer]
    length: int
    segment: Segment
    position: int
    tail: BatchTail
    dropped: bool = False
    """Whether the batch was truncated away or evicted."""

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
        """The number of evicted entries at the front."""

    def __len__(self) -> int:
        return len(self._batches) - self._head

    def first_offset(self, log_end_offset: Offset) -> Offset:
        """Return the offset from which on everything is in memory; the log's end if nothing is."""
        return Offset(self._bases[self._head]) if len(self) else log_end_offset

    def append(self, batch: TailBatch) -> None:
        self._batches.append(batch)
        self._bases.append(batch.header.base_offset)

    def read(
        self, start_offset: Offset, end_offset: Offset, max_bytes: int, max_batches: int, *, min_one: bool
    ) -> list[TailBatch]:
        """Find batches as `find_region` does, in memory; `start_offset` is in the tail."""
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
        """Return all batches that begin at `offset` or later."""
        return self._batches[bisect_left(self._bases, offset, self._head) :]

    def holding(self, offset: Offset) -> TailBatch:
        """Return the batch that holds `offset`, which lies in the tail."""
        return self._batches[self._index_holding(offset)]

    def truncate(self, end_offset: Offset) -> None:
        """Drop the batches that begin at `end_offset` or later."""
        keep = bisect_left(self._bases, end_offset, self._head)
        for batch in self._batches[keep:]:
            batch.drop()
        del self._batches[keep:], self._bases[keep:]
        self._compact()

    def forget_below(self, end_offset: Offset) -> None:
        """Evict the batches below `end_offset`, where one ends; all of them are in files."""
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
    """The memory of a node's logs for readers: written batches, and indexes of sealed segments.

    Invariant: between calls `batch_bytes <= capacity_bytes` and `index_bytes <= INDEX_CACHE_BYTES`.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.batch_bytes = 0
        self.index_bytes = 0
        self._batches: deque[TailBatch] = deque()
        self._indexes: OrderedDict[Segment, SegmentIndex] = OrderedDict()

    def written(self, batches: Sequence[TailBatch]) -> None:
        """Add batches that are now in files, in this order; they may be evicted from now on."""
        for batch in batches:
            if not batch.dropped:
                self._batches.append(batch)
                self.batch_bytes += batch.length
        while self.batch_bytes > self.capacity_bytes:
            oldest = self._batches.popleft()
            self.batch_bytes -= oldest.length
            if not oldest.dropped:
                oldest.tail.forget_below(oldest.end_offset)

    def index(self, segment: Segment) -> SegmentIndex | None:
        """Return the index of a sealed segment, if it is cached."""
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
        """Drop the index of a segment that no longer exists."""
        if segment in self._indexes:
            self._drop_index(segment)

    def _drop_index(self, segment: Segment) -> None:
        self.index_bytes -= self._indexes.pop(segment).memory_bytes
