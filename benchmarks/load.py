"""Throughput of one producer into a cluster of three nodes with fsync on all, compared with a bare loop on the disk.

    python benchmarks/load.py                          # 1e9 bytes per run, send and send_many, three runs each
    python benchmarks/load.py --seconds 60 --runs 1    # at least 60 s of timed load per run
    python benchmarks/load.py --bytes 1e8 --pool 1e8 --runs 1   # a smoke run

The load: distinct, incompressible values of 100 bytes, created before the clock starts; no compression; replication
factor 3; `acks=all` (an idempotent producer); fsync on; through the public client in this process, with its own checks.
A run consists of passes over the pool of values; the clock runs from the first `send` of a pass until all of it is
acknowledged. Between passes, while the clock stands still, a second consumer reads the pass back (number and checksum
must agree) and every value is re-salted, so that no value is sent twice. The topic keeps 2 GB per partition.

Each run also executes `bare_loop.py` on the same disk: the same bytes are written and fdatasynced three times, in
chunks of 1 MiB (about the size of a group commit) and of 16 MiB (the disk's best). Ratios compare rates of one run. CPU
seconds per GB of records are user and system time from /proc, over the timed parts only.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from bare_loop import MIB, write_three_times
from measuring import GB, Cores, a_cluster, console, cpu_seconds, machine, middle, pids, resident_mb, wait_in_sync
from rich.table import Table

from raftlog import Admin, Consumer, Producer
from raftlog.cli.bench.values import Pool, checksum
from raftlog.cli.nodes.local_cluster import LocalCluster
from raftlog.errors import RetriableError

SEND_STRIDE = 1_000
"""Records between two turns of the loop, if records are sent one by one."""
MANY_STRIDE = 50_000
"""Records in one `send_many`."""
RETENTION_BYTES = 2_000_000_000
BARE_CHUNKS = (MIB, 16 * MIB)


@dataclass
class Result:
    """One run: the timed parts of its passes, summed."""

    way: str
    records: int = 0
    bytes: int = 0
    seconds: float = 0.0
    cpu: dict[str, float] = field(default_factory=dict)
    peak_mb: list[float] = field(default_factory=list)
    bare: dict[int, float] = field(default_factory=dict)
    """Chunk size → bytes per second of the bare loop."""
    cores: str = ""

    @property
    def rate(self) -> float:
        """Bytes per second."""
        return self.bytes / self.seconds


async def by_send(producer: Producer, topic: str, values: Sequence[bytes]) -> None:
    """Send records one by one, as fast as the buffer accepts them."""
    send = producer.send
    for start in range(0, len(values), SEND_STRIDE):
        for value in values[start : start + SEND_STRIDE]:
            try:
                send(topic, value)
            except RetriableError as error:
                if error.code != "overloaded":
                    raise
                await producer.drain()
                send(topic, value)
        await asyncio.sleep(0)


async def by_send_many(producer: Producer, topic: str, values: Sequence[bytes]) -> None:
    """Send records as columns."""
    for start in range(0, len(values), MANY_STRIDE):
        await producer.send_many(topic, values[start : start + MANY_STRIDE])


WAYS = {"send": by_send, "send_many": by_send_many}


async def ends(admin: Admin, topic: str, partitions: int) -> list[int]:
    return [(await admin.offsets(topic, partition)).latest for partition in range(partitions)]


async def verify(bootstrap: str, topic: str, begin: Sequence[int], end: Sequence[int], pool: Pool) -> None:
    """Read the pass back. Ends the program if a record is missing, duplicated or changed."""
    count = total = 0
    position = list(begin)
    async with Consumer(bootstrap, topic, start=dict(enumerate(begin))) as consumer:
        while position != list(end):
            batch = await consumer.next_batch(timeout=30)
            if batch is None or batch.start_offset != position[batch.partition]:
                raise SystemExit(f"NOT VERIFIED: {topic} cannot be read on at {position}, it ends at {end}: {batch}")
            values = batch.values()
            count += len(values)
            total += checksum(values)
            position[batch.partition] = batch.end_offset
    if (count, total) != (len(pool.values), checksum(pool.values)):
        raise SystemExit(f"NOT VERIFIED: {count:,} records were read, {len(pool.values):,} acknowledged, or others")


async def run(cluster: LocalCluster, way: str, name: str, pool: Pool, options: argparse.Namespace) -> Result:
    """Warm up, then run passes until there are enough bytes and seconds."""
    result = Result(way)
    processes = {**pids(cluster), "client": os.getpid()}
    async with Admin(cluster.bootstrap) as admin:
        configs = {"retention.bytes": str(RETENTION_BYTES)}
        await admin.create_topic(name, options.partitions, replication_factor=3, configs=configs)
        await wait_in_sync(admin, [name])
        async with Producer(cluster.bootstrap, batch_bytes=options.batch_bytes) as producer:
            await producer.prepare(name)
            warm_until = time.monotonic() + options.warm_up
            while time.monotonic() < warm_until:
                await WAYS[way](producer, name, pool.values[: 2 * MANY_STRIDE])
            await producer.flush()
            cores = Cores.now()
            while result.bytes < options.bytes or result.seconds < options.seconds:
                pool.salt()
                # The pool belongs to the benchmark, not to the client, so the garbage collector need not walk its
                # millions of values.
                gc.collect()
                gc.freeze()
                begin = await ends(admin, name, options.partitions)
                before = {who: cpu_seconds(pid) for who, pid in processes.items()}
                started = time.perf_counter()
                await WAYS[way](producer, name, pool.values)
                await producer.flush()
                result.seconds += time.perf_counter() - started
                for who, pid in processes.items():
                    result.cpu[who] = result.cpu.get(who, 0.0) + cpu_seconds(pid) - before[who]
                result.records += len(pool.values)
                result.bytes += pool.bytes
                await verify(cluster.bootstrap, name, begin, await ends(admin, name, options.partitions), pool)
            result.cores = Cores.now().since(cores)
        result.peak_mb = [resident_mb(pid, peak=True) for pid in pids(cluster).values()]
        await admin.delete_topic(name)
    await asyncio.to_thread(wait_until_deleted, cluster)
    for chunk in BARE_CHUNKS:
        result.bare[chunk] = pool.bytes / write_three_times(cluster.folder, memoryview(pool.content), chunk)
    return result


def wait_until_deleted(cluster: LocalCluster, patience: float = 60.0) -> None:
    """Wait until the topic's files are removed from the disk."""
    deadline = time.monotonic() + patience
    folders = [os.path.join(n.folder, "data", f) for n in cluster.nodes for f in ("partitions", "partitions-removed")]
    while any(os.listdir(folder) for folder in folders) and time.monotonic() < deadline:
        time.sleep(0.1)
    os.sync()


