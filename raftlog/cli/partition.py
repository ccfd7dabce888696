"""`raftlog partition verify`: is what lies on disk what was written?

With `--data-folder` the replicas of a node that is stopped are read, all of them, and nothing is changed. Exit code 10
says that something was found; the findings name file, byte and offset.

What is *not* here: the check itself (`raftlog/broker/verify.py`, `partitions/scrubber_check.py`) and repairs: a node
that starts, or runs, repairs itself from its peers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import rich_click as click

from .exit_codes import EXIT_UNHEALTHY
from .output import fields, output_option, show, table
from .progress import ProgressLine

if TYPE_CHECKING:
    from raftlog.broker.verify import VerifiedReplica


class ReplicaReport(msgspec.Struct, frozen=True):
    """One replica. `findings` is empty where all is as it was written."""

    node_id: int
    topic: str
    """Its name; its id (32 hex digits) where a folder was read, which knows no names."""
    partition: int
    bytes_read: int
    findings: list[str]


class VerifyReport(msgspec.Struct, frozen=True):
    """`bytes_read` and `findings` of all replicas, summed."""

    healthy: bool
    bytes_read: int
    replicas: list[ReplicaReport]

    @property
    def findings(self) -> int:
        return sum(len(replica.findings) for replica in self.replicas)


@click.group()
def partition() -> None:
    """Replicas and what lies on their disks."""


@partition.command()
@click.argument("topic", required=False)
@click.argument("number", metavar="PARTITION", required=False, type=click.IntRange(min=0))
@click.option(
    "--data-folder",
    type=click.Path(exists=True, file_okay=False),
    required=True,
    help="Read this folder of a node that is stopped. TOPIC is the topic's id then.",
)
@output_option
@click.pass_context
def verify(context: click.Context, topic: str | None, number: int | None, data_folder: str, output: str) -> None:
    """Read every byte of replicas and check it. Exit code 10: damage was found."""
    found = _verify_folder(data_folder, topic, number)
    show(output, found, lambda wide: _text(found, wide))
    if not found.healthy:
        context.exit(EXIT_UNHEALTHY)


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
    """Of these replicas."""
    healthy = not any(replica.findings for replica in replicas)
    return VerifyReport(healthy, sum(replica.bytes_read for replica in replicas), replicas)


def _text(found: VerifyReport, wide: bool) -> str:
    summary = {"Healthy": found.healthy, "Replicas": len(found.replicas), "Bytes": found.bytes_read}
    summary["Findings"] = found.findings
    rows = [
        (replica.topic, replica.partition, replica.node_id, replica.bytes_read, len(replica.findings))
        for replica in found.replicas
        if wide or replica.findings
    ]
    parts = [fields(summary)]
    if rows:
        parts.append(table(("Topic", "Partition", "Node", "Bytes", "Findings"), rows))
    lines = [
        f"{replica.topic}/{replica.partition} on node {replica.node_id}: {finding}"
        for replica in found.replicas
        for finding in replica.findings
    ]
    return "\n\n".join([*parts, *(["\n".join(lines)] if lines else [])])
