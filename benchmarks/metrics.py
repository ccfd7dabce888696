"""The cost of metrics: of a scrape of many partitions, and of counting under load.

    python benchmarks/metrics.py scrape --count 1000 10000    # time, stalls and CPU of /metrics
    python benchmarks/metrics.py counting --pairs 5           # throughput with and without metrics

*scrape*: for each number of partitions, a cluster whose topics have that many, without records, and a group with
a committed offset in each. One node's `/metrics` is requested again and again. The table shows the time of the answers,
the turns of the event loop that took 20 ms or more meanwhile, the longest turn that the loop's own processor time
explains, and the processor time of an answer as a share of a core if one is made every 15 s.

*counting*: one producer (`send_many`, acks=all, fsync on three nodes) loads two clusters in turn: one as it is, whose
nodes are scraped every 15 s, and one whose nodes count nothing (`uncounted_node.py`). Rates are those of pairs; the
order alternates, and each pass is read back and verified. The processor time of the nodes per gigabyte shows the same
without the noise of the disk.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import shutil
import sys
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

from load import Result, run
from many_partitions import health, names, until
from measuring import GB, Cores, a_cluster, console, cpu_seconds, machine, middle, percentile_ms, pids
from rich.table import Table

from raftlog import Admin
from raftlog.cli.bench.values import Pool
from raftlog.cli.nodes.local_cluster import LocalCluster, LocalNode, free_base_port

SETTLE_SECONDS = 3.0
INTERVAL_SECONDS = 15.0
"""Time between two scrapes, as Prometheus's own example has it."""
OFFSETS_A_REQUEST = 1_000
UNCOUNTED = (sys.executable, str(Path(__file__).parent / "uncounted_node.py"))


def scraped(node: LocalNode) -> bytes:
    with urllib.request.urlopen(f"http://{node.api}/metrics", timeout=60) as answer:
        text: bytes = answer.read()
        return text


def event_loop(cluster: LocalCluster, node: LocalNode) -> dict[str, Any]:
    loop: dict[str, Any] = health(cluster)[node.node_id]["event_loop"]
    return loop


def replicas(node: LocalNode) -> float:
    """Return the number of replicas in service on a node."""
    (line,) = [line for line in scraped(node).splitlines() if line.startswith(b"raftlog_replicas ")]
    return float(line.split()[1])


async def create(cluster: LocalCluster, topics: Sequence[tuple[str, int]], replication_factor: int) -> None:
    """Create topics, and wait until every node has all of their replicas in service."""
    async with Admin(cluster.bootstrap) as admin:
        for topic, count in topics:
            await admin.create_topic(topic, count, replication_factor=replication_factor)
    wanted = sum(count for _, count in topics)
    await until(lambda: all(replicas(node) == wanted for node in cluster.nodes), "creating the topics")


def commit_everywhere(node: LocalNode, topics: Sequence[tuple[str, int]]) -> None:
    """Commit an offset of one group in each partition."""
    for topic, count in topics:
        for first in range(0, count, OFFSETS_A_REQUEST):
            partitions = range(first, min(count, first + OFFSETS_A_REQUEST))
            offsets = [{"topic": topic, "partition": number, "offset": 0} for number in partitions]
            request = urllib.request.Request(
                f"http://{node.api}/v1/groups/readers/offsets",
                json.dumps({"offsets": offsets}).encode(),
                {"Content-Type": "application/json"},
            )
            urllib.request.urlopen(request, timeout=60).close()


# --- Scrapes ----------------------------------------------------------------------------------------------------------


async def scrape_study(options: argparse.Namespace) -> None:
    titles = ("partitions", "series", "MB", "half ms", "worst ms", "stalls", "longest turn ms", "% of a core")
    table = Table(*titles, title=f"{options.scrapes} scrapes of one of {options.nodes} nodes")
    for count in options.count:
        topics = names(count)
        with a_cluster(options.folder, options.nodes) as cluster:
            await create(cluster, topics, options.nodes)
            node = cluster.nodes[0]
            await asyncio.to_thread(commit_everywhere, node, topics)
            await asyncio.sleep(SETTLE_SECONDS)
            table.add_row(f"{count:,}", *await asyncio.to_thread(scrapes, cluster, node, options.scrapes))
    console.print(table)


