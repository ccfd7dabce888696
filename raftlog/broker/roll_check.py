"""Whether a node may be stopped now without loss of availability: the check before each step of a rolling restart.

A node that stops hands its leaderships over and writes its logs out, so no acknowledged record is at risk (S1). Other
replicas must take its place meanwhile: each of its partitions needs an in-sync replica that can lead, and enough of
them for `acks=all`; the metadata quorum needs a majority. Reads the view; decides nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from metadata.view import ClusterView
from raftlog.config import majority
from raftlog.model import NO_BROKER, BrokerId, PartitionRecord, QuorumStatus

LINES_MAX = 20
"""Maximum number of partitions that are named. The rest is only counted."""
PARTITIONS_PER_TURN = 1_000
"""Partitions that are looked at in one turn of the event loop."""
LAG_MAX = 1_000
"""Entries by which a voter's log may lag for the voter to count: it catches up in well under an election timeout."""


async def roll_reasons(view: ClusterView, quorum: QuorumStatus, node: BrokerId) -> list[str]:
    """Return the reasons against stopping a node now, one line each; empty if it may be stopped.

    `quorum` is the status of the quorum's leader; the view is up to date.
    """
    reasons = [*quorum_reasons(view, quorum, node), *_disk_reasons(view, node)]
    found = 0
    looked_at = 0
    for topic in view.topics():
        for record in view.partitions_of(topic.topic_id):
            looked_at += 1
            if looked_at % PARTITIONS_PER_TURN == 0:
                await asyncio.sleep(0)
            reason = partition_reason(view, record, node)
            if not reason:
                continue
            found += 1
            if found <= LINES_MAX:
                reasons.append(f"{topic.name}/{record.topic_partition.partition} {reason}")
    if found > LINES_MAX:
        reasons.append(f"... and {found - LINES_MAX} more partitions like the last")
    return reasons


def partition_reason(view: ClusterView, record: PartitionRecord, node: BrokerId) -> str:
    """Return why a partition needs this node now; empty if it does not."""
    if node not in record.replicas:
        return ""
    if record.is_moving:
        return f"is being moved, and node {node} takes part: wait until the move is complete"
    if not record.has_leader:
        return f"has no leader, and may need node {node}: {view.explain_offline(record.topic_partition)}"
    if node not in record.isr:
        return ""
    if len(record.replicas) == 1:
        return f"has no other replica than the one on node {node}"
    others = [
        replica
        for replica in record.isr
        if replica != node and view.alive(replica) and replica not in record.not_eligible
    ]
    if not others:
        return f"has no other live in-sync replica than the one on node {node}"
    if len(others) < record.min_insync_replicas:
        return (
            f"would have {len(others)} of {record.min_insync_replicas} required in-sync replicas, so acks=all would be "
            "refused"
        )
    return ""


def quorum_reasons(view: ClusterView, quorum: QuorumStatus, node: BrokerId) -> Sequence[str]:
    """Return why the metadata quorum needs this node now."""
    if quorum.leader == NO_BROKER:
        return ["the metadata quorum has no leader"]
    if node not in quorum.voters:
        return []
    if quorum.node_id != quorum.leader:
        return [f"the leader of the metadata quorum, node {quorum.leader}, does not answer"]
    needed = majority(len(quorum.voters))
    others = [voter for voter in quorum.voters if voter != node]
    takes_part = [voter for voter in others if _takes_part(view, quorum, voter)]
    if len(takes_part) >= needed:
        return []
    missing = [str(voter) for voter in others if voter not in takes_part]
    because = f": node {', '.join(missing)} is down or behind" if missing else ""
    return [
        f"the metadata quorum would have {len(takes_part)} of {len(quorum.voters)} voters, and needs {needed}{because}"
    ]


def _takes_part(view: ClusterView, quorum: QuorumStatus, voter: BrokerId) -> bool:
    """Return whether a voter is up and nearly up to date."""
    if voter in quorum.forgetful or not view.alive(voter):
        return False
    matched = quorum.match_index.get(voter)
    return voter == quorum.leader or (matched is not None and matched >= quorum.last_index - LAG_MAX)


def _disk_reasons(view: ClusterView, node: BrokerId) -> list[str]:
    """Return the nodes that refuse batches, and so cannot lead partitions in place of this node."""
    return [
        f"node {other.broker_id} is short of room on its disk and refuses batches: it cannot take over from node {node}"
        for other in view.brokers()
        if other.short_of_room and other.broker_id != node
    ]
