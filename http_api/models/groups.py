"""JSON bodies about consumer groups: the schemas of `openapi.json`."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

MAX_OFFSETS_PER_REQUEST = 1_000
MAX_SUBSCRIBED_TOPICS = 256
DEFAULT_SESSION_TIMEOUT_MS = 45_000
DEFAULT_REBALANCE_TIMEOUT_MS = 300_000

Name = Annotated[str, Meta(max_length=255)]
Timeout = Annotated[int, Meta(ge=1_000, le=1_800_000)]
Natural = Annotated[int, Meta(ge=0, le=2**62)]
Partition = Annotated[int, Meta(ge=0, le=2**31 - 1)]
TopicId = Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]


class JoinGroup(msgspec.Struct, forbid_unknown_fields=True):
    topics: Annotated[list[Annotated[str, Meta(max_length=249)]], Meta(max_length=MAX_SUBSCRIBED_TOPICS)] = []
    pattern: Annotated[str, Meta(max_length=1_000)] = ""
    """A pattern (RE2): every topic whose whole name matches is subscribed as well."""
    member_id: Name = ""
    """The id of a member that joins again; empty for a new member."""
    instance_id: Name = ""
    """The id of a static member: a member that joins with it takes its predecessor's place and partitions."""
    client_id: Name = ""
    assignor: Literal["uniform", "range", "cooperative-sticky"] = "uniform"
    session_timeout_ms: Timeout = DEFAULT_SESSION_TIMEOUT_MS
    rebalance_timeout_ms: Timeout = DEFAULT_REBALANCE_TIMEOUT_MS


class AssignedTopic(msgspec.Struct):
    topic: str
    topic_id: str
    partitions: list[int]


class ReleasedTopic(msgspec.Struct, forbid_unknown_fields=True):
    topic_id: TopicId
    partitions: Annotated[list[Partition], Meta(max_length=MAX_OFFSETS_PER_REQUEST)]


class Heartbeat(msgspec.Struct, forbid_unknown_fields=True):
    incarnation: Natural
    generation: Natural = 0
    """The generation of the assignment that the member reads by."""
    released: Annotated[list[ReleasedTopic], Meta(max_length=MAX_OFFSETS_PER_REQUEST)] = []
    """The partitions that the member has released: it no longer reads them and has committed its final offsets."""


class Membership(msgspec.Struct):
    """The present state of a member in its group."""

    group: str
    member_id: str
    incarnation: int
    generation: int
    state: str
    assigned: list[AssignedTopic]
    """The partitions that the member may read and commit."""
    revoking: list[AssignedTopic]
    """The partitions that the member must release, because other members wait for them."""


class GroupSummary(msgspec.Struct):
    group: str
    state: str
    assignor: str
    member_count: int


class Groups(msgspec.Struct):
    groups: list[GroupSummary]


class MemberDescription(msgspec.Struct):
    member_id: str
    instance_id: str
    client_id: str
    host: str
    incarnation: int
    generation: int
    topics: tuple[str, ...]
    pattern: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    assigned: list[AssignedTopic]
    revoking: list[AssignedTopic]
    target: list[AssignedTopic]


class GroupDescription(msgspec.Struct):
    group: str
    state: str
    assignor: str
    epoch: int
    target_epoch: int
    coordinator: int | None
    members: list[MemberDescription]


class GroupOffset(msgspec.Struct):
    """The committed offset of one partition, and the member that reads it."""

    topic: str
    topic_id: str
    partition: int
    offset: int | None
    leader_epoch: int
    metadata: str
    committed_at_ms: int | None
    log_start_offset: int | None
    """Present with `lag=true`, like the next two; null if the partition has no leader."""
    log_end_offset: int | None
    lag: int | None
    member_id: str | None
    """The owner of the partition."""


class GroupOffsets(msgspec.Struct):
    group: str
    offsets: list[GroupOffset]


class OffsetToCommit(msgspec.Struct, forbid_unknown_fields=True):
    partition: Partition
    offset: Natural
    topic: Annotated[str, Meta(max_length=249)] = ""
    topic_id: TopicId | None = None
    """Preferred to the name: a topic that was deleted and created again is another topic."""
    leader_epoch: Annotated[int, Meta(ge=-1, le=2**31 - 1)] = -1
    metadata: Annotated[str, Meta(max_length=1_024)] = ""


class CommitOffsets(msgspec.Struct, forbid_unknown_fields=True):
    offsets: Annotated[list[OffsetToCommit], Meta(min_length=1, max_length=MAX_OFFSETS_PER_REQUEST)]
    member_id: Name = ""
    """Empty for a consumer that assigns partitions to itself; the group then has no members."""
    incarnation: Natural = 0
    generation: Natural = 0


class SeekTopic(msgspec.Struct, forbid_unknown_fields=True):
    topic: Annotated[str, Meta(max_length=249)]
    partitions: Annotated[list[Partition], Meta(max_length=MAX_OFFSETS_PER_REQUEST)] | None = None
    """Null for all partitions."""


class PlannedOffset(msgspec.Struct, forbid_unknown_fields=True):
    """A row of a plan, as returned by the node."""

    topic: Annotated[str, Meta(max_length=249)]
    topic_id: TopicId
    partition: Partition
    offset: Natural | None
    """The committed offset; null if there is none."""
    new_offset: Natural


class SeekGroup(msgspec.Struct, forbid_unknown_fields=True):
    to: Literal["earliest", "latest", "offset", "timestamp", "shift", "duration", "planned"]
    value: Annotated[int, Meta(ge=-(2**62), le=2**62)] = 0
    """By the kind of seek: an offset; milliseconds since 1970; a number of offsets forward (negative: backwards);
    milliseconds before now."""
    topics: Annotated[list[SeekTopic], Meta(max_length=MAX_SUBSCRIBED_TOPICS)] | None = None
    """Null for every partition in which the group has committed."""
    plan: bool = False
    """Only return the plan."""
    planned: Annotated[list[PlannedOffset], Meta(max_length=MAX_OFFSETS_PER_REQUEST)] = []
    """With `to` planned: carry out this plan if these partitions have not changed since."""
    isolation: Literal["read_committed", "read_uncommitted"] = "read_committed"
    """The group's isolation: a partition ends at its last stable offset, or at its high watermark."""


class SoughtOffset(msgspec.Struct):
    topic: str
    topic_id: str
    partition: int
    offset: int | None
    """The committed offset before the seek."""
    new_offset: int
    log_start_offset: int
    log_end_offset: int


class SoughtGroup(msgspec.Struct):
    group: str
    applied: bool
    offsets: list[SoughtOffset]
