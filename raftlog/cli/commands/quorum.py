"""`raftlog quorum`: the metadata quorum, with the columns of `kafka-metadata-quorum describe`.

Offsets are those of the metadata log; as everywhere, an end is the offset after the last one.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec
import rich_click as click

from raftlog.cli.terminal.output import fields, output_option, show, table

if TYPE_CHECKING:
    from raftlog.client.admin import QuorumInfo, VotersChange


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


@quorum.command()
@output_option
@click.pass_obj
def describe(bootstrap: str, output: str) -> None:
    """Show the leader, and how far the others follow."""

    async def run() -> QuorumDescription:
        from raftlog.client import Admin

        async with Admin(bootstrap) as admin:
            cluster = await admin.cluster()
            return description(cluster.cluster_id, [node.id for node in cluster.nodes], await admin.quorum())

    found = asyncio.run(run())
    show(output, found, lambda wide: _text(found, wide))


@quorum.command()
@click.argument("node", type=click.IntRange(0, 2**31 - 1))
@click.option("--plan", is_flag=True, help="Show the result without changing anything.")
@output_option
@click.pass_obj
def add(bootstrap: str, node: int, plan: bool, output: str) -> None:
    """Make an observer a voter. It must be running and caught up."""
    _change(bootstrap, "add", node, plan, output)


@quorum.command()
@click.argument("node", type=click.IntRange(0, 2**31 - 1))
@click.option("--plan", is_flag=True, help="Show the result without changing anything.")
@output_option
@click.pass_obj
def remove(bootstrap: str, node: int, plan: bool, output: str) -> None:
    """Remove a voter: permanently, or before it returns on a new disk.

    It continues as an observer if it is still running. A leader hands over first.
    """
    _change(bootstrap, "remove", node, plan, output)


def _change(bootstrap: str, action: str, node: int, plan: bool, output: str) -> None:
    async def run() -> VotersChange:
        from raftlog.client import Admin

        async with Admin(bootstrap) as admin:
            change = admin.add_voter if action == "add" else admin.remove_voter
            return await change(node, plan=plan)

    found = asyncio.run(run())
    show(output, found, lambda wide: _change_text(found))


def _change_text(found: VotersChange) -> str:
    same = found.voters == found.voters_before
    verdict = "would be" if not found.applied else "are already" if same else "are now"
    survives = f"{found.failures_survived_before} → {found.failures_survived}"
    return fields(
        {
            "VotersBefore": found.voters_before,
            "Voters": found.voters,
            "FailuresSurvived": survives,
            "Status": f"the voters {verdict} {', '.join(map(str, found.voters))}",
        }
    )


def description(cluster_id: str, nodes: list[int], status: QuorumInfo) -> QuorumDescription:
    """Return the quorum's status, node by node."""
    leader = None if status.leader < 0 else status.leader
    ends = {int(node): index + 1 for node, index in status.match_index.items()}
    # A node that reports on itself knows its own log, and the leader's end is the reference for the others.
    ends.setdefault(status.node_id, status.last_index + 1)
    leader_end = ends.get(leader) if leader is not None else None
    observers = sorted(set(nodes) - set(status.voters))
    replicas = []
    for node in [*sorted(status.voters), *observers]:
        role = "Observer" if node in observers else "Leader" if node == leader else "Follower"
        role = "Forgetful" if node in status.forgetful else role
        end = ends.get(node)
        lag = None if end is None or leader_end is None else max(0, leader_end - end)
        replicas.append(Replica(node, role, end, lag))
    return QuorumDescription(
        cluster_id,
        leader,
        status.term,
        status.commit_index,
        status.applied_index,
        status.last_index,
        sorted(status.voters),
        observers,
        replicas,
        status.node_id,
    )


def _text(found: QuorumDescription, wide: bool) -> str:
    summary: dict[str, object] = {
        "ClusterId": found.cluster_id,
        "LeaderId": found.leader,
        "LeaderEpoch": found.term,
        "HighWatermark": found.commit_index + 1,
        "MaxFollowerLag": _known(found.max_follower_lag),
        "CurrentVoters": found.voters,
        "CurrentObservers": found.observers,
    }
    if wide:
        summary["AppliedIndex"] = found.applied_index
        summary["AnsweredBy"] = found.answered_by
    rows = [(r.node_id, _known(r.log_end_offset), _known(r.lag), r.status) for r in found.replicas]
    advice = "".join(
        f"\n\nNode {r.node_id} lost entries of the metadata log that it had acknowledged: its disk cannot be "
        f"trusted. Remove it (raftlog quorum remove {r.node_id} --plan), prepare it again on a good disk (raftlog "
        f"server init --observer), and add it again (raftlog quorum add {r.node_id})."
        for r in found.replicas
        if r.status == "Forgetful"
    )
    return f"{fields(summary)}\n\n{table(('NodeId', 'LogEndOffset', 'Lag', 'Status'), rows)}{advice}"


def _known(number: int | None) -> int | str:
    return "-" if number is None else number
