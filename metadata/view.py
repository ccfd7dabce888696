"""The view: the cluster as one node knows it, read-only records for routing, status and the partitions' roles.

The follower of the metadata log feeds a view with the events of applied log entries, in order. The view may be behind
the quorum but is never wrong about the past: it contains everything up to `index`, and nothing after. It changes only
between two calls, so one call sees one state, and all records are frozen, so they may be kept.

It is not thread-safe: it lives on the thread that feeds it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeAlias

from metadata.records.events import (
    INITIAL_FEATURE_LEVEL,
    BrokerChanged,
    BrokerRemoved,
    FeatureLevelChanged,
    GroupChanged,
    GroupRemoved,
    MetadataEvent,
    OffsetsCommitted,
    OffsetsRemoved,
    OwnerChanged,
    PartitionChanged,
    ProducerIdsOwned,
    QuotaChanged,
    QuotaRemoved,
    RulesChanged,
    SecurityBegun,
    ThrottleChanged,
    TimeAdvanced,
    TokenChanged,
    TokenRemoved,
    TopicChanged,
    TopicRemoved,
    UserChanged,
    UserRemoved,
)
from metadata.records.group_table import GroupsView
from metadata.records.groups import CommittedOffset, GroupRecord, GroupState, MemberRecord, in_order
from metadata.records.instances import InstanceChanged, InstanceRecord, InstanceRemoved, Instances, InstanceSettings
from metadata.records.leases import LeasedPartition, LeasedRange, Leases, LeasesChanged, LeasesRemoved
from metadata.records.owner_table import EVENTS_OF_OWNERS, Owners
from metadata.records.owners import NO_OWNER, Owned
from metadata.records.security import QuotaLimits, QuotaRecord, TokenRecord, UserRecord
from metadata.records.security_view import SecurityView
from metadata.records.tickets import RecoveryTicket
from metadata.records.transaction_table import Transactions
from metadata.rules.elections import explain_offline, is_live
from metadata.rules.topic_config import settled_config
from raftlog.config import RESTORING, TopicConfig
from raftlog.model import (
    NO_BROKER,
    NO_TIME,
    UNTHROTTLED,
    BrokerId,
    BrokerRecord,
    PartitionRecord,
    ProducerId,
    TopicId,
    TopicPartition,
    TopicRecord,
)

__all__ = [
    "BrokerChanged",
    "BrokerRemoved",
    "ClusterView",
    "CommittedOffset",
    "FeatureLevelChanged",
    "GroupChanged",
    "GroupRecord",
    "GroupRemoved",
    "GroupState",
    "GroupsView",
    "InstanceChanged",
    "InstanceRecord",
    "InstanceRemoved",
    "InstanceSettings",
    "LeasedPartition",
    "LeasedRange",
    "LeasesChanged",
    "LeasesRemoved",
    "MemberRecord",
    "MetadataEvent",
    "OffsetsCommitted",
    "OffsetsRemoved",
    "PartitionChanged",
    "QuotaChanged",
    "QuotaLimits",
    "QuotaRecord",
    "QuotaRemoved",
    "RulesChanged",
    "SecurityView",
    "ThrottleChanged",
    "TimeAdvanced",
    "TokenChanged",
    "TokenRecord",
    "TokenRemoved",
    "TopicChanged",
    "TopicRemoved",
    "UserChanged",
    "UserRecord",
    "UserRemoved",
    "ViewListener",
    "in_order",
]

ViewListener: TypeAlias = Callable[[int, Sequence[MetadataEvent]], None]
"""A listener, called with the view's new index and the events that led to it, after the view has applied them."""


class PartitionTally:
    """Counts and lists over all partitions, updated with each change, since health checks and topic creation must not
    scan a hundred thousand records. Only the view writes.

    Invariant: a partition is in at most one of the three dictionaries, the one of its worst trouble.
    """

    def __init__(self) -> None:
        self.replicas: Counter[BrokerId] = Counter()
        """Broker → the number of replicas that it is to have."""
        self.without_leader: dict[TopicPartition, None] = {}
        self.below_minimum: dict[TopicPartition, None] = {}
        """Partitions with a leader and fewer members in sync than `min.insync.replicas`."""
        self.under_replicated: dict[TopicPartition, None] = {}
        """The other partitions with replicas out of sync, apart from those that a move is adding."""
        self.elections: Counter[BrokerId] = Counter()
        """Elections of each broker as a partition's leader since this view began."""
        self.isr_shrinks: Counter[BrokerId] = Counter()
        """Replicas that left an ISR, by the leader at that time."""
        self.isr_expansions: Counter[BrokerId] = Counter()

    def update(self, before: PartitionRecord | None, now: PartitionRecord | None) -> None:
        """Replace a partition's record; None: it did not exist, or was removed."""
        if before is None or now is None or before.replicas != now.replicas:
            self.replicas.subtract(() if before is None else before.replicas)
            self.replicas.update(() if now is None else now.replicas)
        if before is not None and now is not None:
            self._note_change(before, now)
        if before is not None and not _is_well(before):
            for troubled in (self.without_leader, self.below_minimum, self.under_replicated):
                troubled.pop(before.topic_partition, None)
        if now is not None and not _is_well(now):
            self._note_trouble(now)

    def _note_change(self, before: PartitionRecord, now: PartitionRecord) -> None:
        if now.leader_epoch != before.leader_epoch and now.has_leader:
            self.elections[now.leader] += 1
        if now.isr != before.isr:
            leader = now.leader if now.has_leader else before.leader
            self.isr_shrinks[leader] += len(set(before.isr).difference(now.isr))
            self.isr_expansions[leader] += len(set(now.isr).difference(before.isr))

    def _note_trouble(self, record: PartitionRecord) -> None:
        if not record.has_leader:
            self.without_leader[record.topic_partition] = None
        elif len(record.isr) < record.min_insync_replicas:
            self.below_minimum[record.topic_partition] = None
        elif not set(record.replicas).difference(record.adding_replicas).issubset(record.isr):
            self.under_replicated[record.topic_partition] = None


