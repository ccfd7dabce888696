"""One row of the throughput table: a fresh cluster, the load, the limit of the machine, and the result.

The clock runs from the start of a pass by the first client until its last record is acknowledged (rows of `acks=1`:
until every follower has it; rows of two kinds of clients: until it is read). It stands still between passes, while a
second consumer in a process of its own reads all of the pass back: number and checksum must agree, or the program ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
from bare_loop import MIB, incompressible, write_single_records, write_three_times
from bare_sendfile import send_all
from callers import administrator, client
from measuring import GB, Cores, a_cluster, calibration, console, cpu_seconds, pids, resident_mb, wait_in_sync
from table_rows import PUBLISHED_LATENCY_MS, Row

from raftlog import Admin
from raftlog.cli.bench.fleet import Fleet
from raftlog.cli.bench.histogram import Summary
from raftlog.cli.bench.messages import ConsumeJob, Go, LatencyJob, Passed, ProduceJob, Progress
from raftlog.cli.bench.runs import Between, Limits, Totals, consume, produce
from raftlog.cli.nodes.local_cluster import LocalCluster
from raftlog.cli.terminal.connection import Access

VALUE_BYTES = 100
PARTITIONS = 6
RETENTION_BYTES = 2_000_000_000
BARE_CHUNKS = (MIB, 16 * MIB)
LONE_RECORDS = 1_000
CATCH_UP_SECONDS = 120.0
TOPIC = "table"


@dataclass(frozen=True)
class Scale:
    """The sizes of a run."""

    pool_bytes: int
    least_bytes: int
    least_seconds: float
    warm_up: float
    log_bytes: int
    """The log that consumers read repeatedly."""
    bare_bytes: int


FULL = Scale(1_000_000_000, 1_000_000_000, 60.0, 5.0, 4_000_000_000, 1_000_000_000)
SMOKE = Scale(100_000_000, 1, 10.0, 1.0, 200_000_000, 200_000_000)


class Measured(msgspec.Struct, frozen=True):
    """A row's result, as it is stored."""

    row: str
    smoke: bool
    commit: str
    when: str
    """The time in UTC."""
    records: int
    """The number of records. Each was read back, except in consumer rows, whose log was."""
    seconds: float
    passes: int
    records_per_second: float
    megabytes_per_second: float
    limit_megabytes_per_second: float | None
    of_limit: float | None
    of_published: float | None
    cpu_seconds_per_gigabyte: float | None
    cpu_seconds: dict[str, float]
    peak_rss_mb: list[float]
    checksum: str
    cores: str
    calibration_seconds: float
    latency: Summary | None = None
    """Latency row: milliseconds until the record is read."""
    acknowledged: Summary | None = None
    """Latency row: milliseconds until it is acknowledged."""
    bare_p50_ms: float | None = None
    """Latency row: a single record written and fdatasynced three times by a bare loop."""
    secure: bool = False
    """Whether the cluster had TLS at every listener, required credentials, and decided by rules."""
    pair: str = ""
    """The name that a plain and a secured result share which were measured one after the other; empty: there is no
    other."""


