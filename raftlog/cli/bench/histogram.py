"""A log-linear histogram of latencies, of bounded size.

Each power of two is divided into 128 equal buckets, so a percentile is at most 1/128 (0.8 %) above the truth, whatever
its size, with at most `BUCKETS` counters. Average and maximum are exact. (The idea is that of HdrHistogram by Gil Tene.
The Python port has a native build and its own file format, neither of which is needed here.)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping

import msgspec

LINEAR_BITS = 8
"""Values below 2**8 have one bucket each."""
HALF = 1 << (LINEAR_BITS - 1)
MAX_BITS = 40
"""Values with more bits (as microseconds: over twelve days) are counted in the last bucket."""
BUCKETS = (MAX_BITS - LINEAR_BITS) * HALF + 2 * HALF


class Summary(msgspec.Struct, frozen=True):
    """The usual figures about latencies, in milliseconds."""

    count: int
    avg_ms: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    p999_ms: float
    max_ms: float


class Histogram:
    """A histogram of whole numbers from 0 on; here microseconds."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        """Bucket → count, without empty buckets."""
        self.count = 0
        self.total = 0
        """Sum of all values."""
        self.maximum = 0

    def record(self, value: int, times: int = 1) -> None:
        """Count `value` `times` times.

        A negative value (a reader may be ahead of a rounded schedule, although no clock went back) counts as 0. Raises
        `ValueError` if `times` is negative.
        """
        if times < 0:
            raise ValueError(f"{times} times")
        if times == 0:
            return
        value = max(value, 0)
        bucket = bucket_of(value)
        self._counts[bucket] = self._counts.get(bucket, 0) + times
        self.count += times
        self.total += value * times
        self.maximum = max(self.maximum, value)

    def merge(self, other: Histogram) -> None:
        """Add all values of another histogram."""
        for bucket, times in other._counts.items():
            self._counts[bucket] = self._counts.get(bucket, 0) + times
        self.count += other.count
        self.total += other.total
        self.maximum = max(self.maximum, other.maximum)

    def percentile(self, percent: float) -> int:
        """Return the smallest value such that `percent` of all values are not above it.

        The value is rounded up within its bucket; without values it is 0. Raises `ValueError` unless 0 <= percent <=
        100.
        """
        if not 0 <= percent <= 100:
            raise ValueError(f"{percent} is not a percentage")
        wanted = max(math.ceil(self.count * percent / 100), 1)
        seen = 0
        for bucket, times in sorted(self._counts.items()):
            seen += times
            if seen >= wanted:
                return min(bucket_range(bucket)[1], self.maximum) if bucket < BUCKETS - 1 else self.maximum
        return 0

    def buckets(self) -> Iterator[tuple[int, int, int]]:
        """Yield (lowest value, highest value, count) of each non-empty bucket, in ascending order."""
        for bucket, times in sorted(self._counts.items()):
            yield (*bucket_range(bucket), times)

    @property
    def average(self) -> float:
        return self.total / self.count if self.count else 0.0

    def summary(self) -> Summary:
        """Return the summary of microseconds, in milliseconds."""
        p50, p95, p99, p999 = (self.percentile(percent) / 1000 for percent in (50, 95, 99, 99.9))
        return Summary(self.count, self.average / 1000, p50, p95, p99, p999, self.maximum / 1000)

    # --- Between processes ---

    def state(self) -> HistogramState:
        """Return the whole content, to be sent."""
        return HistogramState(self.total, self.maximum, sorted(self._counts.items()))

    @staticmethod
    def of(states: Iterable[HistogramState]) -> Histogram:
        """Merge several histograms into one. Raises `ValueError` for an invalid state."""
        whole = Histogram()
        for state in states:
            counts: Mapping[int, int] = dict(state.counts)
            if any(not 0 <= bucket < BUCKETS or times < 0 for bucket, times in counts.items()):
                raise ValueError("an invalid bucket")
            part = Histogram()
            part._counts, part.count = dict(counts), sum(counts.values())
            part.total, part.maximum = state.total, state.maximum
            whole.merge(part)
        return whole


class HistogramState(msgspec.Struct, frozen=True, array_like=True):
    """The serialized form of a histogram."""

    total: int = 0
    maximum: int = 0
    counts: list[tuple[int, int]] = []
    """Pairs of (bucket, count)."""


def bucket_of(value: int) -> int:
    """Return the bucket that counts `value` (at least 0)."""
    shift = value.bit_length() - LINEAR_BITS
    if shift <= 0:
        return value
    return min(shift * HALF + (value >> shift), BUCKETS - 1)


def bucket_range(bucket: int) -> tuple[int, int]:
    """Return the lowest and the highest value of a bucket. (The last one also holds higher values.)"""
    if bucket < 2 * HALF:
        return bucket, bucket
    shift = bucket // HALF - 1
    lowest = (bucket - shift * HALF) << shift
    return lowest, lowest + (1 << shift) - 1
