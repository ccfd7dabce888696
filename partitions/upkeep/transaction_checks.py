"""The schedule of leaders' checks of their open transactions: soon after news, some at a time, never all in one turn.

News of a decision does not name all partitions that it concerns: an abort names none, and a commit ends batches in
partitions that it does not name. So every led partition with an open transaction is checked (`look_at_transactions`).
A turn has one bounded check (or some that find nothing). Between two turns there is a pause, so that a stream of
decisions over many open transactions takes a part of the loop's time and not all of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from partitions.driver.driver import PartitionDriver
from partitions.driver.ports import TransactionPorts
from partitions.replica.transactions import LeftOpen
from raftlog.model import TopicPartition
from raftlog.ports import Scheduler

PAUSE_SECONDS = 0.004
"""Seconds between two turns: a check takes a millisecond or two."""

WORK_A_TURN = 1_000
"""Transactions checked in one turn, to within one check: some milliseconds."""
WORK_OF_A_LOOK = 4
"""The cost of a check that finds nothing, in transactions."""


@dataclass(frozen=True, slots=True)
class CheckFacts:
    """The pending work of `TransactionChecks`."""

    watched: tuple[TopicPartition, ...]
    """Partitions that may have open transactions."""
    due: int
    """Number of partitions to be checked soon."""


class TransactionChecks:
    """The checks of all partitions of a broker."""

    def __init__(
        self, ports: TransactionPorts, scheduler: Scheduler, drivers: Mapping[TopicPartition, PartitionDriver]
    ) -> None:
        self.ports = ports
        self._scheduler = scheduler
        self._drivers = drivers
        self._due: dict[PartitionDriver, None] = {}
        self._watched: dict[PartitionDriver, None] = {}
        """Drivers that may have open transactions."""
        self._turn_due = False

    def want(self, driver: PartitionDriver) -> None:
        """Check this driver soon."""
        self._watched[driver] = None
        self._due[driver] = None
        self._arm(0.0)

    def watch(self, driver: PartitionDriver) -> None:
        """Check this driver at news: it has open transactions."""
        self._watched[driver] = None

    def news(self, touched: Iterable[TopicPartition] | None) -> None:
        """Schedule checks after decisions (`PartitionManager.on_transactions`)."""
        named = self._drivers.values() if touched is None else map(self._drivers.get, touched)
        for driver in (*named, *self._watched):
            leader = None if driver is None or driver.closed else driver.replica.leader
            if driver is not None and leader is not None:
                leader.transactions.news()
                self._due[driver] = None
        self._watched = {driver: None for driver in self._watched if not driver.closed and driver.replica.leader}
        self._arm(0.0)

    def facts(self) -> CheckFacts:
        """Return the pending work."""
        return CheckFacts(tuple(driver.topic_partition for driver in self._watched), len(self._due))

    def open_transactions(self, limit: int) -> list[LeftOpen]:
        """Return at most `limit` transactions that are open in partitions led here."""
        found: list[LeftOpen] = []
        for driver in list(self._watched):
            leader = None if driver.closed else driver.replica.leader
            if leader is not None and len(found) < limit:
                found += leader.transactions.left_open(limit - len(found))
        return found

    def _arm(self, seconds: float) -> None:
        if not self._due or self._turn_due:
            return
        self._turn_due = True
        if seconds:
            self._scheduler.call_later(seconds, self._turn)
        else:
            self._scheduler.call_soon(self._turn)

    def _turn(self) -> None:
        self._turn_due = False
        try:
            work = 0
            while self._due and work < WORK_A_TURN:
                driver = next(iter(self._due))
                del self._due[driver]
                look = driver.look_at_transactions()
                work += WORK_OF_A_LOOK + look.transactions
                leader = driver.replica.leader
                if leader is None or leader.transactions.quiet:
                    self._watched.pop(driver, None)
                if look.more:
                    self._due[driver] = None  # Behind the others.
        finally:
            self._arm(PAUSE_SECONDS)
