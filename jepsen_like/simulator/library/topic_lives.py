"""Topics that are deleted and recreated under the same names, and the properties of each life of a name.

A topic is deleted and recreated under its name while producers, readers and group members continue to use the name. A
life of a name is one topic id; records and offsets of one life must not appear or be missing in another:

* S1 an acknowledged record is committed in a life of its name, at the acknowledged offset; within a life each record is
  committed at most once (`jepsen_like/simulator/truth/committed_log.py`), and each producer's records in the order of
  its sends.
* S3 a reader gets only committed records of the life that it reads.
* S8 a member gets only committed records of the life that it was assigned; at the end, every committed record of an
  existing life was returned to some member: a position taken over from another life would skip records.
* S10 a reader gets "topic deleted" only if its topic was deleted.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from jepsen_like.simulator.cluster.operations import ClusterOperations
from jepsen_like.simulator.load.live_topic import LiveTopic
from jepsen_like.simulator.load.producers import ProducerPlan
from jepsen_like.simulator.truth.invariants import Truth
from jepsen_like.simulator.world.violation import Violation
from raftlog.model import TopicId, TopicPartition

INPUTS = ("alpha", "beta")
OUTPUT = "gamma"
NAMES = (*INPUTS, OUTPUT)
SEGMENT_BYTES = "65536"
PARTITIONS = (1, 2, 3)
NOBODY = ProducerPlan(in_flight=1, pause=1.0, careless=False, acks=-1, keys=0)


class TopicLives(ClusterOperations):
    """Operations on topics whose clients are the library's: these know only names, so nothing informs them of a new
    life.
    """

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.names: tuple[str, ...] = INPUTS
        self.made: dict[TopicId, str] = {}
        """Every life → its name, deleted lives included."""

    def _make(self, *given: Any) -> LiveTopic:
        topic = super()._make(*given)
        self.made[topic.topic_id] = topic.name
        return topic

    def _create(self, rng: random.Random) -> bool:
        taken = {topic.name for topic in self.topics.values()}
        free = [name for name in self.names if name not in taken]
        if free:
            self._make_named(rng, free[0])
        return bool(free)

    def have(self, rng: random.Random, name: str) -> None:
        """Make a topic of this name if there is none."""
        if all(topic.name != name for topic in self.topics.values()):
            self._make_named(rng, name)

    def _make_named(self, rng: random.Random, name: str) -> None:
        configs = (("segment.bytes", SEGMENT_BYTES),)
        self._make(rng, name, NOBODY, min(3, len(self._nodes)), configs, rng.choice(PARTITIONS))

    def _recreate(self, rng: random.Random) -> bool:
        """Like a cluster's, but with a random number of partitions."""
        topic = self._any_topic(rng)
        if topic is None or topic.may_come_again:
            return False
        self._dismiss(topic)
        self._make(rng, topic.name, NOBODY, topic.factor, topic.configs, rng.choice(PARTITIONS))
        return True

    def _employ(self, topic: LiveTopic) -> None:
        """Do nothing: the library's clients find the topic by its name."""


@dataclass(slots=True)
class Acknowledged:
    """The acknowledgement of one record."""

    topic: str
    partition: int
    offset: int
    value: bytes


