"""`raftlog produce`: records from files or standard input into a topic.

Input is read in pieces outside the loop, converted to columns (`raftlog/cli/records/input.py`) and queued with the
producer, which has a bounded buffer: memory is bounded for any size of input. Records of one partition keep the order
of the input.

Failures are counted and reported. After the first failure no more input is read, records in flight are awaited, and the
last lines report how many records are acknowledged, how many are not, and why. Ctrl-C ends the reading in the same way;
a second one does not wait.
"""

from __future__ import annotations

import asyncio
import io
import os
import sys
import time
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Literal

import msgspec
import rich_click as click

from raftlog.cli.records.input import RecordInput, record_input
from raftlog.cli.records.sender import RecordSender
from raftlog.cli.records.tally import Tally
from raftlog.cli.terminal.command import argument, command, option
from raftlog.cli.terminal.connection import Connection
from raftlog.cli.terminal.exit_codes import EXIT_INTERRUPTED
from raftlog.cli.terminal.interrupt import go_on, run_until_interrupted
from raftlog.cli.terminal.off_loop import off_loop
from raftlog.cli.terminal.options import (
    COUNT,
    Acks,
    BatchBytes,
    Compression,
    Topic,
    check_partitions,
)
from raftlog.cli.terminal.progress import ProgressLine, summary
from raftlog.cli.terminal.units import MILLISECONDS
from raftlog.config import KIB, MIB
from raftlog.errors import InvalidRequest, RaftlogError, RetriableError

if TYPE_CHECKING:
    from raftlog.client import Producer

PIECE_BYTES = 1 * MIB
STDIN = "-"
INTERRUPT_GRACE = 10.0
"""Time for which Ctrl-C waits for records in flight, in seconds."""


class Source(msgspec.Struct, frozen=True):
    """The records: where they come from, how they are parsed, and their partition."""

    topic: Topic
    files: Annotated[
        tuple[str, ...],
        argument(metavar="[FILE]...", type=click.Path(exists=True, dir_okay=False, readable=True, allow_dash=True)),
    ] = ()
    format: Annotated[
        Literal["lines", "json", "ndjson"],
        "lines: one value per line. ndjson: one JSON object per line; json: JSON objects or an array of them; "
        'an object is a record, {"value": ..., "key": ..., "headers": ...}, or with --key-field values.',
    ] = "lines"
    key_separator: Annotated[
        str | None, option("lines: text that separates the key from the value. \\t is a tab.", metavar="TEXT")
    ] = None
    key_field: Annotated[
        str | None, option("json, ndjson: an object is a value, and this field is its key.", metavar="NAME")
    ] = None
    partition: Annotated[int | None, COUNT, "Partition for all records (default: connection by the key)."] = None

    def check(self) -> None:
        """Raises `click.UsageError` for options that contradict each other."""
        if self.key_separator is not None and self.format != "lines":
            raise click.UsageError(f"--key-separator is valid only with --format lines, not {self.format}")
        if self.key_field is not None and self.format == "lines":
            raise click.UsageError("--key-field is valid only with --format json or ndjson")
        if self.key_separator == "":
            raise click.UsageError("--key-separator must not be empty")

    @property
    def paths(self) -> tuple[str, ...]:
        return self.files or (STDIN,)

    def parser(self) -> RecordInput:
        """Return the parser for one file."""
        separator = None if self.key_separator is None else self.key_separator.replace("\\t", "\t").encode()
        return record_input(self.format, key_separator=separator, key_field=self.key_field)


@command()
def produce(
    connection: Connection,
    source: Source,
    acks: Acks = "all",
    compression: Compression = "none",
    batch_bytes: BatchBytes = 256 * KIB,
    linger_ms: Annotated[float, MILLISECONDS, "Time to wait for more records of a batch."] = 5.0,
) -> int:
    """Send records from files or from standard input (also given as the FILE -).

    Examples:
        echo hello | raftlog produce greetings
        raftlog produce orders events.ndjson --format ndjson --key-field customer
        echo 'customer-7=two teas' | raftlog produce orders --key-separator =
    """
    source.check()

    async def run() -> bool:
        from raftlog.client import Producer

        await check_partitions(connection, source.topic, () if source.partition is None else (source.partition,))
        producer = Producer(
            connection.bootstrap,
            acks=acks,
            compression=compression,
            batch_bytes=batch_bytes,
            linger_ms=linger_ms,
            **connection.keywords,
        )
        try:
            return await _produce(producer, source)
        finally:
            await producer.close(flush=False)

    return 0 if run_until_interrupted(run()) else EXIT_INTERRUPTED


