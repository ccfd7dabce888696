"""A streaming pipeline from end to end: Spark joins, counts and writes flights, each of them exactly once.

    make pipeline                 # half a minute on an idle machine, without the installation of Java and packages
    python examples/pipeline.py --kill    # the query is killed in the middle, and restarted

Three nodes start. A year of flights, in the order of their departure, and the weather are produced. Spark joins them,
counts by day and weather with a watermark, and writes each complete day to another topic, exactly once, and from there
to Parquet. Finally, the files are compared with the counts of plain Python code, and `build/pipeline.svg` shows them.
The exit code is 0 only if every flight was counted exactly once.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from flight_data import Departure, departures, weather
from rich.console import Console

from raftlog import Admin, Consumer, Producer
from raftlog.cli.nodes.local_cluster import LocalCluster, free_base_port

NODES = 3
PARTITIONS = 3
CHUNK = 20_000
QUERY_SECONDS = 600
KILL_AFTER_BATCHES = 2

Counts = dict[str, tuple[int, int]]
"""Day → flights, and minutes of delay."""

console = Console()


class Counted(msgspec.Struct):
    """A record of the topic `delays`."""

    day: str
    weather: str
    flights: int
    delay_minutes: int


async def produce(bootstrap: str, flights: Sequence[Departure]) -> None:
    """Produce the flights in order, alternating between partitions, so that a reader that takes the same share of each
    partition sees them in order, too."""
    async with Admin(bootstrap) as admin:
        for topic, partitions in {"departures": PARTITIONS, "weather": 1, "delays": 2}.items():
            await admin.create_topic(topic, partitions, replication_factor=3)
    started = time.monotonic()
    async with Producer(bootstrap) as producer:
        for start in range(0, len(flights), CHUNK):
            for partition in range(PARTITIONS):
                part = flights[start + partition : start + CHUNK : PARTITIONS]
                values, keys = [one.value for one in part], [one.carrier.encode() for one in part]
                await producer.send_many("departures", values, keys=keys, partition=partition)
        await producer.send_many("weather", list(weather()), partition=0)
    console.print(f"produced in {time.monotonic() - started:.1f} s, fsynced on three nodes")


def run_query(bootstrap: str, folder: Path, kill: bool) -> None:
    """Run the query to its end. With `kill`, kill it once and restart it."""
    started = time.monotonic()
    query = start_query(bootstrap, folder)
    if kill:
        commits = folder / "checkpoint-delays" / "commits"
        while not (commits / str(KILL_AFTER_BATCHES - 1)).exists():
            if query.poll() is not None:
                raise SystemExit(f"the query ended with {query.returncode} before it could be killed")
            if time.monotonic() - started > QUERY_SECONDS:
                os.killpg(query.pid, signal.SIGKILL)
                raise SystemExit(f"no {KILL_AFTER_BATCHES} micro-batches within {QUERY_SECONDS} s")
            time.sleep(0.02)
        # Spark's own processes end with their parent.
        os.killpg(query.pid, signal.SIGKILL)
        query.wait()
        console.print(
            "[red]SIGKILL[/] to Spark in the middle of the query; it is restarted and continues from its checkpoint"
        )
        query = start_query(bootstrap, folder)
    try:
        code = query.wait(QUERY_SECONDS)
    finally:
        if query.poll() is None:
            os.killpg(query.pid, signal.SIGKILL)
            query.wait()
    if code:
        raise SystemExit(f"the query ended with {code}")
    console.print(f"Spark finished after {time.monotonic() - started:.1f} s")


def start_query(bootstrap: str, folder: Path) -> subprocess.Popen[bytes]:
    program = Path(__file__).with_name("pipeline_query.py")
    environment = {**os.environ, "PYTHONPATH": str(program.parents[1])}
    command = [sys.executable, str(program), bootstrap, str(folder)]
    return subprocess.Popen(command, env=environment, start_new_session=True)


async def read_topic(bootstrap: str) -> list[Counted]:
    """Read all committed records of the topic `delays`."""
    found: list[Counted] = []
    async with Consumer(bootstrap, "delays") as consumer:
        while True:
            records = await consumer.poll(timeout=1.0)
            found += [msgspec.json.decode(record.value or b"", type=Counted) for record in records]
            if not records and consumer.caught_up:
                return found


def read_files(folder: Path) -> list[Counted]:
    """Read all rows of the Parquet files."""
    import pyarrow.parquet as pq

    rows = pq.read_table(folder / "delays", columns=["day", "weather", "flights", "delay_minutes"]).to_pylist()
    return [Counted(row["day"].isoformat(), row["weather"], row["flights"], row["delay_minutes"]) for row in rows]


def by_day(rows: Sequence[Counted]) -> Counts:
    """Sum the counts by day. Raises `SystemExit` if a day occurs twice with one kind of weather."""
    twice = [key for key, times in Counter((row.day, row.weather) for row in rows).items() if times > 1]
    if twice:
        raise SystemExit(f"counted twice: {twice[:5]}")
    found: Counts = {}
    for row in rows:
        flights, delay = found.get(row.day, (0, 0))
        found[row.day] = flights + row.flights, delay + row.delay_minutes
    return found


def expected(flights: Sequence[Departure]) -> Counts:
    """Count the flights in plain Python."""
    found: Counts = {}
    for one in flights:
        day = one.scheduled.date().isoformat()
        count, delay = found.get(day, (0, 0))
        found[day] = count + 1, delay + one.delay_minutes
    return found


def judge(flights: Sequence[Departure], topic: Sequence[Counted], files: Sequence[Counted]) -> bool:
    """Compare the results with the expected counts. The last days, which the watermark has not passed, are not written
    yet."""
    if sorted(map(msgspec.json.encode, topic)) != sorted(map(msgspec.json.encode, files)):
        console.print("[bold red]The files differ from the topic.[/]")
        return False
    wanted, found = expected(flights), by_day(files)
    left = sorted(set(wanted) - set(found))
    wrong = [day for day, counts in found.items() if wanted.get(day) != counts]
    late = sum(one.delay_minutes > 60 for one in flights)
    console.print(f"{late:,} flights ({late / len(flights):.1%}) left more than an hour late, and are out of order")
    console.print(f"{len(found)} days are complete; not complete yet at the watermark: {', '.join(left) or 'none'}")
    if wrong or left != sorted(wanted)[len(wanted) - len(left) :] or len(left) > 3:
        console.print(f"[bold red]The counts differ from those of plain Python: {wrong[:5] or left[:5]}[/]")
        return False
    return True


def plot(rows: Sequence[Counted], path: Path) -> None:
    """Plot the mean delay by day, and by weather."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), width_ratios=[3, 1])
    days = sorted(by_day(rows).items())
    left.plot(range(len(days)), [delay / flights for _, (flights, delay) in days], linewidth=1)
    months = [place for place, (day, _) in enumerate(days) if day.endswith("-01")]
    left.set_xticks(months, [days[place][0][5:7] for place in months])
    left.set(title="mean delay by scheduled day, 2013", xlabel="month", ylabel="minutes")
    kinds = by_weather(rows)
    right.bar(list(kinds), list(kinds.values()))
    right.set(title="by weather")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    plt.close(figure)


