"""A histogram of plain numbers, cheap enough for each message and each batch.

One observation costs a bisection and three additions, some two hundred nanoseconds. Nothing here knows the names or
forms of any metrics library.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import msgspec

SECONDS = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
)  # fmt: skip
"""Bounds for durations, from a request served from memory to the longest long poll, in seconds."""
SIZES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000)
"""Bounds for numbers of things that are handled together."""
BYTES = (256, 1_024, 4_096, 16_384, 65_536, 262_144, 1_048_576)
"""Bounds for the sizes of batches, in bytes."""


class HistogramState(msgspec.Struct, frozen=True):
    """A histogram at one moment."""

    bounds: Sequence[float]
    """Upper bounds of the buckets but the last, which has none; a bound belongs to its bucket."""
    counts: tuple[int, ...]
    """Observations in each bucket alone; one more than there are bounds."""
    total: float
    """The sum of all observed values."""

    @property
    def count(self) -> int:
        """The number of observations."""
        return sum(self.counts)


class Histogram:
    """Observations of one thread."""

    __slots__ = ("_counts", "_total", "bounds")

    def __init__(self, bounds: Sequence[float] = SECONDS) -> None:
        """`bounds` rise."""
        self.bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self._counts[bisect_left(self.bounds, value)] += 1
        self._total += value

    def state(self) -> HistogramState:
        """Return what was observed so far."""
        return HistogramState(self.bounds, tuple(self._counts), self._total)
