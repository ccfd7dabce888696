"""Two samples as rates and events.

This module is pure.
"""

from __future__ import annotations

import msgspec

from .sample import Sample


class TopicRate(msgspec.Struct, frozen=True):
    """A topic between two samples."""

    topic: str
    records_per_second: float
    bytes_per_second: float
    """Over all replicas; negative while old segments are deleted."""
    bytes: int
    under_replicated: int
    offline: int
    elections: int


class GroupRate(msgspec.Struct, frozen=True):
    """A group between two samples."""

    group: str
    state: str
    members: int
    lag: int
    committed_per_second: float
    lag_per_second: float
    """Negative while the group catches up."""


class NodeRow(msgspec.Struct, frozen=True):
    """A node at the later sample."""

    node: int
    api: str
    status: str
    leads: int
    replicas: int
    problems: int
    is_controller: bool


class Changes(msgspec.Struct, frozen=True):
    """A cluster between two samples, the busiest first."""

    cluster_id: str
    seconds: float
    controller: int | None
    term: int
    elections: int
    """Elections of partition leaders."""
    quorum_elections: int
    topics: list[TopicRate]
    groups: list[GroupRate]
    nodes: list[NodeRow]
    left_out: int


def between(before: Sample, after: Sample) -> Changes:
    """Return what changed. A topic that is new, or was created again, begins with no rate."""
    seconds = max(after.at - before.at, 1e-3)
    topics = []
    for name, now in after.topics.items():
        past = before.topics.get(name)
        if past is None or past.leader_epochs > now.leader_epochs:
            past = now
        records = max(0, now.end_offset - past.end_offset)
        topics.append(
            TopicRate(
                name,
                round(records / seconds, 1),
                round((now.bytes - past.bytes) / seconds, 1),
                now.bytes,
                now.under_replicated,
                now.offline,
                now.leader_epochs - past.leader_epochs,
            )
        )
    groups = []
    for name, group in after.groups.items():
        earlier = before.groups.get(name, group)
        committed = round((group.committed - earlier.committed) / seconds, 1)
        growth = round((group.lag - earlier.lag) / seconds, 1)
        groups.append(GroupRate(name, group.state, group.members, group.lag, committed, growth))
    nodes = [
        NodeRow(number, one.api, one.status, one.leads, one.replicas, one.problems, number == after.controller)
        for number, one in sorted(after.nodes.items())
    ]
    return Changes(
        after.cluster_id,
        round(seconds, 2),
        after.controller,
        after.term,
        sum(one.elections for one in topics),
        max(0, after.term - before.term),
        sorted(topics, key=lambda one: (-one.offline, -one.records_per_second, one.topic)),
        sorted(groups, key=lambda one: (-one.lag, one.group)),
        nodes,
        after.left_out,
    )