@dataclass(slots=True)
class LivesTruth:
    """Compares the clients' results with the truth of each life. Raises `Violation`."""

    truth: Truth
    made: Mapping[TopicId, str]
    """Every life → its name."""
    counts: Counter[str] = field(default_factory=Counter)
    _lives: dict[str, list[TopicId]] = field(default_factory=dict)
    _names: dict[TopicId, str] = field(default_factory=dict)
    _handed_out: dict[TopicPartition, set[int]] = field(default_factory=dict)
    """Offsets returned to members of the group."""
    _acknowledged: list[Acknowledged] = field(default_factory=list)
    """Acknowledgements that are not checked yet."""
    _ordered: dict[TopicPartition, int] = field(default_factory=dict)
    """The offset up to which the order of a log was checked."""
    _last: dict[tuple[TopicPartition, str], int] = field(default_factory=dict)
    """The number of a producer's last record in a log."""

    committed_shown: Callable[[TopicPartition, int, bytes | None], None] | None = None
    """Is notified of each record that a reader of the output got."""

    # --- Results of clients -------------------------------------------------------------------------------------------

    def acknowledged(self, topic: str, partition: int, offset: int, value: bytes) -> None:
        self.counts["acknowledged"] += 1
        self._acknowledged.append(Acknowledged(topic, partition, offset, value))

    def shown(self, reader: str, topic_id: bytes, partition: int, offset: int, value: bytes | None) -> None:
        """A reader of this life got this record (S3)."""
        self.counts["shown"] += 1
        self._check("S3", f"reader {reader} was shown", topic_id, partition, offset, value)
        if self.committed_shown is not None and self.made[TopicId(topic_id)] == OUTPUT:
            self.committed_shown(TopicPartition(TopicId(topic_id), partition), offset, value)

    def handed_out(self, member: str, topic_id: bytes, partition: int, offset: int, value: bytes | None) -> None:
        """A member with this life in its assignment got this record (S8)."""
        self.counts["handed out"] += 1
        self._check("S8", f"member {member} was handed", topic_id, partition, offset, value)
        self._handed_out.setdefault(TopicPartition(TopicId(topic_id), partition), set()).add(offset)

    def told_gone(self, reader: str, topic_id: bytes, why: str) -> None:
        """A reader got an error that its topic was deleted or recreated (S10)."""
        self.counts["told gone"] += 1
        self.learn()
        if TopicId(topic_id) in self.truth.rules.topics:
            name = self._names.get(TopicId(topic_id), "?")
            raise Violation(f"S10: reader {reader} of {name} {topic_id.hex()}, which exists, stops permanently: {why}")

    def living(self) -> list[tuple[str, int]]:
        """(name, partition count) of the existing topics."""
        return sorted((record.name, record.partition_count) for record in self.truth.rules.topics.values())

    def is_there(self, topic_id: bytes) -> bool:
        """Whether this life exists, by the newest entry that any node has applied."""
        return TopicId(topic_id) in self.truth.rules.topics

    # --- Checks ------------------------------------------------------------------------------------------------------

    def learn(self) -> None:
        """Take over the lives that were made since the last call."""
        for topic_id, name in self.made.items():
            if topic_id not in self._names:
                self._names[topic_id] = name
                self._lives.setdefault(name, []).append(topic_id)
                self.counts["lives"] += 1

    def look(self) -> None:
        """Check the acknowledgements and orders since the last call."""
        self.learn()
        waiting, self._acknowledged = self._acknowledged, []
        for one in waiting:
            self._check_acknowledged(one)
        for topic_partition, known in self.truth.partitions.items():
            self._check_order(topic_partition, known.log.end_offset)

    def missing(self) -> list[str]:
        """The committed records of existing lives that no member got (S8, S10)."""
        self.learn()
        found = []
        for topic_partition, known in self.truth.partitions.items():
            known_topic = self.truth.rules.topics.get(topic_partition.topic_id)
            if known_topic is None or known_topic.name == OUTPUT:
                continue
            had = self._handed_out.get(topic_partition, set())
            lacking = [offset for offset in known.log.records if offset not in had]
            if lacking:
                name = self._names.get(topic_partition.topic_id, "?")
                found.append(f"no member got offsets {lacking[:3]} of {name} {topic_partition}")
        return found

    def _check(self, law: str, told: str, topic_id: bytes, partition: int, offset: int, value: bytes | None) -> None:
        log = self.truth.of(TopicPartition(TopicId(topic_id), partition)).log
        if not log.holds(offset, value):
            self.learn()
            name = self._names.get(TopicId(topic_id), "?")
            raise Violation(
                f"{law}: {told} {value!r} at {name}/{partition} offset {offset} of {topic_id.hex()}; committed there "
                f"is {log.told(offset)}"
            )

    def _check_acknowledged(self, one: Acknowledged) -> None:
        """Check an acknowledgement in every life of the name, as producers know only names. The nodes stop reporting on
        a deleted life, so its last acknowledged records may be unknown here.
        """
        lives = self._lives.get(one.topic, [])
        logs = [self.truth.of(TopicPartition(topic_id, one.partition)).log for topic_id in lives]
        if any(log.holds(one.offset, one.value) for log in logs):
            return
        removed = [log for topic_id, log in zip(lives, logs, strict=True) if topic_id in self.truth.rules.removed]
        if any(log.end_offset <= one.offset for log in removed):
            self.counts["acknowledged by a deleted life"] += 1
            return
        raise Violation(f"S1: {one} was acknowledged, and no life of {one.topic} has it there")

    def _check_order(self, topic_partition: TopicPartition, end: int) -> None:
        log = self.truth.partitions[topic_partition].log
        for offset in range(self._ordered.get(topic_partition, 0), end):
            record = log.records.get(offset)
            if record is None or record.value is None:
                continue
            producer, _, number = record.value.decode().partition(":")
            place = topic_partition, producer
            if int(number) <= self._last.get(place, -1):
                raise Violation(
                    f"S1: {record.value!r} is committed at {topic_partition} offset {offset}, after number "
                    f"{self._last[place]} of the same producer"
                )
            self._last[place] = int(number)
        self._ordered[topic_partition] = end