async def _produce(producer: Producer, source: Source) -> bool:
    """Send the input. Return False if interrupted. Raises the error that prevented sending, after the summary."""
    tally = Tally()
    began = time.monotonic()
    stop = asyncio.Event()
    failure: RaftlogError | None = None
    interrupted: RaftlogError | None = None
    with ProgressLine("sending", _total_bytes(source.paths), wanted=not _is_typed(source.paths)) as line:
        work = asyncio.create_task(_send_and_flush(producer, source, tally, line, stop))
        try:
            try:
                await asyncio.shield(work)
            except asyncio.CancelledError:
                # Ctrl-C: records that were read are sent, within a bounded time.
                stop.set()
                go_on()
                async with asyncio.timeout(INTERRUPT_GRACE):
                    await work
        except RaftlogError as error:
            failure = error
        except TimeoutError:
            interrupted = RetriableError("outcome_unknown", "interrupted")
    # This decides the remaining records, whose outcome is unknown.
    await producer.close(flush=False)
    verb = "acknowledged" if tally.failed else "sent"
    summary(verb, tally.acknowledged, tally.acknowledged_bytes, time.monotonic() - began)
    if tally.failed:
        if failure is not None:
            click.echo(f"Error: {failure.detail}", err=True)
        raise tally.error(interrupted)
    if failure is not None:
        raise failure
    return not stop.is_set()


async def _send_and_flush(
    producer: Producer, source: Source, tally: Tally, line: ProgressLine, stop: asyncio.Event
) -> None:
    """Send, and wait for the queued records even if sending failed."""
    try:
        await _send_files(producer, source, tally, line, stop)
    except RaftlogError:
        await producer.flush()
        raise
    await producer.flush()


async def _send_files(
    producer: Producer, source: Source, tally: Tally, line: ProgressLine, stop: asyncio.Event
) -> None:
    """Send until the end, `stop`, or the first failure to send. Raises the first error in the input."""
    sender = RecordSender(producer, source.topic, source.partition, tally)
    for path in source.paths:
        with _open(path) as file:
            records = source.parser()
            while tally.first_error is None:
                piece = await _unless(stop, _read(path, file))
                if piece is None:
                    return
                columns = records.feed(piece) if piece else records.end()
                await sender.send(columns)
                line.advance(len(piece), len(columns))
                if columns.fault is not None:
                    raise InvalidRequest(columns.fault.code, f"{_shown(path)}: {columns.fault.detail}")
                if not piece:
                    break


async def _unless(stop: asyncio.Event, reading: Coroutine[Any, Any, bytes]) -> bytes | None:
    """Return what was read; None if `stop` came first."""
    read = asyncio.create_task(reading)
    stopped = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((read, stopped), return_when=asyncio.FIRST_COMPLETED)
        return read.result() if read.done() and not stop.is_set() else None
    finally:
        read.cancel()
        stopped.cancel()


# --- Files -----------------------------------------------------------------------------------------------------------


def _open(path: str) -> BinaryIO | io.FileIO:
    """Return a file whose `read` returns as soon as there are some bytes, and none at the end."""
    try:
        # Not `sys.stdin`: a thread that waits in it would hold its lock when the interpreter ends.
        return io.FileIO(sys.stdin.fileno(), closefd=False) if path == STDIN else io.FileIO(path)
    except io.UnsupportedOperation:
        return sys.stdin.buffer  # a stream in memory
    except OSError as error:
        raise InvalidRequest("invalid_request", f"cannot open {path}: {error.strerror}") from None


async def _read(path: str, file: BinaryIO | io.FileIO) -> bytes:
    try:
        return await off_loop(lambda: file.read(PIECE_BYTES))
    except OSError as error:
        raise InvalidRequest("invalid_request", f"cannot read {_shown(path)}: {error.strerror}") from None


def _total_bytes(files: Sequence[str]) -> int | None:
    if STDIN in files:
        return None
    return sum(os.path.getsize(path) for path in files)


def _is_typed(files: Sequence[str]) -> bool:
    """Return whether the input is typed at the terminal, on which nothing must move then."""
    return STDIN in files and sys.stdin.isatty()


def _shown(path: str) -> str:
    return "standard input" if path == STDIN else path
