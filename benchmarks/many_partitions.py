"""Three real brokers with many partitions: start, failover, descriptors, idle CPU, and a write to many partitions at
once.

    python benchmarks/many_partitions.py cluster --count 10000     # start, idle, failover, restart
    python benchmarks/many_partitions.py dirty --count 1000        # acks=all to 1,000 dirty partitions at once

*cluster*: creates topics of a thousand partitions with three replicas each and writes one record to each partition.
Then it measures the idle brokers; SIGKILL of one broker, until every partition has another leader and accepts a write;
its restart, until every replica is in sync again; and an orderly stop and start of all brokers.

*dirty*: repeatedly sends one record to each of `--count` partitions, all in one turn of the client, and measures the
time from the call to each acknowledgement, which means fsynced on three brokers. In each round, every broker writes and
syncs that number of logs, all on one disk.

`held` is the longest time that a broker's loop was blocked, by the wall clock and by its own processor time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from typing import Any

from measuring import Cores, a_cluster, console, cpu_seconds, machine, percentile_ms, pids, resident_mb
from rich.table import Table

from raftlog import Admin, Producer
from raftlog.cli.nodes.local_cluster import LocalCluster

PARTITIONS_A_TOPIC = 1_000
SETTLE_SECONDS = 5.0
PATIENCE_SECONDS = 600.0
BUFFER_BYTES = 256 * 1024 * 1024
"""The producer's buffer: a batch uses memory in steps of 8 KiB, and each partition has one open batch."""


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def threads(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/task"))


def names(count: int) -> list[tuple[str, int]]:
    """Topics and their numbers of partitions."""
    return [
        (f"topic-{number}", min(PARTITIONS_A_TOPIC, count - first))
        for number, first in enumerate(range(0, count, PARTITIONS_A_TOPIC))
    ]


def health(cluster: LocalCluster) -> dict[int, dict[str, Any]]:
    """Return the health report of each running node."""
    found = {}
    for node in cluster.nodes:
        if node.process is not None:
            try:
                with urllib.request.urlopen(f"http://{node.api}/v1/health", timeout=30) as answer:
                    found[node.node_id] = json.load(answer)
            except urllib.error.HTTPError as error:
                found[node.node_id] = json.load(error)
    return found


def held(cluster: LocalCluster) -> str:
    loops = [told["event_loop"] for told in health(cluster).values() if told.get("event_loop")]
    worst = max(loop["worst_ms_last_minute"] for loop in loops)
    return f"{worst:.0f} ms in the last minute, {max(loop['worst_processor_ms'] for loop in loops):.0f} of its own ever"


async def until(holds: Callable[[], bool], what: str) -> float:
    """Wait until the condition holds; return the seconds."""
    began = time.perf_counter()
    while not await asyncio.to_thread(holds):
        if time.perf_counter() - began > PATIENCE_SECONDS:
            raise SystemExit(f"{what} took more than {PATIENCE_SECONDS:.0f} s")
        await asyncio.sleep(0.2)
    return time.perf_counter() - began


def all_well(cluster: LocalCluster) -> bool:
    """Return whether every node runs, and every partition has all of its replicas in sync, in the view of every
    node."""
    found = health(cluster)
    return len(found) == len(cluster.nodes) and all(t["ready"] and not t["problems"] for t in found.values())


def all_led(cluster: LocalCluster, gone: int) -> bool:
    """Return whether the dead node is fenced, and every partition has a leader."""
    found = health(cluster)
    lines = [line for told in found.values() for line in told["problems"]]
    known = sum(f"node {gone} is fenced" in line for line in lines) == len(found)
    return known and not any("has no leader" in line for line in lines)


async def write_everywhere(producer: Producer, topics: Sequence[tuple[str, int]], value: bytes) -> list[float]:
    """Send one record to each partition at once. Returns the seconds until each acknowledgement, sorted."""
    took: list[float] = []
    began = time.perf_counter()
    waiting = []
    for topic, count in topics:
        for partition in range(count):
            delivery = producer.send(topic, value, partition=partition)
            delivery.add_done_callback(lambda done: took.append(time.perf_counter() - began))
            waiting.append(delivery)
    await producer.flush()
    for delivery in waiting:
        if delivery.exception() is not None:
            raise SystemExit(f"a record was not acknowledged: {delivery.exception()}")
    return sorted(took)


async def create(cluster: LocalCluster, topics: Sequence[tuple[str, int]]) -> float:
    began = time.perf_counter()
    async with Admin(cluster.bootstrap) as admin:
        for topic, count in topics:
            await admin.create_topic(topic, count, replication_factor=3)
    await until(lambda: all_well(cluster), "creating the topics")
    return time.perf_counter() - began


async def cluster_study(options: argparse.Namespace) -> None:
    topics = names(options.count)
    table = Table("", "", "", title=f"{options.count:,} partitions on three brokers")
    with a_cluster(options.folder) as cluster:
        table.add_row("creation, until all are in sync", f"{await create(cluster, topics):.1f} s", held(cluster))
        console.print("created")
        async with Producer(cluster.bootstrap, linger_ms=0, buffer_bytes=BUFFER_BYTES) as producer:
            first = await write_everywhere(producer, topics, b"first")
            table.add_row("first record of each acknowledged", f"{first[-1]:.1f} s", held(cluster))
            console.print("written")
            await asyncio.sleep(SETTLE_SECONDS)
            idle(table, cluster, options.seconds)
            await fail_over(table, cluster, producer, topics)
        began = time.perf_counter()
        await asyncio.to_thread(cluster.start_node, cluster.nodes[0].node_id)
        await asyncio.to_thread(cluster.wait_ready, PATIENCE_SECONDS)
        ready = time.perf_counter() - began
        await until(lambda: all_well(cluster), "the killed broker's start")
        table.add_row("restart of the killed broker: ready", f"{ready:.1f} s", "")
        table.add_row("... all in sync", f"{time.perf_counter() - began:.1f} s", held(cluster))
        console.print("killed and restarted")
        began = time.perf_counter()
        codes = await asyncio.to_thread(cluster.stop)
        table.add_row("orderly stop of all", f"{time.perf_counter() - began:.1f} s", f"exit codes {codes}")
        began = time.perf_counter()
        await asyncio.to_thread(cluster.start)
        await asyncio.to_thread(cluster.wait_ready, PATIENCE_SECONDS)
        table.add_row("... and their start: ready", f"{time.perf_counter() - began:.1f} s", "")
        await until(lambda: all_well(cluster), "the start of all")
        table.add_row("... all in sync", f"{time.perf_counter() - began:.1f} s", held(cluster))
    console.print(table)


def idle(table: Table, cluster: LocalCluster, seconds: float) -> None:
    running = pids(cluster)
    before = {name: cpu_seconds(pid) for name, pid in running.items()}
    time.sleep(seconds)
    shares = [100 * (cpu_seconds(pid) - before[name]) / seconds for name, pid in running.items()]
    shown = " / ".join(f"{share:.1f}" for share in shares)
    table.add_row("idle CPU, % of a core", f"{sum(shares):.1f}", shown)
    table.add_row("open descriptors", "", " / ".join(str(descriptors(pid)) for pid in running.values()))
    table.add_row("threads", "", " / ".join(str(threads(pid)) for pid in running.values()))
    table.add_row("memory, MB", "", " / ".join(f"{resident_mb(pid):.0f}" for pid in running.values()))


async def fail_over(table: Table, cluster: LocalCluster, producer: Producer, topics: Sequence[tuple[str, int]]) -> None:
    victim = cluster.nodes[0].node_id
    began = time.perf_counter()
    await asyncio.to_thread(cluster.kill_node, victim)
    writing = asyncio.create_task(write_everywhere(producer, topics, b"after the kill"))
    await until(lambda: all_led(cluster, victim), "the failover")
    table.add_row(
        "after a broker is killed: all partitions have another leader", f"{time.perf_counter() - began:.1f} s", ""
    )
    written = await writing
    row = f"half {written[len(written) // 2]:.1f} s, p99 {written[int(0.99 * len(written))]:.1f} s"
    table.add_row(
        "... acknowledgement of a record sent to each at once", f"{written[-1]:.1f} s", f"{row}; {held(cluster)}"
    )


async def dirty(options: argparse.Namespace) -> None:
    topics = names(options.count)
    table = Table(
        "round", "records", "p50 ms", "p99 ms", "worst ms", title=f"{options.count:,} dirty partitions at once"
    )
    with a_cluster(options.folder) as cluster:
        await create(cluster, topics)
        everything: list[float] = []
        async with Producer(cluster.bootstrap, linger_ms=0) as producer:
            await write_everywhere(producer, topics, b"x" * 100)
            for number in range(options.rounds):
                took = await write_everywhere(producer, topics, b"x" * 100)
                everything += took
                if number < 5:
                    marks = (percentile_ms(took, share) for share in (0.5, 0.99, 1.0))
                    table.add_row(str(number + 1), str(len(took)), *(f"{ms:.0f}" for ms in marks))
        everything.sort()
        marks = (percentile_ms(everything, share) for share in (0.5, 0.99, 1.0))
        table.add_row(f"all {options.rounds}", f"{len(everything):,}", *(f"[bold]{ms:.0f}" for ms in marks))
        console.print(table)
        console.print("the brokers' loops were held at worst", held(cluster))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("cluster", "dirty"))
    parser.add_argument("--count", type=int, help="partitions (default: 10,000 for cluster, 1,000 for dirty)")
    parser.add_argument("--seconds", type=float, default=60.0, help="duration of the idle measurement in seconds")
    parser.add_argument("--rounds", type=int, default=50, help="number of rounds of dirty")
    parser.add_argument(
        "--folder", default=None, help="folder on the disk to measure (default: that of temporary files)"
    )
    options = parser.parse_args()
    options.count = options.count or {"cluster": 10_000, "dirty": 1_000}[options.what]
    console.print(machine())
    cores = Cores.now()
    asyncio.run({"cluster": cluster_study, "dirty": dirty}[options.what](options))
    console.print(Cores.now().since(cores), machine())


if __name__ == "__main__":
    main()
