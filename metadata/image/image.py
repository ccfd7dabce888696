"""The cluster image: the agreed facts as plain records, with the indexes that keep every command cheap.

Only the methods here write: each maintains the indexes and notes an event. The functions that decide about commands get
this state and a command.

`revise` is the one place where a partition's record changes. Whatever the reason, it raises the partition epoch, keeps
the commit set (the last ISR of at least `min.insync.replicas` members under an elected leader: KIP-966's idea of which
replicas hold everything acknowledged) and drops the marks of replicas that are in neither set any more.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping
from itertools import islice
from typing import Literal, TypeAlias, TypeVar

from metadata.commands.results import CommandResult
from metadata.records.events import (
    INITIAL_FEATURE_LEVEL,
    BrokerChanged,
    BrokerRemoved,
    FeatureLevelChanged,
    GroupEvent,
    GroupRemoved,
    MetadataEvent,
    OffsetsCommitted,
    OffsetsRemoved,
    OwnerEvent,
    PartitionChanged,
    ProducerIdsTaken,
    SecurityEvent,
    ThrottleChanged,
    TimeAdvanced,
    TopicChanged,
    TopicRemoved,
    TransactionEvent,
)
from metadata.records.instances import InstanceEvent
from metadata.records.leases import LeaseEvent
from metadata.records.owner_table import EVENTS_OF_OWNERS, Owners
from metadata.records.tickets import RecoveryTicket
from raftlog.model import (
    NO_BROKER,
    NO_INCARNATION,
    NO_TIME,
    UNTHROTTLED,
    BrokerId,
    BrokerRecord,
    ClusterTime,
    LeaderEpoch,
    PartitionEpoch,
    PartitionRecord,
    ProducerId,
    ReplicationThrottle,
    TopicId,
    TopicPartition,
    TopicRecord,
)

from .client_sessions import ClientSessions
from .group_state import GroupsState
from .instance_state import InstancesState
from .lease_state import LeasesState
from .security_state import SecurityState
from .transaction_state import TransactionsState

T = TypeVar("T")

Steps: TypeAlias = Generator[None, None, CommandResult]
"""A command that touches many partitions, a bounded number between two `next`s; it returns its answer.

The state is not read before the command has ended, so the places where it pauses are invisible.
"""

PARTITIONS_PER_STEP = 128
"""The partitions touched in one step: about a millisecond of work."""

MAX_UNCLEAN_EPOCHS = 8
"""The most recent unclean elections that a partition's record remembers."""

_NOTHING: Mapping[TopicPartition, None] = {}


