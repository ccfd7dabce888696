"""Performing effects: each class of effect has one method here, and nothing here decides anything.

What is *not* here: events (`driver.py`), which alone calls `perform`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from raftlog.errors import InvariantViolation, RetriableError
from raftlog.model import BrokerId, LeaderEpoch, ProducerId
from raftlog.record_batch import parse_header, stamp

from . import effects as fx
from .driver_ports import Subscriber, Surroundings, Waiter
from .driver_requests import AwaitingStable, Deleted, Produced, ProduceRequests
from .log import PartitionLog
from .producer_state import ProducerStates
from .replica import Replica

if TYPE_CHECKING:
    from .driver import PartitionDriver


class EffectPerformer:
    """What one driver does with its log, its followers and its requests."""

    def __init__(
        self,
        driver: PartitionDriver,
        replica: Replica,
        log: PartitionLog,
        producers: ProducerStates,
        surroundings: Surroundings,
    ) -> None:
        self._driver = driver
        self._replica = replica
        self._log = log
        self._producers = producers
        self._around = surroundings
        self.requests = ProduceRequests(self._callback_failed)
        self.subscribers: dict[BrokerId, Subscriber] = {}
        self.waiters: dict[Waiter, None] = {}
        self._awaiting_stable = AwaitingStable()
        links = surroundings.links
        looks, partition = surroundings.transactions, driver.topic_partition
        self._methods: dict[type, Callable[[Any], None]] = {
            fx.Append: self._append,
            fx.Acknowledge: self._acknowledge,
            fx.Reject: self._reject,
            fx.RecordsDeleted: self._records_deleted,
            fx.WhenStable: self._when_stable,
            fx.AbandonWrites: self._abandon_writes,
            fx.AppendFetched: self._append_fetched,
            fx.TruncateTo: self._truncate_to,
            fx.StartLogAt: self._start_log_at,
            fx.AdvanceLogStart: self._advance_log_start,
            fx.Subscribe: lambda effect: links.subscribe(driver, effect),
            fx.Unsubscribe: lambda effect: links.unsubscribe(driver),
            fx.ReportStable: lambda effect: links.report(driver, effect),
            fx.AnswerFollower: self._answer_follower,
            fx.DropFollowers: self._drop_followers,
            fx.AdvanceHighWatermark: self._advance_high_watermark,
            fx.ProposeIsr: self._propose_isr,
            fx.LookAtTransactions: lambda effect: looks.want(driver),
            fx.MarkersWritten: lambda effect: looks.ports.markers_written(partition, effect.keys),
            fx.TransactionsOverdue: lambda effect: looks.ports.overdue(partition, effect.keys),
        }

    def perform(self, effects: Sequence[fx.Effect]) -> None:
        """In the order given."""
        for effect in effects:
            self._methods[type(effect)](effect)

    def release_stable(self) -> None:
        """The log's stable end moved: what travelled inside a write up to there is due."""
        due = self._awaiting_stable.release(self._log.stable_end_offset)
        if due:
            self.perform(due)

    def write(self) -> None:
        """The log has work for the disk."""
        self._around.writer.dirty(self._log, self._driver.on_job_done)

    def replay_producers(self) -> None:
        """After a truncation, until the producers' state is the log's again."""
        replay = self._log.producer_replay()
        if replay is not None:
            self._around.worker.submit(replay.run, lambda _, error: self._driver.on_producers_replayed(replay, error))

    def wake_waiters(self) -> None:
        """Long polls look again."""
        waiters, self.waiters = list(self.waiters), {}
        for waiter in waiters:
            try:
                waiter.on_readable()
            except Exception as error:  # noqa: BLE001  told of; it is not the other waiters' fault
                self._callback_failed(error)

    def throw_away(self) -> None:
        """The driver is in doubt: followers are told to ask again, and nothing that waits for the disk is performed."""
        self._awaiting_stable.abandon()
        subscribers, self.subscribers = list(self.subscribers.values()), {}
        for subscriber in subscribers:
            try:
                subscriber.on_answer(fx.Refused("replica_not_available"))
            except Exception as error:  # noqa: BLE001  told of; it is not the other followers' fault
                self._callback_failed(error)

    def _callback_failed(self, error: Exception) -> None:
        self._around.logger.error("a callback failed", partition=self._driver.name, error=repr(error), exc_info=error)

    # --- Produces ---

    def _append(self, effect: fx.Append) -> None:
        batch = effect.batch
        stamped = batch.log_append_time_ms >= 0
        buffers = stamp(
            batch.data, effect.base_offset, effect.leader_epoch, batch.log_append_time_ms if stamped else None
        )
        header = parse_header(buffers[0]) if stamped else batch.header
        header.base_offset = effect.base_offset
        header.leader_epoch = effect.leader_epoch
        if effect.base_offset != self._log.log_end_offset:
            raise InvariantViolation(f"append at {effect.base_offset} to a log that ends at {self._log.log_end_offset}")
        self._log.append(header, buffers)
        self._around.room.appended(header.total_bytes)
        self._producers.append(header, batch.control)
        if header.is_transactional:
            self._around.transactions.watch(self._driver)
        if effect.after:
            self._awaiting_stable.add(self._log.log_end_offset, effect.after)
        self.write()
        for subscriber in self.subscribers.values():
            subscriber.on_grown()
        now = self._around.clock.monotonic()
        released = self._replica.on_appended(effect.leader_epoch, ProducerId(header.producer_id), now)
        if released:
            self.perform(released)

    def _acknowledge(self, effect: fx.Acknowledge) -> None:
        answer = Produced(effect.base_offset, effect.log_append_time_ms, self._log.log_start_offset)
        self.requests.answer(effect.request, answer)

    def _reject(self, effect: fx.Reject) -> None:
        self.requests.answer(effect.request, effect.error)

    def _records_deleted(self, effect: fx.RecordsDeleted) -> None:
        self.requests.answer(effect.request, Deleted(effect.log_start_offset))

    def _when_stable(self, effect: fx.WhenStable) -> None:
        self._awaiting_stable.add(effect.end_offset, effect.after)
        self.release_stable()

    def _abandon_writes(self, effect: fx.AbandonWrites) -> None:
        for acknowledge in self._awaiting_stable.abandon():
            self.requests.answer(acknowledge.request, RetriableError(effect.code, effect.detail))

    # --- The log of a follower ---

    def _append_fetched(self, effect: fx.AppendFetched) -> None:
        for batch in effect.batches:
            self._log.append(batch.header, [batch.data])
            self._around.room.appended(batch.header.total_bytes)
            self._producers.append(batch.header, batch.control)
        self._producers.advance(self._around.clock.monotonic())
        self.write()

    def _truncate_to(self, effect: fx.TruncateTo) -> None:
        self._log.truncate_to(effect.end_offset)
        self.replay_producers()
        self._truncated(effect.leader_epoch)

    def _start_log_at(self, effect: fx.StartLogAt) -> None:
        self._log.truncate_fully_and_start_at(effect.offset)
        if effect.offset > 0:
            # Instead of what the log assumed, which has nobody to ask: that anybody may have written below.
            self._producers.restore(None)
            self._producers.lacks_past(effect.greatest_producer_id)
        self._truncated(effect.leader_epoch)

    def _truncated(self, leader_epoch: LeaderEpoch) -> None:
        self.write()
        self.perform(self._replica.on_truncated(leader_epoch))

    def _advance_log_start(self, effect: fx.AdvanceLogStart) -> None:
        self._log.advance_log_start(effect.offset)
        self._producers.cut(effect.offset)
        self.write()
        for subscriber in self.subscribers.values():
            subscriber.on_marks()

    # --- Followers and the quorum ---

    def _answer_follower(self, effect: fx.AnswerFollower) -> None:
        subscriber = self.subscribers.get(effect.follower)
        if subscriber is not None:
            if not isinstance(effect.answer, fx.Matched):
                del self.subscribers[effect.follower]
            subscriber.on_answer(effect.answer)

    def _drop_followers(self, effect: fx.DropFollowers) -> None:
        subscribers, self.subscribers = list(self.subscribers.values()), {}
        for subscriber in subscribers:
            subscriber.on_answer(fx.Refused(effect.code))

    def _advance_high_watermark(self, effect: fx.AdvanceHighWatermark) -> None:
        self._producers.transactions.settle(effect.high_watermark)
        for subscriber in self.subscribers.values():
            subscriber.on_marks()
        if effect.exposed:
            self.wake_waiters()

    def _propose_isr(self, effect: fx.ProposeIsr) -> None:
        epoch, attempt, driver = effect.proposal.leader_epoch, effect.attempt, self._driver
        self._around.logger.info("isr proposed", partition=driver.name, epoch=epoch, proposal=str(effect.proposal))
        self._around.propose_isr(effect.proposal, lambda fate: driver.on_isr_answer(epoch, attempt, fate))
