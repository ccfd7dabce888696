"""The tables of `raftlog top`.

This module is pure.
"""

from __future__ import annotations

from raftlog.cli.terminal.output import dash, table
from raftlog.quantities import shown_size

from .rates import Changes


def render(changes: Changes, rows: int) -> str:
    """Return the tables, with at most `rows` topics and groups each."""
    total = sum(one.records_per_second for one in changes.topics)
    offline = sum(one.offline for one in changes.topics)
    under = sum(one.under_replicated for one in changes.topics)
    head = (
        f"cluster {changes.cluster_id}   controller {dash(changes.controller)}   term {changes.term}   "
        f"{total:,.0f} records/s   {under} under-replicated   {offline} offline   "
        f"{changes.elections} elections in {changes.seconds:g} s"
    )
    if changes.quorum_elections:
        head += f", {changes.quorum_elections} of the quorum"
    nodes = [
        (f"{one.node}{'*' if one.is_controller else ''}", one.api, one.status, one.leads, one.replicas, one.problems)
        for one in changes.nodes
    ]
    topics = [
        (
            one.topic, f"{one.records_per_second:,.1f}", _rate(one.bytes_per_second), shown_size(one.bytes),
            one.under_replicated, one.offline, one.elections,
        )
        for one in changes.topics[:rows]
    ]  # fmt: skip
    groups = [
        (one.group, one.state, one.members, one.lag, f"{one.committed_per_second:,.1f}", f"{one.lag_per_second:+,.1f}")
        for one in changes.groups[:rows]
    ]
    parts = [
        head,
        table(("Node", "Api", "Status", "Leads", "Replicas", "Problems"), nodes),
        table(("Topic", "Records/s", "Bytes/s", "Size", "UnderReplicated", "Offline", "Elections"), topics),
        table(("Group", "State", "Members", "Lag", "Committed/s", "Lag/s"), groups),
    ]
    hidden = max(0, len(changes.topics) - rows) + max(0, len(changes.groups) - rows) + changes.left_out
    if hidden:
        parts.append(f"and {hidden} more topics and groups")
    return "\n\n".join(parts)


def _rate(size: float) -> str:
    return f"-{shown_size(round(-size))}" if size < 0 else shown_size(round(size))
