"""Ticks for the replicas that wait for time to pass: deadlines, lag, retries.

A replica requests ticks (`want`) and gets them until it is quiet. While no replica waits, there are no wakeups, so a
node with many idle partitions can sleep.
"""

from __future__ import annotations

from partitions.driver.driver import PartitionDriver
from raftlog.ports import Clock, Scheduler
from raftlog.slices import in_turns

TICK_SECONDS = 0.1
"""The precision of deadlines, lag and retries, in seconds."""


class ReplicaTicks:
    """One timer for all replicas of a broker."""

    def __init__(self, scheduler: Scheduler, clock: Clock) -> None:
        self._scheduler = scheduler
        self._clock = clock
        self._waiting: dict[PartitionDriver, None] = {}
        self._due = False
        self._passing = False
        """Whether the previous tick has not reached all replicas yet."""

    def want(self, driver: PartitionDriver) -> None:
        """Tick this replica until it is quiet."""
        self._waiting[driver] = None
        self._arm()

    def drop(self, driver: PartitionDriver) -> None:
        """Stop ticking a replica that is closed."""
        self._waiting.pop(driver, None)

    def clear(self) -> None:
        """Stop ticking all replicas."""
        self._waiting.clear()

    def _arm(self) -> None:
        if self._waiting and not self._due:
            self._due = True
            self._scheduler.call_later(TICK_SECONDS, self._tick)

    def _tick(self) -> None:
        self._due = False
        # The next tick is scheduled first: a bug in one replica must not stop the ticks of all.
        self._arm()
        if not self._passing:
            self._passing = True
            in_turns(self._scheduler, list(self._waiting), self._tick_one, self._passed)

    def _tick_one(self, driver: PartitionDriver) -> None:
        if driver in self._waiting:
            driver.on_tick(self._clock.monotonic())
            if driver.quiet:
                self._waiting.pop(driver, None)

    def _passed(self) -> None:
        self._passing = False
