"""Replicas that met an unforeseen exception: each is discarded, and opened again from its disk.

In the middle of an event a replica may be half updated (a batch is in the log, but not yet in its producer's state: a
resend would be appended twice, S1). So it serves nothing from then on. Its disk is consistent, as after a crash of the
process, and a new replica begins from there.

    discarded     waiting requests get an unknown outcome; its log is closed when the last job has ended
    reopened      after a pause that doubles, recovered as after a crash, except that the page cache still has what was
                  not fsynced. If the recovery finds a loss, the replica is not opened: the quorum does not know of the
                  loss, and the next start reports it. The replica stays out of service until then
    barred        if it led: its log may end before what it pushed to followers in this leader epoch, and would give
                  their offsets to other batches (S4). It waits for a later epoch, as leader or follower (S5)
    given up      after `MOST_RESETS` within `WINDOW_SECONDS`: out of service until the next start, and a problem in the
                  node's health

A call for which the process had no descriptor or memory (`DiskHindered`) has the same consequences, but is not counted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, MutableMapping

from partitions.driver.driver import PartitionDriver
from partitions.opening.log_manager import LogManager
from raftlog.errors import DiskHindered
from raftlog.model import BrokerId, LeaderEpoch, PartitionRecord, TopicPartition
from raftlog.ports import Clock, Logger

from .ticks import ReplicaTicks

MOST_RESETS = 5
WINDOW_SECONDS = 600.0
FIRST_PAUSE_SECONDS = 0.5
"""The pause before the first reopening; doubled with each reset within the window."""


class ReplicaResets:
    """The resets of one broker.

    Invariant: a discarded replica is not in any driver map.
    """

    def __init__(
        self,
        node_id: BrokerId,
        clock: Clock,
        logger: Logger,
        logs: LogManager,
        drivers: MutableMapping[TopicPartition, PartitionDriver],
        ticks: ReplicaTicks,
        cannot_lead: Callable[[TopicPartition, str], None],
    ) -> None:
        """`drivers` are the broker's: a discarded one is removed, and gets no more `ticks`.

        `cannot_lead` is called for a leadership that cannot be exercised.
        """
        self._node_id = node_id
        self._drivers = drivers
        self._clock = clock
        self._logger = logger
        self._logs = logs
        self._ticks = ticks
        self._cannot_lead = cannot_lead
        self._times: dict[TopicPartition, deque[float]] = {}
        """Replica → the times of its resets within the window."""
        self._barred: dict[TopicPartition, LeaderEpoch] = {}
        """Replica → the epoch up to which it must not lead."""
        self.resets = 0
        """Resets since the start."""

    def on_broken(self, driver: PartitionDriver, error: BaseException, led: LeaderEpoch | None) -> None:
        """Handle a closed driver whose state is in doubt; it led in the epoch `led`, if any."""
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
            self._logs.give_up(tp, driver.log, f"it failed {times} times within {WINDOW_SECONDS:.0f} s: {reason}")
        else:
            pause = FIRST_PAUSE_SECONDS * 2 ** max(0, times - 1)
            self._logger.error("replica reset", partition=driver.name, pause=pause, reason=reason)
            self._logs.reopen_as_it_is(tp, driver.log, pause)
        if led is not None:
            self._cannot_lead(tp, reason)

    def bars(self, record: PartitionRecord) -> bool:
        """Whether this record must be kept from the replica: it would lead in an epoch in which it led before."""
        barred = self._barred.get(record.topic_partition)
        if barred is None:
            return False
        if record.leader_epoch > barred:
            del self._barred[record.topic_partition]
            return False
        return record.leader == self._node_id

    def is_barred(self, tp: TopicPartition) -> bool:
        """Whether the replica waits for a later leader epoch, as far as it knows."""
        return tp in self._barred

    def forget(self, tp: TopicPartition) -> None:
        """Drop the state of a replica that this broker no longer has."""
        self._barred.pop(tp, None)
        self._times.pop(tp, None)

    def _counted(self, tp: TopicPartition, error: BaseException) -> int:
        """Count a reset, and return the resets within the window; 0 if the error says nothing about the replica."""
        if isinstance(error, DiskHindered | MemoryError):
            return 0
        now = self._clock.monotonic()
        times = self._times.setdefault(tp, deque())
        while times and times[0] < now - WINDOW_SECONDS:
            times.popleft()
        times.append(now)
        return len(times)
