"""A cluster's time that is always known, and equals this node's wall clock."""

from __future__ import annotations

from raftlog.model import NO_TIME, ClusterTime
from raftlog.ports import Clock
from raftlog.system.cluster_clock import ClusterClock


class RightClock(ClusterClock):
    """For tests in which no clock is wrong, or all are by `wrong_ms`; while it `tells` nothing there is no time."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self._right = clock
        self.tells = True
        self.wrong_ms = 0

    def expiry_ms(self) -> int | None:
        self._tell()
        return super().expiry_ms()

    def stamp_ms(self) -> int:
        self._tell()
        return super().stamp_ms()

    def _tell(self) -> None:
        now_ms = self._right.wall_ms() - self.wrong_ms
        self.learn(ClusterTime(now_ms, 1, now_ms) if self.tells else NO_TIME)
