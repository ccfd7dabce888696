"""Consumer groups: their members, their offsets, and seeks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import Meta

from raftlog import wire
from raftlog.wire import MembershipResponse

from .base import HexTopicId, Natural, OfTopicPartition, PartitionNumber, Request, TopicName

MAX_OFFSETS_PER_REQUEST = 1_000
MAX_SUBSCRIBED_TOPICS = 256
DEFAULT_SESSION_TIMEOUT_MS = 45_000
DEFAULT_REBALANCE_TIMEOUT_MS = 300_000

MemberName = Annotated[str, Meta(max_length=255)]
GroupTimeout = Annotated[int, Meta(ge=1_000, le=1_800_000)]
"""Milliseconds."""


class GroupPartition(NamedTuple):
    """A partition as a group's members identify it.

    The same name with another id is another topic's partition.
    """

    topic: str
    partition: int
    topic_id: str = ""

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"


class JoinGroup(Request, frozen=True):
    topics: Annotated[list[TopicName], Meta(max_length=MAX_SUBSCRIBED_TOPICS)] = []
    pattern: Annotated[str, Meta(max_length=1_000)] = ""
    """A pattern (RE2): every topic whose whole name matches is subscribed as well."""
    member_id: MemberName = ""
    """The id of a member that joins again; empty for a new member."""
    instance_id: MemberName = ""
    """The id of a static member: a member that joins with it takes its predecessor's place and partitions."""
    client_id: MemberName = ""
    assignor: Literal["uniform", "range", "cooperative-sticky"] = "uniform"
    session_timeout_ms: GroupTimeout = DEFAULT_SESSION_TIMEOUT_MS
    rebalance_timeout_ms: GroupTimeout = DEFAULT_REBALANCE_TIMEOUT_MS


class ReleasedTopic(Request, frozen=True):
    topic_id: HexTopicId
    partitions: Annotated[list[PartitionNumber], Meta(max_length=MAX_OFFSETS_PER_REQUEST)]


class Heartbeat(Request, frozen=True):
    incarnation: Natural
    generation: Natural = 0
    """The generation of the assignment that the member reads by."""
    released: Annotated[list[ReleasedTopic], Meta(max_length=MAX_OFFSETS_PER_REQUEST)] = []
    """The partitions that the member has released: it no longer reads them and has committed its final offsets."""


class AssignedTopic(msgspec.Struct, frozen=True):
    topic: str
    topic_id: str
    partitions: list[int]


class MembershipInfo(msgspec.Struct, frozen=True):
    """A member's state in its group."""

    group: str
    member_id: str
    incarnation: int
    generation: int
    state: str
    assigned: list[AssignedTopic]
    """The partitions that the member may read and commit."""
    revoking: list[AssignedTopic]
    """The partitions that the member must release, because other members wait for them."""

    @staticmethod
    def of(group: str, member_id: str, told: MembershipResponse) -> MembershipInfo:
        """Return the same from an answer over the data connection."""
        assigned, revoking = _assigned(told.assigned), _assigned(told.revoking)
        return MembershipInfo(group, member_id, told.incarnation, told.generation, told.state, assigned, revoking)


def _assigned(topics: Iterable[wire.AssignedTopic]) -> list[AssignedTopic]:
    return [AssignedTopic(one.topic, one.topic_id.hex(), one.partitions) for one in topics]


class GroupSummary(msgspec.Struct, frozen=True):
    """One group in a list."""

    group: str
    state: str
    assignor: str
    member_count: int
    lag: int | None = None
    """Records that it has not consumed, of partitions that have a leader; null if that was not asked for."""


class Groups(msgspec.Struct, frozen=True):
    groups: list[GroupSummary]


class GroupMemberInfo(msgspec.Struct, frozen=True):
    """A group member with its assigned partitions, those that it must release, and its target assignment."""

    member_id: str
    instance_id: str
    client_id: str
    host: str
    incarnation: int
    generation: int
    topics: list[str]
    pattern: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    assigned: list[AssignedTopic]
    revoking: list[AssignedTopic]
    target: list[AssignedTopic]


