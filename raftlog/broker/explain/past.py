"""Past events that still explain a partition: elections after which acknowledged records may be missing, and restarts
after which a replica copies again. Pure: each function returns findings.

The causes are taken from the remembered changes, since the quorum's record keeps no mark of a replica once it is in
sync again, or once it is no member of ISR or commit set.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from raftlog.api.explain import Finding

from .case import PartitionCase
from .facts import NodeFacts
from .history import Change
from .wording import nodes, records, seconds

LOOK_BACK_MS = 24 * 3_600_000
"""Elections are findings for this long; after that they are lines of the timeline."""
UNCLEAN = ("unclean_restart", "other_folder")
"""The reasons of changes by which a restarted node's replica was marked, or left the ISR."""


def past_elections(case: PartitionCase) -> list[Finding]:
    """Return the newest election that chose among replicas none of which could vouch for every acknowledged record."""
    changes = [one for one in case.cluster.changes if one.topic_id]
    for at in range(len(changes) - 1, -1, -1):
        change = changes[at]
        if case.cluster.now_ms - change.time_ms > LOOK_BACK_MS:
            break
        if change.kind == "leader" and change.reason == "recovery":
            return [_recovery(case, change, _restarts_before(changes, at))]
        if change.kind == "leader" and change.reason == "unclean":
            return [_unclean(case, change)]
    return []


def unclean_return(case: PartitionCase, facts: NodeFacts) -> Finding | None:
    """Return the finding if a replica is not in sync because its node restarted and could not vouch for it."""
    back = _return_of(case, facts.node)
    if back is None:
        return None
    lag = case.lag(facts.node)
    elsewhere = back.reason != "unclean_restart"
    how = (
        "came back with another data folder, without the replica that it had"
        if elsewhere
        else "restarted after an unclean stop or damage, and could not vouch for all records of its replica"
    )
    ago = f"{seconds((case.cluster.now_ms - back.time_ms) / 1000)} ago"
    return Finding(
        "unclean_restart",
        "warning",
        f"node {facts.node} {how}, so it left the ISR and copies from the leader what it lacks",
        [
            f"it registered {ago}",
            *([f"its log ended at {back.log_end}"] if back.log_end >= 0 else []),
            *([f"it is {records(lag)} behind the leader"] if lag is not None else []),
        ],
        [
            "none: it rejoins the ISR when it has caught up. Run this command again and compare the lag",
            f"if its disk or folder was not replaced, look for the cause in node {facts.node}'s log and machine"
            if elsewhere
            else f"look for the cause in node {facts.node}'s log (a crash, a power failure, a disk error)",
        ],
        facts.node,
    )


def _return_of(case: PartitionCase, node: int) -> Change | None:
    """Return the change by which a restart took this node's replica out, if it has not caught up since."""
    for change in reversed(case.cluster.changes):
        if change.about != node:
            continue
        if change.reason in UNCLEAN or change.reason == "registered_elsewhere":
            return change
        if change.topic_id:
            return None
    return None


def _recovery(case: PartitionCase, change: Change, restarts: Mapping[int, Change]) -> Finding:
    end = _end_of(case, change, restarts)
    beyond = f"at offset {end} and beyond" if end is not None else "beyond the end of its log"
    where = f" It ended at offset {end}." if end is not None else ""
    if case.flush == "os":
        effect = f"The topic has flush=os, so acknowledged records that were not written back, {beyond}, are lost"
        remedies = [
            f"if the topic must survive a stop of all its nodes: raftlog topic alter {case.topic} --set flush=fsync",
            f"send again what producers sent in the seconds before the stop; consumers may have seen records {beyond} "
            "that are gone",
        ]
    else:
        few = case.record.min_insync_replicas
        effect = (
            "The topic has flush=fsync, so that log has every acknowledged record, unless "
            f"{'the disk' if few == 1 else f'{few} or more of the disks'} lost what had been fsynced"
        )
        remedies = [
            f"if a disk was replaced or damaged: raftlog partition verify {case.topic} compares the replicas",
            "otherwise none",
        ]
    remedies.append("look for the cause of the stops in the nodes' logs: a power failure, a crash, a kill")
    names = nodes(restarts) if restarts else "all nodes that could lead"
    return Finding(
        "recovery_election",
        "warning",
        f"{names} restarted, and none could vouch for all records, so a recovery election gave {case.name} "
        f"{_ago(case, change)} to node {change.leader}, whose log was the longest that came back.{where} {effect}",
        [
            *(_restart_line(one) for one in restarts.values()),
            f"node {change.leader} began leader epoch {change.leader_epoch}",
        ],
        remedies,
        change.leader,
    )


def _unclean(case: PartitionCase, change: Change) -> Finding:
    end = _end_of(case, change, {})
    beyond = f"at offset {end} and beyond" if end is not None else "beyond the end of its log"
    return Finding(
        "unclean_election",
        "warning",
        f"an operator's unclean election gave {case.name} {_ago(case, change)} to node {change.leader}: acknowledged "
        f"records {beyond}, which only other replicas had, are lost",
        [f"node {change.leader} began leader epoch {change.leader_epoch}"],
        [
            "compare what producers sent and what consumers had read with what is there now",
            "the audit log names the operator (GET /v1/audit, or the page Audit of the console)",
        ],
        change.leader,
    )


def _ago(case: PartitionCase, change: Change) -> str:
    return f"{seconds(max(0, case.cluster.now_ms - change.time_ms) / 1000)} ago"


def _restart_line(change: Change) -> str:
    end = f"; its log ended at {change.log_end}" if change.log_end >= 0 else ""
    how = "with another data folder" if change.reason == "other_folder" else "after an unclean stop or damage"
    return f"node {change.about} came back {how}{end}"


def _restarts_before(changes: Sequence[Change], at: int) -> dict[int, Change]:
    """Return each node's unclean restart that led to the election at this place of the partition's changes."""
    found: dict[int, Change] = {}
    recovered: set[int] = set()
    for change in reversed(changes[:at]):
        if change.kind == "leader" and change.leader >= 0:
            break
        if change.reason == "caught_up":
            recovered.add(change.about)
        elif change.reason in UNCLEAN and change.about not in recovered:
            found.setdefault(change.about, change)
    return dict(sorted(found.items()))


def _end_of(case: PartitionCase, change: Change, restarts: Mapping[int, Change]) -> int | None:
    """Return the end of the log that an election chose: where its epoch began, or where its node said that it ends."""
    replicas = [facts.replica for facts in case.cluster.answered() if facts.replica is not None]
    starts = [start for replica in replicas for epoch, start in replica.epochs if epoch == change.leader_epoch]
    reported = restarts[change.leader].log_end if change.leader in restarts else -1
    return starts[0] if starts else reported if reported >= 0 else None