def scrapes(cluster: LocalCluster, node: LocalNode, count: int) -> list[str]:
    """Scrape a node repeatedly; return the row of the table."""
    pid = pids(cluster)[f"node {node.node_id}"]
    text = scraped(node)
    idle_seconds = 5.0
    idle = cpu_seconds(pid)
    time.sleep(idle_seconds)
    idle = (cpu_seconds(pid) - idle) / idle_seconds
    before, used, began = event_loop(cluster, node), cpu_seconds(pid), time.perf_counter()
    took = []
    for _ in range(count):
        started = time.perf_counter()
        text = scraped(node)
        took.append(time.perf_counter() - started)
        time.sleep(0.2)
    used, after = cpu_seconds(pid) - used - idle * (time.perf_counter() - began), event_loop(cluster, node)
    took.sort()
    series = sum(not line.startswith(b"#") for line in text.splitlines())
    return [
        f"{series:,}",
        f"{len(text) / 1e6:.1f}",
        *(f"{percentile_ms(took, share):.0f}" for share in (0.5, 1.0)),
        str(after["stalls"] - before["stalls"]),
        f"{after['worst_processor_ms']:.0f} (before: {before['worst_processor_ms']:.0f})",
        f"{100 * used / count / INTERVAL_SECONDS:.2f}",
    ]


# --- Counting ---------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def uncounted_cluster(folder: str | None) -> Iterator[LocalCluster]:
    """Run a cluster whose nodes count nothing."""
    place = tempfile.mkdtemp(prefix="raftlog-benchmark-", dir=folder)
    cluster = LocalCluster(place, 3, free_base_port(3), program=UNCOUNTED)
    try:
        cluster.start()
        cluster.wait_ready()
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(place, ignore_errors=True)


@contextlib.asynccontextmanager
async def scraping(cluster: LocalCluster) -> AsyncIterator[None]:
    """Scrape all nodes regularly, as Prometheus does."""

    async def scrape_all() -> None:
        while True:
            await asyncio.gather(*(asyncio.to_thread(scraped, node) for node in cluster.nodes))
            await asyncio.sleep(INTERVAL_SECONDS)

    task = asyncio.create_task(scrape_all())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def counting_study(options: argparse.Namespace) -> None:
    pool = Pool(int(options.pool) // options.value_bytes, options.value_bytes)
    counted: list[Result] = []
    bare: list[Result] = []
    with a_cluster(options.folder) as cluster, uncounted_cluster(options.folder) as other:
        for number in range(options.pairs):
            for with_metrics in (True, False) if number % 2 else (False, True):
                if with_metrics:
                    async with scraping(cluster):
                        counted.append(await run(cluster, "send_many", f"counted-{number}", pool, options))
                else:
                    bare.append(await run(other, "send_many", f"bare-{number}", pool, options))
    table = Table(
        "pair", "records/s with metrics", "without", "ratio", "CPU s per GB of the nodes, with", "without", "ratio"
    )
    for number, pair in enumerate(zip(counted, bare, strict=True), start=1):
        table.add_row(str(number), *shown(*pair))
    rates = middle([one.rate / other.rate for one, other in zip(counted, bare, strict=True)])
    costs = middle([cost(one) / cost(other) for one, other in zip(counted, bare, strict=True)])
    table.add_row("[bold]median", "", "", f"[bold]{rates:.3f}", "", "", f"[bold]{costs:.3f}")
    console.print(table)


def cost(result: Result) -> float:
    """Seconds of the nodes' processor time per gigabyte."""
    return sum(used for who, used in result.cpu.items() if who != "client") / (result.bytes / GB)


def shown(one: Result, other: Result) -> list[str]:
    rates = [result.records / result.seconds for result in (one, other)]
    costs = [cost(one), cost(other)]
    return [
        *(f"{rate:,.0f}" for rate in rates), f"{rates[0] / rates[1]:.3f}",
        *(f"{seconds:.2f}" for seconds in costs), f"{costs[0] / costs[1]:.3f}",
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("scrape", "counting"))
    parser.add_argument("--count", type=int, nargs="+", default=[1_000, 10_000], help="scrape: numbers of partitions")
    parser.add_argument("--nodes", type=int, default=3, help="scrape: nodes, each with a replica of every partition")
    parser.add_argument("--scrapes", type=int, default=20)
    parser.add_argument("--pairs", type=int, default=5, help="counting: pairs of runs; their median counts")
    parser.add_argument("--bytes", type=float, default=1e9, help="counting: least number of bytes of values per run")
    parser.add_argument("--seconds", type=float, default=30.0, help="counting: least number of timed seconds per run")
    parser.add_argument("--pool", type=float, default=2e8, help="counting: bytes of distinct values")
    parser.add_argument("--partitions", type=int, default=6)
    parser.add_argument("--value-bytes", type=int, default=100)
    parser.add_argument("--batch-bytes", type=int, default=256 * 1024)
    parser.add_argument("--warm-up", type=float, default=3.0)
    parser.add_argument(
        "--folder", default=None, help="folder on the disk to measure (default: that of temporary files)"
    )
    options = parser.parse_args()
    console.print(machine())
    cores = Cores.now()
    asyncio.run({"scrape": scrape_study, "counting": counting_study}[options.what](options))
    console.print(Cores.now().since(cores), machine())


if __name__ == "__main__":
    main()
