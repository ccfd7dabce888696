"""`raftlog cluster`: the nodes and the health of a cluster.

`health` asks every node separately, since a node that is cut off sees another cluster than the others do. A line that
not all nodes agree on names the nodes that reported it. Nodes that do not answer, and voters that never registered, are
problems too.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import msgspec
import rich_click as click

from raftlog.cli.terminal.command import argument, command
from raftlog.cli.terminal.connection import Connection
from raftlog.cli.terminal.exit_codes import EXIT_UNHEALTHY
from raftlog.cli.terminal.options import COUNT, NODE_NUMBER, PlanChange
from raftlog.cli.terminal.output import Output, fields, listing, show, table
from raftlog.cli.terminal.units import Duration
from raftlog.errors import InvalidRequest, RaftlogError

from .moves import balance, drain, elect, reassign, unregister
from .waiting import left_to_do, until

if TYPE_CHECKING:
    from raftlog.api.cluster import ClusterInfo, NodeInfo, RollCheck
    from raftlog.client.cluster.api import HttpApi
    from raftlog.sync import Admin

FEATURE_LEVEL = click.IntRange(1, 2**31 - 1)
HEALTH_TIMEOUT = 2.0
"""Time within which a healthy node answers, in seconds."""
ROLL_CHECK_SECONDS = 0.5
"""Time between two checks of `roll-check --wait`."""


class NodeHealth(msgspec.Struct, frozen=True):
    """The answer of one node, or the reason why there is none."""

    id: int
    api: str
    answers: bool
    ready: bool = False
    problems: Sequence[str] = ()
    error: str | None = None


class Waited(msgspec.Struct, frozen=True):
    """The end of a wait: what is still missing when the time is up; otherwise nothing."""

    missing: list[str]


class HealthReport(msgspec.Struct, frozen=True):
    """The health of a cluster. `problems` is empty if it is healthy."""

    healthy: bool
    problems: list[str]
    controller: int | None
    nodes: list[NodeHealth]


@click.group()
def cluster() -> None:
    """Show nodes and health; move replicas and leaders."""


for move in (reassign, drain, balance, elect, unregister):
    cluster.add_command(move)


@command(cluster)
def info(admin: Admin, output: Output = "table") -> None:
    """Show the cluster and its nodes.

    Examples:
        raftlog cluster info -o wide
    """
    found = admin.cluster()
    show(output, found, lambda wide: _info_text(found, wide))


@command(cluster)
def finalize(
    admin: Admin,
    level: Annotated[
        int | None, FEATURE_LEVEL, "Feature level (default: the highest that every node supports)."
    ] = None,
    plan: PlanChange = False,
    output: Output = "table",
) -> None:
    """Finish an upgrade: allow the cluster to use the new version's features. This cannot be undone.

    Examples:
        raftlog cluster finalize --plan
    """
    found = admin.finalize_feature_level(level, plan=plan)
    same = found.feature_level == found.feature_level_before
    verdict = "is already" if same else "is now" if found.applied else "would be"
    status = f"the feature level {verdict} {found.feature_level}"
    show(output, found, lambda wide: fields({"FeatureLevelBefore": found.feature_level_before, "Status": status}))


@command(cluster, name="roll-check")
def roll_check(
    admin: Admin,
    node: Annotated[int, argument(type=COUNT)],
    wait: Annotated[bool, "Wait until the node may be stopped."] = False,
    timeout: Annotated[float, click.FloatRange(0), "With --wait: seconds to wait."] = 300.0,
    output: Output = "table",
) -> int:
    """Check whether a node may be stopped now without loss of availability.

    Every partition of the node must keep a leader and enough in-sync replicas, none may be in the middle of a move, and
    the metadata quorum must keep its majority. The exit code is 10 if the node must not be stopped.

    Examples:
        raftlog cluster roll-check 0 --wait && systemctl restart raftlog
    """
    deadline = time.monotonic() + timeout if wait else 0.0
    while True:
        found = _check_roll(admin, node, retry=wait)
        if found.safe or time.monotonic() >= deadline:
            break
        time.sleep(ROLL_CHECK_SECONDS)
    verdict = f"node {node} may be stopped" if found.safe else f"node {node} must not be stopped now"
    show(output, found, lambda wide: "\n".join([verdict, *(f"  {reason}" for reason in found.reasons)]))
    return 0 if found.safe else EXIT_UNHEALTHY


def _check_roll(admin: Admin, node: int, *, retry: bool) -> RollCheck:
    """Ask the cluster. With `retry`, a cluster that does not answer is one in which nothing may be stopped."""
    from raftlog.api.cluster import RollCheck

    try:
        return admin.roll_check(node)
    except RaftlogError as error:
        if retry and error.retriable:
            return RollCheck(node, False, [f"the cluster does not answer: {error.detail}"])
        raise


@command(cluster)
def health(connection: Connection, output: Output = "table") -> int:
    """Report problems. The exit code is 10 if there are any, so that scripts can wait for a healthy cluster.

    Examples:
        raftlog cluster health
    """
    report = asyncio.run(check_health(connection))
    show(output, report, lambda wide: _health_text(report, wide))
    return 0 if report.healthy else EXIT_UNHEALTHY


@command(cluster)
def wait(
    connection: Connection,
    without: Annotated[
        int | None, NODE_NUMBER, "Wait until this node is known to be down, and others lead its partitions."
    ] = None,
    timeout: Annotated[float, Duration(1_000), "How long to wait."] = 60.0,
    output: Output = "table",
) -> int:
    """Wait until the cluster is healthy, or until it goes on without a node. The exit code is 10 if the time is up.

    Examples:
        raftlog cluster wait
        raftlog cluster wait --without 1
    """

    async def look() -> list[str]:
        if without is not None:
            return await left_to_do(connection, without)
        return (await check_health(connection)).problems

    found = Waited(until(look, timeout))
    done = f"node {without} is down, and other nodes lead its partitions"
    done = "the cluster is healthy" if without is None else done
    late = "\n".join(["the time is up, and the cluster is not there yet:", *(f"  {line}" for line in found.missing)])
    show(output, found, lambda wide: late if found.missing else done)
    return EXIT_UNHEALTHY if found.missing else 0


async def check_health(connection: Connection) -> HealthReport:
    """Ask every node. Raises `InvalidRequest` for invalid addresses; a cluster that is down is a report."""
    from raftlog.api.cluster import ClusterInfo
    from raftlog.api.quorum import QuorumInfo

    problems = []
    async with connection.api() as api:
        try:
            known = await api.get("/v1/cluster", ClusterInfo)
        except InvalidRequest:
            raise
        except RaftlogError as error:
            return HealthReport(False, [f"the cluster does not answer: {error.detail}"], None, [])
        nodes = await asyncio.gather(*(_ask(api, node) for node in known.nodes))
        try:
            voters = (await api.get("/v1/quorum", QuorumInfo)).voters
        except RaftlogError as error:
            if error.code in ("unauthenticated", "authorization_failed"):
                raise
            problems.append(f"the metadata quorum does not answer: {error.detail}")
        else:
            registered = {node.id for node in known.nodes}
            problems += [
                f"node {voter} is a voter but has never registered" for voter in voters if voter not in registered
            ]
    problems += _merged(nodes)
    return HealthReport(not problems, problems, known.controller, nodes)


async def _ask(cluster: HttpApi, node: NodeInfo) -> NodeHealth:
    """Ask this node alone, with a short timeout."""
    from raftlog.api.cluster import HealthInfo

    try:
        async with cluster.of(node.api) as api:
            found = await api.get("/v1/health", HealthInfo, accept=(503,), timeout=HEALTH_TIMEOUT)
    except RaftlogError as error:
        return NodeHealth(node.id, node.api, False, error=error.detail)
    return NodeHealth(node.id, node.api, True, found.ready, found.problems)


def _merged(nodes: Sequence[NodeHealth]) -> list[str]:
    """Return the problems of all nodes, each line once."""
    lines = [f"node {node.id} does not answer at {node.api}: {node.error}" for node in nodes if not node.answers]
    lines += [f"node {node.id} is not ready" for node in nodes if node.answers and not node.ready]
    answering = [node for node in nodes if node.answers]
    said: dict[str, list[int]] = {}
    for node in answering:
        for problem in dict.fromkeys(node.problems):
            said.setdefault(problem, []).append(node.id)
    for problem, by in said.items():
        whose = "" if len(by) == len(answering) else f" (reported by node {', '.join(map(str, by))})"
        lines.append(f"{problem}{whose}")
    return lines


def _info_text(found: ClusterInfo, wide: bool) -> str:
    summary = {"ClusterId": found.cluster_id, "ControllerId": found.controller, "Version": found.version}
    if wide:
        summary["FeatureLevel"] = found.feature_level
    rows = [
        (node.id, node.api, node.rack or "-", "fenced" if node.fenced else "alive", node.data, node.incarnation)
        for node in found.nodes
    ]
    nodes = listing(("NodeId", "Api", "Rack", "Status"), rows, ("Data", "Incarnation"))
    return f"{fields(summary)}\n\n{nodes(wide)}"


def _health_text(report: HealthReport, wide: bool) -> str:
    answering = sum(node.answers for node in report.nodes)
    summary = {
        "Healthy": report.healthy,
        "ControllerId": report.controller,
        "Nodes": f"{answering} of {len(report.nodes)} answer",
        "Problems": len(report.problems),
    }
    parts = ["\n".join([fields(summary), *(f"  {problem}" for problem in report.problems)])]
    if wide and report.nodes:
        rows = [(node.id, node.api, node.answers, node.ready, node.error or "-") for node in report.nodes]
        parts.append(table(("NodeId", "Api", "Answers", "Ready", "Error"), rows))
    return "\n\n".join(parts)
