"""`raftlog explain`: why a partition, a consumer group or a transaction is in its state, and what can be done.

The node that is asked collects facts from its own view, the voters of the quorum and the nodes that hold replicas. The
first finding is the root cause. Exit code 10: a finding is critical.
"""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote, urlencode

import rich_click as click

from raftlog.api.explain import Explanation, Finding
from raftlog.cli.terminal.command import argument, command, option
from raftlog.cli.terminal.connection import Connection
from raftlog.cli.terminal.exit_codes import EXIT_UNHEALTHY
from raftlog.cli.terminal.output import Output, cell, dash, show, table

if TYPE_CHECKING:
    from collections.abc import Sequence

_PARTITION = re.compile(r"(?P<topic>.+)/(?P<partition>[0-9]+)(?:@(?P<offset>[0-9]+))?")
_COLOURS = {"critical": "red", "warning": "yellow", "info": "green"}
_LISTED = 30
"""The most lines of the timeline in a table; `-o wide` shows all."""


@command()
def explain(
    connection: Connection,
    subject: Annotated[tuple[str, ...], argument(metavar="TOPIC/PARTITION[@OFFSET] | group NAME | transaction ID")],
    principal: Annotated[
        str | None,
        option("Explain as well what this principal may do, and which rule decides.", metavar="User:NAME"),
    ] = None,
    output: Output = "table",
) -> int:
    """Explain why a partition, a consumer group or a transaction is in its state. Exit code 10: a critical finding.

    Examples:
        raftlog explain orders/3
        raftlog explain orders/3@1200
        raftlog explain orders/3 --principal User:bob
        raftlog explain group billing
        raftlog explain transaction payments-1
    """
    path = path_of(subject, principal)
    found = asyncio.run(_ask(connection, path))
    show(output, found, lambda wide: text_of(found, wide))
    return EXIT_UNHEALTHY if any(one.severity == "critical" for one in found.findings) else 0


async def _ask(connection: Connection, path: str) -> Explanation:
    async with connection.api() as api:
        return await api.get(path, Explanation)


def path_of(subject: Sequence[str], principal: str | None) -> str:
    """Return the path of the HTTP API for the words of a command. Raises `UsageError`."""
    words = list(subject)
    if len(words) == 1 and words[0].startswith(("group:", "transaction:")):
        words = words[0].split(":", 1)
    query = {} if principal is None else {"principal": principal}
    if len(words) == 2 and words[0] == "group" and words[1]:
        path = f"/v1/explain/groups/{quote(words[1], safe='')}"
    elif len(words) == 2 and words[0] == "transaction" and words[1]:
        if principal is not None:
            raise click.UsageError("--principal is for partitions and groups")
        path = f"/v1/explain/transactions/{quote(words[1], safe='')}"
    elif len(words) == 1 and (named := _PARTITION.fullmatch(words[0])) is not None:
        path = f"/v1/explain/topics/{quote(named['topic'], safe='')}/partitions/{named['partition']}"
        query |= {} if named["offset"] is None else {"offset": named["offset"]}
    else:
        raise click.UsageError("name TOPIC/PARTITION, TOPIC/PARTITION@OFFSET, group NAME or transaction ID")
    return f"{path}?{urlencode(query)}" if query else path


def text_of(found: Explanation, wide: bool) -> str:
    """Return the explanation for people."""
    parts = [f"{click.style(cell(found.subject), bold=True)}: {cell(found.state)}"]
    parts += [_finding(number, one) for number, one in enumerate(found.findings, 1)]
    if found.record is not None:
        parts.append(_located(found))
    if found.replicas:
        parts.append(_replicas(found))
    if found.consequences:
        rows = [
            (one.node, one.severity, one.writes, one.reads, one.records, one.metadata) for one in found.consequences
        ]
        parts.append("If a node stopped now:\n" + table(("Node", "", "Writes", "Reads", "Loss", "Quorum"), rows))
    if found.timeline:
        shown = found.timeline if wide else found.timeline[-_LISTED:]
        left = (
            [f"({len(found.timeline) - len(shown)} older lines: -o wide)"] if len(found.timeline) > len(shown) else []
        )
        lines = [f"{_time(one.time_ms)}  {_index(one.index)}  {cell(one.text)}" for one in shown]
        parts.append("\n".join(["Timeline:", *left, *lines]))
    if found.unanswered:
        parts.append("\n".join(f"node {node} did not answer: {cell(why)}" for node, why in found.unanswered.items()))
    parts.append(f"As node {found.node_id} sees it at {_time(found.time_ms)}, metadata index {found.metadata_index}")
    return "\n\n".join(parts)


def _finding(number: int, one: Finding) -> str:
    head = click.style(f"{number}. {one.severity}", fg=_COLOURS[one.severity], bold=True)
    lines = [f"{head} [{one.code}] {cell(one.summary)}"]
    lines += [f"     {cell(line)}" for line in one.evidence]
    lines += [f"   → {cell(line)}" for line in one.remedies]
    return "\n".join(lines)


def _located(found: Explanation) -> str:
    record = found.record
    assert record is not None
    said = {True: "yes", False: "no", None: "unknown"}
    rows = [(one.node, one.state, dash(one.leader_epoch), one.detail) for one in record.places]
    return "\n".join(
        [
            f"Record {record.offset}: below the high watermark: {said[record.committed]}, "
            f"readable by read_committed: {said[record.readable_committed]}",
            f"Appended not before {_time(record.not_before_ms)}; where it is fsynced, it was by "
            f"{_time(record.not_after_ms)}",
            table(("Node", "State", "Epoch", "Detail"), rows),
        ]
    )


def _replicas(found: Explanation) -> str:
    columns = (
        "Node",
        "Role",
        "InSync",
        "Eligible",
        "Epoch",
        "Start",
        "Fsynced",
        "End",
        "HighWatermark",
        "Lag",
        "Detail",
    )
    rows = [
        (
            one.node, one.role, one.in_sync, one.eligible, dash(one.leader_epoch), dash(one.log_start_offset),
            dash(one.stable_end_offset), dash(one.log_end_offset), dash(one.high_watermark), dash(one.lag_records),
            one.detail,
        )
        for one in found.replicas
    ]  # fmt: skip
    return table(columns, rows)


def _time(milliseconds: int | None) -> str:
    if milliseconds is None:
        return "an unknown time      "
    moment = datetime.fromtimestamp(milliseconds / 1000, UTC)
    return moment.strftime("%Y-%m-%d %H:%M:%S.") + f"{milliseconds % 1000:03d}"


def _index(index: int | None) -> str:
    return "        -" if index is None else f"{index:>9}"
