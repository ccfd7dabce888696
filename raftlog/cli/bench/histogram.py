"""Latencies, counted: a log-linear histogram of bounded size.

Each power of two is divided into 128 equal buckets, so a percentile is at most 1/128 (0.8 %) above the truth whatever
its size, in at most `BUCKETS` counters. Average and maximum are exact. (The idea is that of HdrHistogram by Gil Tene.
Ours is these few lines because the Python port brings a native build and its own file format, and needs neither here.)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping

import msgspec

LINEAR_BITS = 8
"""Values below 2**8 have a bucket each."""
HALF = 1 << (LINEAR_BITS - 1)
MAX_BITS = 40
"""Values of more bits (as microseconds: over twelve days) are counted in the last bucket."""
BUCKETS = (MAX_BITS - LINEAR_BITS) * HALF + 2 * HALF


class Summary(msgspec.Struct, frozen=True):
    """What people ask of latencies, in milliseconds."""

    count: int
    avg_ms: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    p999_ms: float
    max_ms: float


class Histogram:
    """Counts whole numbers from 0 on; here microseconds."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        """Bucket → how many. Only those that have any."""
        self.count = 0
        self.total = 0
        """Sum of all values."""
        self.maximum = 0

    def record(self, value: int, times: int = 1) -> None:
        """Count `value` so many times. What is negative (no clock went back, but a reader may be ahead of a rounded
        schedule) counts as 0. Raises `ValueError` where `times` is negative."""
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
        """As if all of the other's values had been recorded here."""
        for bucket, times in other._counts.items():
            self._counts[bucket] = self._counts.get(bucket, 0) + times
        self.count += other.count
        self.total += other.total
        self.maximum = max(self.maximum, other.maximum)

    def percentile(self, percent: float) -> int:
        """The smallest value that `percent` of all values are not above, rounded up within its bucket; 0 where there
        are none. Raises `ValueError` unless 0 <= percent <= 100."""
        if not 0 <= percent <= 100:
            raise ValueError(f"{percent} is no percentage")
        wanted = max(math.ceil(self.count * percent / 100), 1)
        seen = 0
        for bucket, times in sorted(self._counts.items()):
            seen += times
            if seen >= wanted:
                return min(bucket_range(bucket)[1], self.maximum) if bucket < BUCKETS - 1 else self.maximum
        return 0

    def buckets(self) -> Iterator[tuple[int, int, int]]:
        """(lowest value, highest value, count) of each bucket that has any, rising."""
        for bucket, times in sorted(self._counts.items()):
            yield (*bucket_range(bucket), times)

    @property
    def average(self) -> float:
        return self.total / self.count if self.count else 0.0

    def summary(self) -> Summary:
        """Of microseconds, as milliseconds."""
        p50, p95, p99, p999 = (self.percentile(percent) / 1000 for percent in (50, 95, 99, 99.9))
        return Summary(self.count, self.average / 1000, p50, p95, p99, p999, self.maximum / 1000)

    # --- Between processes ---

    def state(self) -> HistogramState:
        """All of it, to be sent."""
        return HistogramState(self.total, self.maximum, sorted(self._counts.items()))

    @staticmethod
    def of(states: Iterable[HistogramState]) -> Histogram:
        """One of several, merged. Raises `ValueError` for what no histogram sent."""
        whole = Histogram()
        for state in states:
            counts: Mapping[int, int] = dict(state.counts)
            if any(not 0 <= bucket < BUCKETS or times < 0 for bucket, times in counts.items()):
                raise ValueError("a bucket that cannot be")
            part = Histogram()
            part._counts, part.count = dict(counts), sum(counts.values())
            part.total, part.maximum = state.total, state.maximum
            whole.merge(part)
        return whole


class HistogramState(msgspec.Struct, frozen=True, array_like=True):
    """A histogram as it travels."""

    total: int = 0
    maximum: int = 0
    counts: list[tuple[int, int]] = []
    """(bucket, how many)."""


def bucket_of(value: int) -> int:
    """Which bucket counts `value` (at least 0)."""
    shift = value.bit_length() - LINEAR_BITS
    if shift <= 0:
        return value
    return min(shift * HALF + (value >> shift), BUCKETS - 1)


def bucket_range(bucket: int) -> tuple[int, int]:
    """The lowest and the highest value of a bucket. (The last one has higher ones too.)"""
    if bucket < 2 * HALF:
        return bucket, bucket
    shift = bucket // HALF - 1
    lowest = (bucket - shift * HALF) << shift
    return lowest, lowest + (1 << shift) - 1
