"""Random commands for a cluster image: mostly sensible, often stale, sometimes nonsense."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from metadata.commands.cluster import (
    AddPartitions,
    AlterIsr,
    AlterTopic,
    CreateTopic,
    DeleteTopic,
    ElectLeaders,
    FenceBroker,
    GrantProducerIds,
    NoOp,
    RegisterBroker,
    ReportRoom,
    SetFeatureLevel,
    UnfenceBroker,
)
from metadata.commands.envelope import ClientSession, Command, Envelope, decode, encode
from metadata.commands.fields import Election, IsrMember
from metadata.commands.replicas import (
    AlterReassignments,
    BeginMoves,
    ElectUnclean,
    Move,
    Reassignment,
    RenewLeadership,
    ReportLoss,
    ThrottleReassignments,
    UnregisterBroker,
)
from metadata.image.image import ClusterImage
from metadata.rules.elections import recovery_winners
from raftlog.model import (
    BrokerId,
    Endpoint,
    Incarnation,
    LeaderEpoch,
    Offset,
    PartitionEpoch,
    PartitionRecord,
    ReplicaReport,
    TopicId,
    TopicPartition,
    TopicRecord,
)

from .cluster import directory

BROKERS = 5


class RandomCommands:
    """`next()` uses the image, so that most commands refer to existing objects."""

    def __init__(self, image: ClusterImage, seed: int) -> None:
        self.image = image
        self.random = Random(seed)
        self._starts = [0] * BROKERS
        self._kinds: list[tuple[Callable[[], Command], float]] = [
            (self._register, 4), (self._fence, 3), (self._unfence, 10), (self._create, 5), (self._delete, 0.5),
            (self._alter, 1), (self._grow, 1), (self._elect, 12), (self._alter_isr, 12), (self._grant, 1),
            (self._level, 1), (self._no_op, 1), (self._reassign, 4), (self._begin, 4), (self._unregister, 1),
            (self._unclean, 3), (self._lose, 3), (self._renew, 3), (self._report_room, 1),
        ]  # fmt: skip
        self._prelude = [self._create, *[self._unfence] * 2 * BROKERS, *[self._register] * 2 * BROKERS]

    def next(self) -> Envelope:
        """Some commands have a session with few distinct numbers, so that retries happen."""
        if self._prelude:
            return decode(encode(self._prelude.pop()()))
        kinds, weights = [kind for kind, _ in self._kinds], [weight for _, weight in self._kinds]
        (make,) = self.random.choices(kinds, weights)
        session = None
        if self.random.random() < 0.2:
            session = ClientSession(
                bytes([self._upto(2)] * 16), self._upto(30), max(0, self.image.index - self._upto(9))
            )
        term = self.random.choice((None, None, None, 1, 2))
        return decode(encode(make(), session=session, term=term))

    def _upto(self, most: int) -> int:
        return self.random.randint(0, most)

    def _broker(self) -> BrokerId:
        return BrokerId(self._upto(BROKERS - 1))

    def _incarnation(self, broker: BrokerId) -> Incarnation:
        record = self.image.brokers.get(broker)
        right = record.incarnation if record is not None else Incarnation(0)
        return right if self.random.random() < 0.9 else Incarnation(max(0, right - 1))

    def _topic(self) -> TopicRecord | None:
        topics = sorted(self.image.topics)
        return self.image.topics[self.random.choice(topics)] if topics else None

    def _partition(self) -> PartitionRecord | None:
        topic = self._topic()
        if self.image.leaderless and self.random.random() < 0.5:
            return self.image.partitions[self.random.choice(list(self.image.leaderless))]
        return None if topic is None else self.random.choice(self.image.partitions_of(topic))

    def _register(self) -> Command:
        broker = self._broker()
        if self.random.random() < 0.9:
            self._starts[broker] += 1
        disk = broker if self.random.random() < 0.9 else 10 + broker
        cut = self.random.choice((0.1, 0.9))
        reports = [
            ReplicaReport(tp, True, LeaderEpoch(self._upto(3) - 1), Offset(self._upto(5)), self.random.random() < cut)
            for tp in self.image.replicas_of(broker)
            if self.random.random() < 0.9
        ]
        return RegisterBroker.of(
            broker,
            directory(disk),
            self._starts[broker],
            api=Endpoint("a", broker),
            data=Endpoint("d", broker),
            rack="r" * self._upto(1),
            feature_level=self.random.choice((1, 2, 2)),
            reports=reports,
        )

    def _fence(self) -> Command:
        broker = self._broker()
        return FenceBroker(broker, self._incarnation(broker))

    def _unfence(self) -> Command:
        broker = self._broker()
        return UnfenceBroker(broker, self._incarnation(broker))

    def _assignment(self, factor: int) -> tuple[BrokerId, ...]:
        return tuple(BrokerId(broker) for broker in self.random.sample(range(BROKERS), factor))

    def _configs(self) -> tuple[tuple[str, str], ...]:
        choices = [("min.insync.replicas", str(self._upto(3))), ("retention.ms", "5"), ("no.such", "1")]
        return tuple(choice for choice in choices if self.random.random() < 0.15)

    def _create(self) -> Command:
        factor = 1 + self._upto(2)
        replicas = tuple(self._assignment(factor) for _ in range(1 + self._upto(2)))
        name = self.random.choice(("a", "a", "b", "c", "c", "not/legal"))
        return CreateTopic(name, TopicId(self.random.randbytes(16)), replicas, self._configs())

    def _delete(self) -> Command:
        topic = self._topic()
        return DeleteTopic(topic.topic_id if topic is not None else TopicId(bytes(16)))

    def _alter(self) -> Command:
        topic = self._topic()
        remove = ("min.insync.replicas",) if self.random.random() < 0.3 else ()
        return AlterTopic(topic.topic_id if topic is not None else TopicId(bytes(16)), self._configs(), remove)

    def _grow(self) -> Command:
        topic = self._topic()
        if topic is None:
            return NoOp()
        return AddPartitions(topic.topic_id, topic.partition_count, (self._assignment(topic.replication_factor),))

    def _epoch(self, record: PartitionRecord) -> PartitionEpoch:
        return PartitionEpoch(max(0, record.partition_epoch - (self.random.random() < 0.1)))

    def _elect(self) -> Command:
        elections = []
        for _ in range(1 + self._upto(2)):
            record = self._partition()
            if record is not None:
                tp, candidate = record.topic_partition, self.random.choice(record.replicas)
                recovery = self.random.random() < 0.4
                tickets, level = self.image.tickets_of(tp), self.image.feature_level
                winners = recovery_winners(record, tickets, self.image.brokers, level)
                if winners and self.random.random() < 0.5:
                    candidate, recovery = winners[0], True
                incarnation = self._incarnation(candidate)
                elections.append(
                    Election(tp.topic_id, tp.partition, candidate, incarnation, self._epoch(record), recovery)
                )
        return ElectLeaders(tuple(elections))

    def _alter_isr(self) -> Command:
        led = [tp for tp in sorted(self.image.partitions, key=str) if self.image.partitions[tp].has_leader]
        if not led:
            return NoOp()
        record = self.image.partitions[self.random.choice(led)]
        isr = {member for member in record.replicas if self.random.random() < 0.6} | {record.leader}
        if self.random.random() < 0.05:
            isr = {self._broker()}
        members = tuple(IsrMember(member, self._incarnation(member)) for member in sorted(isr))
        tp: TopicPartition = record.topic_partition
        return AlterIsr(
            tp.topic_id,
            tp.partition,
            record.leader if self.random.random() < 0.95 else self._broker(),
            record.leader_incarnation,
            LeaderEpoch(max(0, record.leader_epoch + self.random.choice((0,) * 20 + (1, -1)))),
            self._epoch(record),
            members,
        )

    def _grant(self) -> Command:
        broker = self._broker()
        return GrantProducerIds(broker, self._incarnation(broker), self._upto(1000))

    def _level(self) -> Command:
        return SetFeatureLevel(1 + self._upto(1))

    def _no_op(self) -> Command:
        return NoOp()

    def _reassign(self) -> Command:
        record = self._partition()
        if record is None:
            return NoOp()
        tp, epoch = record.topic_partition, self._epoch(record)
        factor = max(1, record.replica_count + self.random.choice((0, 0, 0, 1, -1)))
        if record.target_replicas and self.random.random() < 0.7:
            return AlterReassignments((Reassignment(tp.topic_id, tp.partition, epoch, ()),))
        registered = sorted(self.image.brokers)
        target = tuple(self.random.sample(registered, min(factor, len(registered))))
        asked = (Reassignment(tp.topic_id, tp.partition, epoch, target),)
        if self.random.random() < 0.3:
            rates = (self.random.choice((None, 1, 2)), self.random.choice((None, 1)))
            return ThrottleReassignments(asked if self.random.random() < 0.8 else (), *rates)
        return AlterReassignments(asked)

    def _begin(self) -> Command:
        records = [self.image.partitions[tp] for tp in self.image.reassigning]
        moves = [Move(r.topic_partition.topic_id, r.topic_partition.partition, self._epoch(r)) for r in records]
        return BeginMoves(tuple(moves[:3]))

    def _unregister(self) -> Command:
        broker = self._broker()
        return UnregisterBroker(broker, self._incarnation(broker))

    def _unclean(self) -> Command:
        record = self._partition()
        if record is None:
            return NoOp()
        tp, candidate = record.topic_partition, self.random.choice(record.replicas)
        return ElectUnclean(tp.topic_id, tp.partition, candidate, self._incarnation(candidate), self._epoch(record))

    def _lose(self) -> Command:
        record = self._partition()
        if record is None:
            return NoOp()
        tp, broker = record.topic_partition, self.random.choice(record.replicas)
        epoch = LeaderEpoch(max(0, record.leader_epoch + self.random.choice((0,) * 8 + (1, -1))))
        return ReportLoss(tp.topic_id, tp.partition, broker, self._incarnation(broker), epoch)

    def _renew(self) -> Command:
        record = self._partition()
        if record is None:
            return NoOp()
        tp = record.topic_partition
        broker = self.random.choice((record.leader,) * 3 + record.replicas) if record.has_leader else record.replicas[0]
        epoch = LeaderEpoch(max(0, record.leader_epoch + self.random.choice((0,) * 8 + (1, -1))))
        return RenewLeadership(tp.topic_id, tp.partition, broker, self._incarnation(broker), epoch)

    def _report_room(self) -> Command:
        broker = self._broker()
        return ReportRoom(broker, self._incarnation(broker), self.random.random() < 0.5)
