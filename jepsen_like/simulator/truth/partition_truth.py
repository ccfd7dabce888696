"""The knowledge about one partition over all nodes and lives, and the checks that need nothing else.

An offset and a leader epoch identify one record permanently (S2); one life of one broker leads an epoch (S5); the high
watermark shown to consumers only advances (S3); deleted records stay deleted (S1).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from jepsen_like.simulator.world.violation import Violation
from partitions.replica.leader import Leader
from raftlog.model import BrokerId, Incarnation, LeaderEpoch, PartitionRecord, TopicPartition

from .committed_log import Batch, CommittedLog
from .mirror import LeaderMark, Mirror


@dataclass(slots=True)
class PartitionTruth:
    """The truth of one partition. All checks raise `Violation`."""

    topic_partition: TopicPartition
    log: CommittedLog
    may_lose: bool
    """The topic has `flush=os`: a recovery election may lose committed records."""
    record: PartitionRecord | None = None
    """The newest record of the quorum that any node has seen."""
    losing: LeaderEpoch | None = None
    """A recovery election began this epoch: records that its leader does not have stable are lost once it is seen to
    lead.
    """
    start_offset: int = 0
    """The greatest log start of any leader."""
    shortened: bool = False
    """Records were deleted, or their size is bounded: the log may begin anywhere."""
    _named: dict[tuple[int, int], Batch] = field(default_factory=dict)
    _leaders: dict[LeaderEpoch, tuple[BrokerId, Incarnation]] = field(default_factory=dict)
    _exposed: dict[LeaderEpoch, tuple[int, int]] = field(default_factory=dict)
    """Leader epoch → the first and the last high watermark that its leader exposed."""
    _deleted: tuple[LeaderEpoch, int] = (LeaderEpoch(-1), 0)
    """The epoch in which `delete-records` was last answered, and the promised start."""

    def name(self, batch: Batch) -> None:
        """Record that a replica has this batch. A hole has no identity: it may stand for several batches."""
        if batch.hole:
            return
        known = self._named.setdefault((batch.base_offset, batch.leader_epoch), batch)
        if known != batch:
            raise Violation(
                f"S2: offset {batch.base_offset} of epoch {batch.leader_epoch} of {self.topic_partition} names two "
                f"batches: {known} and {batch}"
            )

    def led_by(self, epoch: LeaderEpoch, holder: tuple[BrokerId, Incarnation]) -> bool:
        """Record that this life of this broker leads; return whether no later epoch was seen."""
        first = self._leaders.setdefault(epoch, holder)
        if first != holder:
            raise Violation(f"S5: {self.topic_partition} epoch {epoch} is led by {first} and by {holder}")
        return epoch == max(self._leaders)

    def exposes(self, epoch: LeaderEpoch, exposed: int) -> None:
        """Check that the exposed high watermark never falls, within an epoch or from one to the next.

        A deposed leader that does not know it yet must not contradict its successor either.
        """
        first, last = self._exposed.get(epoch, (exposed, -1))
        if exposed == last:
            return
        self._exposed[epoch] = first, exposed
        before = max((high for earlier, (_, high) in self._exposed.items() if earlier < epoch), default=0)
        after = min((low for later, (low, _) in self._exposed.items() if later > epoch), default=exposed)
        if not max(before, last) <= exposed <= after:
            raise Violation(
                f"S3: {self.topic_partition} epoch {epoch} exposes {exposed}; it exposed {last} before, earlier epochs "
                f"{before}, later ones began with {after}"
            )

    def begins_at(self, epoch: LeaderEpoch, start_offset: int) -> None:
        """Record the log start of a readable leader."""
        self.start_offset = max(self.start_offset, start_offset)
        if start_offset > 0 and not self.shortened and not self.may_lose:
            raise Violation(
                f"S1: {self.topic_partition} begins at {start_offset}: no earlier record was deleted, and a run "
                "is too short for retention"
            )
        promised_in, promised = self._deleted
        if epoch >= promised_in and start_offset < promised and not self.may_lose:
            raise Violation(
                f"S1: {self.topic_partition} begins at {start_offset} in epoch {epoch}: in epoch {promised_in} all "
                f"below {promised} was reported as deleted"
            )

    @property
    def promised_start(self) -> int:
        """Everything below was promised to be deleted."""
        return 0 if self.may_lose else self._deleted[1]

    def deleted(self, epoch: LeaderEpoch, start_offset: int) -> None:
        """Record that a leader of this epoch answered `delete-records`."""
        if start_offset > self._deleted[1]:
            self._deleted = epoch, start_offset

    def lose(self, mirror: Mirror, stable_end_offset: int) -> int:
        """Drop the records that the winner of a recovery election does not have stable, and return their number.

        The election compares what is stable. Records that the winner has only in memory are not committed any more:
        like all others above a new leader's high watermark, they are committed once that has passed them.
        """
        self.losing = None
        end = self.log.end_offset
        has_all = mirror.start_offset <= end and not mirror.compare(self.log, end)
        if has_all and stable_end_offset >= end:
            return 0
        self._exposed.clear()
        return self.log.lose_from(min(mirror.verified_end, stable_end_offset), mirror.start_offset)

    def check_floor(self, leader: Leader, before: LeaderMark) -> bool:
        """S6: check that the high watermark does not advance below `min.insync.replicas`; return whether the ISR is
        below.

        `before`: the state before this event. An event may bring several records; then it is unknown under which of
        them the high watermark advanced, and nothing is checked.
        """
        record = leader.record
        short = len(record.isr) < record.min_insync_replicas
        moved = leader.high_watermark > before.high_watermark and record.partition_epoch == before.partition_epoch
        if short and moved:
            was = before.high_watermark
            raise Violation(f"S6: the high watermark moved from {was} below the minimum: {leader} of {record}")
        return short
