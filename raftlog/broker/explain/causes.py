"""The causes that lie in one node, one replica, or the metadata quorum. Pure: each function returns findings.

The rule for a replica that is not in sync tries the explanations from the most certain to the least: a certificate that
was refused, a node without heartbeats, a node that is up but cut off, a replica out of service, a full disk, a missing
link to the leader, a slow disk, a throttle, an unclean restart, and at last plain lag.
"""

from __future__ import annotations

from raftlog.api.explain import Finding, Severity
from raftlog.config import majority

from .case import ClusterCase, PartitionCase
from .facts import NodeFacts, ReplicaFacts, Unanswered
from .past import unclean_return
from .wording import nodes, records, seconds, size

SLOW_RUNNING_SECONDS = 1.0
"""An fsync that takes longer shows a slow disk."""
SLOW_MEDIAN_SECONDS = 0.25
"""So does a median of recent fsyncs above this."""
SLOW_COUNT = 3
"""The number of recent fsyncs that a median needs."""


# --- The quorum ------------------------------------------------------------------------------------------------------


def quorum_findings(case: ClusterCase) -> list[Finding]:
    """Return what is wrong with the metadata quorum, the worst first."""
    voters, heard = case.voters, case.voters_heard
    missing = [voter for voter in voters if voter not in heard]
    forgetful = sorted({node for facts in case.answered() for node in facts.quorum.forgetful})
    if not case.has_majority:
        return [_no_majority(case, missing)]
    found = []
    if case.quorum_leader < 0:
        found.append(
            Finding(
                "quorum_without_leader",
                "critical",
                f"the metadata quorum has no leader, although {len(heard)} of {len(voters)} voters answer: an election "
                "is under way, or the voters cannot reach one another on their data addresses",
                [_quorum_line(case, voter) for voter in voters],
                ["if this lasts for more than a few seconds, check the network between the voters' data addresses"],
            )
        )
    for voter in missing:
        spare = len(voters) - len(missing) - majority(len(voters))
        severity: Severity = "warning" if spare > 0 or len(heard) >= majority(len(voters)) else "critical"
        found.append(_voter_lost(case, voter, spare, severity))
    for node in forgetful:
        found.append(
            Finding(
                "voter_lost",
                "critical",
                f"node {node} lost entries of the metadata log that it had acknowledged, so it votes no more",
                ["its disk was rolled back, or it lost writes that it had confirmed"],
                [f"raftlog quorum remove {node}, prepare a new data folder there, start it, raftlog quorum add {node}"],
                node,
            )
        )
    return found


def _no_majority(case: ClusterCase, missing: list[int]) -> Finding:
    voters = case.voters
    needed = majority(len(voters)) - len(case.voters_heard)
    return Finding(
        "quorum_without_majority",
        "critical",
        f"the metadata quorum has no majority: {len(case.voters_heard)} of {len(voters)} voters answer, "
        f"{majority(len(voters))} are needed, and {nodes(missing)} {'does' if len(missing) == 1 else 'do'} not. "
        "Nothing can be decided: no election, no ISR change, no offset commit",
        [_quorum_line(case, voter) for voter in voters],
        [
            f"start {nodes(missing)}, or repair the network to {'it' if len(missing) == 1 else 'them'}: {needed} more "
            f"{'voter is' if needed == 1 else 'voters are'} enough",
            "partitions whose leader and in-sync replicas are up still take and serve records until their leader "
            "changes",
            "if the voters' disks are gone for good, restore them: a quorum without majority cannot replace them",
        ],
    )


def _quorum_line(case: ClusterCase, voter: int) -> str:
    facts, silence = case.node(voter), case.silence(voter)
    if facts is None:
        return f"voter {voter}: no answer: {silence.reason if silence is not None else 'not asked'}"
    leader = f"leader {facts.quorum.leader}" if facts.quorum.leader >= 0 else "no leader"
    return f"voter {voter}: {leader}, term {facts.quorum.term}, applied up to {facts.quorum.applied}"


def _voter_lost(case: ClusterCase, voter: int, spare: int, severity: Severity) -> Finding:
    silence = case.silence(voter)
    more = f"{spare} more may fail" if spare > 0 else "no other may fail: one more and nothing can be decided"
    return Finding(
        "voter_lost",
        severity,
        f"node {voter}, one of {len(case.voters)} voters of the metadata quorum, does not answer: {more}",
        [silence.reason] if silence is not None else [],
        [
            f"start node {voter}",
            f"if it is gone for good: raftlog quorum remove {voter}, and raftlog quorum add a node that is up",
        ],
        voter,
    )


