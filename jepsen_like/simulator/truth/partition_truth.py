"""What the world knows of one partition over all nodes and lives, and the checks that need nothing else.

Each record of an epoch has one name, (offset, leader epoch), for ever (S2); one life of one broker leads an epoch (S5);
what consumers are shown moves forward only (S3); what was deleted stays deleted (S1).
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
    """See the module. All checks raise `Violation`."""

    topic_partition: TopicPartition
    log: CommittedLog
    may_lose: bool
    """The topic has `flush=os`: a recovery election may lose what was committed."""
    record: PartitionRecord | None = None
    """The newest that any node has seen: the quorum's word."""
    losing: LeaderEpoch | None = None
    """A recovery election began this epoch: what its leader lacks is lost, as soon as it is seen to lead."""
    start_offset: int = 0
    """The greatest log start that any leader had."""
    shortened: bool = False
    """Somebody asked for records to be deleted, or their number is bounded: the log may begin anywhere."""
    _named: dict[tuple[int, int], Batch] = field(default_factory=dict)
    _leaders: dict[LeaderEpoch, tuple[BrokerId, Incarnation]] = field(default_factory=dict)
    _exposed: dict[LeaderEpoch, tuple[int, int]] = field(default_factory=dict)
    """For each leader epoch the first and the last high watermark that its leader exposed."""
    _deleted: tuple[LeaderEpoch, int] = (LeaderEpoch(-1), 0)
    """The epoch in which `delete-records` was answered last, and the start that was promised."""

    def name(self, batch: Batch) -> None:
        """Some replica holds this batch. A hole has no name: it may stand for several."""
        if batch.hole:
            return
        known = self._named.setdefault((batch.base_offset, batch.leader_epoch), batch)
        if known != batch:
            raise Violation(
                f"S2: offset {batch.base_offset} of epoch {batch.leader_epoch} of {self.topic_partition} names two "
                f"batches: {known} and {batch}"
            )

    def led_by(self, epoch: LeaderEpoch, holder: tuple[BrokerId, Incarnation]) -> bool:
        """This life of this broker leads. Whether nobody was seen to lead a later epoch."""
        first = self._leaders.setdefault(epoch, holder)
        if first != holder:
            raise Violation(f"S5: {self.topic_partition} epoch {epoch} is led by {first} and by {holder}")
        return epoch == max(self._leaders)

    def exposes(self, epoch: LeaderEpoch, exposed: int) -> None:
        """The high watermark that consumers see falls neither within an epoch nor from one to the next, whoever of two
        leaders has not heard yet that it is deposed."""
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
        """A leader that may be read from begins its log here."""
        self.start_offset = max(self.start_offset, start_offset)
        if start_offset > 0 and not self.shortened and not self.may_lose:
            raise Violation(
                f"S1: {self.topic_partition} begins at {start_offset}: nobody deleted what was before, and a run "
                "is too short for anything to be old"
            )
        promised_in, promised = self._deleted
        if epoch >= promised_in and start_offset < promised and not self.may_lose:
            raise Violation(
                f"S1: {self.topic_partition} begins at {start_offset} in epoch {epoch}: in epoch {promised_in} all "
                f"below {promised} was said to be deleted"
            )

    @property
    def promised_start(self) -> int:
        """All below was said to be deleted."""
        return 0 if self.may_lose else self._deleted[1]

    def deleted(self, epoch: LeaderEpoch, start_offset: int) -> None:
        """A leader of this epoch answered `delete-records`."""
        if start_offset > self._deleted[1]:
            self._deleted = epoch, start_offset

    def lose(self, mirror: Mirror) -> int:
        """The winner of a recovery election leads: what it lacks is lost. How many records that is."""
        self.losing = None
        if mirror.start_offset <= self.log.end_offset and not mirror.compare(self.log, self.log.end_offset):
            return 0
        self._exposed.clear()
        return self.log.lose_from(mirror.verified_end, mirror.start_offset)

    def check_floor(self, leader: Leader, before: LeaderMark) -> bool:
        """S6: the high watermark stands still below `min.insync.replicas`. `before`: as it was before this event. An
        event may bring several records: then it is not known under which of them it moved. Whether it is below."""
        record = leader.record
        short = len(record.isr) < record.min_insync_replicas
        moved = leader.high_watermark > before.high_watermark and record.partition_epoch == before.partition_epoch
        if short and moved:
            was = before.high_watermark
            raise Violation(f"S6: the high watermark moved from {was} below the minimum: {leader} of {record}")
        return short
