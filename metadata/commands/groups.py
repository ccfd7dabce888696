"""Commands about groups. One command carries many changes of many groups, each decided on its own and in order.

`ChangeGroups` makes offset commits cheap: changes that a node's consumers request while one command is in flight go
into the next. All kinds of changes share the command, so they apply in the order in which a node proposed them. Its
answer names only refused changes, because refusals are rare and answers are remembered.

Joins and commits do not pass through the coordinator, since the image decides them anyway: a coordinator's death delays
heartbeats and rebalances for a moment, and commits by no more than the quorum's election.

`ChangeGroupsAs` is the same for changes of principals: a group that one of them makes belongs to its principal.

Sizes are bounded field by field, and the whole command by `MAX_CHANGES_BYTES`: its proposer splits it
(`http_api/records/pack.py`). From the first release on no change gains a field, and `change_groups.1` no other kind of
change: both would be a new command behind a new feature level. `GROUPS_FEATURE_LEVEL` is the level from which these
commands may be proposed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, TypeAlias

import msgspec

from metadata.records.groups import in_order
from raftlog.config import KIB
from raftlog.model import Offset, TopicId, TopicPartition

from .fields import NaturalField, OfPartition, PartitionField, PrincipalField, TextField, TopicIdField, WireStruct

GROUPS_FEATURE_LEVEL = 2

MAX_CHANGES_BYTES = 256 * KIB
MAX_CHANGES = 1_000
"""The most changes in one command: some milliseconds of work."""
MAX_OFFSETS = 2_000
"""The most offsets in one command, if its proposer has a choice; a single commit may have more."""
MAX_TOPICS_PER_MEMBER = 256
MAX_MEMBERS_PER_GROUP = 1_000
MAX_PARTITIONS_PER_GROUP = 10_000
"""The most partitions assigned to one group: a command with its targets stays small and fast to apply."""
MAX_NAME_BYTES = 255
MIN_SESSION_TIMEOUT_MS = 1_000
MAX_SESSION_TIMEOUT_MS = 1_800_000

GroupIdField: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_NAME_BYTES)]
MemberIdField: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_NAME_BYTES)]
NameField: TypeAlias = Annotated[str, msgspec.Meta(max_length=MAX_NAME_BYTES)]
SessionField: TypeAlias = Annotated[int, msgspec.Meta(ge=MIN_SESSION_TIMEOUT_MS, le=MAX_SESSION_TIMEOUT_MS)]
EpochField: TypeAlias = Annotated[int, msgspec.Meta(ge=-1, le=2**31 - 1)]


class TopicPartitions(WireStruct, frozen=True):
    """Some partitions of one topic."""

    topic_id: TopicIdField
    partitions: Annotated[tuple[PartitionField, ...], msgspec.Meta(max_length=MAX_PARTITIONS_PER_GROUP)]


Partitions: TypeAlias = Annotated[tuple[TopicPartitions, ...], msgspec.Meta(max_length=MAX_PARTITIONS_PER_GROUP)]


def pack_partitions(partitions: Iterable[TopicPartition]) -> tuple[TopicPartitions, ...]:
    """Return the partitions grouped by topic, sorted."""
    by_topic: dict[TopicId, list[int]] = {}
    for partition in in_order(partitions):
        by_topic.setdefault(partition.topic_id, []).append(partition.partition)
    return tuple(TopicPartitions(topic_id, tuple(numbers)) for topic_id, numbers in by_topic.items())


def unpack_partitions(packed: tuple[TopicPartitions, ...]) -> list[TopicPartition]:
    return [TopicPartition(one.topic_id, number) for one in packed for number in one.partitions]


# --- Members ---------------------------------------------------------------------------------------------------------


class OfMember(WireStruct, frozen=True):
    """The base of what is about one incarnation of a member."""

    group_id: GroupIdField
    member_id: MemberIdField
    incarnation: NaturalField


class Join(WireStruct, frozen=True, tag="join"):
    """A consumer joins, rejoins or changes its subscription. The entry's index is its incarnation.

    Partitions owned by a member of this id (or static instance) stay with it, so a restart of a static member moves
    nothing; but every grant is renewed, which fences the previous incarnation.
    """

    group_id: GroupIdField
    member_id: MemberIdField
    instance_id: NameField
    client_id: NameField
    client_host: NameField
    topics: Annotated[tuple[TextField, ...], msgspec.Meta(max_length=MAX_TOPICS_PER_MEMBER)]
    pattern: TextField
    assignor: NameField
    session_timeout_ms: SessionField
    rebalance_timeout_ms: SessionField


class Leave(OfMember, frozen=True, tag="leave"):
    """A member leaves. `now_ms`, here and below, is the proposer's wall clock: it makes a stamp only while there is no
    cluster time (`ClusterImage.stamp_ms`).
    """

    now_ms: NaturalField


class Fence(OfMember, frozen=True, tag="fence"):
    """The coordinator of `term` removes a member that was silent for its session or did not give a partition up in
    time.

    In an entry of another term it is refused: its proposer was deposed, and may have missed the member's heartbeats.
    """

    term: NaturalField
    now_ms: NaturalField


class Release(OfMember, frozen=True, tag="release"):
    """A member has given these partitions up, as of `generation`: it no longer reads them and has committed its
    offsets.
    """

    generation: NaturalField
    partitions: Partitions


# --- Assignment ------------------------------------------------------------------------------------------------------


class Target(WireStruct, frozen=True):
    """The target of one member."""

    member_id: MemberIdField
    partitions: Partitions


class Assign(WireStruct, frozen=True, tag="assign"):
    """New targets for all members, made for one membership: refused unless that is still the group's."""

    group_id: GroupIdField
    epoch: NaturalField
    targets: Annotated[tuple[Target, ...], msgspec.Meta(max_length=MAX_MEMBERS_PER_GROUP)]


