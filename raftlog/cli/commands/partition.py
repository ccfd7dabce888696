"""`raftlog partition verify`: a check of the data on disk.

Every node of a running cluster, or one, checks its replicas now, while this command shows the progress. With
`--data-folder` the command itself reads the replicas of a stopped node and changes nothing. Exit code 10 means that
damage was found, or that a node did not answer; findings name file and byte.
"""

from __future__ import annotations

import asyncio
from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import msgspec
import rich_click as click

from raftlog.api.scrubs import Scrub, StartScrub
from raftlog.cli.terminal.command import argument, command
from raftlog.cli.terminal.connection import Connection
from raftlog.cli.terminal.exit_codes import EXIT_UNHEALTHY
from raftlog.cli.terminal.names import complete_topics
from raftlog.cli.terminal.options import COUNT
from raftlog.cli.terminal.output import Output, counted, fields, show, table
from raftlog.cli.terminal.progress import ProgressLine
from raftlog.errors import InvalidRequest, RetriableError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from raftlog.api.cluster import NodeInfo
    from raftlog.client.cluster.api import HttpApi

POLL_SECONDS = 0.1


class ReplicaReport(msgspec.Struct, frozen=True):
    """The result for one replica. `findings` is empty if it is intact."""

    node_id: int
    topic: str
    """The topic's name; its id (32 hex digits) if a folder was read, which contains no names."""
    partition: int
    bytes_read: int | None
    """None if the node reports only the total."""
    findings: list[str]


class VerifyReport(msgspec.Struct, frozen=True):
    """The result of a check. For a running cluster `replicas` has only the damaged ones."""

    healthy: bool
    bytes_read: int
    checked: int
    """Number of replicas."""
    replicas: list[ReplicaReport]
    unchecked: list[str] = []
    """Nodes without a result, and the reasons. They make the report unhealthy, because their state is unknown."""


@click.group()
def partition() -> None:
    """Check replicas and their data on disk."""


@command(partition)
def verify(
    connection: Connection,
    topic: Annotated[str | None, argument(shell_complete=complete_topics)] = None,
    number: Annotated[int | None, argument(metavar="PARTITION", type=COUNT)] = None,
    node: Annotated[int | None, COUNT, "Check only the replicas of this node."] = None,
    data_folder: Annotated[
        str | None,
        click.Path(exists=True, file_okay=False),
        "Check the data folder of a stopped node. TOPIC is then the topic's id.",
    ] = None,
    output: Output = "table",
) -> int:
    """Read and check every byte of replicas. Exit code 10: damage was found, or a node did not answer.

    Examples:
        raftlog partition verify
        raftlog partition verify orders 3 --node 2
        raftlog partition verify --data-folder /var/lib/raftlog
    """
    if data_folder is None:
        found = asyncio.run(_verify_cluster(connection, topic, number, node))
    elif node is not None:
        raise click.UsageError("--node and --data-folder cannot be combined: a data folder belongs to one node")
    else:
        found = _verify_folder(data_folder, topic, number)
    show(output, found, lambda wide: _text(found, wide))
    return 0 if found.healthy else EXIT_UNHEALTHY


async def _verify_cluster(
    connection: Connection, topic: str | None, number: int | None, node: int | None
) -> VerifyReport:
    from raftlog.api.cluster import ClusterInfo

    async with connection.api() as api:
        nodes = [known for known in (await api.get("/v1/cluster", ClusterInfo)).nodes if node in (None, known.id)]
        return await _verify_nodes(api, nodes, topic, number, node)


async def _verify_nodes(
    api: HttpApi, nodes: Sequence[NodeInfo], topic: str | None, number: int | None, node: int | None
) -> VerifyReport:
    if not nodes:
        raise InvalidRequest("not_found", f"the cluster has no node {node}")
    found: list[ReplicaReport] = []
    unchecked: list[str] = []
    checked = replicas = 0
    for known in nodes:  # One after the other: a repair needs its peers.
        if known.fenced and node is None:
            unchecked.append(f"node {known.id} is fenced")
            continue
        try:
            scrub = await _scrub(api, known, StartScrub(topic, number))
        except RetriableError as error:
            unchecked.append(f"node {known.id}: {error}")
            continue
        checked, replicas = checked + scrub.bytes_read, replicas + scrub.replicas
        found += _of_node(known.id, scrub)
    return VerifyReport(not (found or unchecked), checked, replicas, found, unchecked)


async def _scrub(cluster: HttpApi, node: NodeInfo, wanted: StartScrub) -> Scrub:
    """Start a node's check and wait for its end."""
    async with cluster.of(node.api) as api:
        scrub = await api.change("POST", "/v1/scrub", Scrub, wanted)
        with ProgressLine(f"node {node.id}", scrub.total_bytes) as line:
            while scrub.running:
                await asyncio.sleep(POLL_SECONDS)
                replicas, scrub = scrub.replicas, await api.get("/v1/scrub", Scrub)
                if scrub.replicas < replicas:
                    # The node no longer knows its findings, which must not look like a clean result.
                    why = "was restarted, or got another check, while it read its replicas: verify them again"
                    raise RetriableError("connection_lost", f"node {node.id} {why}")
                line.show(scrub.bytes_read, f"{scrub.replicas_done} of {scrub.replicas} replicas")
        return scrub


def _of_node(node_id: int, scrub: Scrub) -> list[ReplicaReport]:
    """Return a node's damaged replicas."""
    details: dict[tuple[str, int], list[str]] = {}
    for finding in scrub.findings:
        details.setdefault((finding.topic, finding.partition), []).append(finding.detail)
    return [ReplicaReport(node_id, topic, number, None, lines) for (topic, number), lines in sorted(details.items())]


def _verify_folder(folder: str, topic_id: str | None, number: int | None) -> VerifyReport:
    from raftlog.broker.verify import FolderVerifier

    with (
        closing(FolderVerifier(folder, topic_id, number)) as verifier,
        ProgressLine(f"verifying {folder}", verifier.total_bytes) as line,
    ):
        verified = verifier.run(lambda size: line.show(line.bytes + size, counted(verifier.replicas, "replica")))
    node = verifier.node_id
    replicas = [ReplicaReport(node, r.topic_id, r.partition, r.bytes_read, list(r.findings)) for r in verified]
    healthy = not any(replica.findings for replica in replicas)
    return VerifyReport(healthy, sum(replica.bytes_read for replica in verified), len(replicas), replicas)


def _text(found: VerifyReport, wide: bool) -> str:
    findings = sum(len(replica.findings) for replica in found.replicas)
    summary = {"Healthy": found.healthy, "Replicas": found.checked, "Bytes": found.bytes_read, "Findings": findings}
    parts = [fields(summary)]
    rows = [(r.topic, r.partition, r.node_id, len(r.findings)) for r in found.replicas if wide or r.findings]
    if rows:
        parts.append(table(("Topic", "Partition", "Node", "Findings"), rows))
    lines = [f"{r.topic}/{r.partition} on node {r.node_id}: {why}" for r in found.replicas for why in r.findings]
    lines += [f"not checked: {why}" for why in found.unchecked]
    if lines:
        parts.append("\n".join(lines))
    return "\n\n".join(parts)
