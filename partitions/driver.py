"""The shell of one replica: the only place where a core meets its log and the world.

An event comes in (a produce, a follower's frame, an fsync that ended, a record of the quorum), the core says what is
to be done, and the effects are performed at once, in the order given (`driver_effects.py`). Whoever waits is called
back when the event is over. A broken invariant or a disk error takes this one replica offline, with a log line
`INVARIANT …` or `replica offline`; an exception that nobody foresaw has it thrown away and opened again
(`replica_resets.py`). The broker goes on.

What is *not* here: decisions (`replica.py`), reads (`driver_reads.py`), links (`replication_server.py`,
`replication_client.py`), long polls (`fetch_waiters.py`), folders and threads (`manager.py`).
"""

from __future__ import annotations

from collections.abc import Callable

from raftlog.config import TopicConfig
from raftlog.errors import (
    DiskFailed,
    InvariantViolation,
    RaftlogError,
    RemoteProtocolError,
    RetriableError,
    Unforeseen,
)
from raftlog.model import Acks, BrokerId, Incarnation, LeaderEpoch, Offset, PartitionRecord, ProducerId, TopicPartition
from raftlog.ports import Buffer
from raftlog.record_batch import BatchHeader

from . import effects as fx
from .driver_effects import EffectPerformer
from .driver_log_start import LogStart
from .driver_ports import Look, Subscriber, Surroundings
from .driver_reads import DriverReads
from .driver_requests import ProduceDone
from .follower import Follower
from .incoming import Arrival, IncomingBatches
from .log import PartitionLog
from .producer_state import ProducerStates
from .replica import Replica


