"""`raftlog debug`: the content of segment files, and an archive for support.

Both read only. `dump-segment` reads any copy of a file, as `kafka-dump-log` does; `bundle` writes a new archive.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import rich_click as click

from raftlog.cli.terminal.command import argument, command, option
from raftlog.cli.terminal.connection import Connection
from raftlog.cli.terminal.exit_codes import EXIT_UNHEALTHY
from raftlog.cli.terminal.options import COUNT, POSITIVE
from raftlog.cli.terminal.output import counted
from raftlog.errors import InvalidRequest, RaftlogError
from raftlog.json_values import show_auto

if TYPE_CHECKING:
    from raftlog.broker.segment_dump import Dumped, DumpedBatch
    from raftlog.cli.doctor.bundle import Bundle
    from raftlog.client import Admin
    from raftlog.records.batch import Record


@click.group()
def debug() -> None:
    """Look into the files of a node, and collect what support needs."""


@command(debug, "dump-segment")
def dump_segment(
    files: Annotated[
        tuple[str, ...], argument(metavar="FILE...", required=True, type=click.Path(exists=True, dir_okay=False))
    ],
    records: Annotated[bool, "Show the records of each batch as well."] = False,
    json: Annotated[bool, "One JSON object per line: batches, entries of indexes, problems."] = False,
    from_offset: Annotated[int, COUNT, "Show no batch before this offset."] = 0,
    max_batches: Annotated[int | None, POSITIVE, "Show at most this many batches of each file."] = None,
) -> int:
    """Show the batches of segments (.log) or the entries of indexes (.index, .timeindex), and check them.

    CRCs, the order of offsets, and the indexes beside a segment are checked, also where nothing is shown. A torn tail,
    which a crash or a node that is writing leaves, is no damage. Exit code 10: there is damage.

    Examples:
        raftlog debug dump-segment 00000000000000000000.log
        raftlog debug dump-segment 00000000000000000000.log --records --from-offset 1200 --max-batches 2
        raftlog debug dump-segment 00000000000000000000.index --json
    """
    from raftlog.broker.segment_dump import DumpedBatch, Problem, dump_file

    damage = 0
    for path in files:
        if not json:
            click.echo(f"Dumping {path}")
        shown = batches = size = 0
        for found in dump_file(path, with_records=records):
            if isinstance(found, Problem):
                damage += not found.is_torn_tail
            if isinstance(found, DumpedBatch):
                batches, size = batches + 1, size + found.size
                if found.last_offset < from_offset or (max_batches is not None and shown >= max_batches):
                    continue
                shown += 1
            click.echo(_json(path, found) if json else _text(found))
        if not json:
            click.echo(f"{batches} {'batch' if batches == 1 else 'batches'}, {size} bytes.")
    return EXIT_UNHEALTHY if damage else 0


def _json(path: str, found: Dumped) -> str:
    document: dict[str, Any] = {"file": path, **msgspec.structs.asdict(found), "kind": _kind(found)}
    if document.get("records") is not None:
        document["records"] = list(map(_shown_record, document["records"]))
    return msgspec.json.encode({name: value for name, value in document.items() if value is not None}).decode()


def _kind(found: Dumped) -> str:
    return {"DumpedBatch": "batch", "DumpedEntry": "entry"}.get(type(found).__name__, "problem")


def _shown_record(record: Record) -> dict[str, Any]:
    headers = [{"key": name, "value": show_auto(content)} for name, content in record.headers]
    shown = {"offset": record.offset, "timestamp": record.timestamp_ms, "key": show_auto(record.key)}
    return {**shown, "value": show_auto(record.value), "headers": headers}


def _text(found: Dumped) -> str:
    """Return the line of a batch, entry or problem, with the names of `kafka-dump-log`."""
    kind = _kind(found)
    if kind == "problem":
        return f"PROBLEM {found}"
    if kind == "entry":
        entry: Any = found
        place = f"position: {entry.position}" if entry.position is not None else f"timestamp: {entry.timestamp_ms}"
        return f"offset: {entry.offset} {place}"
    return _batch_text(found)  # type: ignore[arg-type]


def _batch_text(batch: DumpedBatch) -> str:
    time_name = "LogAppendTime" if batch.log_append_time else "CreateTime"
    fields = {
        "baseOffset": batch.base_offset,
        "lastOffset": batch.last_offset,
        "count": batch.record_count,
        "baseSequence": batch.base_sequence,
        "producerId": batch.producer_id,
        "producerEpoch": batch.producer_epoch,
        "partitionLeaderEpoch": batch.leader_epoch,
        "isTransactional": str(batch.is_transactional).lower(),
        "isControl": str(batch.is_control).lower(),
        "position": batch.position,
        time_name: batch.max_timestamp_ms,
        "size": batch.size,
        "magic": batch.magic,
        "compresscodec": batch.codec,
        "crc": batch.crc,
        "isvalid": str(batch.is_valid).lower(),
    }
    lines = [" ".join(f"{name}: {value}" for name, value in fields.items())]
    if batch.control is not None:
        lines.append(f"| {batch.control}")
    for record in batch.records or ():
        shown = msgspec.json.encode(_shown_record(record)).decode()
        lines.append(f"| {shown}")
    return "\n".join(lines)


@command(debug)
def bundle(
    connection: Connection,
    config: Annotated[
        str | None, option("Include the settings and the data folder of this node.", type=click.Path(dir_okay=False))
    ] = None,
    log: Annotated[
        tuple[str, ...],
        option("Include the end of this log file; repeatable.", type=click.Path(exists=True, dir_okay=False)),
    ] = (),
    file: Annotated[
        str | None,
        option(
            "Archive to write [default: raftlog-debug-TIME.tar.gz].", metavar="FILE", type=click.Path(dir_okay=False)
        ),
    ] = None,
) -> None:
    """Write an archive for support: settings, the cluster's state, checks, ends of logs. Secrets are removed.

    It has names of topics and groups, and addresses, but no records, tokens, passwords or keys.

    Examples:
        raftlog debug bundle
        raftlog debug bundle --config /etc/raftlog/node.toml --log /var/log/raftlog.log --file case-17.tar.gz
    """
    from raftlog.cli.doctor.bundle import Bundle

    path = file or time.strftime("raftlog-debug-%Y%m%d-%H%M%S.tar.gz")
    made = Bundle(path)
    try:
        missing = _collect(made, connection, config, log)
    finally:
        made.close()
    for line in missing:
        click.echo(f"not included: {line}", err=True)
    click.echo(f"wrote {path} with {counted(len(made.names), 'file')}; look at it before you send it to anybody")


def _collect(made: Bundle, connection: Connection, config: str | None, logs: tuple[str, ...]) -> list[str]:
    """Add everything that can be had; return what could not, and why."""
    from raftlog.cli.commands.doctor import examine
    from raftlog.cli.doctor.bundle import environment, failures, listed, tail
    from raftlog.cli.doctor.findings import Report
    from raftlog.cli.nodes.node_settings import load_settings

    missing: list[str] = []
    made.add("environment.txt", environment(os.environ))
    made.add("connection.txt", f"{connection!r}\n")
    made.add_json("doctor.json", Report.of(examine(connection, config, None)))
    if config is not None:
        try:
            made.add("node.toml", tail(config))
            settings = load_settings(config)
            made.add_json("settings.json", settings.settings())
            made.add("data-folder.txt", listed(settings.data_folder))
        except InvalidRequest as error:
            missing.append(error.detail)
    for number, path in enumerate(logs):
        try:
            made.add(f"logs/{number}-{os.path.basename(path)}", tail(path))
        except InvalidRequest as error:
            missing.append(error.detail)
    asyncio.run(_collect_cluster(made, connection, missing))
    made.add("missing.txt", failures(missing))
    return missing


async def _collect_cluster(made: Bundle, connection: Connection, missing: list[str]) -> None:
    from raftlog.cli.commands.cluster import check_health
    from raftlog.client import Admin

    parts: dict[str, Callable[[Admin], Awaitable[Any]]] = {
        "cluster": lambda admin: admin.cluster(),
        "quorum": lambda admin: admin.quorum(),
        "replicas": lambda admin: admin.replicas(),
        "reassignments": lambda admin: admin.list_reassignments(),
        "groups": lambda admin: admin.list_groups(),
        "transactions": lambda admin: admin.list_transactions(),
    }
    try:
        await connection.reach()
        made.add_json("cluster/health.json", await check_health(connection))
    except RaftlogError as error:
        missing.append(f"the cluster: {error.detail}")
        return
    async with Admin(connection.bootstrap, **connection.keywords) as admin:
        for name, ask in parts.items():
            try:
                made.add_json(f"cluster/{name}.json", await ask(admin))
            except RaftlogError as error:
                missing.append(f"{name}: {error.detail}")
        try:
            topics = [await admin.describe_topic(one.name) for one in await admin.list_topics()]
            made.add_json("cluster/topics.json", topics)
        except RaftlogError as error:
            missing.append(f"topics: {error.detail}")
