"""The shell of one replica: the only place where a core meets its log, the disk and the network.

An event comes in (a produce, a follower's frame, a finished fsync, a record of the quorum), the core decides, and its
effects are performed at once, in the order given, each by the method for its class. Callbacks run when the event is
over. If an invariant is broken or the disk fails, this one replica goes offline, with a log line `INVARIANT …` or
`replica offline`. After an unforeseen exception the replica is discarded and opened again
(`partitions/upkeep/resets.py`). The broker continues.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from partitions.compaction.run import CleanedSegment, CompactionRun
from partitions.files.damage import LogDamaged
from partitions.log.log import PartitionLog
from partitions.log.producer_replay import ProducerReplay
from partitions.log.slice import LogSlice, ReadBy
from partitions.producers.control_batches import control_of
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
from raftlog.model import (
    Acks,
    BrokerId,
    Incarnation,
    LeaderEpoch,
    Offset,
    PartitionRecord,
    ProducerId,
    TopicPartition,
)
from raftlog.ports import Buffer
from raftlog.records.batch import BatchHeader, parse_header, stamp
from raftlog.transactions import TransactionKey

from .incoming import Arrival, IncomingBatches
from .ports import CheckResult, DriverPorts, Subscriber, Waiter
from .reads import ReplicaReads
from .requests import AwaitingStable, Deleted, DeleteDone, Produced, ProduceDone, ProduceRequests


@dataclass(frozen=True, slots=True)
class DriverFacts:
    """The state beside a replica's role and its log."""

    waiters: int
    """Fetches and session slots that wait for more to read."""
    open_transactions: tuple[tuple[TransactionKey, Offset], ...]
    """Each with its first offset, oldest first."""
    aborted_ranges: int


