"""`raftlog bench`: measurements of a running cluster, with the output of Kafka's performance tools.

Each command runs its clients as processes (`raftlog/cli/bench/fleet.py`), shows their progress on standard error, and
prints the lines of `kafka-producer-perf-test`, `kafka-consumer-perf-test` and `kafka-e2e-latency`
(`raftlog/cli/bench/lines.py`), or with `-o json` all results. `benchmarks/table.py` puts the same runs into a table.
"""

from __future__ import annotations

import math
import os
from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
import rich_click as click

from raftlog.cli.bench.chart import html_page, svg_chart, text_chart
from raftlog.cli.bench.fleet import Fleet
from raftlog.cli.bench.histogram import Histogram, Summary
from raftlog.cli.bench.lines import CONSUMER_HEADER, consumer_total, latency_total, producer_total
from raftlog.cli.bench.messages import MIN_LATENCY_VALUE_BYTES, ConsumeJob, Go, LatencyJob, ProduceJob
from raftlog.cli.bench.runs import Between, Limits, Totals, consume, nothing_to_read, produce, spans
from raftlog.cli.bench.watch import Watch
from raftlog.cli.terminal.command import command, option
from raftlog.cli.terminal.connection import Connection
from raftlog.cli.terminal.interrupt import run_until_interrupted
from raftlog.cli.terminal.options import (
    PARTITION_COUNT,
    POSITIVE,
    Acks,
    BatchBytes,
    Compression,
    ReplicationFactor,
    Topic,
)
from raftlog.cli.terminal.output import Output, fields, show
from raftlog.cli.terminal.progress import ProgressLine
from raftlog.cli.terminal.units import MILLISECONDS, Duration, Size
from raftlog.config import KIB, MIB
from raftlog.errors import InvalidRequest

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


