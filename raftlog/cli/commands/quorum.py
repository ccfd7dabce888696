"""`raftlog quorum`: the metadata quorum, with the columns of `kafka-metadata-quorum describe`.

Offsets are those of the metadata log; as everywhere, an end is the offset after the last one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, TypeAlias

import msgspec
import rich_click as click

from raftlog.cli.terminal.command import argument, command
from raftlog.cli.terminal.options import NODE_NUMBER, PlanChange
from raftlog.cli.terminal.output import Output, dash, fields, show, table
from raftlog.errors import InvalidRequest

if TYPE_CHECKING:
    from raftlog.api.quorum import QuorumInfo, VotersChange
    from raftlog.sync import Admin

Node: TypeAlias = Annotated[int, argument(type=NODE_NUMBER)]


class Replica(msgspec.Struct, frozen=True):
    """One node's copy of the metadata log. None if the leader did not answer or does not track the node."""

    node_id: int
    status: str
    """`Leader`, `Follower`, `Observer` (a node without a vote) or `Forgetful`.

    The disk of a forgetful node lost entries that it had acknowledged: the node no longer takes part, and must be
    removed and added again on a good disk.
    """
    log_end_offset: int | None
    lag: int | None


class QuorumDescription(msgspec.Struct, frozen=True):
    """The status from the HTTP API, and each node's part in it."""

    cluster_id: str
    leader: int | None
    term: int
    commit_index: int
    applied_index: int
    last_index: int
    voters: list[int]
    observers: list[int]
    replicas: list[Replica]
    answered_by: int

    @property
    def max_follower_lag(self) -> int | None:
        lags = [replica.lag for replica in self.replicas if replica.status == "Follower" and replica.lag is not None]
        return max(lags, default=None)


@click.group()
def quorum() -> None:
    """Show and change the nodes that agree on metadata."""


@command(quorum)
def describe(admin: Admin, output: Output = "table") -> None:
    """Show the leader, and how far the others follow.

    Examples:
        raftlog quorum describe
    """
    cluster = admin.cluster()
    found = description(cluster.cluster_id, [node.id for node in cluster.nodes], admin.quorum())
    show(output, found, lambda wide: _text(found, wide))


@command(quorum)
def add(admin: Admin, node: Node, plan: PlanChange = False, output: Output = "table") -> None:
    """Make an observer a voter. It must be running and caught up.

    Examples:
        raftlog quorum add 3 --plan
    """
    known = [one.id for one in admin.cluster().nodes]
    if node not in known:
        registered = ", ".join(map(str, sorted(known)))
        raise InvalidRequest("not_found", f"node {node} is not registered (registered: {registered}): start it first")
    _show_change(admin.add_voter(node, plan=plan), output)


@command(quorum)
def remove(admin: Admin, node: Node, plan: PlanChange = False, output: Output = "table") -> None:
    """Remove a voter: permanently, or before it returns on a new disk.

    It continues as an observer if it is still running. A leader hands over first.

    Examples:
        raftlog quorum remove 2 --plan
    """
    _show_change(admin.remove_voter(node, plan=plan), output)


def _show_change(found: VotersChange, output: str) -> None:
    same = found.voters == found.voters_before
    verdict = "would be" if not found.applied else "are already" if same else "are now"
    survives = f"{found.failures_survived_before} → {found.failures_survived}"
    summary = {
        "VotersBefore": found.voters_before,
        "Voters": found.voters,
        "FailuresSurvived": survives,
        "Status": f"the voters {verdict} {', '.join(map(str, found.voters))}",
    }
    show(output, found, lambda wide: fields(summary))


def description(cluster_id: str, nodes: list[int], status: QuorumInfo) -> QuorumDescription:
    """Return the quorum's status, node by node."""
    leader = None if status.leader < 0 else status.leader
    ends = {int(node): index + 1 for node, index in status.match_index.items()}
    # A node that reports on itself knows its own log, and the leader's end is the reference for the others.
    ends.setdefault(status.node_id, status.last_index + 1)
    leader_end = ends.get(leader) if leader is not None else None
    voters, observers = sorted(status.voters), sorted(set(nodes) - set(status.voters))
    replicas = []
    for node in [*voters, *observers]:
        role = "Observer" if node in observers else "Leader" if node == leader else "Follower"
        role = "Forgetful" if node in status.forgetful else role
        end = ends.get(node)
        lag = None if end is None or leader_end is None else max(0, leader_end - end)
        replicas.append(Replica(node, role, end, lag))
    log = (status.term, status.commit_index, status.applied_index, status.last_index)
    return QuorumDescription(cluster_id, leader, *log, voters, observers, replicas, status.node_id)


def _text(found: QuorumDescription, wide: bool) -> str:
    summary: dict[str, object] = {
        "ClusterId": found.cluster_id,
        "LeaderId": found.leader,
        "LeaderEpoch": found.term,
        "HighWatermark": found.commit_index + 1,
        "MaxFollowerLag": dash(found.max_follower_lag),
        "CurrentVoters": found.voters,
        "CurrentObservers": found.observers,
    }
    if wide:
        summary["AppliedIndex"] = found.applied_index
        summary["AnsweredBy"] = found.answered_by
    rows = [(r.node_id, dash(r.log_end_offset), dash(r.lag), r.status) for r in found.replicas]
    advice = "".join(
        f"\n\nNode {r.node_id} lost entries of the metadata log that it had acknowledged: its disk cannot be "
        f"trusted. Remove it (raftlog quorum remove {r.node_id} --plan), prepare it again on a good disk (raftlog "
        f"server init --observer), and add it again (raftlog quorum add {r.node_id})."
        for r in found.replicas
        if r.status == "Forgetful"
    )
    return f"{fields(summary)}\n\n{table(('NodeId', 'LogEndOffset', 'Lag', 'Status'), rows)}{advice}"
