"""What can be asked of groups. One command carries many changes of many groups, each decided on its own and in order.

`ChangeGroups` is how offset commits become cheap: whatever a node's consumers ask for while one command is under way
goes into the next. Its answer names only what was refused, because mostly nothing is and answers are remembered.

Sizes are bounded field by field, and the whole command by `MAX_CHANGES_BYTES`: its maker cuts it
(`http_api/records/pack.py`). From the first release on no change gains a field, and `change_groups.1` no other kind of
change: both would be a new command behind a new feature level. `GROUPS_FEATURE_LEVEL` is the level from which these are
proposed at all.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, TypeAlias

import msgspec

from metadata.records.groups import in_order
from raftlog.config import KIB
from raftlog.model import Offset, TopicId, TopicPartition

from .fields import NaturalField, Part, PartitionField, TextField, TopicIdField

GROUPS_FEATURE_LEVEL = 2

MAX_CHANGES_BYTES = 256 * KIB
MAX_CHANGES = 1_000
"""In one command: some milliseconds of work."""
MAX_OFFSETS = 2_000
"""In one command whose maker has a choice, for the same reason: a single commit may have more."""
MAX_TOPICS_PER_MEMBER = 256
MAX_MEMBERS_PER_GROUP = 1_000
MAX_PARTITIONS_PER_GROUP = 10_000
"""Assigned at a time: a command with the targets of a group stays small, and applying it short."""
MAX_NAME_BYTES = 255
MIN_SESSION_TIMEOUT_MS = 1_000
MAX_SESSION_TIMEOUT_MS = 1_800_000

GroupIdField: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_NAME_BYTES)]
MemberIdField: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_NAME_BYTES)]
NameField: TypeAlias = Annotated[str, msgspec.Meta(max_length=MAX_NAME_BYTES)]
SessionField: TypeAlias = Annotated[int, msgspec.Meta(ge=MIN_SESSION_TIMEOUT_MS, le=MAX_SESSION_TIMEOUT_MS)]
EpochField: TypeAlias = Annotated[int, msgspec.Meta(ge=-1, le=2**31 - 1)]


class TopicPartitions(Part, frozen=True):
    """Some partitions of one topic."""

    topic_id: TopicIdField
    partitions: Annotated[tuple[PartitionField, ...], msgspec.Meta(max_length=MAX_PARTITIONS_PER_GROUP)]


Partitions: TypeAlias = Annotated[tuple[TopicPartitions, ...], msgspec.Meta(max_length=MAX_PARTITIONS_PER_GROUP)]


def pack_partitions(partitions: Iterable[TopicPartition]) -> tuple[TopicPartitions, ...]:
    """Grouped by topic, sorted."""
    by_topic: dict[TopicId, list[int]] = {}
    for partition in in_order(partitions):
        by_topic.setdefault(partition.topic_id, []).append(partition.partition)
    return tuple(TopicPartitions(topic_id, tuple(numbers)) for topic_id, numbers in by_topic.items())


def unpack_partitions(packed: tuple[TopicPartitions, ...]) -> list[TopicPartition]:
    return [TopicPartition(one.topic_id, number) for one in packed for number in one.partitions]


# --- Members ---------------------------------------------------------------------------------------------------------


class Join(Part, frozen=True, tag="join"):
    """A consumer joins, joins again, or subscribes to something else. The entry's index is its incarnation.

    What a member of this id (or static instance) owned stays its own, so that a restart of a static member moves
    nothing; but all that was granted is granted anew, which fences the life before.
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


class Leave(Part, frozen=True, tag="leave"):
    """A member goes by itself. `now_ms`, here and below, is the proposer's wall clock: it makes a stamp only as long as
    there is no cluster's time (`ClusterImage.stamp_ms`)."""

    group_id: GroupIdField
    member_id: MemberIdField
    incarnation: NaturalField
    now_ms: NaturalField


class Fence(Part, frozen=True, tag="fence"):
    """The coordinator of `term` removes a member: not heard of for its session, or a partition not given up in time.

    In an entry of another term it is refused: its maker was deposed, and may have missed the member's heartbeats.
    """

    group_id: GroupIdField
    member_id: MemberIdField
    incarnation: NaturalField
    term: NaturalField
    now_ms: NaturalField


class Release(Part, frozen=True, tag="release"):
    """A member has given these up: it reads them no more and has committed what it will. As of `generation`."""

    group_id: GroupIdField
    member_id: MemberIdField
    incarnation: NaturalField
    generation: NaturalField
    partitions: Partitions


# --- Assignment ------------------------------------------------------------------------------------------------------


class Target(Part, frozen=True):
    """What one member is to own."""

    member_id: MemberIdField
    partitions: Partitions


class Assign(Part, frozen=True, tag="assign"):
    """New targets for all members, made for a membership: refused unless that is still the group's."""

    group_id: GroupIdField
    epoch: NaturalField
    targets: Annotated[tuple[Target, ...], msgspec.Meta(max_length=MAX_MEMBERS_PER_GROUP)]


# --- Offsets ---------------------------------------------------------------------------------------------------------


class OffsetToCommit(Part, frozen=True):
    """Go on from `offset`."""

    topic_id: TopicIdField
    partition: PartitionField
    offset: Annotated[Offset, msgspec.Meta(ge=0, le=2**62)]
    leader_epoch: EpochField = -1
    metadata: TextField = ""


Offsets: TypeAlias = Annotated[tuple[OffsetToCommit, ...], msgspec.Meta(max_length=MAX_PARTITIONS_PER_GROUP)]


class Commit(Part, frozen=True, tag="commit"):
    """A member's commit, all of it or nothing: for partitions that it owns, and owned in `generation`. It never lowers
    an offset: where a greater one is committed, that stays, and the commit counts as done (S8).

    With no member id it is a consumer's that assigns partitions to itself; then the group must have no members.
    """

    group_id: GroupIdField
    member_id: NameField
    incarnation: NaturalField
    generation: NaturalField
    now_ms: NaturalField
    offsets: Offsets


class Reset(Part, frozen=True, tag="reset"):
    """An operator's: these offsets, lower or higher. The group must have no members, and be as it was at `epoch`."""

    group_id: GroupIdField
    epoch: Annotated[int, msgspec.Meta(ge=-1, le=2**62)]
    """-1: there was no such group; it comes to be."""
    now_ms: NaturalField
    offsets: Offsets
    expected: Annotated[
        tuple[Annotated[int, msgspec.Meta(ge=-1, le=2**62)], ...], msgspec.Meta(max_length=MAX_PARTITIONS_PER_GROUP)
    ] = ()
    """What is committed in each of these partitions, in their order, -1 for nothing: refused where that has changed, so
    that what was planned, and perhaps shown to somebody, is done as it was or not at all. Empty: it does not matter."""


class Expire(Part, frozen=True, tag="expire"):
    """Offsets that nobody uses go: of a group without members since before `before_ms`, those committed before it. A
    group with none left goes too. `term`: as in `Fence`."""

    group_id: GroupIdField
    epoch: NaturalField
    term: NaturalField
    before_ms: NaturalField


class Delete(Part, frozen=True, tag="delete"):
    """An operator's: the group and its offsets. It must have no members."""

    group_id: GroupIdField


GroupChange: TypeAlias = Join | Leave | Fence | Release | Assign | Commit | Reset | Expire | Delete


class ChangeGroups(Part, frozen=True, tag="change_groups.1"):
    """Answered by `GroupsChanged`."""

    changes: Annotated[tuple[GroupChange, ...], msgspec.Meta(max_length=MAX_CHANGES)]
