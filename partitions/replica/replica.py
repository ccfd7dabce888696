"""One replica of a partition: it plays the role that the quorum's record gives it, and handles events in that role.

    the record names                          this replica
    this broker, in this incarnation          leads
    another broker                            follows that broker
    this broker, in an earlier incarnation    is idle: that leader is dead, and an election is on its way
    no broker                                 is idle
    (after a disk error or a broken rule)     is offline, whatever the record says

A role is identified by (leader, its incarnation, leader epoch). When any of these changes, the old role ends, every
waiting request is answered, and a new role begins from the log and the known high watermark alone. Records of the
partition are applied in the order of their partition epochs; an older record has no effect.
"""

from __future__ import annotations

from collections.abc import Mapping

from partitions.producers.state import ProducerStates
from raftlog.errors import InvariantViolation, NotLeader, RetriableError
from raftlog.model import (
    NO_BROKER,
    NO_EPOCH,
    BrokerId,
    BrokerRecord,
    Incarnation,
    LeaderEpoch,
    Offset,
    PartitionRecord,
    ProducerId,
)
from raftlog.transactions import TransactionVerdicts

from .effects import (
    Answer,
    AnswerFollower,
    DropFollowers,
    Effect,
    Fate,
    FetchedBatch,
    FollowerPosition,
    IncomingBatch,
    Matched,
    Refused,
    Reject,
    ReportStable,
    RequestId,
)
from .follower import Follower
from .leader import Leader
from .log_view import LogView


