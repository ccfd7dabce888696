"""`raftlog bench`: measurements of a running cluster, with the output of Kafka's performance tools.

Each command runs its clients as processes (`raftlog/cli/bench/fleet.py`), shows their progress on standard error, and
prints the lines of `kafka-producer-perf-test`, `kafka-consumer-perf-test` and `kafka-e2e-latency`
(`raftlog/cli/bench/lines.py`), or with `-o json` all results. `benchmarks/table.py` puts the same runs into a table.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

import msgspec
import rich_click as click

from raftlog.cli.bench.chart import html_page, svg_chart, text_chart
from raftlog.cli.bench.fleet import Fleet
from raftlog.cli.bench.histogram import Histogram, Summary
from raftlog.cli.bench.lines import CONSUMER_HEADER, consumer_total, latency_total, producer_total
from raftlog.cli.bench.messages import MIN_LATENCY_VALUE_BYTES, ConsumeJob, Go, LatencyJob, ProduceJob
from raftlog.cli.bench.runs import Between, Limits, Totals, consume, nothing_to_read, produce, spans
from raftlog.cli.bench.watch import Watch
from raftlog.cli.terminal.exit_codes import EXIT_INTERRUPTED
from raftlog.cli.terminal.interrupt import run_until_interrupted
from raftlog.cli.terminal.output import fields, output_option, show
from raftlog.cli.terminal.progress import ProgressLine
from raftlog.config import KIB, MAX_PARTITIONS_PER_TOPIC, MIB
from raftlog.errors import InvalidRequest
from raftlog.records.batch import Codec

T = TypeVar("T")
Command = TypeVar("Command", bound=Callable[..., Any])

POOL_BYTES = 256 * MIB
"""Total size of the values that all producers prepare before the clock starts. Longer runs take several passes with
new values."""
MAX_CLIENTS = 64
MAX_LATENCY_RECORDS = 100_000_000


class ProducerResult(msgspec.Struct, frozen=True):
    """`-o json` of `bench producer`."""

    records: int
    bytes: int
    seconds: float
    records_per_second: float
    bytes_per_second: float
    clients: int
    send: str
    acks: str
    latency: Summary


class ConsumerResult(msgspec.Struct, frozen=True):
    """`-o json` of `bench consumer`. Bytes are counted as stored."""

    records: int
    bytes: int
    seconds: float
    joining_seconds: float
    records_per_second: float
    bytes_per_second: float
    clients: int
    decode: str
    passes: int


class LatencyResult(msgspec.Struct, frozen=True):
    """`-o json` of `bench latency`."""

    rate: float
    records: int
    acks: str
    value_bytes: int
    end_to_end: Summary
    acknowledged: Summary
    histogram: list[tuple[int, int, int]]
    """End-to-end latencies as (from, to, count), in microseconds."""


@dataclass(frozen=True, slots=True)
class Creation:
    """Whether to create the topic, and how."""

    wanted: bool
    partitions: int
    replication_factor: int | None


class Finite(click.FloatRange):
    """A number within a range, excluding `nan`, which is within every range."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        return number if math.isfinite(number) else self.fail(f"{value} is not a finite number", param, ctx)


SECONDS = Finite(0, 1e7, min_open=True)


@click.group()
def bench() -> None:
    """Measure a running cluster: throughput of producers and consumers, and latency."""


