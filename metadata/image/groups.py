"""The effects of changes on groups: membership, ownership of partitions, committed offsets. Deterministic and total.

Reconciliation (KIP-848): a target says what a member is *to* own. A member comes to own a partition (`owned`) only when
no other member owns it: at the assignment, or later, in the very entry by which its former owner gives it up, leaves or
is removed. So at no index do two members own the same partition (S8's other half), and no clock takes part in that.

Committing: `owned` is also the fence. A commit is accepted for partitions that the member owns in this incarnation and
owned already in the generation that it names. Everything is checked before anything is written, so a caller that
commits offsets together with something else (a transaction) can check first and write after; it must additionally check
that the offset from which it started is still the current one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

import msgspec

from metadata.commands.groups import (
    MAX_MEMBERS_PER_GROUP,
    MAX_PARTITIONS_PER_GROUP,
    Assign,
    ChangeGroups,
    ChangeGroupsAs,
    Commit,
    Delete,
    DeleteOffsets,
    Expire,
    Fence,
    GroupChange,
    Join,
    Leave,
    OfCommitter,
    OffsetToCommit,
    Release,
    Reset,
    unpack_partitions,
)
from metadata.commands.results import GroupsChanged, Refused, RefusedChange
from metadata.records.groups import NEVER_MS, CommittedOffset, GroupRecord, MemberRecord, in_order
from metadata.records.owners import NO_OWNER, Owned
from metadata.rules.assignors import ASSIGNORS
from raftlog.model import TopicId, TopicPartition
from raftlog.wire import GroupMoves

from .image import ClusterImage
from .shares import own, refuse_offsets, refuse_records

C = TypeVar("C")

MAX_GROUPS = 10_000
MAX_COMMITTED_OFFSETS = 1_000_000
"""The most committed offsets of all groups: every node keeps them in memory and in every snapshot."""


def change_groups(state: ClusterImage, command: ChangeGroups, index: int, term: int) -> GroupsChanged:
    """Apply each change on its own, in order."""
    principals = command.principals if isinstance(command, ChangeGroupsAs) else (NO_OWNER,) * len(command.changes)
    return in_order_of(command.changes, principals, partial(change_group, state, index=index, term=term))


def in_order_of(
    changes: Sequence[C], principals: Sequence[str], change_one: Callable[[C, str], Refused | None]
) -> GroupsChanged:
    """Apply changes on their own, each for its principal. Return the refusals."""
    refusals = []
    for position, (change, principal) in enumerate(zip(changes, principals, strict=True)):
        refused = change_one(change, principal)
        if refused is not None:
            refusals.append(RefusedChange(position, refused.code, refused.detail))
    return GroupsChanged(tuple(refusals))


def change_group(state: ClusterImage, change: GroupChange, principal: str, *, index: int, term: int) -> Refused | None:
    """Apply one change."""
    match change:
        case Commit():
            return _commit(state, change, index, principal)
        case Join():
            return _not_of_an_instance(state, change) or join_group(state, change, index, principal)
        case Release():
            return _release(state, change, index)
        case Assign():
            return _assign(state, change, index)
        case Leave():
            return remove_member(state, change, index)
        case Fence():
            return _other_term(change.term, term) or remove_member(state, change, index)
        case Reset():
            return _reset(state, change, index, principal)
        case Expire():
            return _other_term(change.term, term) or _expire(state, change)
        case Delete():
            return _delete(state, change)
        case DeleteOffsets():
            return _delete_offsets(state, change)


def topic_removed(state: ClusterImage, topic_id: TopicId, index: int) -> None:
    """Remove a deleted topic's partitions from all members and offsets: a topic of the same name is another topic."""
    for group in state.groups.of_topic(topic_id):
        members = dict(group.members)
        for member in group.members.values():
            owned = {p: granted for p, granted in member.owned.items() if p.topic_id != topic_id}
            target = frozenset(p for p in member.target if p.topic_id != topic_id)
            if len(owned) != len(member.owned) or len(target) != len(member.target):
                members[member.member_id] = msgspec.structs.replace(
                    member, owned=owned, target=target, generation=index
                )
        if members != group.members:
            state.groups.put_group(replace(group, members=members))
        # Sorted: a node that began from a snapshot holds them in another order.
        gone = in_order(p for p in state.groups.offsets_of(group.group_id) if p.topic_id == topic_id)
        if gone:
            state.groups.remove_offsets(group.group_id, gone)
    state.groups.forget_topic(topic_id)


