"""`raftlog consume`: records of a topic to standard output or a file.

Order holds within a partition. Whole batches are turned into bytes at once (`raftlog/cli/records/format.py`) and
written when the buffer is full or nothing more has come, so that a pipe sees a record as soon as there is time to show
it.

It ends after `--max-records`, after `--timeout` without anything new, by Ctrl-C, or when nobody reads its output any
more (`| head`), which is no failure.
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
"""Seconds; without `--timeout` the wait is only begun again."""


INTERRUPT_GRACE = 2.0
"""Seconds that Ctrl-C waits for somebody to read what was written."""


@dataclass(slots=True)
class Count:
    """What was written."""

    records: int = 0
    size: int = 0
    """Bytes, as written."""


@click.command()
@click.argument("topic")
@click.option(
    "--from",
    "start",
    default="latest",
    show_default=True,
    metavar="earliest|latest|OFFSET|@TIME",
    help="@TIME: milliseconds since 1970 or ISO 8601, as @2026-01-31T12:00:00Z.",
)
@click.option("--max-records", type=click.IntRange(0), help="End after so many.")
@click.option("--partition", "partitions", multiple=True, type=click.IntRange(0), help="As often as needed; else all.")
@click.option(
    "--format",
    type=click.Choice(["value", "json", "ndjson", "key-value"]),
    default="value",
    show_default=True,
    help="value, key-value: a record a line, as stored. ndjson: a JSON object a line, json: one array.",
)
@click.option("--key-separator", default="\\t", show_default=True, metavar="TEXT", help="Of key-value.")
@click.option(
    "--output",
    default=STDOUT,
    metavar="FILE",
    type=click.Path(dir_okay=False, allow_dash=True),
    help="Instead of standard output; what is in it is replaced.",
)
@click.option("--timeout", type=click.FloatRange(0), metavar="SECONDS", help="End when nothing new came for so long.")
@click.option(
    "--isolation",
    type=click.Choice(["read_committed", "read_uncommitted"]),
    default="read_committed",
    show_default=True,
    help="Of transactions: only committed ones; or all that is replicated.",
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
    """False: it was interrupted. What was read before a failure is written."""
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
    """Until there are `max_records`, or nothing has come for `timeout` seconds."""
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