class ClusterImage:
    """The agreed facts after `index`. Only applying a command changes them."""

    def __init__(self) -> None:
        self.index = 0
        """The index of the last command applied."""
        self.feature_level = INITIAL_FEATURE_LEVEL
        self.time = NO_TIME
        """The cluster's time: once it exists, no other clock makes a stamp here."""
        self.owners = Owners()
        """The principals to which groups, transactional ids, blocks, positions and producer ids belong."""
        self.groups = GroupsState(self.note, self.owners)
        """Consumer groups and their offsets."""
        self.instances = InstancesState(self.note)
        """HTTP consumer instances."""
        self.leases = LeasesState(self.note)
        """Ranges of records that somebody has and has not acknowledged."""
        self.transactions = TransactionsState(self.note)
        """The records of transactions."""
        self.security = SecurityState(self.note)
        """Users, tokens, access rules and quotas."""
        self.throttle = UNTHROTTLED
        """The rates of moves. Invariant: set only while there is a reassignment."""
        self.brokers: dict[BrokerId, BrokerRecord] = {}
        self.starting: set[BrokerId] = set()
        """Brokers fenced by their registration, without a heartbeat since: unlike one that was fenced for silence, such
        a broker is still in its ISRs.
        """
        self.topics: dict[TopicId, TopicRecord] = {}
        self.topic_ids: dict[str, TopicId] = {}
        self.partitions: dict[TopicPartition, PartitionRecord] = {}
        self.tickets: dict[TopicPartition, tuple[RecoveryTicket, ...]] = {}
        """Invariant: a partition's tickets are those of its `not_eligible` members, in the same order."""
        self.sessions = ClientSessions()

        # Derived, never in a snapshot.
        self.leaderless: dict[TopicPartition, None] = {}
        self.reassigning: dict[TopicPartition, None] = {}
        """Partitions with a target, in the order of the requests."""
        self.moving: dict[TopicPartition, None] = {}
        """Partitions whose move has begun."""
        self.adding: dict[TopicPartition, None] = {}
        """Partitions that copy data: replicas were added and are catching up."""
        self.reassignments_version = 0
        """Rises whenever a move may have become possible or complete."""
        self.elections_version = 0
        """Rises whenever an election may have become possible or necessary."""
        self._replicas_of: dict[BrokerId, dict[TopicId, set[int]]] = {}
        self._led_by: dict[BrokerId, dict[TopicPartition, None]] = {}
        self._events: list[MetadataEvent] = []

    @property
    def next_producer_id(self) -> ProducerId:
        """Return the first producer id not granted yet. Named producers, blocks of ids and plain producers share one
        counter, so that no id is ever used twice.
        """
        return self.transactions.granted_below

    @next_producer_id.setter
    def next_producer_id(self, below: ProducerId) -> None:
        self.transactions.change(ProducerIdsTaken(below))

    # --- Reading -----------------------------------------------------------------------------------------------------

    def replicas_of(self, broker_id: BrokerId) -> list[TopicPartition]:
        """The partitions that have a replica on a broker, in order."""
        return list(self._sorted_replicas(broker_id))

    def led_by(self, broker_id: BrokerId) -> Mapping[TopicPartition, None]:
        """The partitions that a broker leads, in no particular order."""
        return self._led_by.get(broker_id, _NOTHING)

    def slices_of_replicas(self, broker_id: BrokerId) -> Iterator[list[TopicPartition]]:
        """The same in pieces of `PARTITIONS_PER_STEP`. Their replicas must stay what they are meanwhile."""
        names = self._sorted_replicas(broker_id)
        while some := list(islice(names, PARTITIONS_PER_STEP)):
            yield some

    def _sorted_replicas(self, broker_id: BrokerId) -> Iterator[TopicPartition]:
        """Yield a broker's partitions topic by topic: sorting them all would take too long at once."""
        by_topic = self._replicas_of.get(broker_id, {})
        for topic_id in sorted(by_topic):
            for number in sorted(by_topic[topic_id]):
                yield TopicPartition(topic_id, number)

    def partitions_of(self, topic: TopicRecord) -> list[PartitionRecord]:
        """Return the topic's partitions by number."""
        return [record for some in self.slices_of_topic(topic) for record in some]

    def slices_of_topic(self, topic: TopicRecord) -> Iterator[list[PartitionRecord]]:
        """The same in pieces of `PARTITIONS_PER_STEP`."""
        for first in range(0, topic.partition_count, PARTITIONS_PER_STEP):
            numbers = range(first, min(first + PARTITIONS_PER_STEP, topic.partition_count))
            yield [self.partitions[TopicPartition(topic.topic_id, number)] for number in numbers]

    def tickets_of(self, topic_partition: TopicPartition) -> tuple[RecoveryTicket, ...]:
        """Return the reports of the partition's marked members."""
        return self.tickets.get(topic_partition, ())

    def stamp_ms(self, proposed_ms: int) -> int:
        """Return the stamp for the command being applied.

        `proposed_ms` is the proposer's wall clock, which may be wrong: it is used only until there is a cluster time,
        and then every such stamp counts as that time's beginning (`since_ms`).
        """
        return self.time.stamp_ms or proposed_ms

    # --- Writing -----------------------------------------------------------------------------------------------------

    def take_events(self) -> list[MetadataEvent]:
        """Return and clear the events since the last call."""
        events, self._events = self._events, []
        return events

    def note(
        self, event: GroupEvent | InstanceEvent | LeaseEvent | TransactionEvent | OwnerEvent | SecurityEvent
    ) -> None:
        if type(event) in EVENTS_OF_OWNERS:
            self.owners.on_event(event)
        self._events.append(event)
        match event:
            case OffsetsCommitted(group_id, offsets):
                self.leases.offsets_moved(group_id, offsets)
            case OffsetsRemoved(group_id, partitions):
                self.leases.end(group_id, partitions)
            case GroupRemoved(group_id):
                self.leases.end(group_id, list(self.leases.of_group(group_id)))

    def put_feature_level(self, level: int) -> None:
        self.feature_level = level
        self._events.append(FeatureLevelChanged(level))

    def put_time(self, time: ClusterTime) -> None:
        """Store the time and note an event even if it is unchanged: followers extrapolate from it."""
        self.time = time
        self._events.append(TimeAdvanced(time))

    def put_throttle(self, throttle: ReplicationThrottle) -> None:
        if throttle != self.throttle:
            self.throttle = throttle
            self._events.append(ThrottleChanged(throttle))

    def put_broker(self, broker: BrokerRecord) -> None:
        self.brokers[broker.broker_id] = broker
        self.elections_version += 1
        self._events.append(BrokerChanged(broker))

    def remove_broker(self, broker: BrokerRecord) -> None:
        """Remove a broker that no partition names any more."""
        del self.brokers[broker.broker_id]
        self.starting.discard(broker.broker_id)
        self._replicas_of.pop(broker.broker_id, None)
        self._led_by.pop(broker.broker_id, None)
        self._events.append(BrokerRemoved(broker.broker_id, broker.incarnation))

    def put_topic(self, topic: TopicRecord) -> None:
        self.topics[topic.topic_id] = topic
        self.topic_ids[topic.name] = topic.topic_id
        self._events.append(TopicChanged(topic))

    def remove_partition(self, record: PartitionRecord) -> None:
        """Remove a partition whose topic is removed in the same command."""
        topic_partition = record.topic_partition
        self._index_replicas(topic_partition, record.replicas, ())
        self._index_leader(topic_partition, record.leader, NO_BROKER)
        self.leaderless.pop(topic_partition, None)
        self.tickets.pop(topic_partition, None)
        self._index_reassignment(topic_partition, reassigning=False, moving=False, adding=False)
        del self.partitions[topic_partition]

    def remove_topic(self, topic: TopicRecord) -> None:
        """Remove a topic whose partitions are already removed."""
        del self.topics[topic.topic_id]
        del self.topic_ids[topic.name]
        self._events.append(TopicRemoved(topic.topic_id, topic.name))

    def put_partition(self, record: PartitionRecord, tickets: tuple[RecoveryTicket, ...] = ()) -> None:
        """Store a record unchanged: a new partition's, or one out of a snapshot."""
        topic_partition = record.topic_partition
        before = self.partitions.get(topic_partition)
        if before is None or before.replicas != record.replicas:
            self._index_replicas(topic_partition, () if before is None else before.replicas, record.replicas)
        if record.target_replicas or (before is not None and before.target_replicas):
            self._index_reassignment(
                topic_partition,
                reassigning=bool(record.target_replicas),
                moving=record.is_moving,
                adding=bool(record.adding_replicas),
            )
        self.partitions[topic_partition] = record
        if tickets:
            self.tickets[topic_partition] = tickets
        else:
            self.tickets.pop(topic_partition, None)
        self._index_leader(topic_partition, NO_BROKER if before is None else before.leader, record.leader)
        if record.has_leader:
            self.leaderless.pop(topic_partition, None)
        else:
            self.leaderless[topic_partition] = None
            self.elections_version += 1
        self._events.append(PartitionChanged(record, tickets))

    def _index_replicas(
        self, topic_partition: TopicPartition, before: tuple[BrokerId, ...], now: tuple[BrokerId, ...]
    ) -> None:
        topic_id, number = topic_partition.topic_id, topic_partition.partition
        for replica in before:
            of_topic = self._replicas_of[replica][topic_id]
            of_topic.remove(number)
            if not of_topic:
                del self._replicas_of[replica][topic_id]
        for replica in now:
            self._replicas_of.setdefault(replica, {}).setdefault(topic_id, set()).add(number)

    def _index_leader(self, topic_partition: TopicPartition, before: BrokerId, now: BrokerId) -> None:
        if before != now:
            if before != NO_BROKER:
                del self._led_by[before][topic_partition]
            if now != NO_BROKER:
                self._led_by.setdefault(now, {})[topic_partition] = None

    def _index_reassignment(
        self, topic_partition: TopicPartition, *, reassigning: bool, moving: bool, adding: bool
    ) -> None:
        for index, holds in ((self.reassigning, reassigning), (self.moving, moving), (self.adding, adding)):
            if holds:
                index[topic_partition] = None
            else:
                index.pop(topic_partition, None)
        self.reassignments_version += 1

    def revise(
        self,
        record: PartitionRecord,
        *,
        leader: BrokerRecord | Literal["same"] | None = "same",
        isr: tuple[BrokerId, ...] | None = None,
        min_insync_replicas: int | None = None,
        tickets: Iterable[RecoveryTicket] | None = None,
        replicas: tuple[BrokerId, ...] | None = None,
        adding_replicas: tuple[BrokerId, ...] | None = None,
        target_replicas: tuple[BrokerId, ...] | None = None,
        unclean: bool = False,
    ) -> PartitionRecord:
        """Store the partition's next version with the given changes.

        A different leader, or none, raises the leader epoch; `unclean` marks that epoch.
        """
        leader_id = record.leader
        leader_incarnation = record.leader_incarnation
        leader_epoch = record.leader_epoch
        if leader is None:
            leader_id = NO_BROKER
            leader_incarnation = NO_INCARNATION
            leader_epoch = LeaderEpoch(record.leader_epoch + 1)
        elif isinstance(leader, BrokerRecord):
            leader_id = leader.broker_id
            leader_incarnation = leader.incarnation
            leader_epoch = LeaderEpoch(record.leader_epoch + 1)
        isr = record.isr if isr is None else isr
        minimum = record.min_insync_replicas if min_insync_replicas is None else min_insync_replicas
        in_force = leader_id != NO_BROKER and len(isr) >= minimum
        commit_set = isr if in_force else record.commit_set
        goes = replicas is not None and not set(record.replicas).issubset(replicas)
        known = self.tickets_of(record.topic_partition) if tickets is None else tickets
        kept = tuple(ticket for ticket in known if ticket.broker_id in isr or ticket.broker_id in commit_set)
        unclean_epochs = record.unclean_leader_epochs
        if unclean:
            unclean_epochs = (*unclean_epochs, leader_epoch)[-MAX_UNCLEAN_EPOCHS:]
        # Built in one go: a fence or a registration revises thousands of records in one command.
        revised = PartitionRecord(
            topic_partition=record.topic_partition,
            replicas=record.replicas if replicas is None else replicas,
            leader=leader_id,
            leader_incarnation=leader_incarnation,
            leader_epoch=leader_epoch,
            partition_epoch=PartitionEpoch(record.partition_epoch + 1),
            isr=isr,
            commit_set=commit_set,
            min_insync_replicas=minimum,
            not_eligible=tuple(ticket.broker_id for ticket in kept),
            adding_replicas=record.adding_replicas if adding_replicas is None else adding_replicas,
            target_replicas=record.target_replicas if target_replicas is None else target_replicas,
            unclean_leader_epochs=unclean_epochs,
            let_go=leader_epoch == record.leader_epoch and (record.let_go or goes),
        )
        self.put_partition(revised, kept)
        return revised


def slices(items: Iterable[T]) -> Iterator[list[T]]:
    """Copy all items, and yield them `PARTITIONS_PER_STEP` at a time."""
    whole = list(items)
    return (whole[start : start + PARTITIONS_PER_STEP] for start in range(0, len(whole), PARTITIONS_PER_STEP))


def run(steps: Generator[None, None, T]) -> T:
    """Run all the steps at once and return their result."""
    while True:
        try:
            next(steps)
        except StopIteration as ended:
            result: T = ended.value
            return result