class PartitionDriver(DriverReads):
    """See the module. `name` is for people: `orders/3`."""

    def __init__(
        self,
        topic_partition: TopicPartition,
        name: str,
        log: PartitionLog,
        producers: ProducerStates,
        surroundings: Surroundings,
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
        self._performer = EffectPerformer(self, self.replica, log, producers, surroundings)
        self._incoming = IncomingBatches(surroundings.worker, self._performer.requests.is_waiting, self._on_checked)
        self.log_start = LogStart(self, self.replica, self._performer, self._run, self._now, surroundings.wants_tick)
        log.on_damage = lambda error: surroundings.damaged(self, error)
        self._followed: Follower | None = None
        """As the links were told."""
        self._depth = 0
        self._closed = False

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
            self._performer.wake_waiters()
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
        self._performer.write()

    def on_tick(self, now: float) -> None:
        """Time passed."""
        # Who can say why a request waits says it before its time is over.
        self._run(lambda: self.replica.on_tick(now))
        if self._replay_due and not self.replica.offline:
            self._replay_again()
        self._performer.requests.expire(now)
        self._performer.requests.deliver()
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
                self._on_disk_full(self.replica.follower)
        elif isinstance(failed, Unforeseen):
            self.throw_away(failed)
        elif isinstance(failed, InvariantViolation):
            self._broken(failed)
        else:
            self.go_offline(str(failed))

    def _stable(self) -> list[fx.Effect]:
        self._performer.release_stable()
        return self.replica.on_stable()

    def _looks_again(self) -> None:
        self._around.transactions.want(self)

    def _wants_tick(self) -> None:
        self._around.wants_tick(self)

    @property
    def quiet(self) -> bool:
        """Nothing here waits for time to pass."""
        if self._closed:
            return True
        return not (len(self._performer.requests) or self._replay_due) and self.replica.quiet

    # --- Produce and read ---

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
        request = self._performer.requests.add(done, deadline)
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
        deadline = self._performer.requests.deadline_of(arrival.request)
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

    # --- Followers of this leader ---

    def on_subscribe(
        self,
        follower: BrokerId,
        incarnation: Incarnation,
        leader_epoch: LeaderEpoch,
        subscriber: Subscriber,
        *,
        last_epoch: LeaderEpoch,
        fetch_offset: Offset,
        stable_end_offset: Offset,
    ) -> None:
        """A follower's subscription, in place of any that it had. Raises `RemoteProtocolError`."""
        before = self._performer.subscribers.pop(follower, None)
        if before is not None:
            before.on_answer(fx.Refused("connection_lost"))
        self._performer.subscribers[follower] = subscriber
        self._run(
            lambda: self.replica.on_subscribe(
                follower,
                incarnation,
                leader_epoch,
                last_epoch=last_epoch,
                fetch_offset=fetch_offset,
                stable_end_offset=stable_end_offset,
                now=self._now(),
            )
        )
        self._around.wants_tick(self)

    def on_unsubscribe(self, follower: BrokerId, subscriber: Subscriber) -> None:
        if self._performer.subscribers.get(follower) is subscriber:
            del self._performer.subscribers[follower]

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
        self._run(lambda: self.replica.follower.on_link_opened(self._now()) if self.replica.follower else [])
        self._around.wants_tick(self)

    def on_link_lost(self) -> None:
        self._run(lambda: self.replica.follower.on_link_lost() if self.replica.follower else [])

    def on_answer(self, leader_epoch: LeaderEpoch, answer: fx.Answer) -> None:
        """Raises `RemoteProtocolError`."""
        follower = self.replica.follower
        self._run(lambda: follower.on_answer(leader_epoch, answer, self._now()) if follower else [])
        self._around.wants_tick(self)

    def on_pushed(self, leader_epoch: LeaderEpoch, batches: list[fx.FetchedBatch], marks: fx.Matched) -> None:
        """Batches whose CRC was checked. Raises `RemoteProtocolError`, and then appended nothing."""
        follower = self.replica.follower
        if follower is None:
            return
        if batches and (self.log.full or self._around.room.very_short):
            self._on_disk_full(follower)
        else:
            self._run(lambda: follower.on_pushed(leader_epoch, batches, marks))
            self._around.wants_tick(self)

    def _on_disk_full(self, follower: Follower) -> None:
        self._run(lambda: follower.on_disk_full(self._now()))
        self._around.wants_tick(self)

    def on_corrupt_push(self) -> None:
        """What the leader pushed is damaged; the link is dropped by who found it."""
        self._run(lambda: self.replica.follower.on_corrupt_push(self._now()) if self.replica.follower else [])
        self._around.wants_tick(self)

    # --- The end ---

    def close(self, error: RaftlogError) -> None:
        """No event does anything from now on; everybody who waits is answered, with `error` at the latest."""
        if self._closed:
            return
        self._run(self.replica.close)
        self._closed = True
        self._incoming.close()
        self._performer.requests.fail_all(error)
        self._performer.requests.deliver()
        self._performer.wake_waiters()

    def go_offline(self, reason: str) -> None:
        """A disk error or a broken rule: this replica serves nothing until the broker starts again."""
        if self.replica.offline or self._closed:
            return
        self._around.logger.error("replica offline", partition=self.name, epoch=self.leader_epoch, reason=reason)
        self._performer.perform(self.replica.go_offline(reason))
        self._performer.requests.fail_all(RetriableError("leadership_lost", f"the replica went offline: {reason}"))
        self._performer.wake_waiters()
        if self.replica.follower is not self._followed:
            self._follow()
        if not self._depth:
            self._performer.requests.deliver()
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
        self._performer.throw_away()
        self._performer.requests.fail_all(RetriableError("leadership_lost", f"the replica begins anew: {reason}"))
        if self._followed is not None:
            self._followed = None
            self._around.links.unfollow(self)
        if not self._depth:
            self._performer.requests.deliver()
        self._performer.wake_waiters()
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
            self._performer.perform(event())
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
        if not self._depth and self._performer.requests.due:
            self._performer.requests.deliver()

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

    def check_invariants(self) -> None:
        """Raises `InvariantViolation`."""
        self.replica.check_invariants()

    def __str__(self) -> str:
        return f"{self.name} {self.replica}" + (" disk full" if self.log.full else "")