# --- Members ---------------------------------------------------------------------------------------------------------


def _not_of_an_instance(state: ClusterImage, join: Join) -> Refused | None:
    if state.instances.instance(join.group_id, join.member_id) is not None:
        return Refused("invalid_request", f"member {join.member_id!r} is an HTTP consumer: choose another name")
    return None


def join_group(state: ClusterImage, join: Join, index: int, principal: str) -> Refused | None:
    """Let a member join, again or for the first time; a group that does not exist is made for the principal."""
    if join.assignor not in ASSIGNORS:
        return Refused("invalid_request", f"assignor {join.assignor!r} is not one of {', '.join(sorted(ASSIGNORS))}")
    if not join.topics and not join.pattern:
        return Refused("invalid_request", "a member subscribes to topics, or to a pattern of their names")
    group = state.groups.by_id.get(join.group_id)
    if group is None:
        if len(state.groups.by_id) >= MAX_GROUPS:
            return Refused("invalid_request", f"the cluster has {MAX_GROUPS} groups, which is the most")
        refused = refuse_records(state, principal, Owned.GROUP, 1, MAX_GROUPS)
        if refused is not None:
            return refused
        group = GroupRecord(join.group_id, index, 0, join.assignor)
    known = group.members.get(join.member_id)
    if known is not None and known.instance_id != join.instance_id:
        return Refused("invalid_request", f"member {join.member_id!r} is of instance {known.instance_id!r}")
    before = known if known is not None else group.member_of_instance(join.instance_id)
    if before is not None and before.incarnation == index:
        # An incarnation is one life: with the same one two processes could own, read and commit the same (S8).
        return Refused(
            "stale_group_epoch", f"{before.member_id!r} joined in the same entry: another process has this id"
        )
    if before is None and len(group.members) >= MAX_MEMBERS_PER_GROUP:
        return Refused("invalid_request", f"a group has at most {MAX_MEMBERS_PER_GROUP} members")
    topics = tuple(sorted(set(join.topics)))
    member = MemberRecord(
        join.member_id,
        join.instance_id,
        index,
        join.client_id,
        join.client_host,
        topics,
        join.pattern,
        join.session_timeout_ms,
        join.rebalance_timeout_ms,
        index,
        dict.fromkeys(before.owned, index) if before is not None else {},
        before.target if before is not None else frozenset(),
    )
    same = before is not None and (before.topics, before.pattern) == (topics, join.pattern)
    members = dict(group.members)
    if before is not None:
        del members[before.member_id]
    members[member.member_id] = member
    # Not merely older than the epoch: what came before in this entry may have the same index.
    epoch, target_epoch = (group.epoch, group.target_epoch) if same and group.assignor == join.assignor else (index, 0)
    if join.group_id not in state.groups.by_id:
        own(state, principal, Owned.GROUP, join.group_id)
    state.groups.put_group(GroupRecord(join.group_id, epoch, target_epoch, join.assignor, NEVER_MS, members))
    return None


def remove_member(state: ClusterImage, change: Leave | Fence, index: int) -> Refused | None:
    """Remove a member; its partitions have no owner until the next assignment."""
    found = _member(state, change.group_id, change.member_id, change.incarnation)
    if isinstance(found, Refused):
        return found
    group, member = found
    members = {name: other for name, other in group.members.items() if name != member.member_id}
    empty_since_ms = NEVER_MS if members else state.stamp_ms(change.now_ms)
    # An empty group needs no targets.
    target_epoch = 0 if members else index
    state.groups.put_group(
        replace(group, epoch=index, target_epoch=target_epoch, empty_since_ms=empty_since_ms, members=members)
    )
    return None


