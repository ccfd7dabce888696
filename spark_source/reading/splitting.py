"""Splitting of ranges into Spark tasks, one range each. Pure.

The pieces of a range are adjacent, differ by at most one offset, and together are the range.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sequence

from .offsets import PartitionRange

MAX_TASKS = 100_000
"""The maximum number of tasks; beyond it, tasks become larger."""


def split(
    ranges: Sequence[PartitionRange], min_partitions: int | None, max_records: int | None
) -> list[PartitionRange]:
    """Split into pieces of at most `max_records` offsets; if that makes fewer than `min_partitions`, split the largest
    further. None: no such limit. No piece is empty."""
    whole = [one for one in ranges if one.size]
    counts = [1] * len(whole)
    if max_records is not None:
        counts = [-(-one.size // max_records) for one in whole]
    if sum(counts) > MAX_TASKS:
        ratio = MAX_TASKS / sum(counts)
        counts = [max(1, int(count * ratio)) for count in counts]
    wanted = min(min_partitions or 0, MAX_TASKS)
    _cut_largest(whole, counts, wanted - sum(counts))
    return [piece for one, count in zip(whole, counts, strict=True) for piece in _cut(one, count)]


def _cut_largest(ranges: Sequence[PartitionRange], counts: list[int], more: int) -> None:
    """Raise the counts one by one where pieces are largest."""
    largest = [(-one.size / counts[number], number) for number, one in enumerate(ranges)]
    heapq.heapify(largest)
    while more > 0 and largest:
        _, number = heapq.heappop(largest)
        if counts[number] < ranges[number].size:
            counts[number] += 1
            more -= 1
            heapq.heappush(largest, (-ranges[number].size / counts[number], number))


def _cut(one: PartitionRange, count: int) -> list[PartitionRange]:
    edges = [one.start + one.size * number // count for number in range(count + 1)]
    return [one._replace(start=start, end=end) for start, end in itertools.pairwise(edges)]