class PartitionDriver:
    """The shell of one replica. `name` is for people: `orders/3`."""

    def __init__(
        self,
        topic_partition: TopicPartition,
        name: str,
        log: PartitionLog,
        producers: ProducerStates,
        surroundings: DriverPorts[PartitionDriver],
    ) -> None:
        self.topic_partition = topic_partition
        self.name = name
        self.log = log
        self._producers = producers
        producers.cut(log.log_start_offset)
        self._ports = surroundings
        self.traffic = surroundings.traffic
        """The counts of the topic."""
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
        """The follower state that the links know."""
        self._depth = 0
        self._closed = False
        self._replay_due = False
        """Whether the next tick retries the replay of the producers' state, which could not be read for now."""

    # --- Metadata and time ---

    @property
    def leader_epoch(self) -> LeaderEpoch:
        """The newest leader epoch that this replica has seen."""
        return self.replica.leader_epoch

    def on_record(self, record: PartitionRecord) -> None:
        """Apply a record of this partition from the quorum."""
        before = (self.replica.leader, self.replica.follower)
        self._run(lambda: self.replica.on_record(record, self._now()))
        if (self.replica.leader, self.replica.follower) != before:
            self._ports.logger.info("replica", partition=self.name, epoch=self.leader_epoch, state=str(self.replica))
            self._wake_waiters()
        if self.replica.offline and record.leader == self._ports.node_id:
            self._ports.offline(self.topic_partition, self.replica.offline)
        self._ports.wants_tick(self)

    def on_broker(self, broker: BrokerId) -> None:
        """Apply a change of this broker in the view."""
        self._run_and_tick(lambda: self.replica.on_broker(broker, self._now()))

    def on_isr_answer(self, leader_epoch: LeaderEpoch, attempt: int, fate: fx.Fate) -> None:
        """Apply the fate of this replica's proposal."""
        self._run_and_tick(lambda: self.replica.on_isr_answer(leader_epoch, attempt, fate, self._now()))

    def configure(self, config: TopicConfig) -> None:
        """Apply the topic's settings."""
        restored = self.log.config.is_restoring and not config.is_restoring
        self.log.configure(config)
        if restored:
            self._ports.transactions.want(self)
        self._write()

    def on_tick(self, now: float) -> None:
        """Handle the passing of time."""
        # Let the replica fail a request with a specific error before the generic deadline fires.
        self._run(lambda: self.replica.on_tick(now))
        if self._replay_due and not self.replica.offline:
            self._replay_again()
        self._requests.expire(now)
        self._requests.deliver()
        if self.replica.leader is not None and self.replica.leader.transactions.is_due(now):
            self._ports.transactions.want(self)

    def look_at_transactions(self) -> CheckResult:
        """Check some of the open transactions, and write markers for those that are decided."""
        leader = self.replica.leader
        if leader is None or self._closed or self.log.producers.stale:
            return CheckResult(0, more=False)  # The end of the replay requests a check.
        if self.log.config.is_restoring:
            # The backup has the markers; what is open at its end is aborted afterwards, as its ids have expired.
            return CheckResult(0, more=False)
        wall_ms = self._ports.cluster_clock.stamp_ms()
        self._run_and_tick(lambda: leader.look(self._now(), wall_ms, may_write=not self.log.full))
        more = self.replica.leader is leader and leader.transactions.more
        return CheckResult(leader.transactions.looked_at, more=more)

    def on_job_done(self) -> None:
        """Apply the outcome of a job: the log may be stable further, full or failed."""
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
        """Whether this replica waits for no timer."""
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
        restored: bool = False,
        expected_end_offset: int = -1,
    ) -> None:
        """Produce one batch (`PartitionManager.produce`). `deadline` is in monotonic seconds."""
        try:
            self._check_open_for_produce()
        except RaftlogError as error:
            done(error)
            return
        request = self._requests.add(done, deadline)
        stamp_ms = self._ports.cluster_clock.stamp_ms()
        self._incoming.arrive(Arrival(request, batch, acks, config, stamp_ms, resent, restored, expected_end_offset))
        self._ports.wants_tick(self)

    def _on_checked(self, arrival: Arrival, header: BatchHeader | RaftlogError) -> None:
        """Pass a checked batch to the core, or refuse it."""
        self._run(lambda: self._admit(arrival, header))

    def _admit(self, arrival: Arrival, header: BatchHeader | RaftlogError) -> list[fx.Effect]:
        if isinstance(header, RaftlogError):
            return [fx.Reject(arrival.request, header)]
        try:
            self._check_open_for_produce()
        except RaftlogError as error:
            return [fx.Reject(arrival.request, error)]
        stamped = arrival.config.message_timestamp_type == "LogAppendTime" and not arrival.restored
        append_time = self._ports.cluster_clock.stamp_ms() if stamped else -1
        deadline = self._requests.deadline_of(arrival.request)
        incoming = fx.IncomingBatch(
            arrival.request,
            header,
            arrival.batch,
            arrival.acks,
            append_time,
            deadline=deadline,
            control=control_of(header, arrival.batch) if arrival.restored else None,
            resent=arrival.resent,
            restored=arrival.restored,
            expected_end_offset=arrival.expected_end_offset,
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
            raise RetriableError("replica_not_available", f"{self.name} is rebuilding its producer state: retry")
        if self.log.full:
            raise self.log.refusal(self.name)
        if self._ports.room.short:
            raise self._ports.room.refusal(self.name)

    @property
    def greatest_producer_id(self) -> ProducerId:
        """An upper bound of the producer ids that have written to this log."""
        return self._producers.greatest_id

    @property
    def closed(self) -> bool:
        return self._closed

    # --- Reads ---

    def read(
        self, offset: Offset, end_offset: Offset, max_bytes: int, *, min_one_batch: bool, by: ReadBy = ReadBy.CONSUMER
    ) -> LogSlice:
        """Read as `ReplicaReads.read` does. After `DiskFailed` the replica is offline, or will be repaired."""
        try:
            found = self.reads.read(offset, end_offset, max_bytes, min_one_batch=min_one_batch, by=by)
        except Unforeseen as error:
            self.throw_away(error)  # A job caused this; the read is the first to see it.
            raise self.replica.not_leading() from None
        except DiskFailed as error:
            if self.log.failed is not None:
                self.go_offline(str(error))
            raise
        if by is not ReadBy.CONSUMER:
            self.traffic.cold_reads_of_followers += found.cold
        elif found.cold:
            self.traffic.cold_reads += 1
        else:
            self.traffic.fetched_bytes += found.length
        return found

    def on_load_failed(self, error: BaseException) -> RaftlogError:
        """Handle a failed load of cold data, and return the error for the reader."""
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
        """Apply the outcome of a worker's replay of the producers' state."""
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
            self._ports.wants_tick(self)
        elif not self.replica.offline:
            self._replay_again()
            if self.log.needs_job:
                self._write()  # A start that moved meanwhile waits for a snapshot of this state.

    def _replay_again(self) -> None:
        self._replay_due = False
        self._replay_producers()
        self._ports.transactions.want(self)

    # --- Waiting ---

    def wait_readable(self, waiter: Waiter) -> None:
        """Notify this waiter, once, when consumers may read more, or may not read here at all."""
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
        """Start a follower's subscription, in place of its previous one. Raises `RemoteProtocolError`."""
        before = self._subscribers.pop(follower, None)
        if before is not None:
            before.on_answer(fx.Refused("connection_lost"))
        self._subscribers[follower] = subscriber
        self._run_and_tick(lambda: self.replica.on_subscribe(follower, incarnation, position, self._now()))

    def on_unsubscribe(self, follower: BrokerId, subscriber: Subscriber) -> None:
        if self._subscribers.get(follower) is subscriber:
            del self._subscribers[follower]

    def on_report(
        self,
        follower: BrokerId,
        incarnation: Incarnation,
        report: fx.ReportStable,
    ) -> None:
        """Apply a follower's acknowledgement. Raises `RemoteProtocolError`."""
        self._run(lambda: self.replica.on_report(follower, incarnation, report, self._now()))
        leader = self.replica.leader
        if leader is not None and follower not in leader.record.isr:
            # The follower may be in sync now while nothing may be proposed, and may send no further report.
            self._ports.wants_tick(self)

    # --- The link to the leader ---

    def on_link_opened(self) -> None:
        """Subscribe: the link to the leader, in the incarnation that the record names, is open."""
        self._run_and_tick(lambda: self.replica.on_link_opened(self._now()))

    def on_link_lost(self) -> None:
        self._run(self.replica.on_link_lost)

    def on_answer(self, leader_epoch: LeaderEpoch, answer: fx.Answer) -> None:
        """Apply the leader's answer. Raises `RemoteProtocolError`."""
        self._run_and_tick(lambda: self.replica.on_answer(leader_epoch, answer, self._now()))

    def on_pushed(self, leader_epoch: LeaderEpoch, batches: list[fx.FetchedBatch], marks: fx.Matched) -> None:
        """Append batches whose CRC was checked. Raises `RemoteProtocolError`, and then nothing was appended."""
        if self.replica.follower is None:
            return
        if batches and (self.log.full or self._ports.room.very_short):
            self._on_disk_full()
        else:
            self._run_and_tick(lambda: self.replica.on_pushed(leader_epoch, batches, marks))

    def _on_disk_full(self) -> None:
        self._run_and_tick(lambda: self.replica.on_disk_full(self._now()))

    def on_corrupt_push(self) -> None:
        """Back off: the leader's push is damaged. The caller drops the link."""
        self._run_and_tick(lambda: self.replica.on_corrupt_push(self._now()))

    # --- The log start (retention, `delete-records`, followers' starts), and compaction ---

    def retain(self, now_ms: int | None) -> None:
        """Move the log start by the topic's retention. Leaders only: followers receive the start from them."""
        if self.replica.leader is not None:
            self.move_log_start(self.log.retention(now_ms, self.reads.settled_end))

    def move_log_start(self, offset: Offset) -> None:
        """Make the records below `offset`, at most the last stable offset, unreadable."""
        offset = min(offset, self.reads.settled_end)
        if self.replica.leader is not None and offset > self.log.log_start_offset:
            self._run(lambda: [fx.AdvanceLogStart(offset)])

    def seal_for_compaction(self, now_ms: int) -> None:
        """Call `PartitionLog.seal_for_compaction`, and schedule its job."""
        if self.log.seal_for_compaction(now_ms):
            self._write()

    def replace_segment(self, cleaned: CleanedSegment) -> bool:
        """Call `PartitionLog.replace_segment`, and schedule its job."""
        replaced = self.log.replace_segment(cleaned)
        self._write()
        return replaced

    def compacted(self, run: CompactionRun, end: Offset) -> None:
        """Call `PartitionLog.compacted`, and schedule its job."""
        if not self._closed and self.log.compacted(run, end):
            self.reads.forget_aborted(end)
            self._write()

    def delete_records(self, before: Offset, done: DeleteDone, timeout_ms: int) -> None:
        """Delete the records below `before` (-1: all whose transactions are decided).

        `done` is called exactly once: when every replica that may lead next has the start on disk, or with an error,
        whose `applied` says whether the records may be gone. After `timeout_ms`, to within a tick, it gets
        `request_timed_out`.
        """
        refusal: RaftlogError | None = None
        if self.replica.leader is None:
            refusal = self.replica.not_leading()
        elif self.log.producers.stale:
            refusal = RetriableError("replica_not_available", f"{self.name} is rebuilding its transaction state: retry")
        elif self.log.full:
            refusal = self.log.refusal(self.name)
        if refusal is not None:
            done(refusal)
            return
        request = self._requests.add(done, self._now() + min(timeout_ms, MAX_PRODUCE_TIMEOUT_MS) / 1000)
        self._run(lambda: self.replica.delete_records(request, before))
        # The moved start may be on all disks already.
        self._run_and_tick(self.replica.on_log_start)

    def on_follower_start(
        self, follower: BrokerId, incarnation: Incarnation, leader_epoch: LeaderEpoch, start: Offset
    ) -> None:
        """Apply a follower's report of its log start on disk."""
        self._run(lambda: self.replica.on_follower_start(follower, incarnation, leader_epoch, start))

    # --- The end ---

    def close(self, error: RaftlogError) -> None:
        """Ignore all events from now on, and answer every waiting request, with `error` at the latest."""
        if self._closed:
            return
        self._run(self.replica.close)
        self._closed = True
        self._incoming.close()
        self._requests.fail_all(error)
        self._requests.deliver()
        self._wake_waiters()

    def go_offline(self, reason: str) -> None:
        """Take the replica out of service until the broker restarts: a disk error, or a broken rule."""
        if self.replica.offline or self._closed:
            return
        self._ports.logger.error("replica offline", partition=self.name, epoch=self.leader_epoch, reason=reason)
        self._perform(self.replica.go_offline(reason))
        self._requests.fail_all(RetriableError("leadership_lost", f"the replica went offline: {reason}"))
        self._wake_waiters()
        if self.replica.follower is not self._followed:
            self._follow()
        if not self._depth:
            self._requests.deliver()
        self._ports.offline(self.topic_partition, reason)

    def throw_away(self, error: BaseException) -> None:
        """Discard the replica after an unforeseen error in the middle of an event.

        Its state cannot be trusted, so nothing of it is served (S1, S4). Its owner opens it again from disk.
        """
        if self._closed:
            return
        self._ports.logger.error("unforeseen", partition=self.name, epoch=self.leader_epoch, exc_info=error)
        led = self.leader_epoch if self.replica.leader is not None else None
        reason = f"{type(error).__name__}: {error}"
        self._closed = True
        self.replica.throw_away(reason)
        self._incoming.close()
        self._refuse_followers()
        self._requests.fail_all(
            RetriableError("leadership_lost", f"the replica is opened again after an error: {reason}")
        )
        if self._followed is not None:
            self._followed = None
            self._ports.links.unfollow(self)
        if not self._depth:
            self._requests.deliver()
        self._wake_waiters()
        self._ports.broken(self, error, led)

    # --- Inside ---

    def _now(self) -> float:
        return self._ports.clock.monotonic()

    def _run_and_tick(self, event: Callable[[], list[fx.Effect]]) -> None:
        """Process an event that may set a timer."""
        self._run(event)
        self._ports.wants_tick(self)

    def _run(self, event: Callable[[], list[fx.Effect]]) -> None:
        """Process one event: the core's decision, its effects, the invariants, and then the callbacks."""
        if self._closed:
            return
        self._depth += 1
        try:
            self._perform(event())
            self.replica.check_invariants()
        except RemoteProtocolError:
            raise  # Nothing was changed, and the link's owner drops it.
        except Unforeseen as error:
            self.throw_away(error)  # A job caused this; the event is the first to see it.
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
        """Perform the acknowledgements that waited for the log's stable end."""
        due = self._awaiting_stable.release(self.log.stable_end_offset)
        if due:
            self._perform(due)

    def _broken(self, violation: InvariantViolation) -> None:
        if not self.replica.offline and not self._closed:
            self._ports.logger.error(
                f"INVARIANT {violation.detail}", partition=self.name, epoch=self.leader_epoch, state=str(self.replica)
            )
            self.go_offline(violation.detail)

    def _follow(self) -> None:
        """Tell the links whom this replica follows."""
        follower = self._followed = self.replica.follower
        if follower is None:
            self._ports.links.unfollow(self)
        else:
            self._ports.links.follow(self, follower.record.leader, follower.record.leader_incarnation)

    # --- Performing effects: one method for each class, none of which makes decisions ---

    def _effect_methods(self) -> dict[type, Callable[[Any], None]]:
        links = self._ports.links
        looks = self._ports.transactions
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
        """Perform the effects in the order given."""
        for effect in effects:
            self._methods[type(effect)](effect)

    def _write(self) -> None:
        """Schedule a job of the log."""
        self._ports.writer.dirty(self.log, self.on_job_done)

    def _replay_producers(self) -> None:
        """Replay the producers' state after a truncation, until it matches the log."""
        replay = self.log.producer_replay()
        if replay is not None:
            self._ports.worker.submit(replay.run, lambda _, error: self._on_producers_replayed(replay, error))

    def _wake_waiters(self) -> None:
        """Notify the waiting long polls."""
        waiters, self._waiters = list(self._waiters), {}
        for waiter in waiters:
            try:
                waiter.on_readable()
            except Exception as error:  # noqa: BLE001  logged; the other waiters are still notified
                self._callback_failed(error)

    def _refuse_followers(self) -> None:
        """Refuse all followers, who retry, and drop what waits for the disk: this driver's state is in doubt."""
        self._awaiting_stable.abandon()
        subscribers, self._subscribers = list(self._subscribers.values()), {}
        for subscriber in subscribers:
            try:
                subscriber.on_answer(fx.Refused("replica_not_available"))
            except Exception as error:  # noqa: BLE001  logged; the other followers are still refused
                self._callback_failed(error)

    def _callback_failed(self, error: Exception) -> None:
        self._ports.logger.error("a callback failed", partition=self.name, error=repr(error), exc_info=error)

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
        self._ports.room.appended(header.total_bytes)
        self.traffic.appended(header.record_count, header.total_bytes)
        self._producers.append(header, batch.control)
        if header.is_transactional:
            self._ports.transactions.watch(self)
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
            self._ports.room.appended(batch.header.total_bytes)
            self.traffic.replicated_bytes += batch.header.total_bytes
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
            # The log assumed that any producer may have written below; the leader's answer has a better bound.
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
        self._ports.logger.info("isr proposed", partition=self.name, epoch=epoch, proposal=str(effect.proposal))
        self._ports.propose_isr(effect.proposal, lambda fate: self.on_isr_answer(epoch, attempt, fate))

    # --- Status and tests ---

    def check_invariants(self) -> None:
        """Raise `InvariantViolation` if an invariant does not hold."""
        self.replica.check_invariants()

    def facts(self) -> DriverFacts:
        """Return counts for status and tests."""
        transactions = self._producers.transactions
        return DriverFacts(len(self._waiters), tuple(transactions.open_items()), len(transactions.aborted))

    def __str__(self) -> str:
        return f"{self.name} {self.replica}" + (" disk full" if self.log.full else "")
