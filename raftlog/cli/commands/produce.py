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
import contextlib
import io
import os
import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import rich_click as click

from raftlog.cli.records.input import record_input
from raftlog.cli.records.sender import RecordSender
from raftlog.cli.records.tally import Tally
from raftlog.cli.terminal.exit_codes import EXIT_INTERRUPTED
from raftlog.cli.terminal.interrupt import go_on, run_until_interrupted
from raftlog.cli.terminal.off_loop import off_loop
from raftlog.cli.terminal.options import check_partitions, data_ssl, tls_authority_option
from raftlog.cli.terminal.progress import ProgressLine, Stopwatch, summary
from raftlog.config import KIB, MIB
from raftlog.errors import InvalidRequest, RaftlogError, RetriableError
from raftlog.records.batch import Codec

if TYPE_CHECKING:
    from raftlog.client import Producer

PIECE_BYTES = 1 * MIB
STDIN = "-"
INTERRUPT_GRACE = 10.0
"""Time for which Ctrl-C waits for records in flight, in seconds."""


@dataclass(frozen=True, slots=True)
class Job:
    """The arguments of the command."""

    topic: str
    files: tuple[str, ...]
    format: str
    key_separator: bytes | None
    key_field: str | None
    partition: int | None


@click.command()
@click.argument("topic")
@click.argument(
    "files", nargs=-1, metavar="[FILE]...", type=click.Path(exists=True, dir_okay=False, readable=True, allow_dash=True)
)
@click.option(
    "--format",
    type=click.Choice(["lines", "json", "ndjson"]),
    default="lines",
    show_default=True,
    help="lines: one value per line. ndjson: one JSON object per line; json: JSON objects or an array of them; "
    'an object is a record, {"value": ..., "key": ..., "headers": ...}, or with --key-field values.',
)
@click.option(
    "--key-separator", metavar="TEXT", help="lines: text that separates the key from the value. \\t is a tab."
)
@click.option("--key-field", metavar="NAME", help="json, ndjson: an object is a value, and this field is its key.")
@click.option("--partition", type=click.IntRange(0), help="Partition for all records (default: chosen by the key).")
@click.option("--acks", type=click.Choice(["all", "1", "0"]), default="all", show_default=True)
@click.option(
    "--compression",
    type=click.Choice([codec.name.lower() for codec in Codec]),
    default="none",
    show_default=True,
)
@click.option(
    "--batch-bytes", type=click.IntRange(1), default=256 * KIB, show_default=True, help="Size of a full batch."
)
@click.option(
    "--linger-ms",
    type=click.FloatRange(0),
    default=5.0,
    show_default=True,
    help="Time to wait for more records of a batch.",
)
@tls_authority_option
@click.pass_context
def produce(
    context: click.Context,
    topic: str,
    files: tuple[str, ...],
    format: str,
    key_separator: str | None,
    key_field: str | None,
    partition: int | None,
    acks: str,
    compression: str,
    batch_bytes: int,
    linger_ms: float,
    tls_authority: str | None,
) -> None:
    """Send records from files or from standard input (also given as the FILE -)."""
    if key_separator is not None and format != "lines":
        raise click.UsageError(f"--key-separator is valid only with --format lines, not {format}")
    if key_field is not None and format == "lines":
        raise click.UsageError("--key-field is valid only with --format json or ndjson")
    if key_separator == "":
        raise click.UsageError("--key-separator must not be empty")
    separator = None if key_separator is None else key_separator.replace("\\t", "\t").encode()
    job = Job(topic, files or (STDIN,), format, separator, key_field, partition)

    async def run() -> bool:
        from raftlog.client import Producer

        await check_partitions(context.obj, topic, () if partition is None else (partition,))
        producer = Producer(
            context.obj,
            acks=acks,
            compression=compression,
            batch_bytes=batch_bytes,
            linger_ms=linger_ms,
            ssl=data_ssl(tls_authority),
        )
        try:
            return await _produce(producer, job)
        finally:
            await producer.close(flush=False)

    if not run_until_interrupted(run()):
        context.exit(EXIT_INTERRUPTED)


async def _produce(producer: Producer, job: Job) -> bool:
    """Send the input. Return False if interrupted. Raises the error that prevented sending, after the summary."""
    tally = Tally()
    watch = Stopwatch()
    stop = asyncio.Event()
    failure: RaftlogError | None = None
    interrupted: RaftlogError | None = None
    with ProgressLine("sending", _total_bytes(job.files), wanted=not _is_typed(job.files)) as line:
        work = asyncio.create_task(_send_and_flush(producer, job, tally, line, stop))
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
    summary(verb, tally.acknowledged, tally.acknowledged_bytes, watch.seconds)
    if tally.failed:
        if failure is not None:
            click.echo(f"Error: {failure.detail}", err=True)
        raise tally.error(interrupted)
    if failure is not None:
        raise failure
    return not stop.is_set()


async def _send_and_flush(producer: Producer, job: Job, tally: Tally, line: ProgressLine, stop: asyncio.Event) -> None:
    """Send, and wait for the queued records even if sending failed."""
    failure = None
    try:
        await _send_files(producer, job, tally, line, stop)
    except RaftlogError as error:
        failure = error
    await producer.flush()
    if failure is not None:
        raise failure


async def _send_files(producer: Producer, job: Job, tally: Tally, line: ProgressLine, stop: asyncio.Event) -> None:
    """Send until the end, `stop`, or the first failure to send. Raises the first error in the input."""
    sender = RecordSender(producer, job.topic, job.partition, tally)
    for path in job.files:
        with _opened(path) as read:
            records = record_input(job.format, key_separator=job.key_separator, key_field=job.key_field)
            while tally.first_error is None:
                piece = await _unless(stop, _read(path, read))
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


@contextlib.contextmanager
def _opened(path: str) -> Iterator[Callable[[int], bytes]]:
    """Yield a function that reads up to a number of bytes as soon as there are some, and none at the end."""
    if path != STDIN:
        try:
            file = io.FileIO(path)
        except OSError as error:
            raise InvalidRequest("invalid_request", f"cannot open {path}: {error.strerror}") from None
        with file:
            yield file.read
        return
    stream = sys.stdin.buffer
    try:
        descriptor = stream.fileno()
    except io.UnsupportedOperation:
        yield stream.read
    else:
        # Not through the stream: a thread that waits in it would hold its lock when the interpreter ends.
        yield lambda size: os.read(descriptor, size)


async def _read(path: str, read: Callable[[int], bytes]) -> bytes:
    try:
        return await off_loop(lambda: read(PIECE_BYTES))
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
