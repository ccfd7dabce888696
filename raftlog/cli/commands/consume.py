"""`raftlog consume`: records of a topic to standard output or a file.

Order holds within a partition. Whole batches are converted to bytes (`raftlog/cli/records/format.py`) and written when
the buffer is full or no more records have arrived, so that a pipe gets a record as soon as possible.

The command ends after `--max-records`, after `--timeout` without new records, on Ctrl-C, or when the reader of its
output has gone (`| head`), which is no failure.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

import rich_click as click

from raftlog.cli.records.sink import STDOUT, Closed, Sink
from raftlog.cli.terminal.exit_codes import EXIT_INTERRUPTED
from raftlog.cli.terminal.interrupt import go_on, run_until_interrupted
from raftlog.cli.terminal.options import check_partitions, data_ssl, parse_from, tls_authority_option
from raftlog.cli.terminal.progress import ProgressLine, Stopwatch, summary

if TYPE_CHECKING:
    from raftlog.cli.records.format import Writer
    from raftlog.client import Consumer

LONG = 3600.0
"""Maximum wait in seconds; without `--timeout` the wait is repeated."""


INTERRUPT_GRACE = 2.0
"""Time in seconds for which Ctrl-C waits for the output to be read."""


@dataclass(slots=True)
class Count:
    """The amount of output."""

    records: int = 0
    size: int = 0
    """Bytes as written."""


@click.command()
@click.argument("topic")
@click.option(
    "--from",
    "start",
    default="latest",
    show_default=True,
    metavar="earliest|latest|OFFSET|@TIME",
    help="Where to start. @TIME: milliseconds since 1970 or ISO 8601, such as @2026-01-31T12:00:00Z.",
)
@click.option("--max-records", type=click.IntRange(0), help="End after this many records.")
@click.option(
    "--partition",
    "partitions",
    multiple=True,
    type=click.IntRange(0),
    help="Partition to read; repeatable (default: all).",
)
@click.option(
    "--format",
    type=click.Choice(["value", "json", "ndjson", "key-value"]),
    default="value",
    show_default=True,
    help="value, key-value: one record per line, as stored. ndjson: one JSON object per line; json: one array.",
)
@click.option("--key-separator", default="\\t", show_default=True, metavar="TEXT", help="Separator for key-value.")
@click.option(
    "--output",
    default=STDOUT,
    metavar="FILE",
    type=click.Path(dir_okay=False, allow_dash=True),
    help="Write to this file instead of standard output; its content is replaced.",
)
@click.option("--timeout", type=click.FloatRange(0), metavar="SECONDS", help="End after this time without new records.")
@click.option(
    "--isolation",
    type=click.Choice(["read_committed", "read_uncommitted"]),
    default="read_committed",
    show_default=True,
    help="Show only committed transactions, or everything that is replicated.",
)
@tls_authority_option
@click.pass_context
def consume(
    context: click.Context,
    topic: str,
    start: str,
    max_records: int | None,
    partitions: tuple[int, ...],
    format: str,
    key_separator: str,
    output: str,
    timeout: float | None,
    isolation: str,
    tls_authority: str | None,
) -> None:
    """Write a topic's records to standard output or a file."""
    begin = parse_from(start)

    async def run() -> bool:
        from raftlog.cli.records.format import writer
        from raftlog.client import Consumer

        await check_partitions(context.obj, topic, partitions)
        sink = Sink(output)
        try:
            consumer = Consumer(
                context.obj, topic, partitions or None, begin, isolation=isolation, ssl=data_ssl(tls_authority)
            )
            shown = writer(format, key_separator.replace("\\t", "\t").encode())
            return await _consume(consumer, sink, shown, max_records, timeout)
        finally:
            sink.close()

    if not run_until_interrupted(run()):
        context.exit(EXIT_INTERRUPTED)


async def _consume(
    consumer: Consumer, sink: Sink, shown: Writer, max_records: int | None, timeout: float | None
) -> bool:
    """Consume, and write whatever was read before a failure. Return False if interrupted."""
    count = Count()
    watch = Stopwatch()
    finished = True
    with ProgressLine("reading", None, wanted=sink.is_file) as line:
        try:
            try:
                async with consumer:
                    await _copy(consumer, sink, shown, count, max_records, timeout, line)
            except asyncio.CancelledError:
                finished = False
                go_on()
            finally:
                async with asyncio.timeout(None if finished else INTERRUPT_GRACE):
                    await sink.write(shown.end())
                    await sink.flush()
        except (Closed, TimeoutError):
            return finished
    summary("read", count.records, count.size, watch.seconds)
    return finished


async def _copy(
    consumer: Consumer,
    sink: Sink,
    shown: Writer,
    count: Count,
    max_records: int | None,
    timeout: float | None,
    line: ProgressLine,
) -> None:
    """Copy until there are `max_records`, or nothing has arrived for `timeout` seconds."""
    while max_records is None or count.records < max_records:
        batch = await consumer.next_batch(timeout=0)
        if batch is None:
            await sink.flush()
            batch = await consumer.next_batch(timeout=LONG if timeout is None else timeout)
        if batch is None:
            if timeout is not None:
                return
            continue
        records = len(batch) if max_records is None else min(len(batch), max_records - count.records)
        if records:
            data = shown.batch(batch, records)
            count.records += records
            count.size += len(data)
            await sink.write(data)
            line.advance(len(data), records)