def _release(state: ClusterImage, release: Release, index: int) -> Refused | None:
    found = _member(state, release.group_id, release.member_id, release.incarnation)
    if isinstance(found, Refused):
        return found
    group, member = found
    # The request may name a partition repeatedly, one that the member does not own, or a generation that never was.
    named = dict.fromkeys(unpack_partitions(release.partitions))
    # The member does not know of later grants: then this is a late copy of an earlier release.
    freed = [p for p in named if p in member.owned and member.owned[p] <= release.generation]
    if not freed:
        return None
    owned = dict(member.owned)
    for partition in freed:
        del owned[partition]
    members = dict(group.members)
    members[member.member_id] = msgspec.structs.replace(member, owned=owned, generation=index)
    state.groups.put_group(replace(group, members=_granted(members, freed, index)))
    return None


def _granted(
    members: dict[str, MemberRecord], free: Iterable[TopicPartition], index: int
) -> Mapping[str, MemberRecord]:
    """Give partitions without an owner to the members whose targets have them."""
    owner_to_be = {partition: name for name, member in members.items() for partition in member.target}
    gained: dict[str, list[TopicPartition]] = {}
    for partition in free:
        if partition in owner_to_be:
            gained.setdefault(owner_to_be[partition], []).append(partition)
    for name, partitions in gained.items():
        owned = {**members[name].owned, **dict.fromkeys(partitions, index)}
        members[name] = msgspec.structs.replace(members[name], owned=owned, generation=index)
    return members


def _member(
    state: ClusterImage, group_id: str, member_id: str, incarnation: int
) -> tuple[GroupRecord, MemberRecord] | Refused:
    group = state.groups.by_id.get(group_id)
    member = None if group is None else group.members.get(member_id)
    if group is None or member is None:
        return Refused("unknown_member", f"group {group_id!r} has no member {member_id!r}: it must join again")
    if member.incarnation != incarnation:
        return Refused("member_fenced", f"member {member_id!r} joined again, as {member.incarnation}")
    return group, member


def _other_term(named: int, term: int) -> Refused | None:
    if named == term:
        return None
    return Refused("not_coordinator", f"a coordinator's change of term {named} in an entry of term {term}")


# --- Assignment ------------------------------------------------------------------------------------------------------


def _assign(state: ClusterImage, assign: Assign, index: int) -> Refused | None:
    group = state.groups.by_id.get(assign.group_id)
    if group is None or group.epoch != assign.epoch:
        return Refused("stale_group_epoch", f"group {assign.group_id!r} is not at {assign.epoch} any more")
    targets = {target.member_id: frozenset(unpack_partitions(target.partitions)) for target in assign.targets}
    if targets.keys() != group.members.keys() or len(targets) != len(assign.targets):
        return Refused("stale_group_epoch", f"these are not the members of group {assign.group_id!r}")
    wanted = frozenset[TopicPartition]().union(*targets.values())
    if len(wanted) != sum(map(len, targets.values())):
        return Refused("invalid_request", "a partition is assigned twice")
    if len(wanted) > MAX_PARTITIONS_PER_GROUP:
        return Refused("invalid_request", f"a group has at most {MAX_PARTITIONS_PER_GROUP} partitions assigned")
    if any(partition not in state.partitions for partition in wanted):
        return Refused("unknown_partition", "a partition is assigned that does not exist")
    members = dict(group.members)
    for name, member in group.members.items():
        if member.target != targets[name]:
            members[name] = msgspec.structs.replace(member, target=targets[name], generation=index)
    held = {partition for member in members.values() for partition in member.owned}
    granted = _granted(members, in_order(wanted - held), index)
    topics = dict.fromkeys(one.topic_id for target in assign.targets for one in target.partitions)
    state.groups.put_group(replace(group, target_epoch=group.epoch, members=granted), topics)
    return None


