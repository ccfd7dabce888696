"""Many readers of streams over one node: latency until the records arrive, and the cost of the node.

    python benchmarks/streams.py                          # 1,000 readers of ten topics, 1,000 records/s to each topic
    python benchmarks/streams.py --readers 100 --rate 200 --seconds 5

Three nodes run with fsync on, topics have three replicas, and records 100 bytes, sent with `acks=all`. Each reader is a
connection to node 0 with `GET /v1/stream` of one topic, as server-sent events. `--stalled` further ones send the
request and never read. The latency is that of the last record of each piece that arrives: its timestamp is the time at
which the producer was given it. The row without readers shows the cost of the writes alone.

The readers run in a process of their own, which counts records and looks at nothing else. The CPU of the processes is
shown in cores. At the end every reader must have got every record that was sent after it had joined.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator

from measuring import Cores, a_cluster, console, cpu_seconds, machine, percentile_ms, pids, resident_mb, wait_in_sync
from rich.table import Table

from raftlog import Admin, Producer
from raftlog.cli.nodes.local_cluster import LocalCluster

TICK_S = 0.01
"""The producer hands over the records of a topic in lists, this often."""
SETTLE_S = 30.0
"""The time in which the readers must get what is still on its way."""
STAMP = re.compile(rb'"timestamp":(\d+)')
RECORD = b'"timestamp":'


class Reader(asyncio.Protocol):
    """One stream: counts its records, and notes the latency of each piece."""

    def __init__(
        self, request: bytes, latencies: list[float], joined: asyncio.Semaphore, arrived: asyncio.Event
    ) -> None:
        self._request = request
        self._latencies = latencies
        self._joined = joined
        self._arrived = arrived
        self._end = b""
        self.records = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._arrived.set()
        data = self._end + data
        if not self.records and b"event: joined" in data:
            self._joined.release()
        # A mark that is cut by the end of the piece is counted with the next one.
        counted = max(data.rfind(b"}"), 0)
        self._end = data[counted:]
        self.records += data.count(RECORD, 0, counted)
        start = data.rfind(RECORD, 0, counted)
        if start >= 0 and (match := STAMP.match(data, start)) is not None:
            self._latencies.append(time.time() - int(match[1]) / 1000)


async def read_streams(host: str, port: int, readers: int, stalled: int, topics: int) -> None:
    """Print a line once all have joined. Read the number of records of each topic from the standard input; when all
    readers have got as many, or `SETTLE_S` later, print the result."""
    loop = asyncio.get_running_loop()
    joined, arrived, latencies = asyncio.Semaphore(0), asyncio.Event(), list[float]()
    made: list[Reader] = []
    for number in range(readers + stalled):
        request = f"GET /v1/stream?topic=topic-{number % topics} HTTP/1.1\r\nHost: {host}:{port}\r\n"
        reader = Reader(f"{request}Accept: text/event-stream\r\n\r\n".encode(), latencies, joined, arrived)
        transport, _ = await loop.create_connection(lambda reader=reader: reader, host, port)
        await joined.acquire()
        if number < readers:
            made.append(reader)
        else:
            transport.pause_reading()
    latencies.clear()
    print("joined", flush=True)
    sent = int(await loop.run_in_executor(None, sys.stdin.readline))
    with contextlib.suppress(TimeoutError):  # then the table says how many readers are incomplete
        async with asyncio.timeout(SETTLE_S):
            while any(one.records < sent for one in made):
                arrived.clear()
                await arrived.wait()
    ordered = sorted(latencies)
    shares = {f"p{share}": percentile_ms(ordered, share / 100) for share in (50, 99)} if ordered else {}
    print(json.dumps({**shares, "records": [one.records for one in made], "pieces": len(ordered)}), flush=True)


@contextlib.asynccontextmanager
async def streams(cluster: LocalCluster, arguments: argparse.Namespace, readers: int) -> AsyncIterator[Process]:
    """Run the process of the readers, once all have joined."""
    host, _, port = str(cluster.nodes[0].api).rpartition(":")
    command = [sys.executable, __file__, "--read", host, port, "--readers", str(readers)]
    command += ["--stalled", str(arguments.stalled if readers else 0), "--topics", str(arguments.topics)]
    process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, limit=2**20)
    assert process.stdout is not None
    line = await process.stdout.readline()
    assert line == b"joined\n", line
    yield process
    await process.wait()


async def write(cluster: LocalCluster, arguments: argparse.Namespace, seconds: float) -> int:
    """Send records at the rate; return the number sent to each topic."""
    due = 0.0
    sent = 0
    async with Producer(cluster.bootstrap) as producer:
        began = time.perf_counter()
        while (now := time.perf_counter() - began) < seconds:
            due = min(now, seconds) * arguments.rate
            count = int(due) - sent
            sent += count
            if count:
                for number in range(arguments.topics):
                    await producer.send_many(f"topic-{number}", [os.urandom(50).hex().encode()] * count)
            await asyncio.sleep(TICK_S)
        await producer.flush()
    return sent


async def run(cluster: LocalCluster, arguments: argparse.Namespace, readers: int, table: Table) -> None:
    """Measure one row."""
    async with streams(cluster, arguments, readers) as process:
        assert process.stdin is not None and process.stdout is not None
        node = next(iter(pids(cluster).values()))
        watched = {"node": node, "readers": process.pid, "producer": os.getpid()}
        before, began = {name: cpu_seconds(pid) for name, pid in watched.items()}, time.perf_counter()
        sent = await write(cluster, arguments, arguments.seconds)
        took = time.perf_counter() - began
        used = {name: (cpu_seconds(pid) - before[name]) / took for name, pid in watched.items()}
        process.stdin.write(b"%d\n" % sent)
        told = json.loads(await process.stdout.readline())
    missing = sum(1 for count in told["records"] if count != sent)
    table.add_row(
        str(readers),
        f"{sum(told['records']) / took:,.0f}",
        f"{told['p50']:.1f}" if readers else "",
        f"{told['p99']:.1f}" if readers else "",
        *(f"{used[name]:.2f}" for name in watched),
        f"{resident_mb(node):.0f}",
        "none" if not missing else f"{missing} readers",
    )


async def measure(cluster: LocalCluster, arguments: argparse.Namespace) -> None:
    """Measure without and with readers."""
    async with Admin(cluster.bootstrap) as admin:
        names = [f"topic-{number}" for number in range(arguments.topics)]
        for name in names:
            await admin.create_topic(name, 1, configs={"retention.bytes": str(10**9)})
        await wait_in_sync(admin, names)
    table = Table(
        "readers", "records/s to them", "p50 ms", "p99 ms", "node 0, cores", "readers, cores", "producer, cores",
        "memory of node 0, MB", "incomplete", title=machine(),
    )  # fmt: skip
    cores = Cores.now()
    for readers in (0, arguments.readers):
        await run(cluster, arguments, readers, table)
    console.print(table)
    console.print(Cores.now().since(cores))


def main() -> None:
    """Parse the arguments and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--readers", type=int, default=1_000)
    parser.add_argument("--stalled", type=int, default=0, help="connections that never read")
    parser.add_argument("--topics", type=int, default=10)
    parser.add_argument("--rate", type=float, default=1_000.0, help="records a second to each topic")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--read", nargs=2, metavar=("HOST", "PORT"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.read is not None:
        host, port = arguments.read
        asyncio.run(read_streams(host, int(port), arguments.readers, arguments.stalled, arguments.topics))
        return
    with a_cluster(None) as cluster:
        asyncio.run(measure(cluster, arguments))


if __name__ == "__main__":
    main()
