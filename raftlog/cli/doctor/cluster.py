"""The cluster as it is seen from this machine: nodes that answer, their clocks, versions and listeners."""

from __future__ import annotations

import asyncio

from raftlog.api.cluster import ClusterInfo, HealthInfo, NodeInfo
from raftlog.cli.terminal.connection import Connection
from raftlog.cli.terminal.output import counted
from raftlog.client.cluster.api import HttpApi
from raftlog.client.cluster.probe import clock_difference, reach_data
from raftlog.errors import InvalidRequest, RaftlogError
from raftlog.version import FEATURE_LEVEL, __version__

from .findings import Finding, ok, problem, warning

CLOCK_SECONDS = 2.0
"""Difference of clocks from which on it is reported, beyond what cannot be measured."""
HEALTH_SECONDS = 2.0


async def check_cluster(connection: Connection, *, expected: bool) -> list[Finding]:
    """Return the findings about the cluster. `expected`: whether it is a problem that no node answers."""
    async with connection.api() as api:
        try:
            await api.reach()
            known = await api.get("/v1/cluster", ClusterInfo)
        except InvalidRequest as error:
            return [
                problem("cluster", f"{connection.bootstrap}: {error.detail}", "give a credential that may describe it")
            ]
        except RaftlogError as error:
            told = f"no node answers: {error.detail}"
            remedy = "start the nodes, or give their addresses with --bootstrap"
            return [problem("cluster", told, remedy) if expected else warning("cluster", told, remedy)]
        findings = [_controller(known)]
        for found in await asyncio.gather(*(_check_node(api, node) for node in known.nodes)):
            findings += found
        findings += _versions(known)
        findings += await _data(api)
    return findings


def _controller(known: ClusterInfo) -> Finding:
    shown = f"cluster {known.cluster_id} has {counted(len(known.nodes), 'node')}"
    if known.controller is None:
        remedy = "start a majority of the voters (`raftlog quorum describe`)"
        return problem("cluster", f"{shown} and no controller: nothing can be created or moved", remedy)
    return ok("cluster", f"{shown}; the controller is node {known.controller}")


def _versions(known: ClusterInfo) -> list[Finding]:
    findings = []
    if known.version and known.version != __version__:
        told = f"the cluster runs raftlog {known.version}, and this is {__version__}"
        findings.append(warning("versions", told, "upgrade the older one"))
    if known.feature_level < FEATURE_LEVEL:
        told = f"the cluster's feature level is {known.feature_level}, and this version knows {FEATURE_LEVEL}"
        remedy = "when every node is upgraded, run `raftlog cluster finalize`"
        findings.append(warning("versions", told, remedy))
    return findings


async def _check_node(api: HttpApi, node: NodeInfo) -> list[Finding]:
    who = f"node {node.id} at {node.api}"
    try:
        async with api.of(node.api) as one:
            health = await one.get("/v1/health", HealthInfo, accept=(503,), timeout=HEALTH_SECONDS)
        ahead, error_seconds = await clock_difference(api, node.api)
    except RaftlogError as error:
        told = f"{who} does not answer: {error.detail}"
        return [problem("cluster", told, f"start it, or correct its advertised address ({node.api}) or the firewall")]
    findings = [
        problem("cluster", f"{who}: {line}", "see `raftlog cluster health`, and docs/cli.md")
        for line in health.problems
    ]
    if not findings:
        findings.append(ok("cluster", f"{who} is healthy"))
    if abs(ahead) > CLOCK_SECONDS + error_seconds:
        told = f"the clock of {who} is {abs(ahead):.1f} s {'ahead of' if ahead > 0 else 'behind'} this machine's"
        findings.append(problem("clock", told, "synchronize both: run chrony, ntpd or systemd-timesyncd"))
    else:
        findings.append(ok("clock", f"{who} differs by less than {CLOCK_SECONDS + error_seconds:.1f} s"))
    return findings


async def _data(api: HttpApi) -> list[Finding]:
    try:
        await reach_data(api)
    except RaftlogError as error:
        return [problem("cluster", error.detail, "give the same TLS files as the nodes have")]
    return [ok("cluster", "data listeners accept this client's kind of connection")]
