"""A replica that met an exception which nobody foresaw: it is thrown away, and opened again from its disk.

In the middle of an event a replica may be half updated (a batch is in the log, and its producer's state does not know
it yet: a resend would be appended twice, S1). So it serves nothing from then on. What is on its disk is whole, as after
a crash of the process, and a new replica begins from there.

    thrown away   whoever waited is answered that the outcome is unknown; its log is closed when the last job has ended
    reopened      after a pause that doubles, recovered as after a crash. A recovery that finds a loss does not count:
                  the quorum was told nothing of it, and the next start tells. The replica stays out of service then
    barred        where it led: its log may end before what it pushed to followers in this leader epoch, and would give
                  their offsets to other batches (S4). It waits for a later epoch, under itself or another (S5)
    given up      after `MOST_RESETS` within `WINDOW_SECONDS`: out of service until the next start, and a problem of the
                  node's health

A call that the process had no descriptor or memory for (`DiskHindered`) goes the same way, without being counted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, MutableMapping

from partitions.driver.driver import PartitionDriver
from partitions.opening.log_manager import ReplicaShelf
from raftlog.errors import DiskHindered
from raftlog.model import BrokerId, LeaderEpoch, PartitionRecord, TopicPartition
from raftlog.ports import Clock, Logger

from .ticks import ReplicaTicks

MOST_RESETS = 5
WINDOW_SECONDS = 600.0
FIRST_PAUSE_SECONDS = 0.5
"""Doubled with each reset within the window."""


class ReplicaResets:
    """Those of one broker. See the module.

    Invariant: a replica that was thrown away is in no driver that anybody is given.
    """

    def __init__(
        self,
        node_id: BrokerId,
        clock: Clock,
        logger: Logger,
        shelf: ReplicaShelf,
        drivers: MutableMapping[TopicPartition, PartitionDriver],
        ticks: ReplicaTicks,
        cannot_lead: Callable[[TopicPartition, str], None] | None,
    ) -> None:
        """`drivers` are the broker's: who is thrown away is taken out, and gets no more `ticks`. `cannot_lead` is told
        of a leadership that cannot be exercised."""
        self._node_id = node_id
        self._drivers = drivers
        self._clock = clock
        self._logger = logger
        self._shelf = shelf
        self._ticks = ticks
        self._cannot_lead = cannot_lead or (lambda topic_partition, reason: None)
        self._times: dict[TopicPartition, deque[float]] = {}
        """When each was reset, within the window."""
        self._barred: dict[TopicPartition, LeaderEpoch] = {}
        """It must not lead in this epoch, nor in an earlier one."""
        self.resets = 0
        """Since the start."""

    def on_broken(self, driver: PartitionDriver, error: BaseException, led: LeaderEpoch | None) -> None:
        """The driver is closed, and its state in doubt; it led in this epoch, if any."""
        tp = driver.topic_partition
        if self._drivers.get(tp) is not driver:
            return
        del self._drivers[tp]
        self._ticks.drop(driver)
        self.resets += 1
        reason = f"{type(error).__name__}: {error}"
        if led is not None:
            self._barred[tp] = led
        times = self._counted(tp, error)
        if times > MOST_RESETS:
            self._logger.error("replica given up", partition=driver.name, resets=times, reason=reason)
            self._shelf.give_up(tp, driver.log, f"it broke {times} times within {WINDOW_SECONDS:.0f} s: {reason}")
        else:
            pause = FIRST_PAUSE_SECONDS * 2 ** max(0, times - 1)
            self._logger.error("replica reset", partition=driver.name, pause=pause, reason=reason)
            self._shelf.reopen_as_it_is(tp, driver.log, pause)
        if led is not None:
            self._cannot_lead(tp, reason)

    def bars(self, record: PartitionRecord) -> bool:
        """Whether the replica must not be told of this record: it would lead where it led before."""
        barred = self._barred.get(record.topic_partition)
        if barred is None:
            return False
        if record.leader_epoch > barred:
            del self._barred[record.topic_partition]
            return False
        return record.leader == self._node_id

    def is_barred(self, tp: TopicPartition) -> bool:
        """Whether the replica waits for a later leader epoch, as far as it was told."""
        return tp in self._barred

    def forget(self, tp: TopicPartition) -> None:
        """This broker has the replica no longer."""
        self._barred.pop(tp, None)
        self._times.pop(tp, None)

    def _counted(self, tp: TopicPartition, error: BaseException) -> int:
        """How often it was reset within the window, this one included; 0 where that says nothing of the replica."""
        if isinstance(error, DiskHindered | MemoryError):
            return 0
        now = self._clock.monotonic()
        times = self._times.setdefault(tp, deque())
        while times and times[0] < now - WINDOW_SECONDS:
            times.popleft()
        times.append(now)
        return len(times)