def _is_well(record: PartitionRecord) -> bool:
    """Return whether the partition has a leader and all replicas are in sync: a fast path, since most do."""
    return record.has_leader and len(record.isr) == len(record.replicas) >= record.min_insync_replicas


class ClusterView:
    """The agreed state up to `index`."""

    def __init__(self) -> None:
        self.index = 0
        """The index of the last log entry in this view."""
        self.feature_level = INITIAL_FEATURE_LEVEL
        """The finalized feature level: nothing above it is used in the cluster."""
        self.time = NO_TIME
        """The cluster's time as of its last event; it continues between two of them."""
        self.throttle = UNTHROTTLED
        """The rates at which moves may copy."""
        self.controller: BrokerId = NO_BROKER
        """The presumed leader of the quorum: a hint from the feeder, not a part of the agreed state."""
        self.groups = GroupsView()
        """Consumer groups and their offsets."""
        self.instances = Instances()
        """HTTP consumer instances."""
        self.leases = Leases()
        """Ranges of records that somebody has and has not acknowledged."""
        self.transactions = Transactions()
        """Transactions; leaders consult it about their records (`raftlog.transactions.TransactionVerdicts`)."""
        self.owners = Owners()
        """The principals to which groups, transactional ids, blocks, positions and producer ids belong."""
        self.security = SecurityView()
        """Users, tokens, access rules and quotas."""
        self.tally = PartitionTally()
        """Partitions in trouble, and replica counts by broker."""
        self._brokers: dict[BrokerId, BrokerRecord] = {}
        self._topics: dict[TopicId, TopicRecord] = {}
        self._topic_ids: dict[str, TopicId] = {}
        self._configs: dict[TopicId, TopicConfig] = {}
        self._partitions: dict[TopicPartition, PartitionRecord] = {}
        self._restoring: set[TopicId] = set()
        self._reassigning: dict[TopicPartition, None] = {}
        self._tickets: dict[TopicPartition, tuple[RecoveryTicket, ...]] = {}
        self._listeners: dict[int, ViewListener] = {}
        self._next_listener = 0

    # --- Reading -----------------------------------------------------------------------------------------------------

    def topic(self, name: str) -> TopicRecord | None:
        """Return the topic of this name."""
        topic_id = self._topic_ids.get(name)
        return None if topic_id is None else self._topics[topic_id]

    def topic_by_id(self, topic_id: TopicId) -> TopicRecord | None:
        return self._topics.get(topic_id)

    def topics(self) -> list[TopicRecord]:
        """Return all topics, sorted by name."""
        return sorted(self._topics.values(), key=lambda topic: topic.name)

    def restoring(self) -> list[TopicRecord]:
        """Return the topics that take only batches of a backup, sorted by name."""
        return sorted((self._topics[topic_id] for topic_id in self._restoring), key=lambda topic: topic.name)

    def topic_config(self, topic_id: TopicId) -> TopicConfig | None:
        """Return the topic's typed settings, with defaults filled in and `min_insync_replicas` settled."""
        topic = self._topics.get(topic_id)
        if topic is None:
            return None
        if topic_id not in self._configs:
            self._configs[topic_id] = settled_config(dict(topic.configs), topic.replication_factor)
        return self._configs[topic_id]

    def partition(self, topic_partition: TopicPartition) -> PartitionRecord | None:
        return self._partitions.get(topic_partition)

    def partitions_of(self, topic_id: TopicId) -> list[PartitionRecord]:
        """Return a topic's partitions by number; empty if the topic does not exist."""
        topic = self._topics.get(topic_id)
        count = 0 if topic is None else topic.partition_count
        return [self._partitions[TopicPartition(topic_id, number)] for number in range(count)]

    def partitions(self) -> list[PartitionRecord]:
        """Return all partitions, topic by topic in the order of their names."""
        return [record for topic in self.topics() for record in self.partitions_of(topic.topic_id)]

    @property
    def reassigning_count(self) -> int:
        """The number of partitions under reassignment, moving or waiting."""
        return len(self._reassigning)

    def reassigning(self) -> list[PartitionRecord]:
        """Return the partitions under reassignment, moving or waiting, by topic and number."""
        found = [self._partitions[topic_partition] for topic_partition in self._reassigning]
        names = {record.topic_partition: self._topics[record.topic_partition.topic_id].name for record in found}
        return sorted(found, key=lambda r: (names[r.topic_partition], r.topic_partition.partition))

    def broker(self, broker_id: BrokerId) -> BrokerRecord | None:
        return self._brokers.get(broker_id)

    def brokers(self) -> list[BrokerRecord]:
        """Return all registered brokers, by id."""
        return [self._brokers[broker_id] for broker_id in sorted(self._brokers)]

    def alive(self, broker_id: BrokerId) -> bool:
        """Return whether the broker is registered and not fenced."""
        return is_live(self._brokers, broker_id)

    def explain_offline(self, topic_partition: TopicPartition) -> str | None:
        """Return one line on why a partition has no leader (S10); None if it has one or does not exist."""
        record = self._partitions.get(topic_partition)
        if record is None:
            return None
        return explain_offline(record, self._tickets.get(topic_partition, ()), self._brokers, self.feature_level)

    def tickets_of(self, topic_partition: TopicPartition) -> tuple[RecoveryTicket, ...]:
        """Return the tickets of a partition's members that may not lead."""
        return self._tickets.get(topic_partition, ())

    def owner_of_unnamed_id(self, producer_id: ProducerId) -> str:
        """Return the principal to which a producer id without a name belongs (S12), or an empty name."""
        block = self.transactions.block_of(producer_id)
        if block is None:
            return self.owners.owner_of_id(producer_id)
        return NO_OWNER if block.name else self.owners.owner(Owned.BLOCK, block.first)

    # --- Following ---------------------------------------------------------------------------------------------------

    def subscribe(self, listener: ViewListener) -> Callable[[], None]:
        """Call `listener` after every change, in the order of subscription. Returns the function that unsubscribes."""
        number = self._next_listener
        self._next_listener += 1
        self._listeners[number] = listener

        def unsubscribe() -> None:
            self._listeners.pop(number, None)

        return unsubscribe

    def on_events(self, index: int, events: Sequence[MetadataEvent]) -> None:
        """Apply the events of the entries up to `index`, perhaps none."""
        assert index >= self.index, f"the view is at {index} < {self.index}"
        for event in events:
            self._apply(event)
        self.index = index
        for listener in list(self._listeners.values()):
            listener(index, events)

    def _apply(self, event: MetadataEvent) -> None:
        if type(event) in EVENTS_OF_OWNERS:
            self.owners.on_event(event)
        match event:
            case PartitionChanged(record, tickets):
                self.tally.update(self._partitions.get(record.topic_partition), record)
                self._partitions[record.topic_partition] = record
                if record.target_replicas:
                    self._reassigning[record.topic_partition] = None
                else:
                    self._reassigning.pop(record.topic_partition, None)
                if tickets:
                    self._tickets[record.topic_partition] = tickets
                else:
                    self._tickets.pop(record.topic_partition, None)
            case BrokerChanged(broker):
                self._brokers[broker.broker_id] = broker
            case BrokerRemoved(broker_id):
                self._brokers.pop(broker_id, None)
            case TopicChanged(topic):
                self._topics[topic.topic_id] = topic
                self._topic_ids[topic.name] = topic.topic_id
                self._configs.pop(topic.topic_id, None)
                if RESTORING in dict(topic.configs):
                    self._restoring.add(topic.topic_id)
                else:
                    self._restoring.discard(topic.topic_id)
            case TopicRemoved(topic_id, name):
                self._remove_topic(topic_id, name)
            case GroupChanged() | GroupRemoved() | OffsetsCommitted() | OffsetsRemoved():
                self.groups.on_event(event)
            case InstanceChanged() | InstanceRemoved():
                self.instances.on_event(event)
            case LeasesChanged() | LeasesRemoved():
                self.leases.on_event(event)
            case FeatureLevelChanged(level):
                self.feature_level = level
            case TimeAdvanced(time):
                self.time = time
            case ThrottleChanged(throttle):
                self.throttle = throttle
            case (
                UserChanged()
                | UserRemoved()
                | TokenChanged()
                | TokenRemoved()
                | RulesChanged()
                | QuotaChanged()
                | QuotaRemoved()
                | SecurityBegun()
            ):
                self.security.on_event(event)
            case OwnerChanged() | ProducerIdsOwned():
                pass
            case _:
                self.transactions.on_event(event)

    def _remove_topic(self, topic_id: TopicId, name: str) -> None:
        for number in range(self._topics.pop(topic_id).partition_count):
            self.tally.update(self._partitions.pop(TopicPartition(topic_id, number)), None)
            self._tickets.pop(TopicPartition(topic_id, number), None)
            self._reassigning.pop(TopicPartition(topic_id, number), None)
        self._configs.pop(topic_id, None)
        self._restoring.discard(topic_id)
        if self._topic_ids.get(name) == topic_id:
            del self._topic_ids[name]
