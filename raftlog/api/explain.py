"""Explanations: why a partition, a consumer group or a transaction is in its state, and what an operator can do."""

from __future__ import annotations

from typing import Literal

import msgspec

Severity = Literal["critical", "warning", "info"]


class Finding(msgspec.Struct, frozen=True):
    """One cause, with the facts that show it and its remedies. The first one of an explanation is the root cause."""

    code: str
    """A stable name: `node_dead`, `slow_disk`, `healthy`, ... (`docs/explain.md` lists them)."""
    severity: Severity
    summary: str
    """One sentence."""
    evidence: list[str] = []
    remedies: list[str] = []
    node: int | None = None
    """The node that the finding is about."""


class AccessDecision(msgspec.Struct, frozen=True):
    """The decision whether a principal may do something, with the rule behind it."""

    principal: str
    operation: str
    resource: str
    allowed: bool
    reason: str
    rule: str = ""
    """Empty: no rule is about it."""


class TimelineEntry(msgspec.Struct, frozen=True):
    """One change that the metadata quorum decided, or that a node observed."""

    text: str
    reason: str = ""
    time_ms: int | None = None
    """Cluster time in milliseconds since 1970; None if no node that answered remembers it."""
    index: int | None = None
    """Index in the metadata log."""


class ReplicaState(msgspec.Struct, frozen=True):
    """One replica, as its own node describes it now."""

    node: int
    role: str
    """`leader`, `follower`, `idle`, `offline`, `absent`, or `unknown` if its node did not answer."""
    in_sync: bool
    eligible: bool
    """Whether it may be elected: it vouches for every acknowledged record."""
    detail: str
    log_start_offset: int | None = None
    stable_end_offset: int | None = None
    """The first offset that is not fsynced on this replica."""
    log_end_offset: int | None = None
    high_watermark: int | None = None
    lag_records: int | None = None
    """Records that the leader has and this replica has not fsynced."""
    leader_epoch: int | None = None


class RecordPlace(msgspec.Struct, frozen=True):
    """A record on one replica."""

    node: int
    state: Literal["fsynced", "written", "absent", "deleted", "unknown"]
    """`written`: appended, but not fsynced yet. `deleted`: below the start of the log."""
    leader_epoch: int | None = None
    """The leader epoch in which this replica's copy was appended."""
    detail: str = ""


class RecordInfo(msgspec.Struct, frozen=True):
    """A record on all replicas."""

    offset: int
    committed: bool | None
    """Whether it is below the high watermark; None if that is unknown."""
    readable_committed: bool | None
    """Whether it is below the last stable offset, the end of what `read_committed` consumers see."""
    places: list[RecordPlace]
    not_before_ms: int | None = None
    """The earliest time of its append: the election of its leader epoch, if a node remembers that."""
    not_after_ms: int | None = None
    """The time of these answers: where it is fsynced now, it was fsynced at this time at the latest."""


class Consequence(msgspec.Struct, frozen=True):
    """The effects if one node stopped now."""

    node: int
    severity: Severity
    writes: str
    reads: str
    records: str
    metadata: str = ""
    """The effect on the metadata quorum, if the node is one of its voters."""


class Explanation(msgspec.Struct, frozen=True):
    """An explanation; parts that do not apply are empty."""

    kind: Literal["partition", "group", "transaction"]
    subject: str
    state: str
    """The state in one line."""
    findings: list[Finding]
    timeline: list[TimelineEntry] = []
    replicas: list[ReplicaState] = []
    record: RecordInfo | None = None
    consequences: list[Consequence] = []
    node_id: int = -1
    """The node that collected the facts."""
    metadata_index: int = 0
    time_ms: int = 0
    unanswered: dict[str, str] = {}
    """Nodes that did not answer, with the reason."""
