"""A simple model of one partition's replication around a real cluster image: random walks that look for a lost record.

The quorum is one atomic image; each broker applies the versions of the partition's record in order, at any later time.
Messages arrive late, twice, and after restarts. A process crash keeps the page cache; a power loss keeps any prefix
from the fsynced end up. Fewer replicas than the minimum ever lose fsynced data. Elections are proposed at random,
sensible or not: only the image's refusals protect the records.

The data path is as simple as its rules allow: see `Walk.commit`, `fetch` and `propose`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from metadata.commands.cluster import AlterIsr
from metadata.commands.fields import IsrMember
from metadata.commands.results import IsrAltered
from raftlog.model import NO_INCARNATION, BrokerId, Incarnation, PartitionRecord
from raftlog.version import FEATURE_LEVEL

from .cluster import TOPIC, Cluster, report

Entry = tuple[int, int]
"""(leader epoch, number of the record)"""


class LostRecord(Exception):
    """A safety property does not hold."""


@dataclass
class Version:
    """The effects of one log entry of the quorum."""

    index: int
    record: PartitionRecord
    incarnations: dict[int, Incarnation]
    fenced: set[int]


@dataclass
class Replica:
    """One broker, its disk and its knowledge."""

    number: int
    disk: int
    up: bool = True
    incarnation: Incarnation = NO_INCARNATION
    log: list[Entry] = field(default_factory=list)
    synced: int = 0
    cut: bool = False
    broken: bool = False
    """It lost fsynced data and has not registered since."""
    at: int = 0
    """The position in the list of versions."""
    matched_epoch: int = -1
    # The state of a leader:
    epoch: int = -1
    epoch_start: int = 0
    high_watermark: int = 0
    progress: dict[tuple[int, Incarnation], int] = field(default_factory=dict)
    pending: tuple[AlterIsr, int] | None = None
    """The ISR proposal in flight, and the index of its refusal (-1: none yet)."""


class Walk:
    """One random schedule."""

    def __init__(self, seed: int, *, replicas: int = 3, minimum: int = 2, placed: Sequence[int] | None = None) -> None:
        """Create this number of brokers, all with a replica unless `placed` names those that have one."""
        self.random = Random(seed)
        self.minimum = minimum
        self.cluster = Cluster(replicas, min_insync_replicas=minimum, replicas=placed, feature_level=FEATURE_LEVEL)
        self.replicas = [Replica(n, n, incarnation=self.cluster.incarnation(n)) for n in range(replicas)]
        self.versions: list[Version] = []
        self.note_version()
        self.committed: list[Entry] = []
        self.written: dict[tuple[int, int], int] = {}
        self.records = 0
        self.acks: list[tuple[int, Incarnation, int, int]] = []
        self.proposals: list[tuple[Replica, AlterIsr]] = []
        self.may_lose_data = minimum - 1
        for replica in self.replicas:
            self.take_view(replica)

    def run(self, steps: int, *, blackouts: float = 0.5) -> None:
        """Raises `LostRecord`. `blackouts` is the frequency of power losses of all brokers: a weight beside those
        below."""
        actions = self.actions(blackouts)
        functions, weights = [a for a, _ in actions], [w for _, w in actions]
        for action in self.random.choices(functions, weights, k=steps):
            action()
            self.check()

    def actions(self, blackouts: float) -> list[tuple[Callable[[], None], float]]:
        """The possible actions, and their weights."""
        return [
            (self.advance, 60), (self.append, 15), (self.fsync, 40), (self.fetch, 60), (self.send_ack, 50),
            (self.deliver_ack, 60), (self.commit, 30), (self.propose, 8), (self.deliver_proposal, 12), (self.elect, 25),
            (self.unfence, 15), (self.restart, 12), (self.fence, 2.5), (self.crash, 1), (self.lose_power, 2),
            (self.lose_data, 0.5), (self.blackout, blackouts),
        ]  # fmt: skip

    # --- The quorum --------------------------------------------------------------------------------------------------

    def note_version(self) -> None:
        brokers = self.cluster.image.brokers
        self.versions.append(
            Version(
                self.cluster.image.index,
                self.cluster.partition,
                {int(b): brokers[b].incarnation for b in brokers},
                {int(b) for b in brokers if brokers[b].fenced},
            )
        )

    def fence(self) -> None:
        self.cluster.fence(self.some().number)
        self.note_version()

    def unfence(self) -> None:
        replica = self.some_of([replica for replica in self.replicas if replica.number in self.versions[-1].fenced])
        if replica.up and self.view(replica).index >= replica.incarnation:
            self.cluster.unfence(replica.number)
            self.note_version()

    def elect(self) -> None:
        if self.cluster.partition.has_leader and self.random.random() < 0.8:
            return
        self.cluster.elect(self.some().number, recovery=self.random.random() < 0.5)
        self.note_version()

    def deliver_proposal(self) -> None:
        if self.proposals:
            sender, command = self.random.choice(self.proposals)
            if self.random.random() < 0.7:
                self.proposals.remove((sender, command))
            result = self.cluster.apply(command)
            self.note_version()
            if not isinstance(result, IsrAltered) and sender.pending is not None and sender.pending[0] is command:
                sender.pending = (command, self.cluster.image.index)

    # --- Brokers -----------------------------------------------------------------------------------------------------

    def some(self) -> Replica:
        return self.random.choice(self.replicas)

    def some_of(self, preferred: list[Replica]) -> Replica:
        return self.random.choice(preferred or self.replicas)

    def view(self, replica: Replica) -> Version:
        return self.versions[replica.at]

    def leads(self, replica: Replica) -> bool:
        """It leads in its own view, which must include its own registration."""
        version = self.view(replica)
        record = version.record
        mine = record.leader == replica.number and record.leader_incarnation == replica.incarnation
        return replica.up and mine and version.index >= replica.incarnation

    def advance(self) -> None:
        replica = self.some()
        for _ in range(self.random.choice((1, 3, 99))):
            if replica.up and replica.at + 1 < len(self.versions):
                replica.at += 1
                self.take_view(replica)

    def take_view(self, replica: Replica) -> None:
        version = self.view(replica)
        if replica.pending is not None:
            command, refused_at = replica.pending
            if version.record.partition_epoch > command.partition_epoch or 0 <= refused_at <= version.index:
                replica.pending = None
        if self.leads(replica) and replica.epoch != version.record.leader_epoch:
            replica.epoch = version.record.leader_epoch
            replica.epoch_start = len(replica.log)
            replica.high_watermark = 0
            replica.progress = {}
            replica.pending = None

    def crash(self) -> None:
        self.some().up = False

    def lose_power(self) -> None:
        self.cut_power(self.some())

    def blackout(self) -> None:
        for replica in self.replicas:
            self.cut_power(replica)

    def cut_power(self, replica: Replica) -> None:
        replica.up = False
        keep = self.random.randint(replica.synced, len(replica.log))
        torn = keep < len(replica.log) and self.random.random() < 0.5
        replica.log = replica.log[:keep]
        replica.cut = replica.cut or torn

    def lose_data(self) -> None:
        if self.may_lose_data == 0 or self.random.random() < 0.5:
            return
        replica = self.some()
        self.may_lose_data -= 1
        replica.up = False
        replica.broken = True
        if self.random.random() < 0.5:
            replica.log = replica.log[: max(0, replica.synced - 1)]
            replica.cut = True
        else:
            replica.log, replica.disk = [], replica.disk + 100
        replica.synced = min(replica.synced, len(replica.log))

    def restart(self) -> None:
        replica = self.some_of([replica for replica in self.replicas if not replica.up])
        if replica.up and self.random.random() < 0.9:
            return
        fresh = replica.disk != self.cluster.image.brokers[BrokerId(replica.number)].directory_id[-1]
        replica.synced = len(replica.log)
        last_epoch = replica.log[-1][0] if replica.log else -1
        reports = [] if fresh else [report(last_epoch, len(replica.log), cut=replica.cut)]
        command = self.cluster.registration(replica.number, reports, disk=replica.disk)
        self.cluster.do(command)
        self.note_version()
        replica.incarnation = self.cluster.incarnation(replica.number)
        replica.up, replica.cut, replica.broken, replica.matched_epoch, replica.epoch = True, False, False, -1, -1
        replica.pending = None
        replica.at = self.random.randrange(len(self.versions))

    # --- The data path -----------------------------------------------------------------------------------------------

    def append(self) -> None:
        leader = self.some_of([replica for replica in self.replicas if self.leads(replica)])
        if self.leads(leader):
            self.records += 1
            where = (len(leader.log), leader.epoch)
            if self.written.setdefault(where, self.records) != self.records:
                raise LostRecord(f"offset {where[0]} of epoch {where[1]} was given twice")
            leader.log.append((leader.epoch, self.records))

    def fsync(self) -> None:
        replica = self.some()
        if replica.up:
            replica.synced = len(replica.log)

    def fetch(self) -> None:
        """The follower matches its log with the leader's, and fetches a part of it."""
        leader = self.some_of([replica for replica in self.replicas if self.leads(replica)])
        follower = self.random.choice([replica for replica in self.replicas if replica is not leader])
        mine, its = self.view(follower), self.view(leader)
        if (
            not (follower.up and self.leads(leader))
            or mine.index < follower.incarnation
            or (mine.record.leader, mine.record.leader_epoch) != (leader.number, leader.epoch)
            or its.incarnations[follower.number] != follower.incarnation
            or follower.number not in mine.record.replicas
            or follower.number not in its.record.replicas
        ):
            return
        same = 0
        while same < min(len(follower.log), len(leader.log)) and follower.log[same] == leader.log[same]:
            same += 1
        follower.log = follower.log[:same]
        follower.synced = min(follower.synced, same)
        follower.matched_epoch = leader.epoch
        follower.log += leader.log[same : same + self.random.randint(0, 2)]

    def send_ack(self) -> None:
        follower = self.some()
        if follower.up and follower.matched_epoch == self.view(follower).record.leader_epoch:
            self.acks.append((follower.number, follower.incarnation, follower.matched_epoch, follower.synced))

    def deliver_ack(self) -> None:
        if self.acks:
            number, incarnation, epoch, end = ack = self.random.choice(self.acks)
            if self.random.random() < 0.8:
                self.acks.remove(ack)
            for leader in self.replicas:
                version = self.view(leader)
                if self.leads(leader) and leader.epoch == epoch and version.incarnations[number] == incarnation:
                    key = (number, incarnation)
                    leader.progress[key] = max(end, leader.progress.get(key, 0))

    def stable_end(self, leader: Replica, member: int) -> int:
        if member == leader.number:
            return leader.synced
        return leader.progress.get((member, self.view(leader).incarnations[member]), 0)

    def commit(self) -> None:
        """Advance the high watermark over accepted and pending ISR; not below the minimum, nor before the epoch's
        start."""
        leader = self.some_of([replica for replica in self.replicas if self.leads(replica)])
        if not self.leads(leader):
            return
        record = self.view(leader).record
        pending = [] if leader.pending is None else [member.broker_id for member in leader.pending[0].isr]
        if len(record.isr) >= record.min_insync_replicas:
            end = min(self.stable_end(leader, member) for member in {*record.isr, *pending})
            leader.high_watermark = max(leader.high_watermark, end)
            if leader.high_watermark >= leader.epoch_start:
                exposed = leader.log[: leader.high_watermark]
                shorter = min(len(exposed), len(self.committed))
                if exposed[:shorter] != self.committed[:shorter]:
                    raise LostRecord("another record is committed at an offset")
                if len(exposed) < len(self.committed) and not self.is_deposed(leader):
                    raise LostRecord("the high watermark that a leader shows went back")
                self.committed = max(self.committed, exposed, key=len)

    def is_deposed(self, leader: Replica) -> bool:
        return self.cluster.partition.leader_epoch != leader.epoch

    def propose(self) -> None:
        """Remove any member, or add a replica with everything below the high watermark and the epoch's start."""
        leader = self.some_of([replica for replica in self.replicas if self.leads(replica)])
        if not self.leads(leader) or leader.pending is not None:
            return
        version = self.view(leader)
        isr = set(map(int, version.record.isr))
        if self.random.random() < 0.3:
            isr -= {self.random.choice([replica.number for replica in self.replicas])}
        for replica in (self.replicas[number] for number in version.record.replicas):
            enough = self.stable_end(leader, replica.number) >= max(leader.high_watermark, leader.epoch_start)
            known = (replica.number, version.incarnations[replica.number]) in leader.progress
            if enough and known and replica.number not in version.fenced and self.random.random() < 0.8:
                isr.add(replica.number)
        isr.add(leader.number)
        record = version.record
        members = tuple(IsrMember(BrokerId(m), version.incarnations[m]) for m in sorted(isr))
        command = AlterIsr(
            TOPIC, 0, record.leader, record.leader_incarnation, record.leader_epoch, record.partition_epoch, members
        )
        leader.pending = (command, -1)
        self.proposals.append((leader, command))

    # --- Invariants ---

    def check(self) -> None:
        """S6: every eligible member of ISR and commit set has every committed record, fsynced."""
        record = self.cluster.partition
        for member in {*record.isr, *record.commit_set} - set(record.not_eligible):
            replica = self.replicas[member]
            if not replica.broken and replica.log[: replica.synced][: len(self.committed)] != self.committed:
                raise LostRecord(f"{member} is eligible and lacks a committed record: {record}")