def cut_off_findings(case: ClusterCase, leader: int | None) -> list[Finding]:
    """Return the nodes that are up but hear of no leader of the quorum, while others do. `leader`: the partition's."""
    if case.quorum_leader < 0:
        return []
    found = []
    for facts in case.answered():
        if facts.quorum.leader >= 0 or facts.node == case.quorum_leader:
            continue
        leads = facts.replica is not None and facts.replica.role == "leader"
        is_leader = leads or facts.node == leader
        code = "leader_cut_off" if is_leader else "node_cut_off"
        told = "the partition's leader, " if facts.node == leader else "which led the partition, " if leads else ""
        found.append(
            Finding(
                code,
                "critical" if is_leader else "warning",
                f"node {facts.node}, {told}is up but cut off from the metadata quorum: it hears of no leader, while "
                f"others follow node {case.quorum_leader}",
                [
                    f"it has applied the metadata log up to {facts.quorum.applied}, others up to {case.index}",
                    "a leader that is cut off can change no ISR and commits nothing once a follower is missing; the "
                    "quorum fences it and elects another in-sync replica",
                ],
                [
                    f"repair the network between node {facts.node} and the voters ({nodes(case.voters)}) on their data "
                    "addresses, in both directions",
                    "clients that reach it get `not_leader` or wait; they find the new leader by themselves",
                ],
                facts.node,
            )
        )
    return found


# --- Replicas --------------------------------------------------------------------------------------------------------


def replica_cause(case: PartitionCase, node: int) -> Finding:
    """Return why a replica is not in sync, or cannot lead."""
    cluster = case.cluster
    silence, facts = cluster.silence(node), cluster.node(node)
    if facts is None:
        return _silent(case, node, silence or Unanswered(node, "it was not asked"))
    return (
        _expired_of(facts)
        or _fenced(case, facts)
        or _marked(case, facts)
        or _out_of_service(case, facts)
        or full_disk(case, facts)
        or _no_link(case, facts)
        or slow_disk(case, facts)
        or _being_added(case, facts)
        or unclean_return(case, facts)
        or _plain_lag(case, facts)
    )


def _silent(case: PartitionCase, node: int, silence: Unanswered) -> Finding:
    cluster = case.cluster
    if silence.is_certificate:
        return expired_certificate(node, silence.reason)
    if cluster.is_fenced(node):
        since = cluster.fenced_since(node)
        ago = f" for {seconds((cluster.now_ms - since) / 1000)}" if since is not None else ""
        known = node in cluster.brokers
        return Finding(
            "node_dead",
            "critical" if case.record.leader == node else "warning",
            f"node {node} is down or unreachable: it {'has sent no heartbeat' + ago if known else 'never registered'}, "
            "and does not answer",
            [silence.reason, *_last_words(case, node)],
            [
                f"start node {node} (raftlog server run), or look at its log and its machine",
                f"if it is gone for good: move its replicas with raftlog cluster drain {node}, then raftlog cluster "
                f"unregister {node}",
            ],
            node,
        )
    return Finding(
        "node_unreachable",
        "warning",
        f"node {node} does not answer node {cluster.asker}, although its heartbeats reach the quorum: it is busy, "
        "stopped just now, or the network between the two is cut",
        [silence.reason],
        [
            f"check the network from node {cluster.asker} to node {node}'s data address, and node {node}'s load "
            "(raftlog cluster health)",
            "ask again in a second: a node that died is fenced by then",
        ],
        node,
    )


def _last_words(case: PartitionCase, node: int) -> list[str]:
    leading = case.leading
    known = [one for one in leading.followers if one.broker == node] if leading is not None else []
    if leading is None or not known or not known[0].matched:
        return []
    return [
        f"its replica had fsynced up to {known[0].stable_end}, {records(leading.log_end - known[0].stable_end)} behind"
    ]


def expired_certificate(node: int, evidence: str) -> Finding:
    """Return the finding of a node whose TLS certificate others refuse."""
    return Finding(
        "expired_certificate",
        "critical",
        f"the TLS certificate of node {node} or of its authority is expired or not trusted, so no node can connect "
        "to it",
        [evidence],
        [
            f"make a new certificate (raftlog tls create-certificate) and put it in place of node {node}'s: the node "
            "reads it within seconds, without a restart",
            "check the machines' clocks: a wrong date makes valid certificates look expired",
        ],
        node,
    )


def _expired_of(facts: NodeFacts) -> Finding | None:
    return expired_certificate(facts.node, "; ".join(facts.expired)) if facts.expired else None


