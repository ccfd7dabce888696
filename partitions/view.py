"""The part of the metadata view that a broker's replicas need: topics with their settings, brokers, partitions.

It receives records in the order of the quorum's log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import TypeAlias

import msgspec

from partitions.driver.driver import PartitionDriver
from raftlog.config import TopicConfig, parse_topic_config
from raftlog.errors import InvalidRequest, NotLeader, RaftlogError, RetriableError
from raftlog.model import (
    NO_BROKER,
    UNTHROTTLED,
    BrokerId,
    BrokerRecord,
    PartitionRecord,
    ReplicationThrottle,
    TopicId,
    TopicPartition,
    TopicRecord,
)


class TopicRemoved(msgspec.Struct, frozen=True):
    """The topic was deleted; a later one of the same name has another id."""

    topic_id: TopicId


_number = attrgetter("partition")

MetadataChange: TypeAlias = BrokerRecord | TopicRecord | PartitionRecord | TopicRemoved | ReplicationThrottle


class Touched(msgspec.Struct):
    """The entries that changed, each once, in the order of their first change."""

    brokers: dict[BrokerId, None] = {}
    topics: dict[TopicId, None] = {}
    partitions: dict[TopicPartition, None] = {}
    removed: dict[TopicPartition, None] = {}
    moves: bool = False
    """Whether the senders to replicas that are being added, or the rates, changed."""


class PartitionView:
    """The latest record of every broker, topic and partition."""

    def __init__(self) -> None:
        self.brokers: dict[BrokerId, BrokerRecord] = {}
        self.partitions: dict[TopicPartition, PartitionRecord] = {}
        self.throttle = UNTHROTTLED
        self._adding: dict[TopicPartition, None] = {}
        """Partitions with replicas that a reassignment is adding."""
        self._topics: dict[TopicId, tuple[TopicRecord, TopicConfig]] = {}
        self._of_topic: dict[TopicId, dict[TopicPartition, None]] = {}

    def apply(self, changes: Sequence[MetadataChange]) -> Touched:
        """Apply the changes; of several for one partition, the last counts."""
        touched = Touched()
        for change in changes:
            if isinstance(change, BrokerRecord):
                self.brokers[change.broker_id] = change
                touched.brokers[change.broker_id] = None
            elif isinstance(change, TopicRecord):
                self._topics[change.topic_id] = (change, parse_topic_config(dict(change.configs)))
                touched.topics[change.topic_id] = None
            elif isinstance(change, PartitionRecord):
                tp = change.topic_partition
                self.partitions[tp] = change
                self._note_adding(change, touched)
                self._of_topic.setdefault(tp.topic_id, {})[tp] = None
                touched.partitions[tp] = None
            elif isinstance(change, ReplicationThrottle):
                self.throttle = change
                touched.moves = True
            else:
                self._remove(change.topic_id, touched)
        return touched

    def _note_adding(self, record: PartitionRecord, touched: Touched) -> None:
        tp = record.topic_partition
        if record.adding_replicas or tp in self._adding:
            touched.moves = True
        if record.adding_replicas:
            self._adding[tp] = None
        else:
            self._adding.pop(tp, None)

    def _remove(self, topic_id: TopicId, touched: Touched) -> None:
        self._topics.pop(topic_id, None)
        touched.topics.pop(topic_id, None)
        for tp in self._of_topic.pop(topic_id, {}):
            del self.partitions[tp]
            touched.partitions.pop(tp, None)
            touched.removed[tp] = None
            touched.moves |= tp in self._adding
            self._adding.pop(tp, None)

    def config(self, topic_id: TopicId) -> TopicConfig | None:
        """Return the topic's settings; None if it is unknown."""
        entry = self._topics.get(topic_id)
        return entry[1] if entry else None

    def leaders_of_added(self) -> dict[BrokerId, int]:
        """Return, for each broker with added replicas that are not in sync, the number of brokers that send to it."""
        leaders: dict[BrokerId, set[BrokerId]] = {}
        for tp in self._adding:
            record = self.partitions[tp]
            for broker in record.adding_replicas:
                if record.has_leader and broker not in record.isr:
                    leaders.setdefault(broker, set()).add(record.leader)
        return {broker: len(senders) for broker, senders in leaders.items()}

    def name(self, topic_partition: TopicPartition) -> str:
        """Return the name for people: `orders/3`."""
        entry = self._topics.get(topic_partition.topic_id)
        return f"{entry[0].name}/{topic_partition.partition}" if entry else str(topic_partition)

    def of_topic(self, topic_id: TopicId) -> list[TopicPartition]:
        """Return the topic's partitions, sorted."""
        return sorted(self._of_topic.get(topic_id, {}), key=_number)

    def all_sorted(self) -> Iterator[TopicPartition]:
        """Iterate over all partitions, topic by topic: sorting them all at once would take too long."""
        for topic_id in sorted(self._of_topic):
            yield from self.of_topic(topic_id)

    def missing(self, topic_partition: TopicPartition, node_id: BrokerId) -> RaftlogError:
        """Return the error for a request whose partition has no replica at this broker."""
        record = self.partitions.get(topic_partition)
        name = self.name(topic_partition)
        if record is None:
            if topic_partition.topic_id in self._topics:
                return InvalidRequest("unknown_partition", f"there is no partition {name}")
            return InvalidRequest("unknown_topic", f"topic {topic_partition.topic_id.hex()} is unknown to this broker")
        if record.leader in {NO_BROKER, node_id}:
            return RetriableError("leader_not_available", f"{name} has no ready leader")
        return NotLeader(f"broker {record.leader} leads {name}", record.leader)


def consequences(
    touched: Touched,
    view: PartitionView,
    drivers: Mapping[TopicPartition, PartitionDriver],
    *,
    configure: Callable[[TopicPartition], None],
    remove: Callable[[TopicPartition, str], None],
    place: Callable[[TopicPartition], None],
) -> Iterator[Callable[[], None]]:
    """Yield what a broker has to do after changes of its view, as single steps in order.

    There may be a hundred thousand steps. Each is made only when it is requested, so it sees the effects of those
    before it. Every step is idempotent and independent of order: `configure` applies the topic's settings, `remove`
    drops a replica that is no longer here, `place` makes a replica fit its record.
    """
    for topic_id in touched.topics:
        for tp in view.of_topic(topic_id):
            yield partial(configure, tp)
            touched.partitions.setdefault(tp)
    for tp in touched.removed:
        yield partial(remove, tp, "unknown_topic")
    for tp in touched.partitions:
        yield partial(place, tp)
    # After the records: a change of a broker and its partitions must not lead to a redundant proposal.
    for broker in touched.brokers:
        for driver in list(drivers.values()):
            if drivers.get(driver.topic_partition) is driver:
                yield partial(driver.on_broker, broker)
