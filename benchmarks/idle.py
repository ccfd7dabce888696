"""The cost of an idle cluster: CPU and memory of three nodes without requests.

    python benchmarks/idle.py                        # 60 s, three times
    python benchmarks/idle.py --seconds 60 --runs 5 --partitions 30

CPU is the user and system time of each process over the whole window, from /proc, in percent of one core. All runs are
shown; if other work disturbed some of them, the best run counts.
"""

from __future__ import annotations

import argparse
import asyncio
import time

from measuring import Cores, a_cluster, console, cpu_seconds, machine, middle, pids, resident_mb, wait_in_sync
from rich.table import Table

from raftlog import Admin, Producer
from raftlog.cli.nodes.local_cluster import LocalCluster

SETTLE_SECONDS = 5.0


async def fill(cluster: LocalCluster, partitions: int) -> None:
    """Create a topic with a few records, so that every replica follows its leader."""
    async with Admin(cluster.bootstrap) as admin:
        await admin.create_topic("idle", partitions, replication_factor=3)
        async with Producer(cluster.bootstrap) as producer:
            for partition in range(partitions):
                await producer.send_many("idle", [b"x" * 100] * 100, partition=partition)
        await wait_in_sync(admin, ["idle"])


def measure(cluster: LocalCluster, seconds: float) -> dict[str, float]:
    """Return the percentage of one core, by process."""
    running = pids(cluster)
    before, started = {name: cpu_seconds(pid) for name, pid in running.items()}, time.perf_counter()
    time.sleep(seconds)
    took = time.perf_counter() - started
    return {name: 100 * (cpu_seconds(pid) - before[name]) / took for name, pid in running.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--partitions", type=int, default=6)
    arguments = parser.parse_args()
    console.print(machine())
    with a_cluster(None) as cluster:
        asyncio.run(fill(cluster, arguments.partitions))
        time.sleep(SETTLE_SECONDS)
        cores = Cores.now()
        runs = [measure(cluster, arguments.seconds) for _ in range(arguments.runs)]
        names = list(runs[0])
        title = f"three idle nodes, {arguments.partitions} partitions, {arguments.seconds:.0f} s per run"
        table = Table("", *names, "all", title=f"{title}: percent of one core")
        for number, run in enumerate(runs, start=1):
            table.add_row(f"run {number}", *(f"{run[name]:.2f}" for name in names), f"{sum(run.values()):.2f}")
        totals = [sum(run.values()) for run in runs]
        for what, total in (("median", middle(totals)), ("best", min(totals))):
            table.add_row(what, *[""] * len(names), f"[bold]{total:.2f}[/]")
        memory = [resident_mb(pid) for pid in pids(cluster).values()]
        table.add_row("memory, MB", *(f"{mb:.0f}" for mb in memory), f"{sum(memory):.0f}")
        console.print(table)
        console.print(Cores.now().since(cores))
    console.print(machine())


if __name__ == "__main__":
    main()
