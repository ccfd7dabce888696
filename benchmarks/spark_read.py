"""Rows per second that Spark reads from a cluster, compared with the same rows from memory and from files.

There are three sources of the same rows (16-byte keys, 100-byte values, incompressible, seven columns, two partitions):
a topic of a running cluster; a data source that yields prebuilt Arrow batches from memory, which is the ceiling of
Spark's Python sources; and Parquet files, read by the JVM alone. Each is read into `noop` (every column of every row
arrives) and counted; the topic also with `columns=offset`, and by a streaming query of one micro-batch. Every count is
checked.

All variants run once to warm up, then in rounds. If other programs use the machine, seconds mean little, so CPU time is
reported as well: Spark's (the driver with its JVM and Python processes) and the nodes', each the least of all rounds.

    python benchmarks/spark_read.py [--rows 4000000] [--best-of 3]

Needs `pip install 'raftlog[spark]'` and Java (`python -m spark_source.java`). Run it with nothing else on the machine.
(The script is not named after the package that it measures, because scripts of this folder come first on the import
path.)
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from measuring import TICKS_PER_SECOND, Cores, Nodes, a_cluster, console, cpu_seconds, machine, pids
from rich.table import Table

from raftlog.cli.nodes.local_cluster import LocalCluster
from raftlog.sync import Admin, Producer
from spark_source import java

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KEY_BYTES, VALUE_BYTES = 16, 100
PARTITIONS = 2
CHUNK = 20_000
"""Rows of a prebuilt batch, and of one `send_many`."""
TOPIC = "rows"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--best-of", type=int, default=3)
    parser.add_argument("--only", default="", help="run only the variants whose names contain this")
    parser.add_argument("--folder", help="folder for cluster and files; default: the system's temporary folder")
    arguments = parser.parse_args()
    rows = arguments.rows // (PARTITIONS * CHUNK) * PARTITIONS * CHUNK
    if not rows:
        parser.error(f"--rows is at least {PARTITIONS * CHUNK}")
    os.environ["JAVA_HOME"] = str(java.find())
    with a_cluster(arguments.folder) as cluster, tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        os.environ["PYSPARK_PYTHON"] = str(python_for_spark(Path(folder)))
        produce(cluster, rows)
        spark = start_spark()
        try:
            measure(spark, cluster, Path(folder), rows, arguments.best_of, arguments.only)
        finally:
            spark.stop()


def python_for_spark(folder: Path) -> Path:
    """Write a script that runs Python without Spark's own import path: pyspark is installed, so Spark's processes need
    not compile it from a zip file."""
    program = folder / "python"
    program.write_text(f'#!/bin/sh\nPYTHONPATH= exec "{sys.executable}" "$@"\n')
    program.chmod(0o755)
    return program


def produce(cluster: LocalCluster, rows: int) -> None:
    """Produce `rows` rows, evenly to all partitions."""
    with Admin(cluster.bootstrap) as admin:
        admin.create_topic(TOPIC, partitions=PARTITIONS)
    with Producer(cluster.bootstrap) as producer:
        for number in range(rows // CHUNK):
            keys, values = chunk()
            producer.send_many(TOPIC, values, keys=keys, partition=number % PARTITIONS)


def chunk() -> tuple[list[bytes], list[bytes]]:
    noise = os.urandom(CHUNK * (KEY_BYTES + VALUE_BYTES))
    keys = [noise[at : at + KEY_BYTES] for at in range(0, CHUNK * KEY_BYTES, KEY_BYTES)]
    values = [noise[at : at + VALUE_BYTES] for at in range(CHUNK * KEY_BYTES, len(noise), VALUE_BYTES)]
    return keys, values


def start_spark(settings: Mapping[str, str] | None = None) -> SparkSession:
    """Start Spark with as many cores as there are partitions."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(f"local[{PARTITIONS}]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.ui.showConsoleProgress", "false")
    for name, value in (settings or {}).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def memory_source() -> type[Any]:
    """A source that yields one prebuilt batch repeatedly. A class that is defined in a function is pickled by value for
    Spark."""
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

    columns = "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP"
    size, partitions, key_bytes, value_bytes = CHUNK, PARTITIONS, KEY_BYTES, VALUE_BYTES

    class Reader(DataSourceReader):
        def __init__(self, rows: int) -> None:
            self.rows = rows

        def partitions(self) -> list[InputPartition]:
            return [InputPartition(number) for number in range(partitions)]

        def read(self, partition: InputPartition) -> Iterator[Any]:
            import os

            import pyarrow as pa

            batch = pa.RecordBatch.from_arrays(
                [
                    pa.array([os.urandom(key_bytes) for _ in range(size)]),
                    pa.array([os.urandom(value_bytes) for _ in range(size)]),
                    pa.repeat(pa.scalar("rows"), size),
                    pa.repeat(pa.scalar(partition.value, pa.int32()), size),
                    pa.array(range(size), pa.int64()),
                    pa.array(range(size), pa.int64()).view(pa.timestamp("us", "UTC")),
                    pa.repeat(pa.scalar(0, pa.int32()), size),
                ],
                names=["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"],
            )
            for _ in range(self.rows // partitions // size):
                yield batch

    class Source(DataSource):
        @classmethod
        def name(cls) -> str:
            return "memory_rows"

        def schema(self) -> str:
            return f"{columns}, timestampType INT"

        def reader(self, schema: Any) -> Reader:
            return Reader(int(self.options["rows"]))

    return Source


def measure(spark: SparkSession, cluster: LocalCluster, folder: Path, rows: int, best_of: int, only: str) -> None:
    """Run everything once to warm up, then take the best of a few rounds."""
    from spark_source import RaftlogSource

    spark.dataSource.register(RaftlogSource)
    spark.dataSource.register(memory_source())

    def topic(**options: str) -> DataFrame:
        reader = spark.read.format("raftlog").option("raftlog.bootstrap.servers", cluster.bootstrap)
        return reader.option("subscribe", TOPIC).options(**options).load()

    def memory() -> DataFrame:
        return spark.read.format("memory_rows").option("rows", rows).load()

    def files() -> DataFrame:
        place = folder / "parquet"
        if not place.exists():
            memory().write.parquet(str(place))
        return spark.read.parquet(str(place))

    def stream() -> None:
        reader = spark.readStream.format("raftlog").option("raftlog.bootstrap.servers", cluster.bootstrap)
        frame = reader.option("subscribe", TOPIC).option("startingOffsets", "earliest").load()
        streamed(frame, folder / f"checkpoint-{next(runs)}", rows)

    runs = iter(range(1_000))
    ways: dict[str, Way] = {
        "raftlog into noop": lambda: noop(topic()),
        "raftlog, columns=key,value, into noop": lambda: noop(topic(columns="key,value")),
        "memory into noop": lambda: noop(memory()),
        "Parquet into noop": lambda: noop(files()),
        "raftlog count()": lambda: counted(topic(), rows),
        "raftlog count(), columns=offset": lambda: counted(topic(columns="offset"), rows),
        "memory count()": lambda: counted(memory(), rows),
        "raftlog stream into noop": stream,
    }
    table_of_costs({name: way for name, way in ways.items() if only in name}, cluster, rows, best_of)


def table_of_costs(ways: Mapping[str, Way], cluster: Nodes, rows: int, best_of: int) -> None:
    """Print the best run of each variant, and the machine's load. All variants run in each round, because a JVM becomes
    faster over time and the machine's load varies."""
    console.print(f"{rows:,} rows in {PARTITIONS} partitions; {machine()}")
    table = Table("what", *COST_COLUMNS)
    before = Cores.now()
    found: dict[str, list[Cost]] = {name: [] for name in ways}
    for number in range(1 + best_of):
        for name, way in ways.items():
            one = one_cost(way, cluster)
            console.print(
                f"{'round ' + str(number) if number else 'to warm up'}: {name}: {one.real:.2f} s", style="dim"
            )
            found[name] += [one] if number else []
    for name, costs in found.items():
        table.add_row(name, *told(costs, rows))
    console.print(table)
    console.print(Cores.now().since(before))


COST_COLUMNS = ("million rows per second", "seconds", "median s", "CPU s of Spark", "CPU s of the nodes")

Way = Callable[[], Callable[[], None] | None]
"""A measured function. It may return a check of its results, which runs after the clock has stopped."""


class Cost(NamedTuple):
    """The seconds of one run."""

    real: float
    spark: float
    nodes: float


def told(costs: Sequence[Cost], rows: int) -> list[str]:
    """The best of some runs, in the order of `COST_COLUMNS`."""
    best = Cost(*map(min, zip(*costs, strict=True)))
    median = statistics.median(one.real for one in costs)
    return [
        f"{rows / best.real / 1e6:.2f}",
        *(f"{seconds:.2f}" for seconds in (best.real, median, best.spark, best.nodes)),
    ]


def one_cost(way: Way, cluster: Nodes) -> Cost:
    started, spark, nodes = time.perf_counter(), spark_seconds(cluster), node_seconds(cluster)
    afterwards = way()
    real = time.perf_counter() - started
    found = Cost(real, spark_seconds(cluster) - spark, node_seconds(cluster) - nodes)
    if afterwards is not None:
        afterwards()
    return found


def node_seconds(cluster: Nodes) -> float:
    return sum(map(cpu_seconds, pids(cluster).values()))


def spark_seconds(cluster: Nodes) -> float:
    """Return the CPU time of this process and all processes that it started, including those that have ended, except
    the nodes."""
    parents, used = {}, {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                fields = Path("/proc", name, "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # the process has ended
            parents[int(name)], used[int(name)] = int(fields[1]), sum(map(int, fields[11:15]))
    nodes, mine = set(pids(cluster).values()), {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in mine} - mine - nodes:
        mine |= more
    return sum(used[pid] for pid in mine) / TICKS_PER_SECOND


def noop(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def counted(frame: DataFrame, rows: int) -> None:
    found = frame.count()
    if found != rows:
        raise SystemExit(f"{found:,} rows were read, {rows:,} are there")


def streamed(frame: DataFrame, checkpoint: Path, rows: int) -> None:
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    found = sum(progress.numInputRows for progress in query.recentProgress)
    if found != rows:
        raise SystemExit(f"{found:,} rows were streamed, {rows:,} are there")


if __name__ == "__main__":
    main()