def _fenced(case: PartitionCase, facts: NodeFacts) -> Finding | None:
    cluster = case.cluster
    if not cluster.is_fenced(facts.node):
        return None
    if facts.quorum.leader < 0:
        found = next((one for one in cut_off_findings(cluster, None) if one.node == facts.node), None)
        if found is not None:
            return found
    return Finding(
        "heartbeats_lost",
        "warning",
        f"node {facts.node} is up and answers, but its heartbeats do not reach the quorum's leader, node "
        f"{cluster.quorum_leader}: it is fenced. The network is cut in that direction, or the node has just started",
        [f"it follows leader {facts.quorum.leader} in term {facts.quorum.term}"],
        [
            f"check the network from node {facts.node} to node {cluster.quorum_leader}'s data address",
            "a node that has just started is unfenced within seconds",
        ],
        facts.node,
    )


def _marked(case: PartitionCase, facts: NodeFacts) -> Finding | None:
    if facts.node not in case.record.not_eligible:
        return None
    replica = facts.replica or ReplicaFacts()
    lag = case.lag(facts.node)
    return Finding(
        "unclean_restart",
        "warning",
        f"node {facts.node} cannot vouch for its replica: after an unclean stop or damage, recovery removed or set "
        "aside records, or it came back with another disk. It may not lead until it has caught up with the leader",
        [
            f"its log ends at {replica.log_end}, in leader epoch {replica.leader_epoch}",
            *([f"it is {records(lag)} behind the leader"] if lag is not None else []),
        ],
        [
            "none is needed while the partition has a leader: it copies what it lacks and rejoins the ISR",
            f"look for the cause in node {facts.node}'s log (a crash, a power failure, a disk error), and check the "
            f"disk: raftlog partition verify {case.topic} --node {facts.node}",
        ],
        facts.node,
    )


def _out_of_service(case: PartitionCase, facts: NodeFacts) -> Finding | None:
    replica = facts.replica
    if replica is None or replica.role == "absent":
        return Finding(
            "replica_opening",
            "warning",
            f"node {facts.node} is up, but its replica is not open yet",
            [f"it has applied the metadata log up to {facts.view_index}, this node up to {case.cluster.index}"],
            ["none if the node has just started: it opens and recovers its logs; otherwise look at its log"],
            facts.node,
        )
    if replica.repair:
        return Finding(
            "replica_repairing",
            "warning",
            f"node {facts.node} found damage in its replica and copies it again from its peers",
            [replica.repair],
            [f"check the disk of node {facts.node}: raftlog partition verify {case.topic} --node {facts.node}"],
            facts.node,
        )
    if replica.offline:
        return Finding(
            "replica_offline",
            "critical" if case.record.leader == facts.node else "warning",
            f"node {facts.node} took its replica out of service: {replica.offline}",
            [],
            [
                f"repair or replace the disk of node {facts.node}, and restart the node",
                f"or move the replica away: raftlog cluster drain {facts.node}",
            ],
            facts.node,
        )
    return None


def full_disk(case: PartitionCase, facts: NodeFacts) -> Finding | None:
    """Return the finding if the node's disk is full."""
    record = case.cluster.brokers.get(facts.node)
    hindered = facts.replica.hindered if facts.replica is not None else ""
    if not (facts.short_of_room or hindered or (record is not None and record.short_of_room)):
        return None
    leads = case.record.leader == facts.node
    effect = "it refuses records from clients" if leads else "it takes no records from its leader once it is very full"
    return Finding(
        "full_disk",
        "critical" if leads else "warning",
        f"the disk of node {facts.node} is full: {effect}",
        [
            f"{size(facts.disk_free)} are free, {size(facts.disk_reserved)} must stay free (disk_reserved_bytes)",
            *([hindered] if hindered else []),
        ],
        [
            f"free some space on node {facts.node}, or shorten retention.ms or retention.bytes of large topics",
            f"move replicas to other nodes: raftlog cluster drain {facts.node}",
        ],
        facts.node,
    )


def _no_link(case: PartitionCase, facts: NodeFacts) -> Finding | None:
    replica, leader = facts.replica, case.record.leader
    if replica is None or replica.role != "follower" or replica.link not in ("detached", "asking"):
        return None
    if case.cluster.node(leader) is None:
        return None
    return Finding(
        "network_cut",
        "warning",
        f"the follower on node {facts.node} has no link to the leader, node {leader}, although both are up: the "
        f"network from node {facts.node} to node {leader} is cut, perhaps in that direction only",
        [
            f"its link is {replica.link}; node {case.cluster.asker} reached both nodes",
            f"followers dial their leader: node {facts.node} connects to node {leader}'s data address",
        ],
        [
            f"check firewall and routes from node {facts.node} to node {leader}'s data address, and node "
            f"{facts.node}'s log for `replication link` lines",
        ],
        facts.node,
    )