class Finite(click.FloatRange):
    """A number within a range, excluding `nan`, which is within every range."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        return number if math.isfinite(number) else self.fail(f"{value} is not a finite number", param, ctx)


SECONDS = Duration(1_000, low=0.001, high=1e7)
CLIENTS = click.IntRange(1, MAX_CLIENTS)


class Creation(msgspec.Struct, frozen=True):
    """Whether to create the topic, and how."""

    create: Annotated[bool, "Create the topic if it does not exist."] = False
    partitions: Annotated[int, PARTITION_COUNT, "Partitions of the topic that --create creates."] = 6
    replication_factor: ReplicationFactor = None


class Sending(msgspec.Struct, frozen=True):
    """The options of all commands that produce."""

    value_size: Annotated[int, Size(MIN_LATENCY_VALUE_BYTES, MIB // 2), "Size of each value in bytes."] = 100
    acks: Acks = "all"
    compression: Compression = "none"


@click.group()
def bench() -> None:
    """Measure a running cluster: throughput of producers and consumers, and latency."""


@command(bench)
def producer(
    connection: Connection,
    topic: Topic,
    records: Annotated[int | None, POSITIVE, "Total number of records. [default: 1000000, unless --seconds]"] = None,
    seconds: Annotated[float | None, SECONDS, "Duration of the run in seconds."] = None,
    *,
    sending: Sending,
    send: Annotated[Literal["one", "many"], "Send records one by one or in lists."] = "many",
    throughput: Annotated[
        float | None, Finite(0, 1e9, min_open=True), "Maximum records a second, over all clients."
    ] = None,
    clients: Annotated[int, CLIENTS, "Number of client processes."] = 1,
    batch_bytes: BatchBytes = 256 * KIB,
    linger_ms: Annotated[float, MILLISECONDS, "Time to wait for more records of a batch."] = 5.0,
    creation: Creation,
    output: Output = "table",
) -> None:
    """Send incompressible values at full speed or at --throughput. Latencies end at the acknowledgement.

    Examples:
        raftlog bench producer load --create --records 5000000
        raftlog bench producer load --seconds 30 --clients 3 --acks 1
    """
    records = 1_000_000 if records is None and seconds is None else records
    size, acks = sending.value_size, sending.acks
    pool = max(min(POOL_BYTES // size, records or POOL_BYTES) // clients, 1)
    rate = None if throughput is None else throughput / clients
    job = ProduceJob(
        connection.bootstrap, topic, pool, size, send, acks, sending.compression, batch_bytes, linger_ms, rate,
        access=connection.access,
    )  # fmt: skip

    async def work() -> Totals:
        await _prepare(connection, topic, creation)
        async with Fleet([job] * clients) as fleet:
            with ProgressLine("sending", None if records is None else records * size) as line:
                watch = Watch(line, quiet=output not in ("table", "wide"))
                return await produce(fleet, clients, Limits(records, seconds), pool, watch.see, Between())

    totals = run_until_interrupted(work())
    told = totals.latency.summary()
    result = ProducerResult(
        totals.records, totals.bytes, *_rates(totals), clients, send, acks, told
    )  # fmt: skip
    show(output, result, lambda wide: producer_total(totals.records, totals.bytes, totals.seconds, told))


@command(bench)
def consumer(
    connection: Connection,
    topic: Topic,
    records: Annotated[int | None, POSITIVE, "Records to read, restarting from the beginning if needed."] = None,
    seconds: Annotated[float | None, SECONDS, "Read repeatedly for this many seconds."] = None,
    decode: Annotated[
        Literal["lists", "arrow", "each", "none"],
        "Conversion of batches. each: await every record separately; none: check only the CRC.",
    ] = "lists",
    clients: Annotated[int, CLIENTS, "Number of client processes; each reads the whole topic."] = 1,
    output: Output = "table",
) -> None:
    """Read the current content of a topic: once, or as limited by --records and --seconds.

    Examples:
        raftlog bench consumer load --decode arrow
    """
    limits = None if records is None and seconds is None else Limits(records, seconds)
    job = ConsumeJob(connection.bootstrap, topic, decode, access=connection.access)

    async def work() -> tuple[Totals, datetime, datetime]:
        from raftlog.client import Admin

        await connection.reach(data=True)
        async with Admin(connection.bootstrap, **connection.keywords) as admin:
            span = await spans(admin, topic)
        if span[0] == span[1]:
            raise nothing_to_read(topic)
        async with Fleet([job] * clients) as fleet:
            began = datetime.now()
            total = (sum(span[1].values()) - sum(span[0].values())) * clients
            with ProgressLine("reading", None, total_records=total if limits is None else records) as line:
                watch = Watch(line, quiet=True)
                totals = await consume(fleet, clients, limits, span, watch.see, Between())
            return totals, began, datetime.now()

    totals, began, ended = run_until_interrupted(work())
    seconds, records_rate, bytes_rate = _rates(totals)
    result = ConsumerResult(
        totals.records, totals.bytes, seconds, round(totals.joining, 6), records_rate, bytes_rate,
        clients, decode, totals.passes,
    )  # fmt: skip
    row = consumer_total(began, ended, totals.records, totals.bytes, totals.seconds, totals.joining)
    show(output, result, lambda wide: f"{CONSUMER_HEADER}\n{row}")


@command(bench)
def latency(
    connection: Connection,
    topic: Topic,
    rate: Annotated[float, Finite(0.01, 100_000), "Records a second."] = 1000.0,
    records: Annotated[int | None, click.IntRange(1, MAX_LATENCY_RECORDS), "Total number of records."] = None,
    seconds: Annotated[float | None, SECONDS, "Duration in seconds. [default: 10, unless --records]"] = None,
    warm_up: Annotated[float, Duration(1_000), "Seconds before the measurement starts."] = 2.0,
    *,
    sending: Sending,
    histogram: Annotated[bool, "Draw a histogram."] = False,
    chart: Annotated[
        str | None,
        option(
            "Write a chart to this .svg or .html file.",
            type=click.Path(dir_okay=False, writable=True),
            metavar="FILE",
        ),
    ] = None,
    creation: Creation,
    output: Output = "table",
) -> None:
    """Measure latency: send at a fixed rate, and read the records back.

    A latency starts when a record is due to be sent, and ends when it is read.

    Examples:
        raftlog bench latency load --rate 1000 --seconds 30 --histogram
    """
    if chart is not None and os.path.splitext(chart)[1] not in (".svg", ".html"):
        raise click.BadParameter("the name of the chart file must end in .svg or .html", param_hint="--chart")
    if chart is not None and not os.access(os.path.dirname(chart) or ".", os.W_OK):
        raise click.BadParameter(f"the folder of {chart} does not exist or is not writable", param_hint="--chart")
    wanted = [] if records is None else [records]
    wanted += [round(rate * (seconds or 10))] if seconds is not None or records is None else []
    count = max(min(*wanted, MAX_LATENCY_RECORDS), 1)
    size, acks = sending.value_size, sending.acks
    job = LatencyJob(connection.bootstrap, topic, rate, size, acks, sending.compression, access=connection.access)

    async def work() -> Totals:
        await _prepare(connection, topic, creation)
        totals = Totals()
        async with Fleet([job]) as fleet:
            if warm_up:
                await fleet.go([Go(max(round(warm_up * rate), 1))])
            with ProgressLine("measuring", count * size) as line:
                totals.add(await fleet.go([Go(count)], Watch(line, quiet=True).see))
        return totals

    totals = run_until_interrupted(work())
    measured = {"end to end": totals.latency, "acknowledged": totals.acknowledged}
    if chart is not None:
        _write_chart(chart, f"raftlog: {rate:g} records/s of {size} bytes, acks={acks}", measured)
    summaries = (totals.latency.summary(), totals.acknowledged.summary())
    result = LatencyResult(rate, totals.records, acks, size, *summaries, list(totals.latency.buckets()))
    show(output, result, lambda wide: _latency_text(measured, histogram))


# --- Inside ----------------------------------------------------------------------------------------------------------


def _rates(totals: Totals) -> tuple[float, float, float]:
    """Return seconds, records a second and bytes a second, with as many digits as a measurement has."""
    seconds = round(totals.seconds, 6)
    return seconds, round(totals.records / seconds, 1), round(totals.bytes / seconds, 1)


async def _prepare(connection: Connection, topic: str, creation: Creation) -> None:
    """Make sure that the topic exists. Raises `RaftlogError`."""
    from raftlog.client import Admin

    await connection.reach(data=True)
    async with Admin(connection.bootstrap, **connection.keywords) as admin:
        if creation.create:
            try:
                await admin.create_topic(topic, creation.partitions, creation.replication_factor)
            except InvalidRequest as error:
                if error.code != "topic_exists":
                    raise
        await admin.describe_topic(topic)


def _latency_text(measured: dict[str, Histogram], draw: bool) -> str:
    lines = latency_total(measured["end to end"].summary())
    shown = {name: histogram.summary().marks.items() for name, histogram in measured.items()}
    lines.append(
        fields({name: ", ".join(f"{mark} {ms:.3f} ms" for mark, ms in marks) for name, marks in shown.items()})
    )
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
