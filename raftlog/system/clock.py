"""The clock port: the system's clocks, and clocks that are set by hand."""

from __future__ import annotations

import time


class SystemClock:
    """The machine's clocks."""

    def monotonic(self) -> float:
        return time.monotonic()

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000


class ManualClock:
    """Clocks that stand still until they are moved, for tests and tools."""

    def __init__(self, *, monotonic: float = 0.0, wall_ms: int = 1_700_000_000_000) -> None:
        self._monotonic = monotonic
        self._wall_ms = float(wall_ms)

    def monotonic(self) -> float:
        return self._monotonic

    def wall_ms(self) -> int:
        return int(self._wall_ms)

    def advance(self, seconds: float) -> None:
        """Advance both clocks."""
        assert seconds >= 0, seconds
        self._monotonic += seconds
        self._wall_ms += seconds * 1000

    def jump_wall(self, milliseconds: int) -> None:
        """Set the wall clock forwards or backwards, without the monotonic one."""
        self._wall_ms += milliseconds