def by_weather(rows: Sequence[Counted]) -> Mapping[str, float]:
    """Return the mean delay in minutes by weather, in ascending order."""
    flights: Counter[str] = Counter()
    delay: Counter[str] = Counter()
    for row in rows:
        flights[row.weather] += row.flights
        delay[row.weather] += row.delay_minutes
    means = {kind: delay[kind] / flights[kind] for kind in flights}
    return dict(sorted(means.items(), key=lambda one: one[1]))


def act(cluster: LocalCluster, folder: Path, arguments: Any) -> bool:
    console.rule("[bold]1  Three nodes, and a year of flights in the order of their departure")
    cluster.start()
    cluster.wait_ready()
    flights = departures()[: arguments.flights]
    console.print(f"{len(flights):,} flights departed; cancelled ones are left out")
    asyncio.run(produce(cluster.bootstrap, flights))
    console.rule("[bold]2  Spark joins them with the weather, counts by day, and writes each complete day")
    run_query(cluster.bootstrap, folder, arguments.kill)
    console.rule("[bold]3  Every flight is counted exactly once")
    topic, files = asyncio.run(read_topic(cluster.bootstrap)), read_files(folder)
    right = judge(flights, topic, files)
    plot(files, Path(arguments.plot))
    means = ", ".join(f"{kind} {minutes:.0f}" for kind, minutes in by_weather(files).items())
    console.print(f"mean delay in minutes: {means}; plotted in {arguments.plot}")
    return right


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kill", action="store_true", help="kill the query in the middle, and restart it")
    parser.add_argument("--flights", type=int, default=10**9, help="number of flights to use (default: all)")
    parser.add_argument("--plot", default="build/pipeline.svg")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="raftlog-pipeline-") as folder:
        cluster = LocalCluster(os.path.join(folder, "cluster"), NODES, free_base_port(NODES))
        try:
            right = act(cluster, Path(folder), arguments)
        finally:
            cluster.stop()
    console.print(
        "[bold green]Every flight was counted once.[/]" if right else "[bold red]Not every flight was counted once.[/]"
    )
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
