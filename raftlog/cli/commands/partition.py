"""`raftlog partition verify`: a check of the data on disk.

Every node of a running cluster, or one, checks its replicas now, while this command shows the progress. With
`--data-folder` the command itself reads the replicas of a stopped node and changes nothing. Exit code 10 means that
damage was found, or that a node did not answer; findings name file and byte.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec
import rich_click as click

from raftlog.cli.terminal.exit_codes import EXIT_UNHEALTHY
from raftlog.cli.terminal.output import fields, output_option, show, table
from raftlog.cli.terminal.progress import ProgressLine
from raftlog.errors import InvalidRequest, RetriableError

if TYPE_CHECKING:
    from raftlog.broker.verify import VerifiedReplica
    from raftlog.client.admin import NodeInfo

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

    @property
    def findings(self) -> int:
        return sum(len(replica.findings) for replica in self.replicas)


@click.group()
def partition() -> None:
    """Check replicas and their data on disk."""


class _Finding(msgspec.Struct, frozen=True):
    topic: str
    partition: int
    detail: str


class _Scrub(msgspec.Struct, frozen=True):
    """A node's report on its check."""

    running: bool
    replicas: int
    total_bytes: int
    bytes_read: int
    findings: list[_Finding]


@partition.command()
@click.argument("topic", required=False)
@click.argument("number", metavar="PARTITION", required=False, type=click.IntRange(min=0))
@click.option("--node", type=click.IntRange(min=0), help="Check only the replicas of this node.")
@click.option(
    "--data-folder",
    type=click.Path(exists=True, file_okay=False),
    help="Check the data folder of a stopped node. TOPIC is then the topic's id.",
)
@output_option
@click.pass_context
def verify(
    context: click.Context,
    topic: str | None,
    number: int | None,
    node: int | None,
    data_folder: str | None,
    output: str,
) -> None:
    """Read and check every byte of replicas. Exit code 10: damage was found, or a node did not answer."""
    if data_folder is None:
        found = asyncio.run(_verify_cluster(context.obj, topic, number, node))
    elif node is not None:
        raise click.UsageError("--node and --data-folder cannot be combined: a data folder belongs to one node")
    else:
        found = _verify_folder(data_folder, topic, number)
    show(output, found, lambda wide: _text(found, wide))
    if not found.healthy:
        context.exit(EXIT_UNHEALTHY)


async def _verify_cluster(bootstrap: str, topic: str | None, number: int | None, node: int | None) -> VerifyReport:
    from raftlog.client import Admin

    async with Admin(bootstrap) as admin:
        nodes = [known for known in (await admin.cluster()).nodes if node in (None, known.id)]
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
            scrub = await _scrub(known, {"topic": topic, "partition": number})
        except RetriableError as error:
            unchecked.append(f"node {known.id}: {error}")
            continue
        checked, replicas = checked + scrub.bytes_read, replicas + scrub.replicas
        found += _of_node(known.id, scrub)
    return VerifyReport(not (found or unchecked), checked, replicas, found, unchecked)


async def _scrub(node: NodeInfo, wanted: dict[str, str | int | None]) -> _Scrub:
    """Start a node's check and wait for its end."""
    from raftlog.client.cluster.api import HttpApi

    api = HttpApi(node.api)
    try:
        scrub = await api.change("POST", "/v1/scrub", _Scrub, wanted)
        with ProgressLine(f"node {node.id}", scrub.total_bytes) as line:
            shown = 0
            while scrub.running:
                await asyncio.sleep(POLL_SECONDS)
                replicas, scrub = scrub.replicas, await api.get("/v1/scrub", _Scrub)
                if scrub.replicas < replicas:
                    # The node no longer knows its findings, which must not look like a clean result.
                    why = "was restarted, or got another check, while it read its replicas: verify them again"
                    raise RetriableError("connection_lost", f"node {node.id} {why}")
                line.advance(scrub.bytes_read - shown, 0)
                shown = scrub.bytes_read
        return scrub
    finally:
        await api.close()


def _of_node(node_id: int, scrub: _Scrub) -> list[ReplicaReport]:
    """Return a node's damaged replicas."""
    details: dict[tuple[str, int], list[str]] = {}
    for finding in scrub.findings:
        details.setdefault((finding.topic, finding.partition), []).append(finding.detail)
    return [ReplicaReport(node_id, topic, number, None, lines) for (topic, number), lines in sorted(details.items())]


def _verify_folder(folder: str, topic_id: str | None, number: int | None) -> VerifyReport:
    from raftlog.broker.verify import FolderVerifier

    verifier = FolderVerifier(folder, topic_id, number)
    try:
        with ProgressLine(f"verifying {folder}", verifier.total_bytes) as line:
            verified = verifier.run(lambda size: line.advance(size, 0))
    finally:
        verifier.close()
    return report([_of_folder(verifier.node_id, replica) for replica in verified])


def _of_folder(node_id: int, replica: VerifiedReplica) -> ReplicaReport:
    return ReplicaReport(node_id, replica.topic_id, replica.partition, replica.bytes_read, list(replica.findings))


def report(replicas: list[ReplicaReport]) -> VerifyReport:
    """Return the report on these replicas."""
    healthy = not any(replica.findings for replica in replicas)
    return VerifyReport(healthy, sum(replica.bytes_read or 0 for replica in replicas), len(replicas), replicas)


def _text(found: VerifyReport, wide: bool) -> str:
    summary = {"Healthy": found.healthy, "Replicas": found.checked, "Bytes": found.bytes_read}
    summary["Findings"] = found.findings
    rows = [
        (replica.topic, replica.partition, replica.node_id, len(replica.findings))
        for replica in found.replicas
        if wide or replica.findings
    ]
    parts = [fields(summary)]
    if rows:
        parts.append(table(("Topic", "Partition", "Node", "Findings"), rows))
    lines = [
        f"{replica.topic}/{replica.partition} on node {replica.node_id}: {finding}"
        for replica in found.replicas
        for finding in replica.findings
    ]
    lines += [f"not checked: {why}" for why in found.unchecked]
    return "\n\n".join([*parts, *(["\n".join(lines)] if lines else [])])
