"""Partition managers on one scheduler with links that deliver by themselves, and metadata that the test sets."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from jepsen_like.simulator.world.disk import SimDisk, SimFile
from partitions.driver.ports import TransactionPorts
from partitions.manager import MetadataChange, PartitionManager, Produced
from partitions.producers.transactions import key_of
from partitions.replica.effects import Fate, IsrProposal
from partitions.replication import protocol as rp
from partitions.upkeep.repair import LossAnswer
from raftlog.config import TimingConfig
from raftlog.errors import DiskFull, RaftlogError
from raftlog.model import (
    Acks,
    BrokerId,
    BrokerRecord,
    Incarnation,
    LeaderEpoch,
    PartitionEpoch,
    PartitionRecord,
    TopicId,
    TopicPartition,
    TopicRecord,
)
from raftlog.ports import Buffer, FileRegion, LinkHandler, Part
from raftlog.records.batch import RecordBatch, encode, split_batches
from raftlog.transactions import TransactionKey
from raftlog.wire import FetchedPartition, FetchPartition

from .manual import ManualScheduler, ManualWorker
from .replication_cores import broker
from .right_clock import RightClock
from .transaction_logs import Decisions, batch_of

TOPIC = TopicId(b"replicated-topic")


def tp(partition: int) -> TopicPartition:
    return TopicPartition(TOPIC, partition)


class ColdDisk(SimDisk):
    """While `cold`, the page cache is empty; `full_folders` have no space."""

    cold = False
    full_folders: tuple[str, ...] = ()

    def open(self, path: str, *, create: bool = False, exclusive: bool = False, bulk: bool = False) -> SimFile:
        file = super().open(path, create=create, exclusive=exclusive, bulk=bulk)
        cached = file.pread_cached
        file.pread_cached = lambda length, position: None if self.cold else cached(length, position)
        write = file.pwritev

        def write_if_there_is_room(buffers: Sequence[Buffer], position: int) -> int:
            if path.startswith(self.full_folders or "-"):
                raise DiskFull(f"no room for {path}")
            return write(buffers, position)

        file.pwritev = write_if_there_is_room
        return file


class QuietLogger:
    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, Any]]] = []

    def info(self, event: str, **fields: Any) -> None:
        pass

    def warning(self, event: str, **fields: Any) -> None:
        self.lines.append((event, fields))

    error = warning


class AutoLink:
    """Delivers soon, in order; counts its messages. `paused` holds them back."""

    def __init__(self, scheduler: ManualScheduler, peer: int, handler: LinkHandler) -> None:
        self._scheduler = scheduler
        self.peer = peer
        self.handler = handler
        self.other: AutoLink
        self.open = True
        self.paused = False
        self.sent: list[bytes] = []
        self.regions = 0
        self._queue: deque[bytes] = deque()

    def send(self, parts: Sequence[Part]) -> None:
        self.regions += sum(isinstance(part, FileRegion) for part in parts)
        message = b"".join(bytes_of(part) for part in parts)
        if self.open:
            self.sent.append(message)
            self._queue.append(message)
            self._scheduler.call_soon(self._deliver)

    def resume(self) -> None:
        self.paused = False
        for _ in range(len(self._queue)):
            self._scheduler.call_soon(self._deliver)

    def _deliver(self) -> None:
        if self._queue and not self.paused and self.other.open:
            self.other.handler.on_message(self.other, memoryview(self._queue.popleft()))

    def close(self) -> None:
        for end in (self, self.other):
            if end.open:
                end.open = False
                self._scheduler.call_soon(lambda end=end: end.handler.on_closed(end))

    def pushes(self) -> list[tuple[rp.PushFrame, int]]:
        """Push frames that this end sent, with the sizes of their bodies."""
        found = []
        for message in self.sent:
            frame, body = rp.decode_from_leader(message)
            if isinstance(frame, rp.PushFrame):
                found.append((frame, body.nbytes))
        return found

    def acks(self) -> list[rp.AckFrame]:
        frames = map(rp.decode_from_follower, self.sent)
        return [frame for frame in frames if isinstance(frame, rp.AckFrame)]


def bytes_of(part: Part) -> bytes:
    if not isinstance(part, FileRegion):
        return bytes(part)
    try:
        return part.file.pread(part.length, part.position)
    finally:
        part.release()


@dataclass
class Member:
    """One broker."""

    number: int
    disk: ColdDisk
    worker: ManualWorker
    manager: PartitionManager
    logger: QuietLogger
    time: RightClock
    links: dict[int, AutoLink] = field(default_factory=dict)
    """Dialed links, by peer."""
    proposals: list[tuple[IsrProposal, Callable[[Fate], None]]] = field(default_factory=list)
    offline: list[tuple[TopicPartition, str]] = field(default_factory=list)
    losses: list[tuple[TopicPartition, LeaderEpoch, Callable[[LossAnswer], None]]] = field(default_factory=list)
    """Reported and not answered, if the cluster has `repairs`."""
    decisions: Decisions = field(default_factory=Decisions)
    """The decisions that this broker has received."""
    markers: list[tuple[TopicPartition, TransactionKey]] = field(default_factory=list)
    """Markers reported as written."""
    overdue: list[TransactionKey] = field(default_factory=list)


class ReplicationCluster:
    """Broker 0 leads every partition of one topic; `configs` are the topic's. No broker decides anything by itself."""

    def __init__(
        self,
        partitions: int = 1,
        *,
        brokers: int = 2,
        minimum: int = 2,
        cache_bytes: int = 1 << 20,
        repairs: bool = False,
        **configs: str,
    ) -> None:
        self.scheduler = ManualScheduler()
        self.repairs = repairs
        self.decisions: list[Callable[[Decisions], None]] = []
        self.members: dict[int, Member] = {}
        self.cache_bytes = cache_bytes
        self.minimum = minimum
        self.catch_up: Callable[[int, Callable[[bool], None]], None] = lambda number, done: done(True)
        """The way in which a broker of this number requests all decisions from the quorum."""
        self.replicas = tuple(BrokerId(number) for number in range(brokers))
        self.topic = TopicRecord(TOPIC, "orders", partitions, brokers, tuple(sorted(configs.items())))
        self.records: dict[int, PartitionRecord] = {
            partition: self._record(partition, 0, 1, 1, self.replicas) for partition in range(partitions)
        }
        for number in range(brokers):
            self.start(number)
        self.tell(*self.brokers(), self.topic, *self.records.values())
        self.settle()

    def brokers(self) -> list[BrokerRecord]:
        return [broker(number) for number in self.replicas]

    def _record(
        self, partition: int, leader: int, epoch: int, partition_epoch: int, isr: Sequence[BrokerId]
    ) -> PartitionRecord:
        return PartitionRecord(
            tp(partition),
            self.replicas,
            BrokerId(leader),
            Incarnation(1),
            LeaderEpoch(epoch),
            PartitionEpoch(partition_epoch),
            tuple(isr),
            tuple(isr),
            self.minimum,
        )

    def start(self, number: int, disk: ColdDisk | None = None, *, clean_shutdown: bool = True) -> Member:
        worker, logger = ManualWorker(self.scheduler), QuietLogger()
        time = RightClock(self.scheduler.clock)
        member: Member
        decisions = Decisions()
        for decide in self.decisions:
            decide(decisions)

        def propose(proposal: IsrProposal, done: Callable[[Fate], None]) -> None:
            member.proposals.append((proposal, done))

        manager = PartitionManager(
            node_id=BrokerId(number),
            cluster_id="tests",
            disk=disk or (disk := ColdDisk()),
            clock=self.scheduler.clock,
            cluster_clock=time,
            scheduler=self.scheduler,
            worker=worker,
            log_worker=worker,
            random=random.Random(0),
            dialer=_Dialer(self, number),
            propose_isr=propose,
            logger=logger,
            timing=TimingConfig(),
            fetch_cache_bytes=self.cache_bytes,
            on_replica_offline=lambda tp, reason: member.offline.append((tp, reason)),
            report_loss=(lambda *report: member.losses.append(report)) if self.repairs else None,
            catch_up=lambda done: self.catch_up(number, done),
            transactions=TransactionPorts(
                decisions,
                lambda tp, keys: member.markers.extend((tp, one) for one in keys),
                lambda tp, keys: member.overdue.extend(keys),
            ),
        )
        member = self.members[number] = Member(number, disk, worker, manager, logger, time, decisions=decisions)
        manager.load(clean_shutdown=clean_shutdown)
        manager.on_registered(Incarnation(1))
        return member

    def tell(self, *changes: MetadataChange | BrokerRecord, to: Sequence[int] | None = None) -> None:
        for number in to if to is not None else sorted(self.members):
            self.members[number].manager.on_metadata(list(changes))
        for change in changes:
            if isinstance(change, PartitionRecord):
                self.records[change.topic_partition.partition] = change

    def elect(
        self, leader: int, *, partition: int = 0, isr: Sequence[int] | None = None, to: Sequence[int] | None = None
    ) -> PartitionRecord:
        old = self.records[partition]
        members = old.isr if isr is None else tuple(map(BrokerId, isr))
        epoch, partition_epoch = old.leader_epoch + 1, old.partition_epoch + 1
        record = self._record(partition, leader, epoch, partition_epoch, members)
        self.tell(record, to=to)
        return record

    def set_isr(self, *isr: int, partition: int = 0) -> None:
        old = self.records[partition]
        self.tell(
            self._record(partition, old.leader, old.leader_epoch, old.partition_epoch + 1, tuple(map(BrokerId, isr)))
        )

    def decide(self, decide: Callable[[Decisions], None], *, to: Sequence[int] | None = None) -> None:
        """Decide about transactions, and let these brokers (or all) receive the decision."""
        if to is None:
            self.decisions.append(decide)
        for number in self.members if to is None else to:
            decide(self.members[number].decisions)
            self.members[number].manager.on_transactions(())

    def dial(self, owner: int, peer: int) -> None:
        if owner not in self.members or peer not in self.members:
            return
        dialed, accepted = self.members[owner].manager.dialed, self.members[peer].manager.accepted
        here, there = AutoLink(self.scheduler, peer, dialed), AutoLink(self.scheduler, owner, accepted)
        here.other, there.other = there, here
        self.members[owner].links[peer] = here
        accepted.on_opened(there)
        dialed.on_opened(here)

    def settle(self) -> None:
        """Deliver messages and run disks, until nothing moves."""
        for _ in range(10_000):
            moved = self.scheduler.run()
            for number in sorted(self.members):
                worker = self.members[number].worker
                while worker.pending:
                    worker.run_one()
                    moved += 1
            if not moved:
                return
        raise AssertionError("never comes to rest")

    # --- Requests ---

    def produce(
        self, number: int, partition: int = 0, *, size: int = 10, acks: Acks = Acks.ALL, **options: Any
    ) -> list[Any]:
        """Produce one record of this size; the answers appear in the returned list."""
        answers: list[Produced | RaftlogError] = []
        batch = encode([bytes(size)], base_timestamp_ms=options.pop("timestamp", self.scheduler.clock.wall_ms()))
        self.members[number].manager.produce(tp(partition), batch, acks, answers.append, **options)
        return answers

    def write(
        self, number: int, one: TransactionKey, *values: bytes, partition: int = 0, acks: Acks = Acks.ALL, **batch: Any
    ) -> list[Any]:
        """Write a batch of a transaction; like `produce`."""
        answers: list[Produced | RaftlogError] = []
        self.members[number].manager.produce(tp(partition), batch_of(one, *values, **batch), acks, answers.append)
        return answers

    def fetch(
        self,
        number: int,
        *offsets: int,
        min_bytes: int = 1,
        max_bytes: int = 1 << 20,
        wait_ms: int = 0,
        isolation: int = 0,
    ) -> Fetch:
        """Fetch from partitions 0, 1, … at these offsets."""
        fetch = Fetch()
        asked = [FetchPartition(TOPIC, partition, offset, 1 << 20) for partition, offset in enumerate(offsets)]
        fetch.handle = self.members[number].manager.fetch(
            asked, fetch.done, min_bytes=min_bytes, max_bytes=max_bytes, max_wait_ms=wait_ms, isolation=isolation
        )
        return fetch

    def leader_end(self, number: int, peer: int) -> AutoLink:
        """The end of the link that `number` dialed at which `peer`, leading, sends."""
        return self.members[number].links[peer].other

    def log_end(self, number: int, partition: int = 0) -> tuple[int, int]:
        """(end, stable end)."""
        log = self.members[number].manager.drivers[tp(partition)].log
        return log.log_end_offset, log.stable_end_offset