class Watched(Between):
    """The work around each pass: the processes' CPU time, the wait until the row's condition holds, and the second
    consumer."""

    def __init__(self, cluster: LocalCluster, access: Access, admin: Admin, row: Row, records: int) -> None:
        """`access`: that of the clients. `records` of one pass of all producers."""
        self._cluster, self._admin, self._row, self._records = cluster, admin, row, records
        self.access = access
        self.processes: dict[str, int] = pids(cluster)
        self.cpu: dict[str, float] = {}
        self.cores = Cores(0, 0, 0)
        """The CPU time of the passes alone: creating values and reading back happen in the same process."""
        self.checksum = 0
        self.followers: Fleet | None = None
        """Consumers that read while producers write."""
        self._reading: asyncio.Task[list[Passed]] | None = None
        self._begin: dict[int, int] = {}
        self._before: dict[str, float] = {}
        self._cores_before = self.cores

    async def before(self) -> None:
        self._begin = await ends(self._admin)
        if self.followers is not None:
            self._reading = asyncio.create_task(self.followers.go([Go(self._records, start=self._begin)]))
        self._before, self._cores_before = self._cpu_now(), Cores.now()

    async def after(self, passed: Sequence[Passed]) -> float:
        ended = 0.0
        if self._row.producers and not self._row.reads_a_log:
            ended = await self._all_replicated(sum(one.records for one in passed))
        if self._reading is not None:
            (read,) = await self._reading
            if read.records != self._records:
                raise SystemExit(f"NOT VERIFIED: {read.records:,} of {self._records:,} records were read meanwhile")
            ended = max(ended, read.ended)
        for who, seconds in self._cpu_now().items():
            self.cpu[who] = self.cpu.get(who, 0.0) + seconds - self._before[who]
        self.cores += Cores.now() - self._cores_before
        if self._row.producers:
            self.checksum += await read_back(self._cluster, self.access, self._begin, await ends(self._admin), passed)
        return ended

    async def stop(self) -> None:
        """Stop the readers, whose further results are not needed."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    async def _all_replicated(self, records: int) -> float:
        """Return the time when all records of the pass were below the high watermark. With acks=all this is already so,
        and costs no time."""
        deadline = time.monotonic() + CATCH_UP_SECONDS
        while True:
            found = sum((await ends(self._admin)).values()) - sum(self._begin.values())
            now = time.monotonic()
            if found == records:
                return now if self._row.acks != "all" else 0.0
            if found > records or now > deadline:
                raise SystemExit(f"NOT VERIFIED: {records:,} records were acknowledged, {found:,} are in the log")
            await asyncio.sleep(0.02)

    def _cpu_now(self) -> dict[str, float]:
        return {who: cpu_seconds(pid) for who, pid in self.processes.items()}


async def ends(admin: Admin) -> dict[int, int]:
    """Return the high watermark of every partition."""
    found = await asyncio.gather(*(admin.offsets(TOPIC, partition) for partition in range(PARTITIONS)))
    return {partition: offsets.latest for partition, offsets in enumerate(found)}


async def read_back(
    cluster: LocalCluster,
    access: Access,
    begin: Mapping[int, int],
    end: Mapping[int, int],
    wrote: Sequence[Passed],
) -> int:
    """Return the checksum on which producers and a second consumer agree. Ends the program if they differ."""
    async with Fleet([ConsumeJob(cluster.bootstrap, TOPIC, checksum=True, access=access)]) as fleet:
        (read,) = await fleet.go([Go(start=dict(begin), end=dict(end))])
    records, checksum = sum(one.records for one in wrote), sum(one.checksum for one in wrote)
    if (read.records, read.checksum) != (records, checksum):
        raise SystemExit(f"NOT VERIFIED: {read.records:,} records were read, {records:,} acknowledged, or others")
    return checksum


async def run_row(cluster: LocalCluster, row: Row, scale: Scale) -> tuple[Totals, Watched]:
    """Run everything that needs the cluster."""
    producers = max(row.producers, 1)
    pool_records = scale.pool_bytes // VALUE_BYTES // producers
    async with contextlib.AsyncExitStack() as stack:
        access = await client(cluster, TOPIC)
        admin = await stack.enter_async_context(Admin(cluster.bootstrap, **administrator(cluster).keywords))
        configs = {"retention.bytes": str(RETENTION_BYTES)}
        await admin.create_topic(TOPIC, PARTITIONS, row.replication_factor, configs=configs)
        await wait_in_sync(admin, [TOPIC])
        watched = Watched(cluster, access, admin, row, pool_records * producers)
        stack.push_async_callback(watched.stop)
        if row.rate is not None:
            return await measure_latency(stack, cluster, row, scale, watched), watched
        limits = Limits(scale.least_bytes // VALUE_BYTES, scale.least_seconds, both=True)
        if row.reads_a_log:
            await fill(cluster, admin, scale, watched)
            jobs = [ConsumeJob(cluster.bootstrap, TOPIC, row.decode, access=access)] * row.consumers
            fleet = await enter(stack, watched, "consumer", Fleet(jobs))
            span = (dict.fromkeys(range(PARTITIONS), 0), await ends(admin))
            totals = await consume(fleet, row.consumers, limits, span, quiet, watched)
            expected = sum(span[1].values()) * row.consumers * totals.passes
            if totals.records != expected:
                raise SystemExit(f"NOT VERIFIED: {totals.records:,} records were read of {expected:,}")
            return totals, watched
        job = ProduceJob(
            cluster.bootstrap,
            TOPIC,
            pool_records,
            VALUE_BYTES,
            row.send,
            row.acks,
            warm_up=scale.warm_up,
            access=access,
        )
        fleet = await enter(stack, watched, "producer", Fleet([job] * producers))
        if row.consumers:
            jobs = [ConsumeJob(cluster.bootstrap, TOPIC, row.decode, access=access)] * row.consumers
            watched.followers = await enter(stack, watched, "consumer", Fleet(jobs))
        await settled(admin)
        return await produce(fleet, producers, limits, pool_records, quiet, watched), watched


async def fill(cluster: LocalCluster, admin: Admin, scale: Scale, watched: Watched) -> None:
    """Fill the log that consumers read, and read it back once."""
    records = min(scale.pool_bytes, scale.log_bytes) // VALUE_BYTES
    async with Fleet([ProduceJob(cluster.bootstrap, TOPIC, records, VALUE_BYTES, access=watched.access)]) as fleet:
        written = 0
        while written < scale.log_bytes // VALUE_BYTES:
            begin = await ends(admin)
            passed = await fleet.go([Go()])
            watched.checksum += await read_back(cluster, watched.access, begin, await ends(admin), passed)
            written += sum(one.records for one in passed)
            await fleet.salt()


async def measure_latency(
    stack: contextlib.AsyncExitStack, cluster: LocalCluster, row: Row, scale: Scale, watched: Watched
) -> Totals:
    """Send at a fixed rate; each record is read exactly once, or the client fails."""
    assert row.rate is not None
    job = LatencyJob(cluster.bootstrap, TOPIC, row.rate, VALUE_BYTES, access=watched.access)
    fleet = await enter(stack, watched, "client", Fleet([job]))
    await fleet.go([Go(round(scale.warm_up * row.rate))])
    totals = Totals()
    await watched.before()
    passed = await fleet.go([Go(round(scale.least_seconds * row.rate))])
    totals.add(passed, await watched.after(passed))
    return totals


async def enter(stack: contextlib.AsyncExitStack, watched: Watched, name: str, fleet: Fleet) -> Fleet:
    """Wait for the process, and include it in the measurement."""
    await stack.enter_async_context(fleet)
    watched.processes |= {f"{name} {number}": pid for number, pid in enumerate(fleet.pids)}
    return fleet


async def settled(admin: Admin) -> None:
    """Wait until the warm-up's records are below the high watermark: two readings half a second apart agree."""
    deadline, last = time.monotonic() + CATCH_UP_SECONDS, await ends(admin)
    while time.monotonic() < deadline:
        await asyncio.sleep(0.5)
        now = await ends(admin)
        if now == last:
            return
        last = now
    raise SystemExit(f"followers have not caught up after {CATCH_UP_SECONDS:.0f} s: {last}")


