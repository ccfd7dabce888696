"""The repair of damage found in a running replica, without a restart.

    found        by the scrubber, a read or a follower's request. From now on the damaged segment is read only with its
                 CRCs checked; the rest is served as before
    asking       the quorum is asked not to count on this replica any more (`ReportLoss`). Meanwhile the replica gets no
                 newer record: it must not join an epoch with the data that it is about to lose
    accepted     the replica no longer leads, has left the ISR, and the leader epoch rose. Only now the log is closed
                 and recovered as after a crash: everything from the damage on is set aside. Then it is opened, follows
                 the leader and fetches what it lost (S6, S9)
    last copy    no other replica has the data. Nothing is cut: the good part stays readable, and appends continue. The
                 lost records are determined (`lost_ranges.py`) and reported, prominently. The quorum is asked again
                 every half minute, in case another replica has returned
    again        the quorum did not answer, or in another epoch: it is asked again soon, then less often

A log that failed because of the damage (nothing can be read around it) takes the same steps; it serves nothing
meanwhile.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, MutableMapping, Sequence
from typing import TypeAlias

import msgspec

from partitions.driver.driver import PartitionDriver
from partitions.files.damage import LogDamaged
from partitions.opening.log_manager import LogManager
from raftlog.errors import DiskHindered, RetriableError
from raftlog.model import LeaderEpoch, Offset, TopicPartition
from raftlog.ports import Logger, Scheduler, Worker

from .lost_ranges import LossSearch, LostRange, describe
from .scrub_plan import plan_of_log

ASK_AGAIN_SECONDS = 1.0
"""Seconds; doubled each time, up to the next constant: a disk that fails as a whole has many replicas."""

LAST_COPY_SECONDS = 30.0


class LossAnswer(enum.Enum):
    """The quorum's answer to a report of damage."""

    ACCEPTED = "accepted"
    """The replica no longer counts, and this broker's view shows it."""
    LAST_COPY = "last copy"
    """No other live replica has the data."""
    AGAIN = "again"
    """No answer, or the record had changed."""


ReportLoss: TypeAlias = Callable[[TopicPartition, LeaderEpoch, Callable[[LossAnswer], None]], None]


class _Repair(msgspec.Struct):
    driver: PartitionDriver
    reason: str
    suspects: set[Offset] = set()
    """Offsets in the damaged segments."""
    answer: LossAnswer | None = LossAnswer.AGAIN
    """The last answer; None while the quorum is asked."""
    seconds: float = ASK_AGAIN_SECONDS
    """The time until the quorum is asked again."""
    searched: frozenset[Offset] = frozenset()
    """The suspects in which lost records were, or are being, searched."""
    lost: Sequence[LostRange] | None = None
    """The lost ranges; None while they are unknown."""


