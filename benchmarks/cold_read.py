"""A cold log read from its start under load: how long the event loops are blocked, and how other clients are affected.

    python benchmarks/cold_read.py                                 # a log of 10 GB; needs 32 GB of disk
    python benchmarks/cold_read.py --gigabytes 0.2 --seconds 3     # a short trial

Three nodes run with fsync on. A topic is filled, all nodes are stopped in order, and their files are dropped from the
page cache (`posix_fadvise`), so that all reads come from the disk; the bytes read from it are reported as proof
(`/proc/<pid>/io`). Then one producer sends at a fixed rate to another topic (acks=all, three replicas), and a pair of
clients measures how long single records take until they are acknowledged and read: first alone, then while one consumer
reads the whole cold log and checks every value.

A loop is blocked from the return of its selector to the next call. This is measured by the wall clock, which includes
the time that the machine gave to other processes, and by the loop's own processor time. Threads wait for the disk,
never a loop, so the second figure describes raftlog and the first also the machine.
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
from raftlog.cli.bench.histogram import Histogram, Summary
from raftlog.cli.bench.messages import ConsumeJob, Go, Job, LatencyJob, ProduceJob
from raftlog.cli.nodes.local_cluster import LocalCluster

VALUE_BYTES = 100
POOL_BYTES = 100_000_000
PARTITIONS = 6
LONE_RATE = 200.0
"""Records per second whose latency is measured."""
PIECE_SECONDS = 1.0
"""The load runs in parts of this length until the log is read."""


@dataclass
class Loaded:
    """Measurements of the load's clients in one part."""

    records: int
    """The producer's rate."""
    seconds: float
    lone: Summary
    acknowledged: Summary


async def fill(cluster: LocalCluster, topic: str, size: float) -> dict[int, int]:
    """Write this number of bytes of distinct, incompressible values. Returns each partition's end."""
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
    """Drop these files from the page cache, so that the next reader reads them from the disk. Returns their bytes."""
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
    """Return the bytes that the nodes have read from the disk since their start."""
    total = 0
    for pid in pids(cluster).values():
        for line in Path(f"/proc/{pid}/io").read_text().splitlines():
            if line.startswith("read_bytes:"):
                total += int(line.split()[1])
    return total


def worst(cluster: LocalCluster) -> tuple[float, float]:
    """Return the longest times in ms that a node's loop was blocked: by the wall clock in the last minute, and by its
    own processor time since the start."""
    loops = [told["event_loop"] for told in health(cluster).values()]
    return max(one["worst_ms_last_minute"] for one in loops), max(one["worst_processor_ms"] for one in loops)


async def load_until(load: Fleet, rate: float, enough: asyncio.Event) -> Loaded:
    """Run the fixed load, for at least one part, until `enough` is set."""
    records, seconds, lone, acknowledged = 0, 0.0, Histogram(), Histogram()
    while True:
        steady, timed = await load.go([Go(round(rate * PIECE_SECONDS)), Go(round(LONE_RATE * PIECE_SECONDS))])
        records += steady.records
        seconds += max(steady.ended, timed.ended) - min(steady.began, timed.began)
        lone.merge(timed.latency)
        acknowledged.merge(timed.acknowledged)
        if enough.is_set():
            return Loaded(records, seconds, lone.summary(), acknowledged.summary())


def three(latency: Summary) -> str:
    return f"{latency.p50_ms:.1f}, {latency.p99_ms:.1f}, {latency.max_ms:.1f} ms"


async def measure(cluster: LocalCluster, topic: str, ends: Mapping[int, int], options: argparse.Namespace) -> None:
    """Measure both parts and print their table."""
    bootstrap = cluster.bootstrap
    jobs: list[Job] = [
        ProduceJob(bootstrap, "load", int(options.rate), VALUE_BYTES, rate=options.rate),
        LatencyJob(bootstrap, "lone", LONE_RATE, VALUE_BYTES),
    ]
    table = Table(
        "p50, p99, max", "load", "acknowledged", "read", "longest block of a loop (wall; own)", "from the disk", "cores"
    )
    async with contextlib.AsyncExitStack() as stack:
        load = await stack.enter_async_context(Fleet(jobs))
        reader = await stack.enter_async_context(Fleet([ConsumeJob(bootstrap, topic, checksum=True)]))
        for part in ("alone", "with a reader of the cold log"):
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
    parser.add_argument("--gigabytes", type=float, default=10.0, help="size of the cold log in GB of values")
    parser.add_argument("--rate", type=float, default=50_000.0, help="rate of the load in records per second")
    parser.add_argument("--seconds", type=float, default=20.0, help="duration of the load alone in seconds")
    parser.add_argument("--folder", help="folder on the disk to measure (default: that of temporary files)")
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