class Fetch:
    """A fetch's answer, once it has arrived."""

    def __init__(self) -> None:
        self.answers: list[FetchedPartition] | None = None
        self.records = 0
        self.handle: Any = None
        self.bodies: list[int] = []
        self.batches: list[RecordBatch] = []

    def done(self, answers: list[FetchedPartition], parts: list[Part]) -> None:
        assert self.answers is None, "once"
        self.answers = answers
        body = b"".join(bytes_of(part) for part in parts)
        assert len(body) == sum(answer.length for answer in answers)
        self.batches = [RecordBatch(batch) for batch in split_batches(body)]
        self.records = sum(len(batch.values()) for batch in self.batches)

    def committed(self) -> list[bytes | None]:
        """The records of the first partition for a `read_committed` reader: by headers and ranges alone."""
        assert self.answers is not None
        return [
            value
            for batch in self.batches
            if not any(
                (one.producer_id, one.producer_epoch) == key_of(batch.header)
                and one.first_offset <= batch.header.base_offset < one.end_offset
                for one in self.answers[0].aborted
            )
            for value in batch.values()
        ]

    @property
    def errors(self) -> list[str]:
        assert self.answers is not None
        return [answer.error for answer in self.answers]


class _Dialer:
    def __init__(self, cluster: ReplicationCluster, number: int) -> None:
        self._cluster = cluster
        self._number = number

    def connect(self, peer: BrokerId) -> None:
        self._cluster.scheduler.call_soon(lambda: self._cluster.dial(self._number, peer))

    def disconnect(self, peer: BrokerId) -> None:
        link = self._cluster.members[self._number].links.pop(peer, None)
        if link is not None:
            link.close()