# --- Offsets ---------------------------------------------------------------------------------------------------------


def _commit(state: ClusterImage, commit: Commit, index: int, principal: str) -> Refused | None:
    # Made once: of ten thousand offsets a second each is looked up in four places.
    named = [one.topic_partition for one in commit.offsets]
    refused = refuse_if_not_owner(state, commit, named) or refuse_new_offsets(state, commit.group_id, named, principal)
    if refused is not None:
        return refused
    have_group(state, commit.group_id, index, principal)
    current = state.groups.offsets_of(commit.group_id)
    now_ms = state.stamp_ms(commit.now_ms)
    taken: dict[TopicPartition, CommittedOffset] = {}
    for partition, one in zip(named, commit.offsets, strict=True):
        known = taken.get(partition) or current.get(partition)
        if known is None or known.offset <= one.offset:  # Otherwise it stays (S8).
            taken[partition] = _committed(one, now_ms)
    state.groups.put_offsets(commit.group_id, taken)
    return None


def refuse_if_not_owner(
    state: ClusterImage, commit: OfCommitter | GroupMoves, named: list[TopicPartition]
) -> Refused | None:
    """Return why this member may not commit for these partitions, or None: the fence of ordinary commits and of those
    within a transaction (S8).
    """
    if not commit.member_id:
        group = state.groups.by_id.get(commit.group_id)
        if group is not None and group.members:
            return Refused(
                "group_not_empty", f"group {commit.group_id!r} has members: only they commit, each for its partitions"
            )
        return None
    found = _member(state, commit.group_id, commit.member_id, commit.incarnation)
    if isinstance(found, Refused):
        return found
    _, member = found
    for partition in named:
        granted = member.owned.get(partition)
        if granted is None:
            return Refused("stale_generation", f"{partition} is not {commit.member_id!r}'s")
        if granted > commit.generation:
            return Refused(
                "stale_generation", f"{partition} was granted at {granted}, after generation {commit.generation}"
            )
    return None


def refuse_new_offsets(
    state: ClusterImage, group_id: str, named: list[TopicPartition], principal: str
) -> Refused | None:
    """Return why a group of this principal may have no offsets committed in these partitions, or None."""
    current = state.groups.offsets_of(group_id)
    added = 0
    for partition in named:
        if partition not in state.partitions:
            return Refused("unknown_partition", f"there is no partition {partition}")
        added += partition not in current
    if added and state.groups.offset_count + added > MAX_COMMITTED_OFFSETS:
        return Refused("invalid_request", f"the cluster keeps {MAX_COMMITTED_OFFSETS} committed offsets at most")
    if group_id not in state.groups.by_id and len(state.groups.by_id) >= MAX_GROUPS:
        return Refused("invalid_request", f"the cluster has {MAX_GROUPS} groups, which is the most")
    fresh = group_id not in state.groups.by_id
    return refuse_records(state, principal, Owned.GROUP, int(fresh), MAX_GROUPS) or refuse_offsets(
        state, owner_to_be(state, group_id, principal), added, MAX_COMMITTED_OFFSETS
    )


def owner_to_be(state: ClusterImage, group_id: str, principal: str) -> str:
    """Return the owner of a group, which is made for this principal if it does not exist."""
    return state.owners.owner(Owned.GROUP, group_id) if group_id in state.groups.by_id else principal


def have_group(state: ClusterImage, group_id: str, index: int, principal: str) -> None:
    """Create an empty group of this principal if it does not exist."""
    if group_id not in state.groups.by_id:
        own(state, principal, Owned.GROUP, group_id)
        state.groups.put_group(GroupRecord(group_id, index, index, ""))


def _committed(one: OffsetToCommit, now_ms: int) -> CommittedOffset:
    return CommittedOffset(one.offset, one.leader_epoch, one.metadata, now_ms)


