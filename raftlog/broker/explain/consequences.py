"""The effects if one node stopped now, for each node that holds a replica or votes. Pure.

A stop is not a loss: the disk stays. Losses if the disk goes as well are listed apart.
"""

from __future__ import annotations

from collections.abc import Sequence

from raftlog.api.explain import Consequence, Severity
from raftlog.config import majority

from .case import PartitionCase
from .wording import nodes, records


def consequences_of(case: PartitionCase) -> list[Consequence]:
    """Return the consequences of each node's stop, the replicas in their order and then the other voters."""
    others = [voter for voter in case.cluster.voters if voter not in case.record.replicas]
    return [_of_replica(case, node) for node in case.record.replicas] + [_of_voter(case, node) for node in others]


def _live(case: PartitionCase, node: int) -> bool:
    """Return whether a node can lead: it is not fenced, and answered or was never asked."""
    return not case.cluster.is_fenced(node) and case.cluster.silence(node) is None


def _of_replica(case: PartitionCase, node: int) -> Consequence:
    record = case.record
    if not _live(case, node):
        return Consequence(
            node, "info", "no further effect: it is out already", "no further effect", "none", _metadata(case, node)
        )
    isr = [member for member in record.isr if member != node] or list(record.isr)
    remaining = [member for member in isr if member != node]
    candidates = [
        member
        for member in dict.fromkeys((*remaining, *record.commit_set))
        if member != node and member not in record.not_eligible and _live(case, member)
    ]
    metadata = _metadata(case, node)
    severity: Severity = "info"
    frozen = "cannot elect" in metadata
    if record.leader == node and (not candidates or frozen):
        severity = "critical"
        who = f"until node {node} is back" if not frozen else "until the quorum has a majority again"
        writes = reads = f"stop {who}: no other replica could be elected"
    elif record.leader == node:
        severity = "warning"
        next_leader = next(member for member in (*record.replicas, *candidates) if member in candidates)
        writes = reads = f"pause for about a second: node {next_leader} would be elected"
    else:
        writes = reads = "go on"
    if node in record.isr and len(remaining) < record.min_insync_replicas and not writes.startswith("stop"):
        severity = "critical"
        writes = (
            f"with acks=all stop: {len(remaining)} of {record.min_insync_replicas} required replicas would be in sync"
        )
    elif node in record.isr and record.leader != node:
        writes += f"; the ISR would be {','.join(map(str, remaining))}"
    return Consequence(node, severity, writes, reads, _records(case, node, remaining), metadata)


def _records(case: PartitionCase, node: int, remaining: Sequence[int]) -> str:
    record = case.record
    leading = case.leading
    parts = []
    if leading is not None and node == record.leader and leading.log_end > leading.high_watermark:
        parts.append(
            f"{records(leading.log_end - leading.high_watermark)} above the high watermark "
            f"({leading.high_watermark}) are not on all in-sync replicas: those acknowledged with acks=1 may be lost"
        )
    if node in record.isr and not remaining:
        copies = [member for member in record.commit_set if member != node and member not in record.not_eligible]
        parts.append(
            "it holds the only complete copy: with its disk, acknowledged records would be lost"
            if not copies
            else f"{nodes(copies)} of the last sufficient ISR hold every acknowledged record, too"
        )
    elif node in record.isr:
        parts.append(
            f"no acknowledged record, even with its disk: all of them are fsynced on {nodes(remaining)} as well"
        )
    else:
        parts.append("none: it is not in sync, so no acknowledgement rests on it")
    if case.flush == "os":
        parts.append("the topic has flush=os: what was not written back is lost if all replicas lose power")
    return "; ".join(parts)


def _metadata(case: PartitionCase, node: int) -> str:
    voters = case.cluster.voters
    if node not in voters:
        return ""
    left = [voter for voter in case.cluster.voters_heard if voter != node]
    if len(left) < majority(len(voters)):
        return f"the quorum loses its majority ({len(left)} of {len(voters)} voters): it cannot elect leaders"
    election = "; it leads the quorum, and another voter is elected" if node == case.cluster.quorum_leader else ""
    return f"the quorum goes on with {len(left)} of {len(voters)} voters{election}"


def _of_voter(case: PartitionCase, node: int) -> Consequence:
    metadata = _metadata(case, node)
    severity: Severity = "critical" if "loses" in metadata else "info"
    return Consequence(node, severity, "go on", "go on", "none: it has no replica", metadata)