def quiet(progress: Progress) -> None:
    """Print no progress bar, which would be measured, too."""


def measure(
    row: Row, scale: Scale, *, smoke: bool, commit: str, folder: str | None, secure: bool = False, pair: str = ""
) -> Measured:
    """Measure one row, from an empty folder to its figures."""
    mood, when = calibration(), time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    with a_cluster(folder, settings={"retention_check_ms": "5000"}, secure=secure) as cluster:
        totals, watched = asyncio.run(run_row(cluster, row, scale))
        peaks = [resident_mb(pid, peak=True) for pid in pids(cluster).values()]
    size = totals.records * VALUE_BYTES
    rate = size / totals.seconds
    kind = ", secured" * secure
    console.print(f"{row.name}{kind}: {totals.records / totals.seconds:,.0f} records/s, verified; now the bare loop")
    limit = bare_limit(row, scale, folder)
    common = {
        "row": row.name, "smoke": smoke, "commit": commit, "when": when, "records": totals.records,
        "seconds": totals.seconds, "passes": totals.passes, "records_per_second": totals.records / totals.seconds,
        "megabytes_per_second": rate / 1e6, "limit_megabytes_per_second": None if limit is None else limit / 1e6,
        "of_limit": None if limit is None else rate / limit,
        "of_published": None if row.published is None else totals.records / totals.seconds / row.published,
        "cpu_seconds_per_gigabyte": None if row.rate else sum(watched.cpu.values()) / (size / GB),
        "cpu_seconds": watched.cpu, "peak_rss_mb": peaks, "checksum": f"{watched.checksum:x}",
        "cores": str(watched.cores),
        "calibration_seconds": mood, "secure": secure, "pair": pair,
    }  # fmt: skip
    if row.rate is not None:
        lone = write_single_records(folder, LONE_RECORDS)
        summary = totals.latency.summary()
        common |= {
            "latency": summary,
            "acknowledged": totals.acknowledged.summary(),
            "bare_p50_ms": lone[len(lone) // 2] * 1000,
            "of_published": PUBLISHED_LATENCY_MS[0] / summary.p50_ms,
        }
    return Measured(**common)


def bare_limit(row: Row, scale: Scale, folder: str | None) -> float | None:
    """Return the machine's best rate in bytes of values per second: the better of two chunk sizes, or sendfile."""
    if row.rate is not None:
        return None
    if row.reads_a_log:
        return send_all(folder, scale.bare_bytes, 4 * scale.bare_bytes)
    content = incompressible(scale.bare_bytes)
    return max(
        len(content) / write_three_times(folder, content, chunk, row.replication_factor) for chunk in BARE_CHUNKS
    )