def _reset(state: ClusterImage, reset: Reset, index: int, principal: str) -> Refused | None:
    group = state.groups.by_id.get(reset.group_id)
    if group is not None and group.members:
        return _has_members(group)
    if (group.epoch if group is not None else -1) != reset.epoch:
        return Refused("stale_group_epoch", f"group {reset.group_id!r} is not what it was when this was planned")
    named = [one.topic_partition for one in reset.offsets]
    refused = refuse_new_offsets(state, reset.group_id, named, principal) or _moved(state, reset, named)
    if refused is not None:
        return refused
    have_group(state, reset.group_id, index, principal)
    now_ms = state.stamp_ms(reset.now_ms)
    offsets = (_committed(one, now_ms) for one in reset.offsets)
    state.groups.put_offsets(reset.group_id, dict(zip(named, offsets, strict=True)))
    state.leases.end(reset.group_id, named)
    return None


def _moved(state: ClusterImage, reset: Reset, named: list[TopicPartition]) -> Refused | None:
    """Return why the group differs from the one for which the reset was planned, or None."""
    if not reset.expected:
        return None
    if len(reset.expected) != len(named):
        return Refused("invalid_request", f"{len(reset.expected)} offsets are expected of {len(named)} partitions")
    current = state.groups.offsets_of(reset.group_id)
    for partition, expected in zip(named, reset.expected, strict=True):
        known = current.get(partition)
        found = -1 if known is None else known.offset
        if found != expected:
            was, now = (("nothing" if offset < 0 else offset) for offset in (expected, found))
            return Refused("offset_moved", f"{partition}: {now} is committed, this was planned where it was {was}")
    return None


def _expire(state: ClusterImage, expire: Expire) -> Refused | None:
    group = state.groups.by_id.get(expire.group_id)
    if group is None or group.epoch != expire.epoch or group.members:
        return Refused("stale_group_epoch", f"group {expire.group_id!r} has changed")
    time = state.time
    if time and expire.before_ms > time.now_ms:
        return Refused("invalid_request", f"{expire.before_ms} is not past: the cluster's time is {time.now_ms}")
    if time.since_ms(group.empty_since_ms) >= expire.before_ms:
        return Refused("stale_group_epoch", f"group {expire.group_id!r} has not been empty for that long")
    offsets = state.groups.offsets_of(expire.group_id)
    old = in_order(p for p, one in offsets.items() if time.since_ms(one.commit_timestamp_ms) < expire.before_ms)
    if len(old) == len(offsets):
        state.groups.remove_group(group)
    elif old:
        state.groups.remove_offsets(expire.group_id, old)
    return None


def _delete(state: ClusterImage, delete: Delete) -> Refused | None:
    group = state.groups.by_id.get(delete.group_id)
    if group is None:
        return Refused("unknown_group", f"there is no group {delete.group_id!r}")
    if group.members:
        return _has_members(group)
    state.groups.remove_group(group)
    return None


def _delete_offsets(state: ClusterImage, delete: DeleteOffsets) -> Refused | None:
    group = state.groups.by_id.get(delete.group_id)
    if group is None:
        return Refused("unknown_group", f"there is no group {delete.group_id!r}")
    named = unpack_partitions(delete.partitions)
    for _, member in sorted(group.members.items()):  # a node that began from a snapshot holds them in another order
        held = next((one for one in named if one in member.owned or one in member.target), None)
        if held is not None:
            topic = state.topics.get(held.topic_id)
            where = f"{topic.name if topic is not None else held.topic_id.hex()}/{held.partition}"
            told = f"member {member.member_id!r} of group {delete.group_id!r} reads {where}: stop it first"
            return Refused("group_not_empty", told)
    offsets = state.groups.offsets_of(delete.group_id)
    gone = in_order(one for one in named if one in offsets)
    if len(gone) == len(offsets) and not group.members:
        state.groups.remove_group(group)
    elif gone:
        state.groups.remove_offsets(delete.group_id, gone)
    return None


def _has_members(group: GroupRecord) -> Refused:
    return Refused("group_not_empty", f"group {group.group_id!r} has {len(group.members)} members: stop them first")
