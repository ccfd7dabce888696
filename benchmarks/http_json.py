"""JSON over HTTP: records written and read a second, and single records of many connections.

    python benchmarks/http_json.py                     # the whole: three runs of ten seconds a row
    python benchmarks/http_json.py --seconds 3 --runs 1

Three nodes run with fsync on; topics have three replicas, `acks=all`. A value has 100 distinct, incompressible
characters. Bodies are made before the clock starts, and answers are checked afterwards: the number of records, their
offsets, and for reads every value. All clients are tasks of this process, whose CPU time is reported beside the nodes'.

| row | requests |
|---|---|
| `v1 produce`, `v2 produce`, `v3 produce` | 1,000 records a request, eight connections (`v3`: one stream) |
| `v1 fetch`, `v2 fetch` | pages of up to 10,000 records through one node, four connections |
| `posts` | one record a request, 64 connections over all nodes |
"""

from __future__ import annotations

import argparse
import asyncio
import io
import itertools
import json
import os
import re
import secrets
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp
from measuring import a_cluster, console, cpu_seconds, machine, percentile_ms, pids, wait_in_sync
from rich.table import Table

from raftlog import Admin
from raftlog.cli.nodes.local_cluster import LocalCluster

RECORDS = 1_000
WRITERS, READERS, POSTERS = 8, 4, 64
PAGE_BYTES = 2_000_000
PAGE_RECORDS = 10_000
TEXT = "application/vnd.kafka.text.v2+json"
LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)
POOL = 64
"""Distinct bodies, used in turn."""


class Run:
    """One run of a row: operations of tasks until the time is over."""

    def __init__(self, cluster: LocalCluster, session: aiohttp.ClientSession, seconds: float) -> None:
        self.cluster = cluster
        self.session = session
        self.seconds = seconds
        self.records = 0
        self.latencies: list[float] = []
        self.ends = 0.0

    def url(self, node: int, path: str) -> str:
        return f"http://{self.cluster.nodes[node].api}{path}"

    async def go(self, tasks: int, operation: Callable[[int], Awaitable[int]]) -> float:
        """Repeat an operation, which returns its number of records, in some tasks. Return the seconds that it took."""
        began = time.perf_counter()
        self.ends = began + self.seconds

        async def work(number: int) -> None:
            while time.perf_counter() < self.ends:
                started = time.perf_counter()
                count = await operation(number)
                self.records += count
                self.latencies.append(time.perf_counter() - started)

        await asyncio.gather(*(work(number) for number in range(tasks)))
        return time.perf_counter() - began


def values(count: int) -> list[str]:
    return [secrets.token_hex(50) for _ in range(count)]


async def produce_v1(run: Run) -> float:
    bodies = [json.dumps({"records": [{"value": one} for one in values(RECORDS)]}).encode() for _ in range(POOL)]
    turns = itertools.cycle(bodies)

    async def operation(number: int) -> int:
        url = run.url(number % 3, "/v1/topics/written/records?offsets=ranges")
        return await posted(run, url, next(turns), "application/json", lambda told: int(told["record_count"]))

    return await run.go(WRITERS, operation)


async def produce_v2(run: Run) -> float:
    bodies = [json.dumps({"records": [{"value": one} for one in values(RECORDS)]}).encode() for _ in range(POOL)]
    turns = itertools.cycle(bodies)

    def count(told: dict[str, Any]) -> int:
        assert all(one["error_code"] is None for one in told["offsets"])
        return len(told["offsets"])

    async def operation(number: int) -> int:
        return await posted(run, run.url(number % 3, "/topics/written"), next(turns), TEXT, count)

    return await run.go(WRITERS, operation)


async def produce_v3(run: Run) -> float:
    pieces = [
        b"".join(json.dumps({"value": {"type": "STRING", "data": one}}).encode() for one in values(RECORDS))
        for _ in range(POOL)
    ]
    clusters = await (await run.session.get(run.url(0, "/v3/clusters"))).json()
    cluster = clusters["data"][0]["cluster_id"]
    began = time.perf_counter()

    async def body() -> AsyncIterator[bytes]:
        for piece in itertools.cycle(pieces):
            if time.perf_counter() > began + run.seconds:
                return
            yield piece

    url = run.url(0, f"/v3/clusters/{cluster}/topics/written/records")
    async with run.session.post(url, data=body(), headers={"Content-Type": "application/json"}) as answer:
        async for line in answer.content:
            assert b'"error_code":200' in line, line
            run.records += 1
    return time.perf_counter() - began


async def fetch_v1(run: Run) -> float:
    path = f"/v1/topics/read/partitions/0/records?max_records={PAGE_RECORDS}&max_bytes={PAGE_BYTES}&offset="
    return await fetched(run, path, {}, lambda told: told["records"])


