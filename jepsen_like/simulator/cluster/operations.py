"""Operations on the topics of a simulated cluster: creation, growth, settings, moves, deletion, as the schedule says.

A table from kind to function. Each function draws its choices from a generator that is seeded by the operation's
number, among what exists at that moment. Required changes (a topic created or deleted, a partition added) are proposed
repeatedly, by any running node, until the metadata log has them; all others are proposed once.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import count

from jepsen_like.simulator.brokers.node import SimNode
from jepsen_like.simulator.load.clients import FIRST_TIMESTAMP_MS, Clients
from jepsen_like.simulator.load.consumers import SimConsumer
from jepsen_like.simulator.load.crowds import FIRST_ID, gather
from jepsen_like.simulator.load.live_topic import Asked, LiveTopic, unheard
from jepsen_like.simulator.load.producers import CarelessProducer, IdempotentProducer, ProducerPlan, SimProducer
from jepsen_like.simulator.world.heap import EventHeap
from jepsen_like.simulator.world.trace import Trace
from metadata.commands.cluster import AddPartitions, AlterTopic, CreateTopic, DeleteTopic, ElectLeaders
from metadata.commands.envelope import Command
from metadata.commands.fields import Election
from metadata.commands.replicas import AlterReassignments, Reassignment
from metadata.quorum.port import Outcome
from raftlog.model import BrokerId, PartitionRecord, TopicId, TopicPartition
from raftlog.wire import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsResponse

from .roles import led_partition, replica_at
from .schedule import Operation

LOOK_SECONDS = 0.25
LOOKS_BETWEEN_PROPOSALS = 6
TOPICS_MAX = 2
PARTITIONS_MAX = 4
POLL_SECONDS = 0.1
DELETE_TIMEOUT_MS = 800
REST_SECONDS = 5.0
PLACE_BITS = 20


def about_place(partition: int, place: int) -> int:
    """Return the number of an operation on one replica of one partition (`roles.py`)."""
    return partition + (place << PLACE_BITS)


class ClusterOperations:
    """Executes operations, and keeps producers and consumers running."""

    def __init__(self, seed: int, heap: EventHeap, trace: Trace, nodes: Sequence[SimNode], clients: Clients) -> None:
        self._seed = seed
        self._heap = heap
        self._trace = trace
        self._nodes = nodes
        self._clients = clients
        self._rules = clients.truth.rules
        self._rng = random.Random(f"{seed}/cluster/proposers")
        self._made = 0
        self._numbered = 0
        self._crowd_ids, self._crowd_numbers = count(FIRST_ID), count(FIRST_ID)
        self.producing = True
        self._resting_until = 0.0
        self.topics: dict[TopicId, LiveTopic] = {}
        self.pending: dict[str, None] = {}
        """Required changes that were not seen yet."""
        self.done: dict[str, int] = {}
        """Kind → number of executed operations."""
        self._acts: dict[str, Callable[[random.Random], bool]] = {
            "create": self._create,
            "delete": self._delete,
            "recreate": self._recreate,
            "add_partitions": self._add_partitions,
            "reassign": self._reassign,
            "drain": self._drain,
            "cancel_moves": self._cancel_moves,
            "delete_records": self._delete_records,
            "alter_topic": self._alter_topic,
            "send_again": self._send_again,
            "seek": self._seek,
            "rest": self._rest,
            "crowd": self._crowd,
        }

        self._acts_on_replicas: dict[str, Callable[[PartitionRecord, BrokerId], bool]] = {
            "elect": self._elect,
            "delete_from": self._delete_from,
        }
        """Operations that name a replica."""

    def carry_out(self, operation: Operation) -> None:
        """Execute an operation now, if it has a target."""
        if self._act(operation):
            self.done[operation.kind] = self.done.get(operation.kind, 0) + 1
            self._trace.note(-1, f"operation {operation}")

    def _act(self, operation: Operation) -> bool:
        """Execute an operation and return whether it had a target."""
        if operation.kind in self._acts:
            return self._acts[operation.kind](random.Random(f"{self._seed}/cluster/operation/{operation.number}"))
        record = led_partition(self._clients.truth.partitions, operation.number % (1 << PLACE_BITS))
        if record is None:
            return False
        return self._acts_on_replicas[operation.kind](record, replica_at(record, operation.number >> PLACE_BITS))

    # --- Proposing ---------------------------------------------------------------------------------------------------

    def _propose(self, command: Command, done: Callable[[Outcome], None] = lambda outcome: None) -> None:
        running = [node for node in self._nodes if node.running and node.quorum is not None]
        if running:
            node = self._rng.choice(running)
            quorum = node.quorum
            assert quorum is not None
            self._heap.schedule(0.0, lambda: quorum.propose(command, done, timeout=1.0), node.life)

    def _propose_until(
        self, what: str, command: Command, seen: Callable[[], bool], then: Callable[[], None], asked: Asked = unheard
    ) -> None:
        self.pending[what] = None

        def look(number: int) -> None:
            if seen():
                self.pending.pop(what, None)
                then()
                return
            if not number % LOOKS_BETWEEN_PROPOSALS:
                self._propose(command, asked())
            self._heap.schedule(LOOK_SECONDS, lambda: look(number + 1))

        look(0)

    # --- Topics ------------------------------------------------------------------------------------------------------

    def _create(self, rng: random.Random) -> bool:
        if sum(not topic.beside for topic in self.topics.values()) >= TOPICS_MAX:
            return False
        self._made += 1
        flush_os, compacts = rng.random() < 0.2, rng.random() < 0.25
        configs = {"segment.bytes": str(rng.choice((1024, 2048, 1 << 20)))}
        if flush_os:
            configs["flush"] = "os"
        if compacts:
            lag = str(rng.choice((2_000, 10_000)))
            configs |= {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "max.compaction.lag.ms": lag}
            configs |= {"delete.retention.ms": str(rng.choice((0, 1_000, 86_400_000)))}
        elif rng.random() < 0.3:
            configs["retention.bytes"] = str(rng.choice((1024, 4096)))
        if random.Random(f"{self._seed}/cluster/stamps/{self._made}").random() < 0.25:
            configs["message.timestamp.type"] = "LogAppendTime"
        plan = ProducerPlan(
            in_flight=rng.choice((1, 2, 5)),
            pause=rng.choice((0.05, 0.1, 0.5)),
            careless=flush_os or rng.random() < 0.2,
            acks=rng.choice((1, -1)),
            keys=rng.choice((2, 5, 20)) if compacts else 0,
        )
        factor = min(rng.choice((2, 3, 3, 3, 3)), len(self._nodes))
        settled = tuple(sorted(configs.items()))
        self._make(rng, f"topic-{self._made}", plan, factor, settled, rng.choice((1, 2, 3)))
        return True

    def create_for_transactions(self, rng: random.Random) -> None:
        """Create a topic that retains what it acknowledges and accepts records without keys, whatever the schedule
        creates.
        """
        self._made += 1
        plan = ProducerPlan(in_flight=2, pause=0.5, careless=False, acks=-1, keys=0)
        configs = (("segment.bytes", "2048"),)
        topic = self._make(rng, f"topic-{self._made}", plan, min(3, len(self._nodes)), configs, 2)
        topic.beside = True

    def _make(
        self,
        rng: random.Random,
        name: str,
        plan: ProducerPlan,
        factor: int,
        configs: tuple[tuple[str, str], ...],
        partitions: int,
    ) -> LiveTopic:
        topic_id = TopicId(rng.randbytes(16))
        topic = self.topics[topic_id] = LiveTopic(topic_id, name, plan, factor, configs)
        replicas = tuple(self._replicas(rng, factor) for _ in range(partitions))
        command = CreateTopic(name, topic_id, replicas, configs)
        self._propose_until(
            f"create {topic_id.hex()}",
            command,
            lambda: topic_id in self._rules.topics or topic_id in self._rules.removed,
            lambda: self._employ(topic),
            topic.creation_asked,
        )
        return topic

    def _replicas(self, rng: random.Random, factor: int) -> tuple[BrokerId, ...]:
        return tuple(rng.sample([node.node_id for node in self._nodes], factor))

    def _known(self) -> list[LiveTopic]:
        return [topic for topic in self.topics.values() if topic.topic_id in self._rules.topics]

    def _any_topic(self, rng: random.Random) -> LiveTopic | None:
        known = self._known()
        return rng.choice(known) if known else None

    def _delete(self, rng: random.Random) -> bool:
        topic = self._any_topic(rng)
        if topic is None or topic.may_come_again or len(self.topics) < 2:
            return False
        self._dismiss(topic)
        return True

    def _recreate(self, rng: random.Random) -> bool:
        """Delete a topic, and create another with its name as soon as the name is free."""
        topic = self._any_topic(rng)
        if topic is None or topic.may_come_again:
            return False
        self._dismiss(topic)
        again = self._make(rng, topic.name, topic.plan, topic.factor, topic.configs, len(topic.producers) or 1)
        again.beside = topic.beside
        return True

    def _dismiss(self, topic: LiveTopic) -> None:
        del self.topics[topic.topic_id]
        for producer in topic.producers.values():
            producer.stopped = True
        for consumer in topic.consumers.values():
            consumer.stopped = True
        topic_id = topic.topic_id
        what = f"delete {topic_id.hex()}"
        self._propose_until(what, DeleteTopic(topic_id), lambda: topic_id in self._rules.removed, lambda: None)

    def _add_partitions(self, rng: random.Random) -> bool:
        topic = self._any_topic(rng)
        if topic is None:
            return False
        topic_id, count = topic.topic_id, self._rules.topics[topic.topic_id].partition_count
        if count >= PARTITIONS_MAX:
            return False
        command = AddPartitions(topic_id, count, (self._replicas(rng, topic.factor),))

        def seen() -> bool:
            known = self._rules.topics.get(topic_id)
            return topic_id in self._rules.removed or (known is not None and known.partition_count > count)

        self._propose_until(f"add to {topic_id.hex()}", command, seen, lambda: self._employ(topic))
        return True

    def _alter_topic(self, rng: random.Random) -> bool:
        topic = self._any_topic(rng)
        if topic is None or topic.compacts:
            return False
        name, texts = rng.choice((("retention.bytes", ("1024", "4096", "-1")), ("segment.bytes", ("1024", "8192"))))
        self._propose(AlterTopic(topic.topic_id, ((name, rng.choice(texts)),)))
        return True

    # --- Moves -------------------------------------------------------------------------------------------------------

    def _records(self) -> list[PartitionRecord]:
        partitions = self._clients.truth.partitions
        records = [partitions[tp].record for tp in sorted(partitions) if tp.topic_id in self.topics]
        return [record for record in records if record is not None]

    def _reassign(self, rng: random.Random) -> bool:
        records = self._records()
        if not records:
            return False
        record = rng.choice(records)
        factor = self.topics[record.topic_partition.topic_id].factor
        self._propose(AlterReassignments((_reassignment(record, self._replicas(rng, factor)),)))
        return True

    def _drain(self, rng: random.Random) -> bool:
        """Move all replicas of one node to others."""
        leaving = rng.choice([node.node_id for node in self._nodes])
        moves = []
        for record in self._records():
            others = [node.node_id for node in self._nodes if node.node_id not in record.replicas]
            if leaving in record.replicas and others and not record.is_moving:
                instead = rng.choice(others)
                target = tuple(instead if replica == leaving else replica for replica in record.replicas)
                moves.append(_reassignment(record, target))
        if moves:
            self._propose(AlterReassignments(tuple(moves)))
        return bool(moves)

    def _cancel_moves(self, rng: random.Random) -> bool:
        moving = [_reassignment(record, ()) for record in self._records() if record.target_replicas]
        if moving:
            self._propose(AlterReassignments(tuple(moving)))
        return bool(moving)

    def _elect(self, record: PartitionRecord, candidate: BrokerId) -> bool:
        """Elect the given candidate."""
        broker = self._rules.brokers.get(candidate)
        if broker is None or record.leader == candidate:
            return False
        tp = record.topic_partition
        election = Election(tp.topic_id, tp.partition, candidate, broker.incarnation, record.partition_epoch)
        self._propose(ElectLeaders((election,)))
        return True

    # --- Records -----------------------------------------------------------------------------------------------------

    def _delete_records(self, rng: random.Random) -> bool:
        records = [record for record in self._records() if not self.topics[record.topic_partition.topic_id].compacts]
        if not records:
            return False
        tp = rng.choice(records).topic_partition
        before = rng.choice((-1, int(self._clients.truth.of(tp).log.end_offset * rng.random())))
        return self._delete_before(tp, before)

    def _delete_from(self, record: PartitionRecord, _: BrokerId) -> bool:
        """Delete everything committed."""
        topic = self.topics.get(record.topic_partition.topic_id)
        return topic is not None and not topic.compacts and self._delete_before(record.topic_partition, -1)

    def _delete_before(self, tp: TopicPartition, before: int) -> bool:
        clients, truth = self._clients, self._clients.truth
        target = clients.leader_of(tp)
        if target is None:
            return False
        truth.of(tp).shortened = True

        def deliver() -> None:
            assert target.broker is not None
            request = DeleteRecordsRequest(
                1, DELETE_TIMEOUT_MS, [DeleteRecordsPartition(tp.topic_id, tp.partition, before)]
            )
            target.broker.local.delete_records(request, answered)

        def answered(response: DeleteRecordsResponse) -> None:
            answer = response.partitions[0]
            if not answer.error:
                clients.history.deletions += 1
                truth.deleted(target, tp, answer.log_start_offset)

        clients.send(target, deliver)
        return True

    # --- Clients -----------------------------------------------------------------------------------------------------

    def _send_again(self, rng: random.Random) -> bool:
        producers = [producer for topic in self._known() for producer in topic.producers.values()]
        if producers:
            rng.choice(producers).send_again()
        return bool(producers)

    def _seek(self, rng: random.Random) -> bool:
        consumers = [consumer for topic in self._known() for consumer in topic.consumers.values()]
        if consumers:
            rng.choice(consumers).seek(FIRST_TIMESTAMP_MS + int(self._heap.now * 1000 * rng.random()))
        return bool(consumers)

    def _rest(self, rng: random.Random) -> bool:
        """Stop producing for a while."""
        self._resting_until = self._heap.now + REST_SECONDS
        return True

    def _crowd(self, rng: random.Random) -> bool:
        """Add a crowd of short-lived producers to one partition."""
        topic = self._any_topic(rng)
        known = None if topic is None else self._rules.topics.get(topic.topic_id)
        if topic is None or known is None:
            return False
        partition = TopicPartition(topic.topic_id, rng.randrange(known.partition_count))
        gather(
            rng,
            partition,
            topic.plan.keys,
            self._clients,
            self._crowd_ids,
            self._crowd_numbers,
            lambda: self.producing and topic.topic_id in self.topics,
        )
        return True

    def _employ(self, topic: LiveTopic) -> None:
        """Start a producer and a consumer for each partition that has none."""
        known = self._rules.topics.get(topic.topic_id)
        if known is None or topic.topic_id not in self.topics:
            return
        for partition in range(len(topic.producers), known.partition_count):
            tp = TopicPartition(topic.topic_id, partition)
            kind = CarelessProducer if topic.plan.careless else IdempotentProducer
            topic.producers[partition] = kind(self._numbered, tp, self._clients, topic.plan)
            topic.consumers[partition] = SimConsumer(self._numbered, tp, self._clients)
            self._numbered += 1
            self._keep_producing(topic.producers[partition])
            self._keep_reading(topic.consumers[partition])

    def _keep_producing(self, producer: SimProducer) -> None:
        rng = random.Random(f"{self._seed}/cluster/producer/{producer.number}")

        def produce() -> None:
            if self.producing and not producer.stopped:
                if self._heap.now >= self._resting_until:
                    producer.produce()
                self._heap.schedule(rng.expovariate(1 / producer.plan.pause), produce)

        self._heap.schedule(0.1, produce)

    def _keep_reading(self, consumer: SimConsumer) -> None:
        def consume() -> None:
            if not consumer.stopped:
                consumer.poll(consume_soon)

        def consume_soon() -> None:
            self._heap.schedule(POLL_SECONDS, consume)

        self._heap.schedule(0.2, consume)


def _reassignment(record: PartitionRecord, target: tuple[BrokerId, ...]) -> Reassignment:
    tp = record.topic_partition
    return Reassignment(tp.topic_id, tp.partition, record.partition_epoch, target)