class ReplicaRepairs:
    """The repairs of one broker.

    Invariant: a replica is withdrawn only after the quorum accepted the report of its loss.
    """

    def __init__(
        self,
        drivers: MutableMapping[TopicPartition, PartitionDriver],
        scheduler: Scheduler,
        worker: Worker,
        logger: Logger,
        logs: LogManager,
        report_loss: ReportLoss | None,
        place: Callable[[TopicPartition], None],
        offline: Callable[[TopicPartition, str], None],
    ) -> None:
        """`drivers` are the broker's: a withdrawn one is removed. `place` makes a driver fit the newest record.

        `offline` is called for replicas that cannot be repaired this way. Without `report_loss`, damage takes its
        replica offline, and a restart repairs it.
        """
        self._drivers = drivers
        self._scheduler = scheduler
        self._worker = worker
        self._logger = logger
        self._logs = logs
        self._report_loss = report_loss
        self._place = place
        self._offline = offline
        self._repairs: dict[TopicPartition, _Repair] = {}

    # --- Events ---

    def on_damage(self, driver: PartitionDriver, error: LogDamaged) -> bool:
        """Handle damage that a read of the log in service met. True: it is handled here, and the log lives on."""
        if self._report_loss is None:
            return False
        self._begin(driver, error)
        return True

    def on_offline(self, tp: TopicPartition, reason: str) -> None:
        """Handle a replica that went out of service; called again each time that it is elected all the same."""
        driver = self._drivers.get(tp)
        if self._report_loss is not None and driver is not None and isinstance(driver.log.failed, LogDamaged):
            self._begin(driver, driver.log.failed)
        else:
            self._offline(tp, reason)

    def holds(self, driver: PartitionDriver) -> bool:
        """Whether newer records must be kept from this replica now."""
        repair = self._repairs.get(driver.topic_partition)
        return repair is not None and repair.driver is driver and repair.answer is None

    def status(self) -> list[str]:
        """Return one line for each damaged replica, for people."""
        lines = []
        for repair in self._repairs.values():
            last = repair.answer is LossAnswer.LAST_COPY
            what = "is damaged, and no other replica has the data" if last else "is damaged, and about to be repaired"
            lost = f"; lost are {describe(repair.lost)}, the rest can be read" if last and repair.lost else ""
            lines.append(f"{repair.driver.name} {what}: {repair.reason}{lost}")
        return lines

    # --- Inside ---

    def _begin(self, driver: PartitionDriver, error: LogDamaged) -> None:
        tp = driver.topic_partition
        repair = self._repairs.get(tp)
        if repair is None or repair.driver is not driver:
            self._logger.error("damage found", partition=driver.name, segment=error.base_offset, reason=error.detail)
            repair = self._repairs[tp] = _Repair(driver, error.detail)
            self._ask_later(repair, 0.0)
        repair.suspects.add(error.base_offset)

    def _ask_later(self, repair: _Repair, seconds: float) -> None:
        self._scheduler.call_later(seconds, lambda: self._ask(repair))

    def _ask(self, repair: _Repair) -> None:
        driver = repair.driver
        if not self._goes_on(repair):
            return
        if driver.replica.record is None or not driver.log.is_damaged:
            # Truncated, or below the log's start: the damaged segment is no longer part of the log.
            del self._repairs[driver.topic_partition]
            return
        repair.answer = None
        assert self._report_loss is not None
        self._report_loss(driver.topic_partition, driver.leader_epoch, lambda answer: self._answered(repair, answer))

    def _answered(self, repair: _Repair, answer: LossAnswer) -> None:
        if not self._goes_on(repair):
            return
        repair.answer = answer
        name, tp = repair.driver.name, repair.driver.topic_partition
        if answer is LossAnswer.ACCEPTED:
            self._logger.warning("replica repairs itself", partition=name, reason=repair.reason)
            del self._repairs[tp], self._drivers[tp]
            repair.driver.close(RetriableError("leadership_lost", f"{name} is damaged and is being repaired"))
            self._logs.reopen(tp, repair.driver.log, sorted(repair.suspects))
            return
        if answer is LossAnswer.LAST_COPY:
            self._logger.error("damage in the last copy", partition=name, reason=repair.reason)
            self._look_for_losses(repair)
        self._place(tp)
        seconds, repair.seconds = repair.seconds, min(2 * repair.seconds, LAST_COPY_SECONDS)
        self._ask_later(repair, LAST_COPY_SECONDS if answer is LossAnswer.LAST_COPY else seconds)

    def _look_for_losses(self, repair: _Repair) -> None:
        """Search for lost records, once for each set of damaged segments: the search reads all of them."""
        if repair.searched == repair.suspects or repair.driver.log.failed is not None:
            return
        repair.searched, repair.lost = frozenset(repair.suspects), None
        log = repair.driver.log
        search = LossSearch(plan_of_log(log), repair.searched, log.config.index_interval_bytes)

        def stepped(more: bool | None, error: BaseException | None) -> None:
            if repair.searched != frozenset(search.damaged) or not self._goes_on(repair):
                return
            if error is not None:
                if isinstance(error, DiskHindered | MemoryError):
                    repair.searched = frozenset()  # Retried when the quorum is asked again.
                self._logger.error("lost records not found", partition=repair.driver.name, error=str(error))
            elif more:
                self._worker.submit(search.step, stepped)
            else:
                self._found(repair, search.lost)

        self._worker.submit(search.step, stepped)

    def _found(self, repair: _Repair, lost: Sequence[LostRange]) -> None:
        start = repair.driver.log.log_start_offset
        repair.lost = [LostRange(max(start, one.first), one.end) for one in lost if one.end > start]
        if repair.lost:
            self._logger.error("records lost", partition=repair.driver.name, lost=describe(repair.lost))

    def _goes_on(self, repair: _Repair) -> bool:
        """Whether the repair continues; False if the replica was removed meanwhile, or the broker stops."""
        tp = repair.driver.topic_partition
        if self._drivers.get(tp) is repair.driver:
            return True
        if self._repairs.get(tp) is repair:
            del self._repairs[tp]
        return False