async def fetch_v2(run: Run) -> float:
    path = f"/topics/read/partitions/0/records?max_bytes={PAGE_BYTES}&offset="
    return await fetched(run, path, {"Accept": TEXT}, lambda told: told)


async def fetched(
    run: Run, path: str, headers: dict[str, str], records_of: Callable[[Any], list[dict[str, Any]]]
) -> float:
    starts = itertools.cycle(range(0, 100_000, 10_000))

    async def operation(number: int) -> int:
        start = next(starts)
        async with run.session.get(run.url(0, f"{path}{start}"), headers=headers) as answer:
            assert answer.status == 200, await answer.text()
            body = await answer.read()
        count = body.count(b'"offset":')
        if number == 0 and start == 0:
            found = records_of(json.loads(body))
            assert [one["offset"] for one in found] == list(range(start, start + len(found)))
            assert all(len(str(one["value"])) == 100 for one in found)
        return count

    return await run.go(READERS, operation)


async def posts(run: Run) -> float:
    bodies = itertools.cycle([json.dumps({"records": [{"value": one}]}).encode() for one in values(1_000)])
    connections = [await connect(str(run.cluster.nodes[number % 3].api)) for number in range(POSTERS)]

    async def operation(number: int) -> int:
        # Without an HTTP library, which would cost as much as the node: the load should leave the cores to the nodes.
        host, reader, writer = connections[number]
        body = next(bodies)
        writer.write(
            b"POST /v1/topics/written/records HTTP/1.1\r\nHost: %b\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (host.encode(), len(body), body)
        )
        head = await reader.readuntil(b"\r\n\r\n")
        told = await reader.readexactly(int(LENGTH.search(head)[1]))  # type: ignore[index]
        assert head.startswith(b"HTTP/1.1 200 "), head + told
        return int(json.loads(told)["record_count"])

    try:
        return await run.go(POSTERS, operation)
    finally:
        for _, _, writer in connections:
            writer.close()


async def connect(host: str) -> tuple[str, asyncio.StreamReader, asyncio.StreamWriter]:
    address, _, port = host.rpartition(":")
    return host, *await asyncio.open_connection(address, int(port))


async def posted(run: Run, url: str, body: bytes, media_type: str, count: Callable[[dict[str, Any]], int]) -> int:
    async with run.session.post(url, data=io.BytesIO(body), headers={"Content-Type": media_type}) as answer:
        told = await answer.read()
        assert answer.status == 200, told
        return count(json.loads(told))


ROWS = {
    "v1 produce": produce_v1,
    "v2 produce": produce_v2,
    "v3 produce": produce_v3,
    "v1 fetch": fetch_v1,
    "v2 fetch": fetch_v2,
    "posts": posts,
}


async def measure(cluster: LocalCluster, arguments: argparse.Namespace) -> None:
    """Run all rows, and print the medians."""
    async with Admin(cluster.bootstrap) as admin:
        for topic, partitions in (("written", 6), ("read", 1)):
            await admin.create_topic(topic, partitions, configs={"retention.bytes": str(2 * 10**9)})
        await wait_in_sync(admin, ["written", "read"])
    table = Table("row", "records/s", "p50 ms", "p99 ms", "CPU of the nodes", "CPU of the clients", title=machine())
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        filler = Run(cluster, session, 0)
        for _ in range(100):
            body = json.dumps({"records": [{"value": one} for one in values(RECORDS)]}).encode()
            await posted(filler, filler.url(0, "/v1/topics/read/records"), body, "application/json", lambda told: 0)
        for name in arguments.rows:
            rates, latencies, nodes, clients = [], [], [], []
            for _ in range(arguments.runs):
                run = Run(cluster, session, arguments.seconds)
                before = [cpu_seconds(pid) for pid in (*pids(cluster).values(), os.getpid())]
                took = await ROWS[name](run)
                after = [cpu_seconds(pid) for pid in (*pids(cluster).values(), os.getpid())]
                used = [(b - a) / took for a, b in zip(before, after, strict=True)]
                rates.append(run.records / took)
                latencies += run.latencies
                nodes.append(sum(used[:-1]))
                clients.append(used[-1])
            p50, p99 = (f"{percentile_ms(sorted(latencies), part):.1f}" if latencies else "" for part in (0.5, 0.99))
            cpu = (f"{statistics.median(nodes):.2f} cores", f"{statistics.median(clients):.2f} cores")
            table.add_row(name, f"{statistics.median(rates):,.0f}", p50, p99, *cpu)
    console.print(table)


def main() -> None:
    """Parse the arguments and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    arguments = parser.parse_args()
    with a_cluster(None) as cluster:
        asyncio.run(measure(cluster, arguments))


if __name__ == "__main__":
    main()
