"""`raftlog consume`: records of a topic to standard output or a file.

Order holds within a partition. Whole batches are converted to bytes (`raftlog/cli/records/format.py`) and written when
the buffer is full or no more records have arrived, so that a pipe gets a record as soon as possible.

The command ends after `--max-records`, after `--timeout` without new records, on Ctrl-C, or when the reader of its
output has gone (`| head`), which is no failure.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Annotated, Literal

import rich_click as click

from raftlog.cli.records.sink import STDOUT, Closed, Sink
from raftlog.cli.terminal.command import command, option
from raftlog.cli.terminal.connection import Connection
from raftlog.cli.terminal.exit_codes import EXIT_INTERRUPTED
from raftlog.cli.terminal.interrupt import go_on, run_until_interrupted
from raftlog.cli.terminal.options import (
    COUNT,
    Isolation,
    Name,
    TlsAuthority,
    check_partitions,
    parse_from,
    with_authority,
)
from raftlog.cli.terminal.progress import ProgressLine, summary

if TYPE_CHECKING:
    from raftlog.cli.records.format import Writer
    from raftlog.client import ConsumedBatch, Consumer

LONG = 3600.0
"""Maximum wait in seconds; without `--timeout` the wait is repeated."""


INTERRUPT_GRACE = 2.0
"""Time in seconds for which Ctrl-C waits for the output to be read."""


@command()
def consume(
    connection: Connection,
    topic: Name,
    start: Annotated[
        str,
        option(
            "Where to start. @TIME: milliseconds since 1970 or ISO 8601, such as @2026-01-31T12:00:00Z.",
            "--from",
            metavar="earliest|latest|OFFSET|@TIME",
        ),
    ] = "latest",
    max_records: Annotated[int | None, COUNT, "End after this many records."] = None,
    partition: Annotated[tuple[int, ...], COUNT, "Partition to read; repeatable (default: all)."] = (),
    format: Annotated[
        Literal["value", "json", "ndjson", "key-value"],
        "value, key-value: one record per line, as stored. ndjson: one JSON object per line; json: one array.",
    ] = "value",
    key_separator: Annotated[str, option("Separator for key-value.", metavar="TEXT")] = "\\t",
    output: Annotated[
        str,
        option(
            "Write to this file instead of standard output; its content is replaced.",
            metavar="FILE",
            type=click.Path(dir_okay=False, allow_dash=True),
            show_default=False,
        ),
    ] = STDOUT,
    timeout: Annotated[
        float | None, option("End after this time without new records.", metavar="SECONDS", type=click.FloatRange(0))
    ] = None,
    isolation: Annotated[
        Isolation, "Show only committed transactions, or everything that is replicated."
    ] = "read_committed",
    tls_authority: TlsAuthority = None,
) -> int:
    """Write a topic's records to standard output or a file."""
    begin = parse_from(start)
    chosen = with_authority(connection, tls_authority)

    async def run() -> bool:
        from raftlog.cli.records.format import writer
        from raftlog.client import Consumer

        await check_partitions(chosen, topic, partition)
        sink = Sink(output)
        try:
            consumer = Consumer(
                chosen.bootstrap, topic, partition or None, begin, isolation=isolation, **chosen.keywords
            )
            shown = writer(format, key_separator.replace("\\t", "\t").encode())
            return await _consume(consumer, sink, shown, max_records, timeout)
        finally:
            sink.close()

    return 0 if run_until_interrupted(run()) else EXIT_INTERRUPTED


async def _consume(
    consumer: Consumer, sink: Sink, shown: Writer, max_records: int | None, timeout: float | None
) -> bool:
    """Consume, and write whatever was read before a failure. Return False if interrupted."""
    began = time.monotonic()
    finished = True
    with ProgressLine("reading", None, wanted=sink.is_file) as line:
        try:
            try:
                async with consumer:
                    async for batch, records in _batches(consumer, sink, max_records, timeout):
                        data = shown.batch(batch, records)
                        line.advance(len(data), records)
                        await sink.write(data)
            except asyncio.CancelledError:
                finished = False
                go_on()
            finally:
                async with asyncio.timeout(None if finished else INTERRUPT_GRACE):
                    await sink.write(shown.end())
                    await sink.flush()
        except (Closed, TimeoutError):
            return finished
    summary("read", line.records, line.bytes, time.monotonic() - began)
    return finished


async def _batches(
    consumer: Consumer, sink: Sink, max_records: int | None, timeout: float | None
) -> AsyncIterator[tuple[ConsumedBatch, int]]:
    """Yield batches with the number of records to show of each, until nothing has arrived for `timeout` seconds."""
    left = math.inf if max_records is None else max_records
    while left:
        batch = await consumer.next_batch(timeout=0)
        if batch is None:
            await sink.flush()
            batch = await consumer.next_batch(timeout=LONG if timeout is None else timeout)
        if batch is not None and (records := int(min(len(batch), left))):
            left -= records
            yield batch, records
        elif batch is None and timeout is not None:
            return
