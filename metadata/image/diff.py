"""The events that lead from one state of the image to another, after a snapshot took the place of log entries."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from itertools import repeat

from metadata.records.events import (
    BlockChanged,
    BlockRemoved,
    BrokerChanged,
    BrokerRemoved,
    EndsCommitted,
    EndsForgotten,
    FeatureLevelChanged,
    GroupChanged,
    GroupEvent,
    GroupRemoved,
    MetadataEvent,
    OffsetsCommitted,
    OffsetsRemoved,
    OwnerChanged,
    OwnerEvent,
    PartitionChanged,
    PartsStaged,
    PositionMoved,
    PositionRemoved,
    ProducerChanged,
    ProducerIdsOwned,
    ProducerIdsTaken,
    ProducerRemoved,
    QuotaChanged,
    QuotaRemoved,
    RulesChanged,
    SecurityBegun,
    SecurityEvent,
    ThrottleChanged,
    TimeAdvanced,
    TokenChanged,
    TokenRemoved,
    TopicChanged,
    TopicRemoved,
    TransactionEvent,
    UserChanged,
    UserRemoved,
)
from metadata.records.groups import CommittedOffset, in_order
from metadata.records.instances import InstanceChanged, InstanceEvent, InstanceRemoved
from metadata.records.leases import LeaseEvent, LeasesChanged, LeasesRemoved
from metadata.records.owner_table import Owners
from metadata.records.owners import NO_OWNER, OwnedIds
from metadata.records.security import QuotaRecord
from raftlog.model import PartitionRecord, TopicPartition

from .group_state import GroupsState
from .image import ClusterImage
from .instance_state import InstancesState
from .lease_state import LeasesState
from .security_state import SecurityState
from .transaction_commit import ENDS_PER_EVENT, slices_of_ends
from .transaction_state import TransactionsState

OFFSETS_PER_STEP = 1_000
"""Offsets compared in one step: about a millisecond of work."""

COMPARED_PER_STEP = 2_000
"""Records of transactions, or ends, compared in one step: some milliseconds of work."""

_NOTHING: Mapping[TopicPartition, CommittedOffset] = {}


def diff_in_steps(old: ClusterImage, new: ClusterImage) -> Generator[None, None, list[MetadataEvent]]:
    """Return the same events, computed a slice at a time."""
    events: list[MetadataEvent] = []
    if new.feature_level != old.feature_level:
        events.append(FeatureLevelChanged(new.feature_level))
    if new.time != old.time:
        events.append(TimeAdvanced(new.time))
    if new.throttle != old.throttle:
        events.append(ThrottleChanged(new.throttle))
    changed = (b for b in sorted(new.brokers) if new.brokers[b] != old.brokers.get(b))
    events.extend(BrokerChanged(new.brokers[b]) for b in changed)
    removed = (old.brokers[broker_id] for broker_id in sorted(old.brokers) if broker_id not in new.brokers)
    events.extend(BrokerRemoved(broker.broker_id, broker.incarnation) for broker in removed)
    gone = (old.topics[topic_id] for topic_id in sorted(old.topics) if topic_id not in new.topics)
    events.extend(TopicRemoved(topic.topic_id, topic.name) for topic in gone)
    for topic_id in sorted(new.topics):
        topic = new.topics[topic_id]
        if topic != old.topics.get(topic_id):
            events.append(TopicChanged(topic))
        for records in new.slices_of_topic(topic):
            events += _changed(old, new, records)
            yield
    # First: an id that is known to be granted must not seem to belong to no principal (S12).
    events += yield from owners_diff(old.owners, new.owners)
    events += yield from groups_diff(old.groups, new.groups)
    events += yield from instances_diff(old.instances, new.instances)
    events += yield from leases_diff(old.leases, new.leases)
    events += yield from transactions_diff(old.transactions, new.transactions)
    events += yield from security_diff(old.security, new.security)
    return events


def _changed(old: ClusterImage, new: ClusterImage, records: list[PartitionRecord]) -> Iterator[MetadataEvent]:
    for record in records:
        topic_partition = record.topic_partition
        tickets = new.tickets_of(topic_partition)
        if record != old.partitions.get(topic_partition) or tickets != old.tickets_of(topic_partition):
            yield PartitionChanged(record, tickets)


def groups_diff(old: GroupsState, new: GroupsState) -> Generator[None, None, list[GroupEvent]]:
    """The events that lead a follower of `old` to `new`, in steps."""
    events: list[GroupEvent] = [GroupRemoved(group_id) for group_id in sorted(old.by_id) if group_id not in new.by_id]
    work = 0
    for group_id in sorted(new.by_id):
        group, offsets = new.by_id[group_id], new.offsets_of(group_id)
        if group != old.by_id.get(group_id):
            events.append(GroupChanged(group))
        known = old.offsets_of(group_id) if group_id in old.by_id else _NOTHING
        gone = tuple(in_order(partition for partition in known if partition not in offsets))
        if gone:
            events.append(OffsetsRemoved(group_id, gone))
        changed = {p: offsets[p] for p in in_order(offsets) if offsets[p] != known.get(p)}
        if changed:
            events.append(OffsetsCommitted(group_id, changed))
        work += 1 + len(offsets)
        if work >= OFFSETS_PER_STEP:
            work = 0
            yield
    return events


def leases_diff(old: LeasesState, new: LeasesState) -> Generator[None, None, list[LeaseEvent]]:
    """The events that lead a follower of `old` to `new`, in steps."""
    events: list[LeaseEvent] = [
        LeasesRemoved(record.group_id, record.partition)
        for record in old.records()
        if new.of_partition(record.group_id, record.partition) is None
    ]
    for number, record in enumerate(new.records(), 1):
        if record != old.of_partition(record.group_id, record.partition):
            events.append(LeasesChanged(record))
        if number % OFFSETS_PER_STEP == 0:
            yield
    return events


def instances_diff(old: InstancesState, new: InstancesState) -> Generator[None, None, list[InstanceEvent]]:
    """The events that lead a follower of `old` to `new`, in steps."""
    events: list[InstanceEvent] = [
        InstanceRemoved(record.group_id, record.name)
        for record in old.records()
        if new.instance(record.group_id, record.name) is None
    ]
    for number, record in enumerate(new.records(), 1):
        if record != old.instance(record.group_id, record.name):
            events.append(InstanceChanged(record))
        if number % COMPARED_PER_STEP == 0:
            yield
    return events


def transactions_diff(old: TransactionsState, new: TransactionsState) -> Generator[None, None, list[TransactionEvent]]:
    """The events that lead a follower of `old` to `new`, in steps; the ends of commits before the outcomes."""
    events: list[TransactionEvent] = []
    for number, event in enumerate(_differences(old, new), 1):
        if event is not None:
            events.append(event)
        if number % COMPARED_PER_STEP == 0:
            yield
    return events


def _differences(old: TransactionsState, new: TransactionsState) -> Iterator[TransactionEvent | None]:
    """Yield the differences; None if a slice has none."""
    for topic_partition in in_order(new.partitions_with_ends()):
        before, after = old.ends_of(topic_partition), new.ends_of(topic_partition)
        added = {key: after[key] for key in sorted(after) if key not in before}
        for piece in slices_of_ends({topic_partition: added}):
            yield EndsCommitted(piece)
            yield from repeat(None, ENDS_PER_EVENT)
    yield from _changed_records(old, new)
    for topic_partition in in_order(old.partitions_with_ends()):
        before, after = old.ends_of(topic_partition), new.ends_of(topic_partition)
        gone = tuple(key for key in sorted(before) if key not in after)
        if gone:
            yield EndsForgotten(topic_partition, gone)
    # Last, since an id that was granted and is in no record counts as expired.
    if new.granted_below != old.granted_below:
        yield ProducerIdsTaken(new.granted_below)


def _changed_records(old: TransactionsState, new: TransactionsState) -> Iterator[TransactionEvent | None]:
    producers, blocks, _, positions = new.copies()
    for producer in producers.values():
        changed = producer != old.producer(producer.transactional_id)
        yield ProducerChanged(producer) if changed else None
    for block in blocks:
        yield BlockChanged(block) if block != old.block(block.first) else None
    for name, value in positions.items():
        yield PositionMoved(name, value) if value != old.position(name) else None
    staged_before = dict(old.staged())
    for commit_id, count in new.staged():
        if staged_before.pop(commit_id, 0) != count:
            yield PartsStaged(commit_id, count)
    for commit_id in staged_before:
        yield PartsStaged(commit_id, 0)
    for name in old.names_of_producers():
        yield ProducerRemoved(name) if new.producer(name) is None else None
    for name, _ in old.position_items():
        yield PositionRemoved(name) if new.position(name) < 0 else None
    for block in old.blocks():
        yield BlockRemoved(block.first) if new.block(block.first) is None else None


def owners_diff(old: Owners, new: Owners) -> Generator[None, None, list[OwnerEvent]]:
    """The events that lead a follower of `old` to `new`, in steps."""
    events: list[OwnerEvent] = []
    for number, event in enumerate(_owner_differences(old, new), 1):
        if event is not None:
            events.append(event)
        if number % COMPARED_PER_STEP == 0:
            yield
    return events


def _owner_differences(old: Owners, new: Owners) -> Iterator[OwnerEvent | None]:
    """Yield the differences; None if an owner is the same."""
    before, after = dict(old.items()), dict(new.items())
    for kind, owners in after.items():
        for name in before[kind]:
            yield OwnerChanged(kind, name, NO_OWNER) if name not in owners else None
        for name, owner in owners.items():
            yield OwnerChanged(kind, name, owner) if owner != before[kind].get(name) else None
    for ids in old.ids():
        yield None if new.ids_from(ids.first) else ProducerIdsOwned(OwnedIds(ids.first, ids.first, NO_OWNER))
    for ids in new.ids():
        yield ProducerIdsOwned(ids) if ids != old.ids_from(ids.first) else None


def security_diff(old: SecurityState, new: SecurityState) -> Generator[None, None, list[SecurityEvent]]:
    """The events that lead a follower of `old` to `new`, in steps."""
    events: list[SecurityEvent] = []
    for number, event in enumerate(_security_differences(old, new), 1):
        if event is not None:
            events.append(event)
        if number % COMPARED_PER_STEP == 0:
            yield
    return events


def _security_differences(old: SecurityState, new: SecurityState) -> Iterator[SecurityEvent | None]:
    """Yield the differences; None if a record is the same. Removals precede: a new token may have a removed one's
    digest.
    """
    users_before, tokens_before, rules_before, quotas_before = old.copies()
    users, tokens, rules, quotas = new.copies()
    for token_id in tokens_before:
        yield TokenRemoved(token_id) if token_id not in tokens else None
    for name in users_before:
        yield UserRemoved(name) if name not in users else None
    for name, user in users.items():
        yield UserChanged(user) if user != users_before.get(name) else None
    for token_id, token in tokens.items():
        yield TokenChanged(token) if token != tokens_before.get(token_id) else None
    gone = tuple(rule for rule in rules_before if rule not in rules)
    added = tuple(rule for rule in rules if rule not in rules_before)
    for start in range(0, max(len(gone), len(added)), COMPARED_PER_STEP):
        stop = start + COMPARED_PER_STEP
        yield RulesChanged(added=added[start:stop], removed=gone[start:stop])
    for entity in quotas_before:
        yield QuotaRemoved(entity) if entity not in quotas else None
    for entity, limits in quotas.items():
        yield QuotaChanged(QuotaRecord(entity, limits)) if limits != quotas_before.get(entity) else None
    if new.bootstrapped and not old.bootstrapped:
        yield SecurityBegun()
