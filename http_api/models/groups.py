"""The shapes of JSON bodies about consumer groups: what `openapi.json` calls schemas."""

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
    """And every topic whose whole name fits this (RE2)."""
    member_id: Name = ""
    """Of a member that joins again; empty: one is made."""
    instance_id: Name = ""
    """Of a static member: who joins with it takes its predecessor's place and partitions."""
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
    """Of the assignment by which it reads."""
    released: Annotated[list[ReleasedTopic], Meta(max_length=MAX_OFFSETS_PER_REQUEST)] = []
    """What it has given up: it reads these no more and has committed what it will."""


class Membership(msgspec.Struct):
    """A member as the group has it now."""

    group: str
    member_id: str
    incarnation: int
    generation: int
    state: str
    assigned: list[AssignedTopic]
    """What it may read and commit."""
    revoking: list[AssignedTopic]
    """What it must give up: others wait for it."""


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
    """One partition: where the group goes on, and who reads it."""

    topic: str
    topic_id: str
    partition: int
    offset: int | None
    leader_epoch: int
    metadata: str
    committed_at_ms: int | None
    log_start_offset: int | None
    """Asked for with `lag=true`, as the next two; null where nobody leads the partition now."""
    log_end_offset: int | None
    lag: int | None
    member_id: str | None
    """Whose it is."""


class GroupOffsets(msgspec.Struct):
    group: str
    offsets: list[GroupOffset]


class OffsetToCommit(msgspec.Struct, forbid_unknown_fields=True):
    partition: Partition
    offset: Natural
    topic: Annotated[str, Meta(max_length=249)] = ""
    topic_id: TopicId | None = None
    """Rather than the name: a topic of the same name, made anew, is another."""
    leader_epoch: Annotated[int, Meta(ge=-1, le=2**31 - 1)] = -1
    metadata: Annotated[str, Meta(max_length=1_024)] = ""


class CommitOffsets(msgspec.Struct, forbid_unknown_fields=True):
    offsets: Annotated[list[OffsetToCommit], Meta(min_length=1, max_length=MAX_OFFSETS_PER_REQUEST)]
    member_id: Name = ""
    """Empty: of a consumer that assigns partitions to itself; the group then has no members."""
    incarnation: Natural = 0
    generation: Natural = 0


class SeekTopic(msgspec.Struct, forbid_unknown_fields=True):
    topic: Annotated[str, Meta(max_length=249)]
    partitions: Annotated[list[Partition], Meta(max_length=MAX_OFFSETS_PER_REQUEST)] | None = None
    """Null: all of them."""


class PlannedOffset(msgspec.Struct, forbid_unknown_fields=True):
    """A row of a plan, as it was answered."""

    topic: Annotated[str, Meta(max_length=249)]
    topic_id: TopicId
    partition: Partition
    offset: Natural | None
    """What is committed there; null: nothing."""
    new_offset: Natural


class SeekGroup(msgspec.Struct, forbid_unknown_fields=True):
    to: Literal["earliest", "latest", "offset", "timestamp", "shift", "duration", "planned"]
    value: Annotated[int, Meta(ge=-(2**62), le=2**62)] = 0
    """The offset; milliseconds since 1970; offsets forward (or, negative, back); milliseconds before now."""
    topics: Annotated[list[SeekTopic], Meta(max_length=MAX_SUBSCRIBED_TOPICS)] | None = None
    """Null: every partition in which the group has committed."""
    plan: bool = False
    """Only say what would become of it."""
    planned: Annotated[list[PlannedOffset], Meta(max_length=MAX_OFFSETS_PER_REQUEST)] = []
    """With `to` planned: do this, if these partitions are what they were when it was planned."""
    isolation: Literal["read_committed", "read_uncommitted"] = "read_committed"
    """What the group reads: the end of a partition is its last stable offset, or its high watermark."""


class SoughtOffset(msgspec.Struct):
    topic: str
    topic_id: str
    partition: int
    offset: int | None
    """Before."""
    new_offset: int
    log_start_offset: int
    log_end_offset: int


class SoughtGroup(msgspec.Struct):
    group: str
    applied: bool
    offsets: list[SoughtOffset]
