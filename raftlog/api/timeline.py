"""The timeline of the cluster: elections, changes of in-sync replicas, and faults of nodes."""

from __future__ import annotations

from typing import Literal

import msgspec

from .explain import Severity

ChangeKind = Literal["leader", "isr", "replicas", "broker", "quorum"]
MAX_CHANGES = 1_000
"""The most changes of one answer."""


class ClusterChange(msgspec.Struct, frozen=True):
    """One change that the metadata quorum decided, or that this node observed."""

    kind: ChangeKind
    """`leader` and `isr` are about a partition, `broker` about a node, `quorum` about the metadata quorum's leader."""
    severity: Severity
    text: str
    """In plain words."""
    reason: str = ""
    """A stable name (`docs/explain.md` lists them)."""
    time_ms: int = 0
    """Cluster time in milliseconds since 1970 at which the node applied it."""
    index: int = 0
    """Index in the metadata log."""
    topic: str | None = None
    partition: int | None = None
    node: int | None = None
    """The node that the change is about."""


class Timeline(msgspec.Struct, frozen=True):
    """The changes that this node remembers, the newest first."""

    changes: list[ClusterChange]
    more: bool = False
    """Whether it remembers older ones that fit."""
