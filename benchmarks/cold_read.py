"""A cold log read from its start under load: how long a loop is held, and what others notice of it.

    python benchmarks/cold_read.py                                 # a log of 10 GB; needs 32 GB of disk
    python benchmarks/cold_read.py --gigabytes 0.2 --seconds 3     # that it works

Three nodes, fsync on. A topic is filled, all nodes are stopped in order, and the kernel is told to forget their files
(`posix_fadvise`), so that whatever is read comes from the disk; how much did is told as proof (`/proc/<pid>/io`). Then
one producer sends at a fixed rate to another topic (acks=all, three replicas), and a pair of clients tells how long
lone records take until they are acknowledged and read; first without anybody else, then while one consumer reads the
whole cold log and looks at every value.

A loop is held from when its selector answers until it asks again. That is told by the wall, which has in it what the
machine gave to others, and by the loop's own processor time. A thread waits for the disk, never a loop: so the second
tells of our code and the first of the machine as well.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from many_partitions import health
from measuring import GB, Cores, a_cluster, console, machine, pids, wait_in_sync
from rich.table import Table

from raftlog import Admin
from raftlog.cli.bench.fleet import Fleet
from raftlog.cli.bench.histogram import Histogram, HistogramState, Summary
from raftlog.cli.bench.messages import ConsumeJob, Go, Job, LatencyJob, ProduceJob
from raftlog.cli.nodes.local_cluster import LocalCluster

VALUE_BYTES = 100
POOL_BYTES = 100_000_000
PARTITIONS = 6
LONE_RATE = 200.0
"""Records a second whose latency is measured."""
PIECE_SECONDS = 1.0
"""The load goes on in pieces of this length until the log is read."""


@dataclass
class Loaded:
    """What the load's clients saw in one part."""

    records: int
    """Of the producer at a fixed rate."""
    seconds: float
    lone: Summary
    acknowledged: Summary


async def fill(cluster: LocalCluster, topic: str, size: float) -> dict[int, int]:
    """As many bytes of values as that, distinct and incompressible. Returns each partition's end."""
    async with Admin(cluster.bootstrap) as admin:
        for name in (topic, "load", "lone"):
            await admin.create_topic(name, PARTITIONS, 3)
        await wait_in_sync(admin, [topic, "load", "lone"])
        records = min(int(size), POOL_BYTES) // VALUE_BYTES
        async with Fleet([ProduceJob(cluster.bootstrap, topic, records, VALUE_BYTES)]) as fleet:
            for _ in range(max(1, round(size / (records * VALUE_BYTES)))):
                await fleet.go([Go()])
                await fleet.salt()
        return {number: (await admin.offsets(topic, number)).latest for number in range(PARTITIONS)}


def forget_pages(folder: str) -> int:
    """Whatever the page cache holds of these files is read anew by whoever wants it. Returns their bytes."""
    size = 0
    for path in Path(folder).rglob("*"):
        if path.is_file() and not path.is_symlink():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                size += os.fstat(descriptor).st_size
            finally:
                os.close(descriptor)
    return size


def read_from_disk(cluster: LocalCluster) -> int:
    """Bytes that the nodes had the disk read since they began."""
    total = 0
    for pid in pids(cluster).values():
        for line in Path(f"/proc/{pid}/io").read_text().splitlines():
            if line.startswith("read_bytes:"):
                total += int(line.split()[1])
    return total


def worst(cluster: LocalCluster) -> tuple[float, float]:
    """Milliseconds that a loop was held at most since its node started: by the wall in the last minute, by its own
    processor time ever."""
    loops = [told["event_loop"] for told in health(cluster).values()]
    return max(one["worst_ms_last_minute"] for one in loops), max(one["worst_processor_ms"] for one in loops)


async def load_until(load: Fleet, rate: float, enough: asyncio.Event) -> Loaded:
    """The fixed load, at least one piece of it, until `enough` is set."""
    records, seconds, lone, acknowledged = 0, 0.0, list[HistogramState](), list[HistogramState]()
    while True:
        steady, timed = await load.go([Go(round(rate * PIECE_SECONDS)), Go(round(LONE_RATE * PIECE_SECONDS))])
        records += steady.records
        seconds += max(steady.ended, timed.ended) - min(steady.began, timed.began)
        lone.append(timed.latency)
        acknowledged.append(timed.acknowledged)
        if enough.is_set():
            return Loaded(records, seconds, Histogram.of(lone).summary(), Histogram.of(acknowledged).summary())


def three(latency: Summary) -> str:
    return f"{latency.p50_ms:.1f}, {latency.p99_ms:.1f}, {latency.max_ms:.1f} ms"


async def measure(cluster: LocalCluster, topic: str, ends: Mapping[int, int], options: argparse.Namespace) -> None:
    """Both parts, and their table."""
    bootstrap = cluster.bootstrap
    jobs: list[Job] = [
        ProduceJob(bootstrap, "load", int(options.rate), VALUE_BYTES, rate=options.rate),
        LatencyJob(bootstrap, "lone", LONE_RATE, VALUE_BYTES),
    ]
    table = Table(
        "p50, p99, max", "load", "acknowledged", "read", "a loop was held (wall; own)", "from the disk", "cores"
    )
    async with contextlib.AsyncExitStack() as stack:
        load = await stack.enter_async_context(Fleet(jobs))
        reader = await stack.enter_async_context(Fleet([ConsumeJob(bootstrap, topic, checksum=True)]))
        for part in ("alone", "beside a reader of the cold log"):
            enough, cores, disk = asyncio.Event(), Cores.now(), read_from_disk(cluster)
            loading = asyncio.create_task(load_until(load, options.rate, enough))
            if part == "alone":
                await asyncio.sleep(options.seconds)
            else:
                (read,) = await reader.go([Go(start=dict.fromkeys(ends, 0), end=dict(ends))])
            enough.set()
            loaded = await loading
            wall, own = worst(cluster)
            table.add_row(
                part,
                f"{loaded.records / loaded.seconds:,.0f} records/s",
                three(loaded.acknowledged),
                three(loaded.lone),
                f"{wall:.0f}; {own:.0f} ms",
                f"{(read_from_disk(cluster) - disk) / GB:.2f} GB",
                Cores.now().since(cores),
            )
    if read.records != sum(ends.values()):
        raise SystemExit(f"NOT VERIFIED: {read.records:,} records were read of {sum(ends.values()):,}")
    took = read.ended - read.began
    console.print(table)
    console.print(f"{read.records:,} records ({read.bytes / GB:.1f} GB) read from the start in {took:.1f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--gigabytes", type=float, default=10.0, help="of values in the cold log")
    parser.add_argument("--rate", type=float, default=50_000.0, help="records a second of the load")
    parser.add_argument("--seconds", type=float, default=20.0, help="of the load alone")
    parser.add_argument("--folder", help="on which disk; by default the system's temporary folder")
    options = parser.parse_args()
    console.print(machine())
    with a_cluster(options.folder) as cluster:
        ends = asyncio.run(fill(cluster, "cold", options.gigabytes * GB))
        cluster.stop()
        console.print(f"{forget_pages(cluster.folder) / GB:.1f} GB on three disks, none of it in memory")
        cluster.start()
        cluster.wait_ready()
        asyncio.run(measure(cluster, "cold", ends, options))


if __name__ == "__main__":
    main()