class Replica:
    """One replica in the role that the quorum's record gives it.

    Invariant: the replica leads only if the record names this broker in its own incarnation (S5).
    """

    def __init__(
        self,
        node_id: BrokerId,
        incarnation: Incarnation,
        log: LogView,
        producers: ProducerStates,
        brokers: Mapping[BrokerId, BrokerRecord],
        *,
        lag_max: float,
        verdicts: TransactionVerdicts,
    ) -> None:
        """`lag_max` is in seconds."""
        self._node_id = node_id
        self._incarnation = incarnation
        self._log = log
        self._producers = producers
        self._brokers = brokers
        self._lag_max = lag_max
        self._verdicts = verdicts
        self._high_watermark = log.log_start_offset
        self.record: PartitionRecord | None = None
        self.leader: Leader | None = None
        self.follower: Follower | None = None
        self.offline = ""
        """The reason why this replica is out of service; empty while it is in service."""

    @property
    def leader_epoch(self) -> LeaderEpoch:
        """The newest leader epoch that this replica has seen."""
        return self.record.leader_epoch if self.record else NO_EPOCH

    @property
    def high_watermark(self) -> Offset:
        """The high watermark as this replica knows it: it may be too low, never too high."""
        role = self.leader or self.follower
        return role.high_watermark if role else self._high_watermark

    @property
    def quiet(self) -> bool:
        """Whether this replica waits for no timer."""
        role = self.leader or self.follower
        return role.quiet if role else True

    # --- Roles ---

    def on_record(self, record: PartitionRecord, now: float) -> list[Effect]:
        """Apply a record of the partition from the quorum."""
        old = self.record
        if old is not None and record.partition_epoch <= old.partition_epoch:
            return []
        if old is not None and record.leader_epoch < old.leader_epoch:
            raise InvariantViolation(f"leader epoch fell from {old} to {record}")
        self.record = record
        if self.offline:
            return []
        if old is not None and _leadership(old) == _leadership(record):
            if self.leader is not None:
                return [*self.leader.on_record(record, now), *self.on_log_start()]
            return self.follower.on_record(record) if self.follower else []
        return [*self._end_role(), *self._begin_role(record, now)]

    def go_offline(self, reason: str) -> list[Effect]:
        """Take the replica out of service until the broker restarts: a disk error, or a broken rule."""
        self.offline = self.offline or reason
        return [*self._end_role(), DropFollowers("replica_not_available")]

    def throw_away(self, reason: str) -> None:
        """Discard the state of a replica that can no longer be trusted.

        No role ends in order; later requests are answered with "out of service".
        """
        self.offline = self.offline or reason
        self.leader = self.follower = None

    def close(self) -> list[Effect]:
        """End the role: the broker stops, or the replica is removed."""
        return self._end_role()

    def _end_role(self) -> list[Effect]:
        self._high_watermark = self.high_watermark
        effects = self.leader.resign() if self.leader else self.follower.stop() if self.follower else []
        self.leader = self.follower = None
        return effects

    def _begin_role(self, record: PartitionRecord, now: float) -> list[Effect]:
        if record.leader == NO_BROKER:
            return []
        if record.leader != self._node_id:
            self.follower = Follower(self._node_id, record, self._log, high_watermark=self._high_watermark)
            return []
        if record.leader_incarnation != self._incarnation:
            return []
        if self._log.epochs.latest_epoch > record.leader_epoch:
            raise InvariantViolation(f"elected in {record} with a log of epoch {self._log.epochs.latest_epoch}")
        self.leader = Leader(
            self._node_id,
            record,
            self._log,
            self._producers,
            self._brokers,
            high_watermark=self._high_watermark,
            now=now,
            lag_max=self._lag_max,
            verdicts=self._verdicts,
        )
        return self.leader.begin(now)

    # --- Events, passed to the current role ---

    def produce(self, batch: IncomingBatch, now: float) -> list[Effect]:
        if self.leader is not None:
            return self.leader.produce(batch, now)
        return [Reject(batch.request, self.not_leading())]

    def not_leading(self) -> RetriableError:
        """Return the error for a request that only a leader can answer."""
        if self.offline:
            return RetriableError("replica_not_available", f"the replica is offline: {self.offline}")
        leader = self.record.leader if self.record else NO_BROKER
        if leader == NO_BROKER or leader == self._node_id:
            return RetriableError("leader_not_available", "the partition has no leader at the moment")
        return NotLeader(f"broker {leader} leads the partition", leader)

    def on_subscribe(
        self, follower: BrokerId, incarnation: Incarnation, position: FollowerPosition, now: float
    ) -> list[Effect]:
        if self.leader is None:
            code = "replica_not_available" if self.offline else "not_leader"
            return [AnswerFollower(follower, Refused(code))]
        return self.leader.on_subscribe(follower, incarnation, position, now)

    def on_report(self, follower: BrokerId, incarnation: Incarnation, report: ReportStable, now: float) -> list[Effect]:
        return self.leader.on_report(follower, incarnation, report, now) if self.leader else []

    def on_appended(self, leader_epoch: LeaderEpoch, producer_id: ProducerId, now: float) -> list[Effect]:
        return self.leader.on_appended(leader_epoch, producer_id, now) if self.leader else []

    def delete_records(self, request: RequestId, before: Offset) -> list[Effect]:
        """Delete the records below `before`; with -1, all whose transactions are decided."""
        if self.leader is not None:
            settled_end = self.leader.exposed_high_watermark
            if settled_end is not None:
                settled_end = self._producers.transactions.last_stable_offset(settled_end)
            return self.leader.deletions.delete(request, before, settled_end)
        return [Reject(request, self.not_leading())]

    def on_follower_start(
        self, follower: BrokerId, incarnation: Incarnation, leader_epoch: LeaderEpoch, start_offset: Offset
    ) -> list[Effect]:
        """Record that a follower's log begins at `start_offset` on its disk."""
        return self.leader.on_follower_start(follower, incarnation, leader_epoch, start_offset) if self.leader else []

    def on_log_start(self) -> list[Effect]:
        """Answer deletions that are due: the log start moved, in memory or on disk, or the ISR changed."""
        return self.leader.deletions.advance() if self.leader is not None else []

    def on_stable(self) -> list[Effect]:
        if self.leader is not None:
            return [*self.leader.on_stable(), *self.on_log_start()]
        return self.follower.on_stable() if self.follower else []

    def on_truncated(self, leader_epoch: LeaderEpoch) -> list[Effect]:
        return self.follower.on_truncated(leader_epoch) if self.follower else []

    def on_link_opened(self, now: float) -> list[Effect]:
        return self.follower.on_link_opened(now) if self.follower else []

    def on_link_lost(self) -> list[Effect]:
        return self.follower.on_link_lost() if self.follower else []

    def on_answer(self, leader_epoch: LeaderEpoch, answer: Answer, now: float) -> list[Effect]:
        return self.follower.on_answer(leader_epoch, answer, now) if self.follower else []

    def on_pushed(self, leader_epoch: LeaderEpoch, batches: list[FetchedBatch], marks: Matched) -> list[Effect]:
        return self.follower.on_pushed(leader_epoch, batches, marks) if self.follower else []

    def on_corrupt_push(self, now: float) -> list[Effect]:
        return self.follower.on_corrupt_push(now) if self.follower else []

    def on_disk_full(self, now: float) -> list[Effect]:
        return self.follower.on_disk_full(now) if self.follower else []

    def on_isr_answer(self, leader_epoch: LeaderEpoch, attempt: int, fate: Fate, now: float) -> list[Effect]:
        if self.leader is None:
            return []
        return [*self.leader.on_isr_answer(leader_epoch, attempt, fate, now), *self.on_log_start()]

    def on_broker(self, broker: BrokerId, now: float) -> list[Effect]:
        return self.leader.on_broker(broker, now) if self.leader else []

    def on_tick(self, now: float) -> list[Effect]:
        if self.leader is not None:
            return self.leader.on_tick(now)
        return self.follower.on_tick(now) if self.follower else []

    # --- For people and for tests ---

    def check_invariants(self) -> None:
        """Raise `InvariantViolation` if an invariant does not hold."""
        if self.leader is not None:
            record = self.leader.record
            if record.leader != self._node_id or record.leader_incarnation != self._incarnation:
                raise InvariantViolation(f"leads although {record} (S5)")
            self.leader.check_invariants()
        if self.follower is not None:
            self.follower.check_invariants()

    def __str__(self) -> str:
        if self.offline:
            return f"offline epoch={self.leader_epoch} {self.offline}"
        role = self.leader or self.follower
        if role is not None:
            return str(role)
        log = self._log
        return f"idle epoch={self.leader_epoch} leo={log.log_end_offset} stable={log.stable_end_offset}"


def _leadership(record: PartitionRecord) -> tuple[BrokerId, Incarnation, LeaderEpoch]:
    return record.leader, record.leader_incarnation, record.leader_epoch
