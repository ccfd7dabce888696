"""A log-linear histogram of latencies, of bounded size.

Each power of two is divided into 128 equal buckets, so a percentile is at most 1/128 (0.8 %) above the truth, whatever
its size, with at most `BUCKETS` counters. Average and maximum are exact. The idea is that of
HdrHistogram by Gil Tene. Its Python port is not used: it has wheels for Linux on x86-64 only, so elsewhere the
installation of raftlog would take a C compiler.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated

import msgspec
from msgspec import Meta

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

    @property
    def marks(self) -> dict[str, float]:
        """Name → milliseconds of the figures that charts name."""
        return {"p50": self.p50_ms, "p99": self.p99_ms, "p99.9": self.p999_ms, "max": self.max_ms}


class Histogram(msgspec.Struct, array_like=True):
    """A histogram of whole numbers from 0 on, here microseconds. Messages contain it as it is."""

    total: int = 0
    """Sum of all values."""
    maximum: int = 0
    counts: dict[Annotated[int, Meta(ge=0, lt=BUCKETS)], Annotated[int, Meta(ge=1)]] = {}
    """Bucket → count, without empty buckets."""

    @property
    def count(self) -> int:
        return sum(self.counts.values())

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
        self.counts[bucket] = self.counts.get(bucket, 0) + times
        self.total += value * times
        self.maximum = max(self.maximum, value)

    def merge(self, other: Histogram) -> None:
        """Add all values of another histogram."""
        for bucket, times in other.counts.items():
            self.counts[bucket] = self.counts.get(bucket, 0) + times
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
        for bucket, times in sorted(self.counts.items()):
            seen += times
            if seen >= wanted:
                return min(bucket_range(bucket)[1], self.maximum) if bucket < BUCKETS - 1 else self.maximum
        return 0

    def buckets(self) -> Iterator[tuple[int, int, int]]:
        """Yield (lowest value, highest value, count) of each non-empty bucket, in ascending order."""
        for bucket, times in sorted(self.counts.items()):
            yield (*bucket_range(bucket), times)

    @property
    def average(self) -> float:
        return self.total / max(self.count, 1)

    def summary(self) -> Summary:
        """Return the summary of microseconds, in milliseconds."""
        p50, p95, p99, p999 = (self.percentile(percent) / 1000 for percent in (50, 95, 99, 99.9))
        return Summary(self.count, round(self.average / 1000, 3), p50, p95, p99, p999, self.maximum / 1000)


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
