"""The shell of one replica: the only place where a core meets its log and the world.

An event comes in (a produce, a follower's frame, an fsync that ended, a record of the quorum), the core says what is
to be done, and the effects are performed at once, in the order given, each by the method for its class. Whoever waits
is called back when the event is over. A broken invariant or a disk error takes this one replica offline, with a log
line `INVARIANT …` or `replica offline`; an exception that nobody foresaw has it thrown away and opened again
(`partitions/upkeep/resets.py`). The broker goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from partitions.compaction.run import CleanedSegment, CompactionRun
from partitions.files.damage import LogDamaged
from partitions.log.log import PartitionLog
from partitions.log.producer_replay import ProducerReplay
from partitions.log.slice import LogSlice, ReadBy
from partitions.producers.state import ProducerStates
from partitions.replica import effects as fx
from partitions.replica.follower import Follower
from partitions.replica.replica import Replica
from raftlog.config import MAX_PRODUCE_TIMEOUT_MS, TopicConfig
from raftlog.errors import (
    DiskFailed,
    DiskHindered,
    InvariantViolation,
    RaftlogError,
    RemoteProtocolError,
    RetriableError,
    Unforeseen,
)
from raftlog.model import Acks, BrokerId, Incarnation, LeaderEpoch, Offset, PartitionRecord, ProducerId, TopicPartition
from raftlog.ports import Buffer
from raftlog.records.batch import BatchHeader, parse_header, stamp

from .incoming import Arrival, IncomingBatches
from .ports import Look, Subscriber, Surroundings, Waiter
from .reads import ReplicaReads
from .requests import AwaitingStable, Deleted, DeleteDone, Produced, ProduceDone, ProduceRequests


class PartitionDriver:
    """See the module. `name` is for people: `orders/3`."""

    def __init__(
        self,
        topic_partition: TopicPartition,
        name: str,
        log: PartitionLog,
        producers: ProducerStates,
        surroundings: Surroundings[PartitionDriver],
    ) -> None:
        self.topic_partition = topic_partition
        self.name = name
        self.log = log
        self._producers = producers
        producers.cut(log.log_start_offset)
        self._around = surroundings
        self.replica = Replica(
            surroundings.node_id,
            surroundings.incarnation,
            log,
            producers,
            surroundings.brokers,
            lag_max=surroundings.lag_max,
            verdicts=surroundings.transactions.ports.verdicts,
        )
        self.reads = ReplicaReads(name, self.replica, log, producers)
        self._requests = ProduceRequests(self._callback_failed)
        self._subscribers: dict[BrokerId, Subscriber] = {}
        self._waiters: dict[Waiter, None] = {}
        self._awaiting_stable = AwaitingStable()
        self._incoming = IncomingBatches(surroundings.worker, self._requests.is_waiting, self._on_checked)
        self._methods = self._effect_methods()
        log.on_damage = lambda error: surroundings.damaged(self, error)
        self._followed: Follower | None = None
        """As the links were told."""
        self._depth = 0
        self._closed = False
        self._replay_due = False
        """The producers' state is to be read again with the next tick: it could not be read for now."""

    # --- Metadata and time ---

    @property
    def leader_epoch(self) -> LeaderEpoch:
        """The newest that this replica was told of."""
        return self.replica.leader_epoch

    def on_record(self, record: PartitionRecord) -> None:
        """The quorum's word on this partition."""
        before = (self.replica.leader, self.replica.follower)
        self._run(lambda: self.replica.on_record(record, self._now()))
        if (self.replica.leader, self.replica.follower) != before:
            self._around.logger.info("replica", partition=self.name, epoch=self.leader_epoch, state=str(self.replica))
            self._wake_waiters()
        if self.replica.offline and record.leader == self._around.node_id:
            self._around.offline(self.topic_partition, self.replica.offline)
        self._around.wants_tick(self)

    def on_broker(self, broker: BrokerId) -> None:
        """The view shows something new about this broker."""
        self._run(lambda: self.replica.on_broker(broker, self._now()))
        self._around.wants_tick(self)

    def on_isr_answer(self, leader_epoch: LeaderEpoch, attempt: int, fate: fx.Fate) -> None:
        """The fate of a proposal of this replica."""
        self._run(lambda: self.replica.on_isr_answer(leader_epoch, attempt, fate, self._now()))
        self._around.wants_tick(self)

    def configure(self, config: TopicConfig) -> None:
        """The topic's settings, now."""
        self.log.configure(config)
        self._write()

    def on_tick(self, now: float) -> None:
        """Time passed."""
        # Who can say why a request waits says it before its time is over.
        self._run(lambda: self.replica.on_tick(now))
        if self._replay_due and not self.replica.offline:
            self._replay_again()
        self._requests.expire(now)
        self._requests.deliver()
        if self.replica.leader is not None and self.replica.leader.transactions.is_due(now):
            self._around.transactions.want(self)

    def look_at_transactions(self) -> Look:
        """Ask about some of what is open, and write what is decided."""
        leader = self.replica.leader
        if leader is None or self._closed or self.log.producers.stale:
            return Look(0, more=False)  # Whoever reads the state again asks for a look when it is there.
        self._run(lambda: leader.look(self._now(), self._around.cluster_clock.stamp_ms(), may_write=not self.log.full))
        self._around.wants_tick(self)
        return Look(leader.transactions.looked_at, more=self.replica.leader is leader and leader.transactions.more)

    def on_job_done(self) -> None:
        """The disk did what it was told to, or failed."""
        if self._closed:
            return
        failed = self.log.failed
        if failed is None:
            self._run(self._stable)
            if self.log.full and self.replica.follower is not None:
                self._on_disk_full()
        elif isinstance(failed, Unforeseen):
            self.throw_away(failed)
        elif isinstance(failed, InvariantViolation):
            self._broken(failed)
        else:
            self.go_offline(str(failed))

    def _stable(self) -> list[fx.Effect]:
        self._release_stable()
        return self.replica.on_stable()

    @property
    def quiet(self) -> bool:
        """Nothing here waits for time to pass."""
        if self._closed:
            return True
        return not (len(self._requests) or self._replay_due) and self.replica.quiet

    # --- Produce ---

    def produce(
        self,
        batch: Buffer,
        config: TopicConfig,
        acks: Acks,
        done: ProduceDone,
        deadline: float,
        *,
        resent: bool = False,
    ) -> None:
        """One batch; see `PartitionManager.produce`. `deadline` is in monotonic seconds."""
        try:
            self._check_open_for_produce()
        except RaftlogError as error:
            done(error)
            return
        request = self._requests.add(done, deadline)
        self._incoming.arrive(Arrival(request, batch, acks, config, self._around.cluster_clock.stamp_ms(), resent))
        self._around.wants_tick(self)

    def _on_checked(self, arrival: Arrival, header: BatchHeader | RaftlogError) -> None:
        """A batch's turn has come: hand it to the core, or refuse it."""
        self._run(lambda: self._admit(arrival, header))

    def _admit(self, arrival: Arrival, header: BatchHeader | RaftlogError) -> list[fx.Effect]:
        if isinstance(header, RaftlogError):
            return [fx.Reject(arrival.request, header)]
        try:
            self._check_open_for_produce()
        except RaftlogError as error:
            return [fx.Reject(arrival.request, error)]
        stamped = arrival.config.message_timestamp_type == "LogAppendTime"
        append_time = self._around.cluster_clock.stamp_ms() if stamped else -1
        deadline = self._requests.deadline_of(arrival.request)
        incoming = fx.IncomingBatch(
            arrival.request,
            header,
            arrival.batch,
            arrival.acks,
            append_time,
            deadline=deadline,
            resent=arrival.resent,
        )
        now = self._now()
        self._producers.advance(now)
        return self.replica.produce(incoming, now)

    def _check_open_for_produce(self) -> None:
        if self._closed:
            raise RetriableError("replica_not_available", f"{self.name} is being closed")
        if self.replica.leader is None:
            raise self.replica.not_leading()
        if self.log.producers.stale:
            raise RetriableError("replica_not_available", f"{self.name} still reads what its producers sent")
        if self.log.full:
            raise self.log.refusal(self.name)
        if self._around.room.short:
            raise self._around.room.refusal(self.name)

    @property
    def greatest_producer_id(self) -> ProducerId:
        """Nobody with a greater id has ever written to this log."""
        return self._producers.greatest_id

    @property
    def closed(self) -> bool:
        return self._closed

    # --- Reads ---

    def read(
        self, offset: Offset, end_offset: Offset, max_bytes: int, *, min_one_batch: bool, by: ReadBy = ReadBy.CONSUMER
    ) -> LogSlice:
        """See `ReplicaReads.read`. Raises `DiskFailed` too (and the replica is offline, or is to be repaired)."""
        try:
            return self.reads.read(offset, end_offset, max_bytes, min_one_batch=min_one_batch, by=by)
        except Unforeseen as error:
            self.throw_away(error)  # A job's, of which this read is the first to hear.
            raise self.replica.not_leading() from None
        except DiskFailed as error:
            if self.log.failed is not None:
                self.go_offline(str(error))
            raise

    def on_load_failed(self, error: BaseException) -> RaftlogError:
        """A worker could not load what a read found cold; returns what the reader is to be told."""
        retriable = isinstance(error, RetriableError) and not isinstance(error, DiskFailed)
        if self._closed or retriable or isinstance(error, MemoryError):
            return RetriableError("offset_not_available", f"{self.name}: {error}")
        if not isinstance(error, RaftlogError):
            self.throw_away(error)
            return self.replica.not_leading()
        if not isinstance(error, LogDamaged):
            self.go_offline(f"{type(error).__name__}: {error}")
            return self.replica.not_leading()
        self.log.damage_found(error)
        if self.log.failed is not None:
            self.go_offline(str(self.log.failed))
        return RetriableError("replica_not_available", f"{self.name} could not be read: {error}")

    def _on_producers_replayed(self, replay: ProducerReplay, error: BaseException | None) -> None:
        """A worker has read the producers' state again, or could not."""
        if self._closed or self.replica.offline:
            return
        if isinstance(error, LogDamaged):
            self.log.damage_found(error, fatal=True)
        if error is not None:
            self.on_load_failed(error)
        self.log.producers.replayed(replay, good=error is None)
        self._producers.cut(self.log.log_start_offset)
        if isinstance(error, DiskHindered | MemoryError):
            self._replay_due = True  # Not at once: a shortage lasts.
            self._around.wants_tick(self)
        elif not self.replica.offline:
            self._replay_again()
            if self.log.needs_job:
                self._write()  # A start that moved meanwhile waits for a snapshot of this state.

    def _replay_again(self) -> None:
        self._replay_due = False
        self._replay_producers()
        self._around.transactions.want(self)

    # --- Waiting ---

    def wait_readable(self, waiter: Waiter) -> None:
        """Tell this long poll, once, when consumers may read more or may not read here at all."""
        self._waiters[waiter] = None

    def stop_waiting(self, waiter: Waiter) -> None:
        self._waiters.pop(waiter, None)

    # --- Followers of this leader ---

    def on_subscribe(
        self,
        follower: BrokerId,
        incarnation: Incarnation,
        position: fx.FollowerPosition,
        subscriber: Subscriber,
    ) -> None:
        """A follower's subscription, in place of any that it had. Raises `RemoteProtocolError`."""
        before = self._subscribers.pop(follower, None)
        if before is not None:
            before.on_answer(fx.Refused("connection_lost"))
        self._subscribers[follower] = subscriber
        self._run(lambda: self.replica.on_subscribe(follower, incarnation, position, self._now()))
        self._around.wants_tick(self)

    def on_unsubscribe(self, follower: BrokerId, subscriber: Subscriber) -> None:
        if self._subscribers.get(follower) is subscriber:
            del self._subscribers[follower]

    def on_report(
        self,
        follower: BrokerId,
        incarnation: Incarnation,
        leader_epoch: LeaderEpoch,
        fetch_offset: Offset,
        stable_end_offset: Offset,
    ) -> None:
        """A follower's acknowledgement. Raises `RemoteProtocolError`."""
        self._run(
            lambda: self.replica.on_report(
                follower,
                incarnation,
                leader_epoch,
                fetch_offset=fetch_offset,
                stable_end_offset=stable_end_offset,
                now=self._now(),
            )
        )
        leader = self.replica.leader
        if leader is not None and follower not in leader.record.isr:
            # It may be in sync now, at a moment when nothing may be proposed; and it will not speak again.
            self._around.wants_tick(self)

    # --- The leader that this follower has ---

    def on_link_opened(self) -> None:
        """The leader, in the incarnation that the record names, can be asked."""
        self._run(lambda: self.replica.on_link_opened(self._now()))
        self._around.wants_tick(self)

    def on_link_lost(self) -> None:
        self._run(self.replica.on_link_lost)

    def on_answer(self, leader_epoch: LeaderEpoch, answer: fx.Answer) -> None:
        """Raises `RemoteProtocolError`."""
        self._run(lambda: self.replica.on_answer(leader_epoch, answer, self._now()))
        self._around.wants_tick(self)

    def on_pushed(self, leader_epoch: LeaderEpoch, batches: list[fx.FetchedBatch], marks: fx.Matched) -> None:
        """Batches whose CRC was checked. Raises `RemoteProtocolError`, and then appended nothing."""
        if self.replica.follower is None:
            return
        if batches and (self.log.full or self._around.room.very_short):
            self._on_disk_full()
        else:
            self._run(lambda: self.replica.on_pushed(leader_epoch, batches, marks))
            self._around.wants_tick(self)

    def _on_disk_full(self) -> None:
        self._run(lambda: self.replica.on_disk_full(self._now()))
        self._around.wants_tick(self)

    def on_corrupt_push(self) -> None:
        """What the leader pushed is damaged; the link is dropped by who found it."""
        self._run(lambda: self.replica.on_corrupt_push(self._now()))
        self._around.wants_tick(self)

    # --- The start of the log: retention, `delete-records`, what followers say of theirs; compaction ---

    def retain(self, now_ms: int | None) -> None:
        """Move the log's start as the topic's retention asks. Leaders only: followers hear of it from them."""
        if self.replica.leader is not None:
            self.move_log_start(self.log.retention(now_ms, self.reads.settled_end))

    def move_log_start(self, offset: Offset) -> None:
        """Records below `offset`, at most the last stable one, are gone for readers."""
        offset = min(offset, self.reads.settled_end)
        if self.replica.leader is not None and offset > self.log.log_start_offset:
            self._run(lambda: [fx.AdvanceLogStart(offset)])

    def seal_for_compaction(self, now_ms: int) -> None:
        """See `PartitionLog.seal_for_compaction`."""
        if self.log.seal_for_compaction(now_ms):
            self._write()

    def replace_segment(self, cleaned: CleanedSegment) -> bool:
        """See `PartitionLog.replace_segment`."""
        replaced = self.log.replace_segment(cleaned)
        self._write()
        return replaced

    def compacted(self, run: CompactionRun, end: Offset) -> None:
        """See `PartitionLog.compacted`."""
        if not self._closed and self.log.compacted(run, end):
            self.reads.forget_aborted(end)
            self._write()

    def delete_records(self, before: Offset, done: DeleteDone, timeout_ms: int) -> None:
        """Delete the records below `before` (-1: all whose fate is settled). `done` is called exactly once: when
        every replica that may lead next has it on disk, or with what went wrong (whose `applied` tells whether they may
        be gone), at the latest after `timeout_ms`, give or take a tick: then with `request_timed_out`."""
        refusal: RaftlogError | None = None
        if self.replica.leader is None:
            refusal = self.replica.not_leading()
        elif self.log.producers.stale:
            refusal = RetriableError("replica_not_available", f"{self.name} still reads what is open")
        elif self.log.full:
            refusal = self.log.refusal(self.name)
        if refusal is not None:
            done(refusal)
            return
        request = self._requests.add(done, self._now() + min(timeout_ms, MAX_PRODUCE_TIMEOUT_MS) / 1000)
        self._run(lambda: self.replica.delete_records(request, before))
        # What it moved may be known to all disks already.
        self._run(self.replica.on_log_start)
        self._around.wants_tick(self)

    def on_follower_start(
        self, follower: BrokerId, incarnation: Incarnation, leader_epoch: LeaderEpoch, start: Offset
    ) -> None:
        """A follower says where its log begins on its disk."""
        self._run(lambda: self.replica.on_follower_start(follower, incarnation, leader_epoch, start))

    # --- The end ---

    def close(self, error: RaftlogError) -> None:
        """No event does anything from now on; everybody who waits is answered, with `error` at the latest."""
        if self._closed:
            return
        self._run(self.replica.close)
        self._closed = True
        self._incoming.close()
        self._requests.fail_all(error)
        self._requests.deliver()
        self._wake_waiters()

    def go_offline(self, reason: str) -> None:
        """A disk error or a broken rule: this replica serves nothing until the broker starts again."""
        if self.replica.offline or self._closed:
            return
        self._around.logger.error("replica offline", partition=self.name, epoch=self.leader_epoch, reason=reason)
        self._perform(self.replica.go_offline(reason))
        self._requests.fail_all(RetriableError("leadership_lost", f"the replica went offline: {reason}"))
        self._wake_waiters()
        if self.replica.follower is not self._followed:
            self._follow()
        if not self._depth:
            self._requests.deliver()
        self._around.offline(self.topic_partition, reason)

    def throw_away(self, error: BaseException) -> None:
        """Something that nobody foresaw happened in the middle of an event: nothing that this replica knows is to be
        believed, and nothing of it is served (S1, S4). Its owner opens it again from the disk."""
        if self._closed:
            return
        self._around.logger.error("unforeseen", partition=self.name, epoch=self.leader_epoch, exc_info=error)
        led = self.leader_epoch if self.replica.leader is not None else None
        reason = f"{type(error).__name__}: {error}"
        self._closed = True
        self.replica.throw_away(reason)
        self._incoming.close()
        self._refuse_followers()
        self._requests.fail_all(RetriableError("leadership_lost", f"the replica begins anew: {reason}"))
        if self._followed is not None:
            self._followed = None
            self._around.links.unfollow(self)
        if not self._depth:
            self._requests.deliver()
        self._wake_waiters()
        self._around.broken(self, error, led)

    # --- Inside ---

    def _now(self) -> float:
        return self._around.clock.monotonic()

    def _run(self, event: Callable[[], list[fx.Effect]]) -> None:
        """One event: the core's decision, its effects, the invariants, and then the answers."""
        if self._closed:
            return
        self._depth += 1
        try:
            self._perform(event())
            self.replica.check_invariants()
        except RemoteProtocolError:
            raise  # Nothing was changed: the link's owner drops it.
        except Unforeseen as error:
            self.throw_away(error)  # A job's, of which this event is the first to hear.
        except InvariantViolation as violation:
            self._broken(violation)
        except DiskFailed as error:
            self.go_offline(str(error))
        except Exception as error:  # noqa: BLE001  whatever it is, the state is in doubt
            self.throw_away(error)
        finally:
            self._depth -= 1
        if not self._closed and self.replica.follower is not self._followed:
            self._follow()
        if not self._depth and self._requests.due:
            self._requests.deliver()

    def _release_stable(self) -> None:
        """The log's stable end moved: what travelled inside a write up to there is due."""
        due = self._awaiting_stable.release(self.log.stable_end_offset)
        if due:
            self._perform(due)

    def _broken(self, violation: InvariantViolation) -> None:
        if not self.replica.offline and not self._closed:
            self._around.logger.error(
                f"INVARIANT {violation.detail}", partition=self.name, epoch=self.leader_epoch, state=str(self.replica)
            )
            self.go_offline(violation.detail)

    def _follow(self) -> None:
        """Let the links know whom this replica follows."""
        follower = self._followed = self.replica.follower
        if follower is None:
            self._around.links.unfollow(self)
        else:
            self._around.links.follow(self, follower.record.leader, follower.record.leader_incarnation)

    # --- Performing effects: one method for each class, and none of them decides anything ---

    def _effect_methods(self) -> dict[type, Callable[[Any], None]]:
        links = self._around.links
        looks = self._around.transactions
        partition = self.topic_partition
        return {
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
            fx.Subscribe: lambda effect: links.subscribe(self, effect),
            fx.Unsubscribe: lambda effect: links.unsubscribe(self),
            fx.ReportStable: lambda effect: links.report(self, effect),
            fx.AnswerFollower: self._answer_follower,
            fx.DropFollowers: self._drop_followers,
            fx.AdvanceHighWatermark: self._advance_high_watermark,
            fx.ProposeIsr: self._propose_isr,
            fx.LookAtTransactions: lambda effect: looks.want(self),
            fx.MarkersWritten: lambda effect: looks.ports.markers_written(partition, effect.keys),
            fx.TransactionsOverdue: lambda effect: looks.ports.overdue(partition, effect.keys),
        }

    def _perform(self, effects: Sequence[fx.Effect]) -> None:
        """In the order given."""
        for effect in effects:
            self._methods[type(effect)](effect)

    def _write(self) -> None:
        """The log has work for the disk."""
        self._around.writer.dirty(self.log, self.on_job_done)

    def _replay_producers(self) -> None:
        """After a truncation, until the producers' state is the log's again."""
        replay = self.log.producer_replay()
        if replay is not None:
            self._around.worker.submit(replay.run, lambda _, error: self._on_producers_replayed(replay, error))

    def _wake_waiters(self) -> None:
        """Long polls look again."""
        waiters, self._waiters = list(self._waiters), {}
        for waiter in waiters:
            try:
                waiter.on_readable()
            except Exception as error:  # noqa: BLE001  told of; it is not the other waiters' fault
                self._callback_failed(error)

    def _refuse_followers(self) -> None:
        """The driver is in doubt: followers are told to ask again, and nothing that waits for the disk is performed."""
        self._awaiting_stable.abandon()
        subscribers, self._subscribers = list(self._subscribers.values()), {}
        for subscriber in subscribers:
            try:
                subscriber.on_answer(fx.Refused("replica_not_available"))
            except Exception as error:  # noqa: BLE001  told of; it is not the other followers' fault
                self._callback_failed(error)

    def _callback_failed(self, error: Exception) -> None:
        self._around.logger.error("a callback failed", partition=self.name, error=repr(error), exc_info=error)

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
        if effect.base_offset != self.log.log_end_offset:
            raise InvariantViolation(f"append at {effect.base_offset} to a log that ends at {self.log.log_end_offset}")
        self.log.append(header, buffers)
        self._around.room.appended(header.total_bytes)
        self._producers.append(header, batch.control)
        if header.is_transactional:
            self._around.transactions.watch(self)
        if effect.after:
            self._awaiting_stable.add(self.log.log_end_offset, effect.after)
        self._write()
        for subscriber in self._subscribers.values():
            subscriber.on_grown()
        now = self._now()
        released = self.replica.on_appended(effect.leader_epoch, ProducerId(header.producer_id), now)
        if released:
            self._perform(released)

    def _acknowledge(self, effect: fx.Acknowledge) -> None:
        answer = Produced(effect.base_offset, effect.log_append_time_ms, self.log.log_start_offset)
        self._requests.answer(effect.request, answer)

    def _reject(self, effect: fx.Reject) -> None:
        self._requests.answer(effect.request, effect.error)

    def _records_deleted(self, effect: fx.RecordsDeleted) -> None:
        self._requests.answer(effect.request, Deleted(effect.log_start_offset))

    def _when_stable(self, effect: fx.WhenStable) -> None:
        self._awaiting_stable.add(effect.end_offset, effect.after)
        self._release_stable()

    def _abandon_writes(self, effect: fx.AbandonWrites) -> None:
        for acknowledge in self._awaiting_stable.abandon():
            self._requests.answer(acknowledge.request, RetriableError(effect.code, effect.detail))

    # --- The log of a follower ---

    def _append_fetched(self, effect: fx.AppendFetched) -> None:
        for batch in effect.batches:
            self.log.append(batch.header, [batch.data])
            self._around.room.appended(batch.header.total_bytes)
            self._producers.append(batch.header, batch.control)
        self._producers.advance(self._now())
        self._write()

    def _truncate_to(self, effect: fx.TruncateTo) -> None:
        self.log.truncate_to(effect.end_offset)
        self._replay_producers()
        self._truncated(effect.leader_epoch)

    def _start_log_at(self, effect: fx.StartLogAt) -> None:
        self.log.truncate_fully_and_start_at(effect.offset)
        if effect.offset > 0:
            # Instead of what the log assumed, which has nobody to ask: that anybody may have written below.
            self._producers.restore(None)
            self._producers.lacks_past(effect.greatest_producer_id)
        self._truncated(effect.leader_epoch)

    def _truncated(self, leader_epoch: LeaderEpoch) -> None:
        self._write()
        self._perform(self.replica.on_truncated(leader_epoch))

    def _advance_log_start(self, effect: fx.AdvanceLogStart) -> None:
        self.log.advance_log_start(effect.offset)
        self._producers.cut(effect.offset)
        self._write()
        for subscriber in self._subscribers.values():
            subscriber.on_marks()

    # --- Followers and the quorum ---

    def _answer_follower(self, effect: fx.AnswerFollower) -> None:
        subscriber = self._subscribers.get(effect.follower)
        if subscriber is not None:
            if not isinstance(effect.answer, fx.Matched):
                del self._subscribers[effect.follower]
            subscriber.on_answer(effect.answer)

    def _drop_followers(self, effect: fx.DropFollowers) -> None:
        subscribers, self._subscribers = list(self._subscribers.values()), {}
        for subscriber in subscribers:
            subscriber.on_answer(fx.Refused(effect.code))

    def _advance_high_watermark(self, effect: fx.AdvanceHighWatermark) -> None:
        self._producers.transactions.settle(effect.high_watermark)
        for subscriber in self._subscribers.values():
            subscriber.on_marks()
        if effect.exposed:
            self._wake_waiters()

    def _propose_isr(self, effect: fx.ProposeIsr) -> None:
        epoch, attempt = effect.proposal.leader_epoch, effect.attempt
        self._around.logger.info("isr proposed", partition=self.name, epoch=epoch, proposal=str(effect.proposal))
        self._around.propose_isr(effect.proposal, lambda fate: self.on_isr_answer(epoch, attempt, fate))

    # --- For people and for tests ---

    def check_invariants(self) -> None:
        """Raises `InvariantViolation`."""
        self.replica.check_invariants()

    def __str__(self) -> str:
        return f"{self.name} {self.replica}" + (" disk full" if self.log.full else "")
