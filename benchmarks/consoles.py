"""The cost of open consoles: CPU of a node that serves 100 streams of events, compared with none.

    python benchmarks/consoles.py                        # 100 consoles, 30 s with and without them, three times
    python benchmarks/consoles.py --consoles 20 --seconds 5 --runs 1

Each console is a connection that watches what one of the console's pages watches: the overview, the lists, a topic, a
group, the quorum, the timeline. All are open at node 0. A producer writes a few records a second, so that offsets, lags
and plots change. CPU is the user and system time of node 0 over the whole window, from /proc, in percent of one core;
the clients run in this process and do not count.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import time
from urllib.parse import quote

import aiohttp
from measuring import Cores, a_cluster, console, cpu_seconds, machine, middle, pids, wait_in_sync
from rich.table import Table

from raftlog import Admin, Producer
from raftlog.cli.nodes.local_cluster import LocalCluster

ALWAYS = ("/v1/cluster", "/v1/health")
PAGES: dict[str, tuple[str, ...]] = {
    "overview": ("/v1/cluster/partitions", "/v1/groups", "/v1/plots/nodes?minutes=60"),
    "topics": ("/v1/topics",),
    "topic": (
        "/v1/topics/topic-0", "/v1/topics/topic-0/offsets?isolation=read_uncommitted", "/v1/replicas",
        "/v1/plots/topics/topic-0?minutes=60",
    ),
    "groups": ("/v1/groups?lag=true",),
    "group": ("/v1/groups/group-0", "/v1/groups/group-0/offsets?lag=true", "/v1/plots/groups/group-0?minutes=60"),
    "transactions": ("/v1/transactions",),
    "quorum": ("/v1/quorum",),
    "timeline": ("/v1/timeline?limit=500",),
}  # fmt: skip
SETTLE_SECONDS = 3.0


async def fill(cluster: LocalCluster, topics: int, groups: int) -> None:
    """Create topics with records, and groups that have consumed a part of them."""
    async with Admin(cluster.bootstrap) as admin:
        names = [f"topic-{number}" for number in range(topics)]
        for name in names:
            await admin.create_topic(name, 6, replication_factor=3)
        await wait_in_sync(admin, names)
        async with Producer(cluster.bootstrap) as producer:
            for name in names:
                await producer.send_many(name, [b"x" * 100] * 100)
    async with aiohttp.ClientSession(f"http://{cluster.nodes[0].api}") as session:
        for number in range(groups):
            name = f"topic-{number % topics}"
            offsets = [{"topic": name, "partition": partition, "offset": 1} for partition in range(6)]
            async with session.post(f"/v1/groups/group-{number}/offsets", json={"offsets": offsets}) as answer:
                answer.raise_for_status()


async def watch(session: aiohttp.ClientSession, url: str, counts: dict[str, int]) -> None:
    """Read one stream until this is cancelled."""
    async with session.get(url) as response:
        response.raise_for_status()
        async for line in response.content:
            counts["bytes"] += len(line)
            counts["events"] += line.startswith(b"data:")


async def write(cluster: LocalCluster, per_second: float) -> None:
    async with Producer(cluster.bootstrap) as producer:
        while True:
            await producer.send_and_wait("topic-0", b"x" * 100)
            await asyncio.sleep(1 / per_second)


async def one_run(cluster: LocalCluster, consoles: int, seconds: float) -> tuple[float, dict[str, int]]:
    """Return the CPU of node 0 in percent of a core with this many consoles, and what they got."""
    counts = {"bytes": 0, "events": 0}
    pages = list(PAGES.values())
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, read_bufsize=2**20) as session:
        urls = [
            f"http://{cluster.nodes[0].api}/v1/events?"
            + "&".join(f"watch={quote(path, safe='')}" for path in (*ALWAYS, *pages[number % len(pages)]))
            for number in range(consoles)
        ]
        tasks = [asyncio.create_task(watch(session, url, counts)) for url in urls]
        tasks.append(asyncio.create_task(write(cluster, 5.0)))
        await asyncio.sleep(SETTLE_SECONDS)
        counts.update(bytes=0, events=0)
        pid = next(iter(pids(cluster).values()))
        before, started = cpu_seconds(pid), time.perf_counter()
        await asyncio.sleep(seconds)
        used = 100 * (cpu_seconds(pid) - before) / (time.perf_counter() - started)
        failed = [task for task in tasks if task.done()]
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        assert not failed, "a stream ended early"
    return used, counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--consoles", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--topics", type=int, default=20)
    parser.add_argument("--groups", type=int, default=5)
    arguments = parser.parse_args()
    console.print(machine())
    with a_cluster(None) as cluster:
        asyncio.run(fill(cluster, arguments.topics, arguments.groups))
        cores = Cores.now()
        title = f"node 0 with {arguments.consoles} consoles, {arguments.topics} topics, {arguments.groups} groups"
        table = Table(
            "", "without, %", "with, %", "difference, %", "events/s", "KB/s", title=f"{title}: percent of a core"
        )
        differences = []
        for number in range(1, arguments.runs + 1):
            idle, _ = asyncio.run(one_run(cluster, 0, arguments.seconds))
            busy, counts = asyncio.run(one_run(cluster, arguments.consoles, arguments.seconds))
            differences.append(busy - idle)
            rates = (counts["events"] / arguments.seconds, counts["bytes"] / arguments.seconds / 1000)
            table.add_row(
                f"run {number}",
                f"{idle:.1f}",
                f"{busy:.1f}",
                f"{busy - idle:.1f}",
                f"{rates[0]:.0f}",
                f"{rates[1]:.0f}",
            )
        table.add_row("median", "", "", f"[bold]{middle(differences):.1f}[/]", "", "")
        console.print(table)
        console.print(Cores.now().since(cores))
    console.print(machine())


if __name__ == "__main__":
    main()