def topic_options(command: Command) -> Command:
    """Add `--create` and its options to a command."""
    options = (
        click.option("--create", is_flag=True, help="Create the topic if it does not exist."),
        click.option("--partitions", default=6, show_default=True, type=click.IntRange(1, MAX_PARTITIONS_PER_TOPIC)),
        click.option(
            "--replication-factor",
            type=click.IntRange(1),
            help="Replicas of each partition (default: the cluster chooses).",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def producer_options(command: Command) -> Command:
    """Add the options of all commands that produce."""
    options = (
        click.option(
            "--value-size",
            default=100,
            show_default=True,
            type=click.IntRange(MIN_LATENCY_VALUE_BYTES, MIB // 2),
            help="Size of each value in bytes.",
        ),
        click.option("--acks", type=click.Choice(["all", "1", "0"]), default="all", show_default=True),
        click.option(
            "--compression", type=click.Choice([c.name.lower() for c in Codec]), default="none", show_default=True
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


@bench.command()
@click.argument("topic")
@click.option("--records", type=click.IntRange(1), help="Total number of records. [default: 1000000, unless --seconds]")
@click.option("--seconds", type=SECONDS, help="Duration of the run in seconds.")
@producer_options
@click.option(
    "--send",
    type=click.Choice(["one", "many"]),
    default="many",
    show_default=True,
    help="Send records one by one or in lists.",
)
@click.option("--throughput", type=Finite(0, 1e9, min_open=True), help="Maximum records a second, over all clients.")
@click.option(
    "--clients", default=1, show_default=True, type=click.IntRange(1, MAX_CLIENTS), help="Number of client processes."
)
@click.option("--batch-bytes", default=256 * KIB, show_default=True, type=click.IntRange(1))
@click.option("--linger-ms", default=5.0, show_default=True, type=Finite(0, 1e7))
@topic_options
@output_option
@click.pass_context
def producer(
    context: click.Context,
    topic: str,
    records: int | None,
    seconds: float | None,
    value_size: int,
    acks: str,
    compression: str,
    send: str,
    throughput: float | None,
    clients: int,
    batch_bytes: int,
    linger_ms: float,
    create: bool,
    partitions: int,
    replication_factor: int | None,
    output: str,
) -> None:
    """Send incompressible values at full speed or at --throughput. Latencies end at the acknowledgement."""
    records = 1_000_000 if records is None and seconds is None else records
    pool = max(min(POOL_BYTES // value_size, records or POOL_BYTES) // clients, 1)
    rate = None if throughput is None else throughput / clients
    job = ProduceJob(context.obj, topic, pool, value_size, _send(send), acks, compression, batch_bytes, linger_ms, rate)

    async def work() -> Totals:
        await _prepare(context.obj, topic, Creation(create, partitions, replication_factor))
        total = None if records is None else records * value_size
        async with Fleet([job] * clients) as fleet:
            with ProgressLine("sending", total) as line, Watch(line, quiet=output not in ("table", "wide")) as watch:
                return await produce(fleet, clients, Limits(records, seconds), pool, watch.see, Between())

    totals = _run(context, work())
    told = totals.latency.summary()
    result = ProducerResult(
        totals.records, totals.bytes, totals.seconds, totals.records / totals.seconds, totals.bytes / totals.seconds,
        clients, send, acks, told,
    )  # fmt: skip
    show(output, result, lambda wide: producer_total(totals.records, totals.bytes, totals.seconds, told))


@bench.command()
@click.argument("topic")
@click.option("--records", type=click.IntRange(1), help="Records to read, restarting from the beginning if needed.")
@click.option("--seconds", type=SECONDS, help="Read repeatedly for this many seconds.")
@click.option(
    "--decode",
    type=click.Choice(["lists", "arrow", "each", "none"]),
    default="lists",
    show_default=True,
    help="Conversion of batches. each: await every record separately; none: check only the CRC.",
)
@click.option(
    "--clients",
    default=1,
    show_default=True,
    type=click.IntRange(1, MAX_CLIENTS),
    help="Number of client processes; each reads the whole topic.",
)
@output_option
@click.pass_context
def consumer(
    context: click.Context,
    topic: str,
    records: int | None,
    seconds: float | None,
    decode: str,
    clients: int,
    output: str,
) -> None:
    """Read the current content of a topic: once, or as limited by --records and --seconds."""
    limits = None if records is None and seconds is None else Limits(records, seconds)
    job = ConsumeJob(context.obj, topic, _decode(decode))

    async def work() -> tuple[Totals, datetime, datetime]:
        from raftlog.client import Admin

        async with Admin(context.obj) as admin:
            span = await spans(admin, topic)
        if span[0] == span[1]:
            raise nothing_to_read(topic)
        async with Fleet([job] * clients) as fleet:
            began = datetime.now()
            with ProgressLine("reading", None) as line, Watch(line, quiet=True) as watch:
                totals = await consume(fleet, clients, limits, span, watch.see, Between())
            return totals, began, datetime.now()

    totals, began, ended = _run(context, work())
    result = ConsumerResult(
        totals.records, totals.bytes, totals.seconds, totals.joining, totals.records / totals.seconds,
        totals.bytes / totals.seconds, clients, decode, totals.passes,
    )  # fmt: skip
    row = consumer_total(began, ended, totals.records, totals.bytes, totals.seconds, totals.joining)
    show(output, result, lambda wide: f"{CONSUMER_HEADER}\n{row}")


@bench.command()
@click.argument("topic")
@click.option("--rate", default=1000.0, show_default=True, type=Finite(0.01, 100_000), help="Records a second.")
@click.option("--records", type=click.IntRange(1, MAX_LATENCY_RECORDS), help="Total number of records.")
@click.option("--seconds", type=SECONDS, help="Duration in seconds. [default: 10, unless --records]")
@click.option(
    "--warm-up", default=2.0, show_default=True, type=Finite(0, 1e7), help="Seconds before the measurement starts."
)
@producer_options
@click.option("--histogram", is_flag=True, help="Draw a histogram.")
@click.option(
    "--chart",
    type=click.Path(dir_okay=False, writable=True),
    metavar="FILE",
    help="Write a chart to this .svg or .html file.",
)
@topic_options
@output_option
@click.pass_context
def latency(
    context: click.Context,
    topic: str,
    rate: float,
    records: int | None,
    seconds: float | None,
    warm_up: float,
    value_size: int,
    acks: str,
    compression: str,
    histogram: bool,
    chart: str | None,
    create: bool,
    partitions: int,
    replication_factor: int | None,
    output: str,
) -> None:
    """Measure latency: send at a fixed rate, and read the records back.

    A latency starts when a record is due to be sent, and ends when it is read.
    """
    if chart is not None and os.path.splitext(chart)[1] not in (".svg", ".html"):
        raise click.BadParameter("the name of the chart file must end in .svg or .html", param_hint="--chart")
    if chart is not None and not os.access(os.path.dirname(chart) or ".", os.W_OK):
        raise click.BadParameter(f"the folder of {chart} does not exist or is not writable", param_hint="--chart")
    wanted = [] if records is None else [records]
    wanted += [round(rate * (seconds or 10))] if seconds is not None or records is None else []
    count = max(min(*wanted, MAX_LATENCY_RECORDS), 1)
    job = LatencyJob(context.obj, topic, rate, value_size, acks, compression)

    async def work() -> Totals:
        await _prepare(context.obj, topic, Creation(create, partitions, replication_factor))
        totals = Totals()
        async with Fleet([job]) as fleet:
            if warm_up:
                await fleet.go([Go(max(round(warm_up * rate), 1))])
            with ProgressLine("measuring", count * value_size) as line, Watch(line, quiet=True) as watch:
                totals.add(await fleet.go([Go(count)], watch.see))
        return totals

    totals = _run(context, work())
    end_to_end, acknowledged = totals.latency.summary(), totals.acknowledged.summary()
    measured = {"end to end": totals.latency, "acknowledged": totals.acknowledged}
    if chart is not None:
        _write_chart(chart, f"raftlog: {rate:g} records/s of {value_size} bytes, acks={acks}", measured)
    result = LatencyResult(
        rate, totals.records, acks, value_size, end_to_end, acknowledged, list(totals.latency.buckets())
    )
    show(output, result, lambda wide: _latency_text(measured, histogram))


# --- Inside ----------------------------------------------------------------------------------------------------------


def _run(context: click.Context, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`. If it is interrupted, end the command: a partial measurement is useless."""
    results: list[T] = []

    async def keep() -> bool:
        results.append(await work)
        return True

    if not run_until_interrupted(keep()):
        context.exit(EXIT_INTERRUPTED)
    return results[0]


async def _prepare(bootstrap: str, topic: str, creation: Creation) -> None:
    """Make sure that the topic exists. Raises `RaftlogError`."""
    from raftlog.client import Admin

    async with Admin(bootstrap) as admin:
        if creation.wanted:
            try:
                await admin.create_topic(topic, creation.partitions, creation.replication_factor)
            except InvalidRequest as error:
                if error.code != "topic_exists":
                    raise
        await admin.describe_topic(topic)


def _latency_text(measured: dict[str, Histogram], draw: bool) -> str:
    lines = latency_total(measured["end to end"].summary())
    shown = {}
    for name, histogram in measured.items():
        told = histogram.summary()
        marks = {"p50": told.p50_ms, "p99": told.p99_ms, "p99.9": told.p999_ms, "max": told.max_ms}
        shown[name] = ", ".join(f"{mark} {milliseconds:.3f} ms" for mark, milliseconds in marks.items())
    lines.append(fields(shown))
    if draw:
        lines.append(text_chart(measured["end to end"]))
    return "\n".join(lines)


def _write_chart(path: str, title: str, measured: dict[str, Histogram]) -> None:
    drawn = html_page(title, measured) if path.endswith(".html") else svg_chart(title, measured)
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(drawn)
    except OSError as error:
        raise InvalidRequest("invalid_request", f"cannot write {path}: {error.strerror}") from None


def _send(text: str) -> Any:
    """Narrow the type of an option that Click has checked."""
    return text


_decode = _send
