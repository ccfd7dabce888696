"""The explanation of a partition. A pure core: a `PartitionCase` in, an `Explanation` out.

The findings are ordered so that the root cause comes first: what stops everything (a quorum without majority), then
what stops this partition (its leader is cut off, it has no leader, too few replicas are in sync, its leader cannot
write), then each replica's own trouble, and at last what concerns readers and callers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from raftlog.api.explain import Explanation, Finding, RecordInfo, RecordPlace, ReplicaState
from raftlog.model import BrokerId

from .case import PartitionCase
from .causes import cut_off_findings, expired_certificate, full_disk, moving, quorum_findings, replica_cause, slow_disk
from .consequences import consequences_of
from .past import past_elections
from .timeline import timeline_of
from .wording import nodes, records, seconds

RANK = (
    "quorum_without_majority", "leader_cut_off", "expired_certificate", "acl_denied", "no_leader", "below_min_isr",
    "full_disk", "replica_offline", "node_dead", "network_cut", "heartbeats_lost", "node_cut_off", "unclean_restart",
    "replica_repairing", "slow_disk", "replica_opening", "node_unreachable", "isr_shrunk", "throttled_move",
    "open_transaction", "quorum_without_leader", "voter_lost", "move_in_progress", "unclean_election",
    "recovery_election", "not_preferred", "healthy",
)  # fmt: skip
"""The codes of findings about a partition, the root cause of others before them."""


def explain_partition(case: PartitionCase) -> Explanation:
    """Return why a partition is in its state."""
    cluster = case.cluster
    findings = _ordered(_findings(case)) or [_healthy(case)]
    silent = {str(node): found.reason for node in cluster.answers if (found := cluster.silence(node)) is not None}
    return Explanation(
        "partition",
        case.name if case.offset is None else f"{case.name}@{case.offset}",
        _state(case),
        findings,
        timeline_of(case),
        [_replica_state(case, node) for node in case.record.replicas],
        None if case.offset is None else _record_info(case, case.offset),
        consequences_of(case),
        cluster.asker,
        cluster.index,
        cluster.now_ms,
        silent,
    )


def _ordered(findings: Iterable[Finding]) -> list[Finding]:
    unique = {(found.code, found.node): found for found in reversed(list(findings))}
    return sorted(unique.values(), key=lambda one: (RANK.index(one.code), one.node is None, one.node or 0))


def _findings(case: PartitionCase) -> list[Finding]:
    record, cluster = case.record, case.cluster
    settled = [replica for replica in record.replicas if replica not in record.adding_replicas]
    outside = [replica for replica in settled if replica not in record.isr]
    if not record.has_leader:
        outside = settled
    causes = {node: replica_cause(case, node) for node in outside if not (node in record.isr and _is_well(case, node))}
    found = [*quorum_findings(cluster), *cut_off_findings(cluster, record.leader if record.has_leader else None)]
    found += causes.values()
    if not record.has_leader:
        found.append(_no_leader(case, causes))
    elif len(record.isr) < record.min_insync_replicas:
        found.append(_below_minimum(case, causes))
    for node in record.isr if record.has_leader else ():
        found += _in_sync_trouble(case, node)
    for node in record.adding_replicas:
        if node not in record.isr:
            found.append(replica_cause(case, node) if cluster.node(node) is None else moving(case, node))
    if record.has_leader and record.leader != record.replicas[0] and record.replicas[0] in record.isr:
        found.append(_not_preferred(case))
    past = past_elections(case) if record.has_leader else []
    return found + past + _transactions(case) + _access(case)


def _is_well(case: PartitionCase, node: int) -> bool:
    replica = case.replica(node)
    eligible = node not in case.record.not_eligible
    return replica is not None and not replica.offline and eligible and not case.cluster.is_fenced(node)


def _in_sync_trouble(case: PartitionCase, node: int) -> list[Finding]:
    """Return what is wrong with a replica although it is in sync."""
    facts = case.cluster.node(node)
    if facts is None:
        return [replica_cause(case, node)]
    found = [full_disk(case, facts), slow_disk(case, facts)]
    if facts.expired:
        found.append(expired_certificate(node, "; ".join(facts.expired)))
    replica = facts.replica
    if replica is not None and (replica.offline or replica.repair or case.cluster.is_fenced(node)):
        found.append(replica_cause(case, node))
    if replica is not None and replica.role == "follower" and replica.link in ("detached", "asking"):
        found.append(replica_cause(case, node))
    return [one for one in found if one is not None]


def _because(causes: Mapping[BrokerId, Finding]) -> str:
    return "; ".join(found.summary for found in causes.values())


def _no_leader(case: PartitionCase, causes: Mapping[BrokerId, Finding]) -> Finding:
    record = case.record
    members = sorted({*record.isr, *record.commit_set})
    remedies = [remedy for found in causes.values() for remedy in found.remedies[:1]]
    return Finding(
        "no_leader",
        "critical",
        f"{case.name} has no leader, so it takes and serves nothing: {case.offline or 'an election is under way'}",
        [
            f"only {nodes(members)} may hold every acknowledged record (ISR or last sufficient ISR)",
            *(f"node {node}: {found.summary}" for node, found in causes.items()),
        ],
        [
            *(remedies or ["wait for a second: an election is under way"]),
            "if those members never return: raftlog cluster elect --unclean --i-accept-data-loss, which may "
            "lose acknowledged records",
        ],
    )


def _below_minimum(case: PartitionCase, causes: Mapping[BrokerId, Finding]) -> Finding:
    record = case.record
    few = len(record.replicas) < record.min_insync_replicas
    why = _because(causes) or ("min.insync.replicas exceeds the number of replicas" if few else "a change is under way")
    remedies = [remedy for found in causes.values() for remedy in found.remedies[:1]]
    if few:
        remedies.append("lower min.insync.replicas (raftlog topic alter), or add replicas (raftlog cluster reassign)")
    return Finding(
        "below_min_isr",
        "critical",
        f"{case.name} refuses writes with acks=all: {len(record.isr)} of {record.min_insync_replicas} required "
        f"replicas are in sync, because {why}",
        [
            f"ISR {','.join(map(str, record.isr))} of replicas {','.join(map(str, record.replicas))}, "
            f"min.insync.replicas {record.min_insync_replicas}",
            "consumers still read what is below the high watermark, which does not advance",
        ],
        remedies or ["wait for the replicas to catch up; this command shows their lag"],
    )


def _not_preferred(case: PartitionCase) -> Finding:
    return Finding(
        "not_preferred",
        "info",
        f"node {case.record.leader} leads, although node {case.record.replicas[0]} is preferred and in sync",
        [],
        ["raftlog cluster elect gives the leadership back; the load is then spread as planned"],
        case.record.leader,
    )


def _transactions(case: PartitionCase) -> list[Finding]:
    leading = case.leading
    if leading is None or not leading.open or not 0 <= leading.last_stable < leading.high_watermark:
        return []
    first = min(leading.open, key=lambda one: one.first_offset)
    by = case.producers.get(first.producer_id)
    name = f"transactional id {by.transactional_id!r}" if by is not None and by.transactional_id else "a producer"
    age = f"for {seconds(first.age)}" if first.age >= 0 else "since before this leadership"
    evidence = [
        f"its first record here is at {first.first_offset}",
        f"{records(leading.high_watermark - leading.last_stable)} wait behind it",
        f"{leading.open_count} transactions are open in this partition",
    ]
    if by is not None and by.timeout_ms is not None:
        evidence.append(f"its timeout is {seconds(by.timeout_ms / 1000)}; then it is aborted by itself")
    return [
        Finding(
            "open_transaction",
            "warning",
            f"an open transaction of {name} (producer {first.producer_id}, epoch {first.producer_epoch}) holds the "
            f"last stable offset at {leading.last_stable} {age}: read_committed consumers wait there",
            evidence,
            [
                "let its producer commit or abort it",
                f"if the producer is gone: raftlog transaction abort --producer-id {first.producer_id}",
                *(
                    [f"raftlog explain transaction {by.transactional_id}"]
                    if by is not None and by.transactional_id
                    else []
                ),
            ],
        )
    ]


def _access(case: PartitionCase) -> list[Finding]:
    return [
        Finding(
            "acl_denied",
            "warning",
            f"{one.principal} may not {one.operation} {one.resource}: {one.reason}",
            [f"the rule that decides: {one.rule}"] if one.rule else ["no rule allows it, and without one it is denied"],
            [
                f"raftlog acl delete the denying rule: {one.rule}"
                if one.rule
                else f"raftlog acl create --principal {one.principal} --operation {one.operation}, for {one.resource}",
                "raftlog acl check shows the decision after the change",
            ],
        )
        for one in case.access
        if not one.allowed
    ]


def _healthy(case: PartitionCase) -> Finding:
    return Finding(
        "healthy",
        "info",
        f"{case.name} is well: node {case.record.leader} leads in epoch {case.record.leader_epoch}, and all "
        f"{len(case.record.replicas)} replicas are in sync",
    )


def _state(case: PartitionCase) -> str:
    record = case.record
    led = f"led by node {record.leader}" if record.has_leader else "without leader"
    settled = [replica for replica in record.replicas if replica not in record.adding_replicas]
    in_sync = len(set(settled).intersection(record.isr))
    writes = "takes writes"
    if not record.has_leader:
        writes = "takes no writes"
    elif len(record.isr) < record.min_insync_replicas:
        writes = "refuses writes with acks=all"
    moving_now = f", moving to {','.join(map(str, record.target_replicas))}" if record.target_replicas else ""
    return (
        f"{led}, leader epoch {record.leader_epoch}, {in_sync} of {len(settled)} replicas in sync "
        f"(minimum {record.min_insync_replicas}), {writes}{moving_now}"
    )


def _replica_state(case: PartitionCase, node: int) -> ReplicaState:
    record, facts = case.record, case.cluster.node(node)
    state = ReplicaState(node, "unknown", node in record.isr, node not in record.not_eligible, "")
    silence = case.cluster.silence(node)
    if facts is None:
        return msgspec.structs.replace(
            state,
            detail="no answer" if silence is None else f"no answer: {silence.reason}",
            lag_records=case.lag(node),
        )
    replica = facts.replica
    if replica is None or replica.role == "absent":
        return msgspec.structs.replace(state, role="absent", detail="not open on this node")
    detail = replica.offline or replica.repair or replica.hindered
    if not detail and replica.role == "follower":
        detail = f"link {replica.link}"
    return ReplicaState(
        node, replica.role, state.in_sync, state.eligible, detail, replica.log_start, replica.stable_end,
        replica.log_end, replica.high_watermark, case.lag(node), replica.leader_epoch,
    )  # fmt: skip


def _record_info(case: PartitionCase, offset: int) -> RecordInfo:
    leading = case.leading
    places = [_place(case, node, offset) for node in case.record.replicas]
    epochs = {place.leader_epoch for place in places if place.leader_epoch is not None}
    begun = [one.time_ms for one in case.cluster.changes if one.kind == "leader" and one.leader_epoch in epochs]
    committed = None if leading is None else offset < leading.high_watermark
    readable = None if leading is None or leading.last_stable < 0 else offset < leading.last_stable
    return RecordInfo(offset, committed, readable, places, min(begun, default=None), case.cluster.now_ms)


def _place(case: PartitionCase, node: int, offset: int) -> RecordPlace:
    replica = case.replica(node)
    if replica is None:
        known = [one for one in case.leading.followers if one.broker == node] if case.leading is not None else []
        if known and known[0].matched and offset < known[0].stable_end:
            return RecordPlace(node, "fsynced", detail="as the leader knows; the node itself did not answer")
        return RecordPlace(node, "unknown", detail="the node did not answer")
    if replica.role == "absent":
        return RecordPlace(node, "absent", detail="the replica is not open")
    if offset < replica.log_start:
        return RecordPlace(node, "deleted", detail=f"the log begins at {replica.log_start}")
    if offset >= replica.log_end:
        return RecordPlace(node, "absent", detail=f"the log ends at {replica.log_end}")
    epoch = replica.epoch_at if replica.epoch_at >= 0 else None
    if offset < replica.stable_end:
        return RecordPlace(node, "fsynced", epoch, f"everything below {replica.stable_end} is fsynced here")
    return RecordPlace(node, "written", epoch, f"only what is below {replica.stable_end} is fsynced here")
