"""Time passes for those replicas that wait for it: deadlines, lag, retries.

A replica says that it waits (`want`) and is ticked until it is quiet; while nobody waits, nobody is woken, which is
what lets a node with many idle partitions sleep.
"""

from __future__ import annotations

from partitions.driver.driver import PartitionDriver
from raftlog.ports import Clock, Scheduler
from raftlog.slices import in_turns

TICK_SECONDS = 0.1
"""How precisely deadlines, lag and retries are kept."""


class ReplicaTicks:
    """One timer for all replicas of a broker."""

    def __init__(self, scheduler: Scheduler, clock: Clock) -> None:
        self._scheduler = scheduler
        self._clock = clock
        self._waiting: dict[PartitionDriver, None] = {}
        self._due = False
        self._passing = False
        """A tick of many is not through with all of them."""

    def want(self, driver: PartitionDriver) -> None:
        """Tick it until it is quiet."""
        self._waiting[driver] = None
        self._arm()

    def drop(self, driver: PartitionDriver) -> None:
        """It is closed."""
        self._waiting.pop(driver, None)

    def clear(self) -> None:
        """All are closed."""
        self._waiting.clear()

    def _arm(self) -> None:
        if self._waiting and not self._due:
            self._due = True
            self._scheduler.call_later(TICK_SECONDS, self._tick)

    def _tick(self) -> None:
        self._due = False
        # First the next one: time must not stand still for all because of a bug in one.
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