# --- Offsets ---------------------------------------------------------------------------------------------------------


class OffsetToCommit(OfPartition, frozen=True):
    """An offset to commit: consumption continues from it."""

    offset: Annotated[Offset, msgspec.Meta(ge=0, le=2**62)]
    leader_epoch: EpochField = -1
    metadata: TextField = ""


Offsets: TypeAlias = Annotated[tuple[OffsetToCommit, ...], msgspec.Meta(max_length=MAX_PARTITIONS_PER_GROUP)]


class OfCommitter(WireStruct, frozen=True):
    """The base of what commits offsets: for a member, or without a member id for a group that has no members."""

    group_id: GroupIdField
    member_id: NameField
    incarnation: NaturalField
    generation: NaturalField


class Commit(OfCommitter, frozen=True, tag="commit"):
    """A member's commit, all of it or nothing: for partitions that it owns, and owned in `generation`.

    It never lowers an offset: if a greater one is committed, that stays, and the commit counts as done (S8). Without a
    member id it is the commit of a consumer that assigns partitions to itself; then the group must have no members.
    """

    now_ms: NaturalField
    offsets: Offsets


class Reset(WireStruct, frozen=True, tag="reset"):
    """An operator's reset of offsets, lower or higher. The group must have no members, and be as it was at `epoch`."""

    group_id: GroupIdField
    epoch: Annotated[int, msgspec.Meta(ge=-1, le=2**62)]
    """The group's epoch; -1: there was no such group, and the reset creates it."""
    now_ms: NaturalField
    offsets: Offsets
    expected: Annotated[
        tuple[Annotated[int, msgspec.Meta(ge=-1, le=2**62)], ...], msgspec.Meta(max_length=MAX_PARTITIONS_PER_GROUP)
    ] = ()
    """The expected committed offset of each of these partitions, in their order, -1 for none; empty: not checked.

    If one has changed, the reset is refused: it is carried out as planned (and perhaps shown to a person) or not at
    all.
    """


class Expire(WireStruct, frozen=True, tag="expire"):
    """Removes unused offsets: of a group without members since before `before_ms`, those committed before it.

    A group with none left is removed too. `term`: as in `Fence`.
    """

    group_id: GroupIdField
    epoch: NaturalField
    term: NaturalField
    before_ms: NaturalField


class Delete(WireStruct, frozen=True, tag="delete"):
    """An operator's deletion of a group and its offsets. The group must have no members."""

    group_id: GroupIdField


class DeleteOffsets(WireStruct, frozen=True, tag="delete_offsets"):
    """An operator's deletion of the group's offsets in these partitions, all or none (KIP-496). No member may have one
    of them. Needs `SECURITY_FEATURE_LEVEL`.

    A group without members and offsets is removed, as by `Expire`.
    """

    group_id: GroupIdField
    partitions: Partitions


GroupChange: TypeAlias = Join | Leave | Fence | Release | Assign | Commit | Reset | Expire | Delete | DeleteOffsets


class ChangeGroups(WireStruct, frozen=True, tag="change_groups.1"):
    """Changes of groups, in order. Answered by `GroupsChanged`."""

    changes: Annotated[tuple[GroupChange, ...], msgspec.Meta(max_length=MAX_CHANGES)]


class ChangeGroupsAs(ChangeGroups, frozen=True, tag="change_groups.2"):
    """The same, with the principal of each change (empty: none). Needs `SECURITY_FEATURE_LEVEL`."""

    principals: Annotated[tuple[PrincipalField, ...], msgspec.Meta(max_length=MAX_CHANGES)]