class GroupInfo(msgspec.Struct, frozen=True):
    """A group with its members."""

    group: str
    state: str
    assignor: str
    epoch: int
    target_epoch: int
    coordinator: int | None
    members: list[GroupMemberInfo]


class GroupOffsetInfo(OfTopicPartition, frozen=True):
    """A group's committed offset in one partition, its lag and its owner."""

    offset: int | None = None
    leader_epoch: int = -1
    metadata: str = ""
    committed_at_ms: int | None = None
    log_start_offset: int | None = None
    """Present with `lag=true`, like the next two; None if the partition has no leader."""
    log_end_offset: int | None = None
    lag: int | None = None
    member_id: str | None = None
    """The owner of the partition."""

    @property
    def group_partition(self) -> GroupPartition:
        return GroupPartition(self.topic, self.partition, self.topic_id)


class GroupOffsets(msgspec.Struct, frozen=True):
    group: str
    offsets: list[GroupOffsetInfo]


class OffsetToCommit(Request, frozen=True):
    partition: PartitionNumber
    offset: Natural
    topic: TopicName = ""
    topic_id: HexTopicId | None = None
    """Preferred to the name: a topic that was deleted and created again is another topic."""
    leader_epoch: Annotated[int, Meta(ge=-1, le=2**31 - 1)] = -1
    metadata: Annotated[str, Meta(max_length=1_024)] = ""


class CommitOffsets(Request, frozen=True):
    offsets: Annotated[list[OffsetToCommit], Meta(min_length=1, max_length=MAX_OFFSETS_PER_REQUEST)]
    member_id: MemberName = ""
    """Empty for a consumer that assigns partitions to itself; the group then has no members."""
    incarnation: Natural = 0
    generation: Natural = 0


class SeekTopic(Request, frozen=True):
    topic: TopicName
    partitions: Annotated[list[PartitionNumber], Meta(max_length=MAX_OFFSETS_PER_REQUEST)] | None = None
    """None for all partitions."""


class PlannedOffset(Request, frozen=True):
    """A row of a plan, as returned by the node."""

    topic: TopicName
    topic_id: HexTopicId
    partition: PartitionNumber
    offset: Natural | None
    """The committed offset; None if there is none."""
    new_offset: Natural


class SeekGroup(Request, frozen=True):
    to: Literal["earliest", "latest", "offset", "timestamp", "shift", "duration", "planned"]
    value: Annotated[int, Meta(ge=-(2**62), le=2**62)] = 0
    """By the kind of seek: an offset; milliseconds since 1970; a number of offsets forward (negative: backwards);
    milliseconds before now."""
    topics: Annotated[list[SeekTopic], Meta(max_length=MAX_SUBSCRIBED_TOPICS)] | None = None
    """None for every partition in which the group has committed."""
    plan: bool = False
    """Only return the plan."""
    planned: Annotated[list[PlannedOffset], Meta(max_length=MAX_OFFSETS_PER_REQUEST)] = []
    """With `to` planned: carry out this plan if these partitions have not changed since."""
    isolation: Literal["read_committed", "read_uncommitted"] = "read_committed"
    """The group's isolation: a partition ends at its last stable offset, or at its high watermark."""


class DeleteOffsets(Request, frozen=True):
    topics: Annotated[list[SeekTopic], Meta(min_length=1, max_length=MAX_SUBSCRIBED_TOPICS)]
    plan: bool = False
    """Only return what would be deleted."""


class DeletedOffsets(msgspec.Struct, frozen=True):
    """The committed offsets that were deleted or, if it is not `applied`, would be."""

    group: str
    applied: bool
    offsets: list[GroupOffsetInfo]


class SoughtOffset(OfTopicPartition, frozen=True):
    """A group's previous and new (or planned) committed offset in a partition."""

    offset: int | None
    new_offset: int
    log_start_offset: int
    log_end_offset: int


class SoughtGroup(msgspec.Struct, frozen=True):
    group: str
    applied: bool
    offsets: list[SoughtOffset]
