"""A histogram that several threads observe."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from raftlog.metrics.histogram import SECONDS, Histogram, HistogramState


class SharedHistogram:
    """Observations of several threads. A lock costs a tenth of a microsecond, so it is for calls of the system, which
    cost more."""

    def __init__(self, bounds: Sequence[float] = SECONDS) -> None:
        self._lock = threading.Lock()
        self._histogram = Histogram(bounds)

    def observe(self, value: float) -> None:
        """Count one value, on any thread."""
        with self._lock:
            self._histogram.observe(value)

    def state(self) -> HistogramState:
        """Return what was observed so far, on any thread."""
        with self._lock:
            return self._histogram.state()