def slow_disk(case: PartitionCase, facts: NodeFacts) -> Finding | None:
    """Return the finding if the fsyncs of the node are slow."""
    writer = facts.writer
    stuck = writer.running >= SLOW_RUNNING_SECONDS
    if not stuck and (writer.count < SLOW_COUNT or writer.median < SLOW_MEDIAN_SECONDS):
        return None
    replica = facts.replica or ReplicaFacts()
    now = (
        f"one has been running for {seconds(writer.running)}" if stuck else f"their median is {seconds(writer.median)}"
    )
    leads = case.record.leader == facts.node
    effect = (
        "its own fsync counts for every acknowledgement" if leads else "the leader waits for it while it is in sync"
    )
    return Finding(
        "slow_disk",
        "warning",
        f"the disk of node {facts.node} is slow: fsyncs take long ({now}); {effect}",
        [
            f"of the last {writer.count} fsyncs the longest took {seconds(writer.longest)}",
            f"{records(max(0, replica.log_end - replica.stable_end))} of this partition are written there and not "
            "fsynced",
        ],
        [
            f"look at the disk of node {facts.node}: other programs, a failing device, a throttled volume (iostat, "
            "dmesg)",
            f"move leaderships or replicas away until it is well: raftlog cluster drain {facts.node}",
        ],
        facts.node,
    )


def _being_added(case: PartitionCase, facts: NodeFacts) -> Finding | None:
    if facts.node not in case.record.adding_replicas:
        return None
    return moving(case, facts.node)


def moving(case: PartitionCase, node: int) -> Finding:
    """Return the finding about a replica that a reassignment is adding."""
    throttle, lag, leading = case.throttle, case.lag(node), case.leading
    rates = {
        "leader.replication.throttled.rate": throttle.leader_rate,
        "follower.replication.throttled.rate": throttle.follower_rate,
    }
    limits = [f"{name} is {size(rate)}/s" for name, rate in rates.items() if rate is not None]
    evidence = [f"{records(lag)} are still to be copied"] if lag is not None else []
    least = min((rate for rate in rates.values() if rate is not None), default=None)
    if least and lag and leading is not None and leading.log_end > leading.log_start:
        left = leading.size_bytes * lag / (leading.log_end - leading.log_start)
        evidence.append(f"that is about {size(int(left))}: at least {seconds(left / least)} at this rate")
    target = ", ".join(map(str, case.record.target_replicas))
    if limits:
        return Finding(
            "throttled_move",
            "info",
            f"a reassignment to nodes {target} is in progress, and the copy to node {node} is throttled",
            [*limits, *evidence],
            [
                "raise the throttle: raftlog cluster reassign --throttle RATE; 0 removes it",
                "or wait: the partition works as before, and the throttle ends with the reassignment",
            ],
            node,
        )
    return Finding(
        "move_in_progress",
        "info",
        f"a reassignment to nodes {target} is in progress: node {node} copies the log",
        evidence,
        ["none: the new replica joins the ISR when it has caught up, and then the old ones leave"],
        node,
    )


def _plain_lag(case: PartitionCase, facts: NodeFacts) -> Finding:
    lag, leading = case.lag(facts.node), case.leading
    known = [one for one in leading.followers if one.broker == facts.node] if leading is not None else []
    evidence = []
    if lag is not None and facts.replica is not None:
        evidence.append(f"it has fsynced up to {facts.replica.stable_end}, {records(lag)} behind the leader")
    if known:
        evidence.append(f"it was last caught up {seconds(known[0].caught_up_ago)} ago")
    removed = [one for one in case.cluster.changes if one.kind == "isr" and one.about == facts.node]
    why = " It fell behind for longer than the leader allows" if removed and removed[-1].reason == "lagged" else ""
    of_node = [one for one in case.cluster.changes if one.kind == "broker" and one.about == facts.node]
    if removed and removed[-1].reason == "fenced" and of_node and of_node[-1].reason != "fenced":
        ago = seconds(max(0, case.cluster.now_ms - removed[-1].time_ms) / 1000)
        why = f" It was fenced {ago} ago, came back, and copies what it missed"
    return Finding(
        "isr_shrunk",
        "warning",
        f"the replica on node {facts.node} is not in sync: it is up and linked to the leader, and catches up.{why}",
        evidence,
        [
            "none if it catches up: it rejoins the ISR by itself. Run this command again and compare the lag",
            f"if the lag grows, node {facts.node} or its network is too slow for the load: move leaderships or "
            "replicas (raftlog cluster balance)",
        ],
        facts.node,
    )