def show(results: Sequence[Result], options: argparse.Namespace) -> None:
    table = Table("", "records/s", "MB/s", *(f"bare loop, {chunk // MIB} MiB" for chunk in BARE_CHUNKS), "timed")
    cpu = Table("CPU s per GB", *results[0].cpu, "all", "peak MB of each broker")
    for result in results:
        rates = [f"{result.rate / 1e6:,.0f}"]
        rates += [f"{result.rate / bare:.2f} of {bare / 1e6:,.0f}" for bare in result.bare.values()]
        table.add_row(result.way, f"{result.records / result.seconds:,.0f}", *rates, f"{result.seconds:.1f} s")
        gigabytes = result.bytes / GB
        used = [seconds / gigabytes for seconds in result.cpu.values()]
        peaks = ", ".join(f"{mb:.0f}" for mb in result.peak_mb)
        cpu.add_row(result.way, *(f"{seconds:.2f}" for seconds in used), f"[bold]{sum(used):.2f}[/]", peaks)
    for way in dict.fromkeys(result.way for result in results):
        mine = [result for result in results if result.way == way]
        rate = middle([result.records / result.seconds for result in mine])
        ratios = [f"{middle([r.rate / r.bare[chunk] for r in mine]):.2f}" for chunk in BARE_CHUNKS]
        used = middle([sum(r.cpu.values()) / (r.bytes / GB) for r in mine])
        table.add_row(
            f"[bold]{way}, median", f"[bold]{rate:,.0f}", f"{rate * options.value_bytes / 1e6:,.0f}", *ratios, ""
        )
        cpu.add_row(f"[bold]{way}, median", *[""] * len(mine[0].cpu), f"[bold]{used:.2f}[/]", "")
    console.print(table, cpu)
    for number, result in enumerate(results, start=1):
        console.print(f"run {number}, {result.way}: {result.records:,} records verified; {result.cores}")


async def measure(options: argparse.Namespace) -> None:
    console.print(machine())
    free = shutil.disk_usage(options.folder or "/tmp").free
    console.print(f"{free / GB:.0f} GB free; making {options.pool:,.0f} bytes of values ...")
    pool = Pool(int(options.pool) // options.value_bytes, options.value_bytes)
    results = []
    with a_cluster(options.folder) as cluster:
        for number in range(options.runs):
            for way in options.ways:
                results.append(await run(cluster, way, f"load-{way}-{number}", pool, options))
                done = results[-1]
                console.print(
                    f"{way}: {done.records / done.seconds:,.0f} records/s over {done.seconds:.1f} s, verified"
                )
    show(results, options)
    console.print(f"{options.partitions} partitions, values of {options.value_bytes} bytes; {machine()}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bytes", type=float, default=1e9, help="least number of bytes of values per run")
    parser.add_argument("--seconds", type=float, default=0.0, help="least number of timed seconds per run")
    parser.add_argument(
        "--pool", type=float, default=1e9, help="bytes of distinct values; uses 2.5 times as much memory"
    )
    parser.add_argument("--runs", type=int, default=3, help="runs of each variant; the median counts")
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--partitions", type=int, default=6)
    parser.add_argument("--value-bytes", type=int, default=100)
    parser.add_argument("--batch-bytes", type=int, default=256 * 1024, help="maximum size of the producer's batches")
    parser.add_argument("--warm-up", type=float, default=3.0, help="seconds of load before the clock starts")
    parser.add_argument(
        "--folder", default=None, help="folder on the disk to measure (default: that of temporary files)"
    )
    asyncio.run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
