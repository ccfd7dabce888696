"""The effects of changes on HTTP consumer instances. Deterministic and total.

The owner's epoch is the incarnation of its member in the group, so a claim and a change of the subscription are joins:
the partitions stay with the member, and every grant is renewed, which fences the owner before (S8).
"""

from __future__ import annotations

import msgspec

from metadata.commands.groups import Join, Leave, unpack_partitions
from metadata.commands.instances import (
    MAX_INSTANCES,
    ClaimInstance,
    InstanceChange,
    PutInstance,
    RemoveInstance,
    SubscribeInstance,
)
from metadata.commands.results import Refused
from metadata.records.groups import in_order
from metadata.records.instances import InstanceRecord, InstanceSettings
from metadata.records.owners import NO_OWNER
from metadata.rules.assignors import DEFAULT_ASSIGNOR
from raftlog.model import BrokerId, Incarnation, TopicId

from .groups import join_group, remove_member
from .image import ClusterImage
from .shares import SHARES

SESSION_TIMEOUT_MS = 10_000
"""The time after which the group's coordinator removes the member of an owner that is silent."""
REBALANCE_TIMEOUT_MS = 60_000
CLIENT_ID = "http"
"""The client id of the members that instances are."""


def change_instance(state: ClusterImage, change: InstanceChange, index: int, principal: str) -> Refused | None:
    """Apply one change."""
    match change:
        case PutInstance():
            return _put(state, change, index, principal)
        case ClaimInstance():
            return _claim(state, change, index)
        case SubscribeInstance():
            return _subscribe(state, change, index, principal)
        case RemoveInstance():
            return _remove(state, change, index)


def forget_topic(state: ClusterImage, topic_id: TopicId) -> None:
    """Remove a deleted topic's partitions from the instances that have assigned them to themselves."""
    for record in list(state.instances.records()):
        kept = tuple(partition for partition in record.partitions if partition.topic_id != topic_id)
        if len(kept) != len(record.partitions):
            state.instances.put(msgspec.structs.replace(record, partitions=kept))


def _put(state: ClusterImage, put: PutInstance, index: int, principal: str) -> Refused | None:
    known = state.instances.instance(put.group_id, put.name)
    if (known.epoch if known is not None else -1) != put.expected:
        return _changed(put.group_id, put.name)
    refused = _no_such_owner(state, put.owner, put.owner_incarnation)
    if refused is not None:
        return refused
    group = state.groups.by_id.get(put.group_id)
    if known is None:
        if group is not None and put.name in group.members:
            return Refused("invalid_request", f"group {put.group_id!r} has a member {put.name!r} of another kind")
        if state.instances.count >= MAX_INSTANCES:
            return Refused("invalid_request", f"the cluster has {MAX_INSTANCES} HTTP consumers, which is the most")
    if principal != NO_OWNER and (known is None or known.principal != principal):
        most = MAX_INSTANCES // SHARES
        if state.instances.count_of(principal) >= most:
            return Refused(
                "quota_exceeded", f"User:{principal} has {most} HTTP consumers: delete those that are unused"
            )
    if known is not None:
        _leave(state, known, put.now_ms, index)
    settings = InstanceSettings(put.embedded, put.offset_reset, put.auto_commit, put.min_bytes, put.wait_ms)
    record = InstanceRecord(
        put.group_id, put.name, settings, principal, BrokerId(put.owner), Incarnation(put.owner_incarnation), index
    )
    state.instances.put(record)
    return None


def _claim(state: ClusterImage, claim: ClaimInstance, index: int) -> Refused | None:
    record = _current(state, claim.group_id, claim.name, claim.epoch)
    if isinstance(record, Refused):
        return record
    refused = _no_such_owner(state, claim.owner, claim.owner_incarnation)
    if refused is None and record.subscribes:
        refused = join_group(state, _join_of(record), index, record.principal)
    if refused is None:
        owner, incarnation = BrokerId(claim.owner), Incarnation(claim.owner_incarnation)
        state.instances.put(msgspec.structs.replace(record, owner=owner, owner_incarnation=incarnation, epoch=index))
    return refused


def _subscribe(state: ClusterImage, change: SubscribeInstance, index: int, principal: str) -> Refused | None:
    record = _current(state, change.group_id, change.name, change.epoch)
    if isinstance(record, Refused):
        return record
    if change.partitions and (change.topics or change.pattern):
        return Refused("invalid_request", "a consumer subscribes to topics, or assigns partitions to itself, not both")
    partitions = tuple(in_order(dict.fromkeys(unpack_partitions(change.partitions))))
    for partition in partitions:
        if partition not in state.partitions:
            return Refused("unknown_partition", f"there is no partition {partition}")
    topics = tuple(sorted(set(change.topics)))
    now = msgspec.structs.replace(record, topics=topics, pattern=change.pattern, partitions=partitions, epoch=index)
    if now.subscribes:
        refused = join_group(state, _join_of(now), index, principal)
        if refused is not None:
            return refused
    else:
        _leave(state, record, change.now_ms, index)
    state.instances.put(now)
    return None


def _remove(state: ClusterImage, change: RemoveInstance, index: int) -> Refused | None:
    record = _current(state, change.group_id, change.name, change.epoch)
    if isinstance(record, Refused):
        return record
    _leave(state, record, change.now_ms, index)
    state.instances.remove(record)
    return None


def _leave(state: ClusterImage, record: InstanceRecord, now_ms: int, index: int) -> None:
    """Remove the instance's member, if it has one: the coordinator may have removed it."""
    group = state.groups.by_id.get(record.group_id)
    member = group.members.get(record.name) if group is not None else None
    if member is not None:
        remove_member(state, Leave(record.group_id, record.name, member.incarnation, now_ms), index)


def _join_of(record: InstanceRecord) -> Join:
    return Join(
        record.group_id,
        record.name,
        "",
        CLIENT_ID,
        f"broker-{record.owner}",
        record.topics,
        record.pattern,
        DEFAULT_ASSIGNOR,
        SESSION_TIMEOUT_MS,
        REBALANCE_TIMEOUT_MS,
    )


def _current(state: ClusterImage, group_id: str, name: str, epoch: int) -> InstanceRecord | Refused:
    record = state.instances.instance(group_id, name)
    if record is None:
        return Refused("unknown_instance", f"group {group_id!r} has no HTTP consumer {name!r}")
    return record if record.epoch == epoch else _changed(group_id, name)


def _changed(group_id: str, name: str) -> Refused:
    return Refused("instance_moved", f"HTTP consumer {name!r} of group {group_id!r} has changed meanwhile")


def _no_such_owner(state: ClusterImage, owner: int, incarnation: int) -> Refused | None:
    broker = state.brokers.get(BrokerId(owner))
    if broker is None or broker.incarnation != incarnation:
        return Refused("stale_incarnation", f"broker {owner} is not at {incarnation}")
    return None
