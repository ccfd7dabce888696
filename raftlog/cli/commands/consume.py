"""`raftlog consume`: records of topics to standard output or a file.

Order holds within a partition. Whole batches are converted to bytes (`raftlog/cli/records/format.py`) and written when
the buffer is full or no more records have arrived, so that a pipe gets a record as soon as possible.

The command ends after `--max-records`, at `--end`, after `--timeout` without new records, on Ctrl-C, or when the reader
of its output has gone (`| head`), which is no failure.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import msgspec
import rich_click as click

from raftlog.cli.records.sink import STDOUT, Closed, Sink
from raftlog.cli.terminal.command import command, option
from raftlog.cli.terminal.connection import Connection
from raftlog.cli.terminal.exit_codes import EXIT_INTERRUPTED
from raftlog.cli.terminal.interrupt import go_on, run_until_interrupted
from raftlog.cli.terminal.names import complete_groups
from raftlog.cli.terminal.options import COUNT, POSITIVE, Isolation, Topics, check_partitions, parse_from
from raftlog.cli.terminal.output import counted, table
from raftlog.cli.terminal.progress import ProgressLine, summary
from raftlog.cli.terminal.units import SECONDS
from raftlog.errors import InvalidRequest
from raftlog.model import EARLIEST, LATEST

if TYPE_CHECKING:
    from raftlog.cli.records.format import Writer
    from raftlog.cli.records.reading import Source, Span
    from raftlog.client import Admin

INTERRUPT_GRACE = 2.0
"""Time in seconds for which Ctrl-C waits for the output to be read."""
MAX_SHOWN_TOPICS = 20


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """The records to read: topics, partitions, and where to begin and end."""

    topics: Topics
    regex: Annotated[bool, option("TOPIC is a pattern (RE2) for whole names.", "-r", "--regex")] = False
    group: Annotated[
        str | None,
        option(
            "Read as a member of this consumer group: continue at its committed offsets, and commit what was written.",
            "-g", "--group", metavar="GROUP", shell_complete=complete_groups,
        ),
    ] = None  # fmt: skip
    start: Annotated[
        str | None,
        option(
            "Where to start: earliest, latest, an offset, a time (@MILLISECONDS, ISO 8601), or a duration before now. "
            "With --group, where to start without a committed offset. [default: latest]",
            "--from",
            metavar="earliest|latest|OFFSET|TIME|2h",
        ),
    ] = None
    last: Annotated[int | None, POSITIVE, "Start this many offsets before the end of each partition."] = None
    partition: Annotated[tuple[int, ...], COUNT, "Partition to read; repeatable (default: all)."] = ()
    end: Annotated[bool, option("End at the end that each partition has at the start.", "-e", "--end")] = False
    plan: Annotated[bool, "Show what would be read, without reading it."] = False
    isolation: Annotated[Isolation, "Show only committed transactions, or everything that is replicated."] = (
        "read_committed"
    )

    def check(self) -> None:
        """Raise `click.UsageError` for options that contradict each other."""
        if self.start is not None and self.last is not None:
            raise click.UsageError("--from and --last cannot be combined")
        if self.group is not None:
            unusable = {"--partition": self.partition, "--last": self.last, "--end": self.end, "--plan": self.plan}
            for name, given in unusable.items():
                if given:
                    raise click.UsageError(f"{name} cannot be combined with --group, which has offsets of its own")
            if self.begin not in (EARLIEST, LATEST):
                raise click.UsageError(
                    "with --group, --from is earliest or latest; `raftlog group seek` changes the group's offsets"
                )

    @property
    def is_bounded(self) -> bool:
        """Whether the offsets to read must be known before."""
        return self.plan or self.end or self.last is not None

    @property
    def begin(self) -> str | int:
        return parse_from(self.start or LATEST)


class Form(msgspec.Struct, frozen=True, kw_only=True):
    """The form of the output, and where it goes."""

    format: Annotated[
        str,
        option(
            "value, key-value: one record per line, as stored. ndjson: one JSON object per line; json: one array. "
            "Or a template with %t topic, %p partition, %o offset, %k key, %v value, %h headers, %d timestamp, %T "
            "timestamp in ms, %K and %S lengths of key and value; %k{hex}, %v{base64}, {utf8}, {json}; \\n, \\t.",
            "-f", "--format", "-o", "--output", metavar="FORMAT",
        ),
    ] = "value"  # fmt: skip
    key_separator: Annotated[str, option("Separator for key-value.", metavar="TEXT")] = "\\t"
    file: Annotated[
        str,
        option(
            "Write to this file instead of standard output; its content is replaced.",
            metavar="FILE",
            type=click.Path(dir_okay=False, allow_dash=True),
            show_default=False,
        ),
    ] = STDOUT

    def writer(self, *, with_topic: bool) -> Writer:
        """Return what converts records. Raises `InvalidRequest` for an invalid template."""
        from raftlog.cli.records.format import writer

        return writer(self.format, self.key_separator.replace("\\t", "\t").encode(), with_topic=with_topic)


@command()
def consume(
    connection: Connection,
    selection: Selection,
    form: Form,
    max_records: Annotated[
        int | None, option("End after this many records.", "-n", "--max-records", type=COUNT)
    ] = None,
    timeout: Annotated[
        float | None, option("End after this time without new records.", metavar="SECONDS", type=SECONDS)
    ] = None,
) -> int:
    """Write the records of topics to standard output or a file.

    Examples:
        raftlog consume orders
        raftlog consume orders --from 2h --end
        raftlog consume orders --last 10 --format '%p %o %d %k %v\\n' --end
        raftlog consume --regex 'orders-.*' --plan
        raftlog consume orders --group billing --from earliest
        raftlog consume orders --from earliest --end --format ndjson --file orders.ndjson
    """
    selection.check()
    form.writer(with_topic=False)  # an invalid template is an error before anything else
    begin = selection.begin

    async def run() -> bool:
        from raftlog.client import Admin

        named = [] if selection.regex else list(dict.fromkeys(selection.topics))
        if named:
            await check_partitions(connection, named[0], selection.partition)
        else:
            await connection.reach(data=True)
        spans: list[Span] = []
        async with Admin(connection.bootstrap, **connection.keywords) as admin:
            topics = named or await _matching(admin, selection.topics)
            for topic in named[1:]:
                await admin.describe_topic(topic)
            if (
                selection.plan
                or selection.end
                or selection.last is not None
                or (form.file != STDOUT and not selection.group)
            ):
                for topic in topics:
                    spans += await _spans(admin, topic, begin, selection)
        if selection.plan:
            click.echo(_plan_text(spans))
            return True
        several = selection.regex or len(topics) > 1
        if several:
            _announce(topics)
        sink = Sink(form.file)
        try:
            source = _source(connection, selection, topics, spans)
            total = sum(span.offsets for span in spans) or None
            total = max_records if max_records is not None else total
            return await _consume(source, sink, form.writer(with_topic=several), max_records, timeout, total)
        finally:
            sink.close()

    return 0 if run_until_interrupted(run()) else EXIT_INTERRUPTED


def _source(connection: Connection, selection: Selection, topics: Sequence[str], spans: Sequence[Span]) -> Source:
    from raftlog.cli.records.reading import GroupSource, TopicSource
    from raftlog.client import Consumer

    begin = selection.begin
    if selection.group is not None:
        patterns = "|".join(f"(?:{pattern})" for pattern in selection.topics) if selection.regex else ""
        return GroupSource(
            Consumer.subscribe(
                connection.bootstrap,
                selection.group,
                () if selection.regex else topics,
                pattern=patterns,
                auto_offset_reset=str(begin),
                client_id="raftlog-consume",
                isolation=selection.isolation,
                **connection.keywords,
            )
        )
    starts: Mapping[str, dict[int, str | int]] = {topic: {} for topic in topics}
    for span in spans:
        starts[span.topic][span.partition] = span.start
    exact = selection.end or selection.last is not None
    consumers = {
        topic: Consumer(
            connection.bootstrap,
            topic,
            (list(starts[topic]) if exact else selection.partition) or None,
            starts[topic] if exact else begin,
            isolation=selection.isolation,
            **connection.keywords,
        )
        for topic in topics
    }
    return TopicSource(consumers, spans if selection.end else ())


async def _matching(admin: Admin, patterns: Sequence[str]) -> list[str]:
    """Return the topics whose names match one of the patterns. Raises `InvalidRequest` if there is none."""
    found = {one.name for pattern in patterns for one in await admin.list_topics(pattern)}
    if not found:
        raise InvalidRequest("unknown_topic", f"no topic's whole name matches {' or '.join(patterns)}")
    return sorted(found)


async def _spans(admin: Admin, topic: str, begin: str | int, selection: Selection) -> list[Span]:
    """Return the offsets to read in each partition. Raises `RaftlogError`, also for a partition that cannot answer."""
    from raftlog.cli.records.reading import Span

    isolation = selection.isolation
    wanted = selection.partition or None
    earliest = await admin.list_offsets(topic, "earliest", wanted, isolation=isolation)
    latest = await admin.list_offsets(topic, "latest", wanted, isolation=isolation)
    timed = earliest
    if isinstance(begin, str) and begin.startswith("@"):
        timed = await admin.list_offsets(topic, int(begin[1:]), wanted, isolation=isolation)
    spans = []
    for first, last, at in zip(earliest, latest, timed, strict=True):
        for one in (first, last, at):
            if one.error is not None:
                raise one.error.error()
        low, high = first.offset or 0, last.offset or 0
        if selection.last is not None:
            start = max(low, high - selection.last)
        elif isinstance(begin, int):
            start = begin
        elif begin == EARLIEST:
            start = low
        elif begin == LATEST:
            start = high
        else:
            start = high if at.offset is None else at.offset
        spans.append(Span(topic, first.partition, start, high))
    return spans


def _announce(topics: Sequence[str]) -> None:
    shown = ", ".join(topics[:MAX_SHOWN_TOPICS])
    more = f" and {len(topics) - MAX_SHOWN_TOPICS} more" if len(topics) > MAX_SHOWN_TOPICS else ""
    click.echo(f"reading {counted(len(topics), 'topic')}: {shown}{more}", err=True)


def _plan_text(spans: Sequence[Span]) -> str:
    rows = [(span.topic, span.partition, span.start, span.end, span.offsets) for span in spans]
    topics, total = len({span.topic for span in spans}), sum(span.offsets for span in spans)
    shown = table(("Topic", "Partition", "Start", "End", "Offsets"), rows)
    return f"{shown}\n\n{counted(topics, 'topic')}, {counted(len(spans), 'partition')}, {counted(total, 'offset')}."


async def _consume(
    source: Source, sink: Sink, shown: Writer, max_records: int | None, timeout: float | None, total: int | None
) -> bool:
    """Consume, and write whatever was read before a failure. Return False if interrupted."""
    began = time.monotonic()
    finished = True
    with ProgressLine("reading", None, total_records=total, wanted=sink.is_file) as line:
        try:
            try:
                async with source:
                    async for batch, records in source.records(sink.flush, max_records, timeout):
                        data = shown.batch(batch, records)
                        line.advance(len(data), records)
                        await sink.write(data)
                    await sink.flush()
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
