"""The partitions of the cluster at a glance."""

from __future__ import annotations

import msgspec

MAX_LACKING = 50
"""The most partitions of one answer that lack something."""


class NodeShare(msgspec.Struct, frozen=True):
    """The share of one node."""

    node: int
    leaders: int
    replicas: int
    in_sync: int


class LackingPartition(msgspec.Struct, frozen=True):
    """A partition without a leader, or with too few replicas in sync."""

    topic: str
    partition: int
    leader: int | None
    isr: list[int]
    replicas: list[int]


class PartitionsSummary(msgspec.Struct, frozen=True):
    """The partitions of all topics that the caller may describe."""

    topics: int
    partitions: int
    without_leader: int
    under_replicated: int
    """Partitions with fewer replicas in sync than they have, without those that a reassignment adds."""
    moving: int
    nodes: list[NodeShare]
    lacking: list[LackingPartition]
    """The first partitions that lack something, by topic."""
