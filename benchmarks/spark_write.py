"""How many rows a second Spark writes to a cluster, and what a micro-batch costs, whatever is in it.

Batch queries write the same rows (16-byte keys, 100-byte values, incompressible, yielded from memory) to a topic, with
and without transactions, to Parquet files, and to nowhere (`noop`), which is the ceiling of what Spark's Python sources
give. Every write to a topic is counted by a second reader.

Streaming queries from topic to topic take micro-batches of a bounded number of records (1,000), and one for each time
that something comes to a topic but nothing passes their filter (empty). Of each kind the median is told, beside the
same query into `noop`.

    python benchmarks/spark_write.py [--rows 2000000] [--best-of 3] [--batches 30]

Needs `pip install 'raftlog[spark]'` and Java (`python -m spark_source.java`). Run it with nothing else on the machine.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from measuring import Cores, a_cluster, console, machine
from rich.table import Table
from spark_read import (
    CHUNK,
    COST_COLUMNS,
    PARTITIONS,
    cost,
    memory_source,
    noop,
    produce,
    python_for_spark,
    start_spark,
)

from raftlog.cli.local_cluster import LocalCluster
from raftlog.sync import Admin
from spark_source import java

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PER_BATCH = 1_000
SOURCE = "rows"
"""`spark_read.produce` makes it."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--best-of", type=int, default=3)
    parser.add_argument("--batches", type=int, default=30)
    parser.add_argument("--folder", help="where cluster and files live; by default the system's temporary folder")
    arguments = parser.parse_args()
    rows = arguments.rows // (PARTITIONS * CHUNK) * PARTITIONS * CHUNK
    if not rows:
        parser.error(f"--rows is at least {PARTITIONS * CHUNK}")
    os.environ["JAVA_HOME"] = str(java.find())
    with a_cluster(arguments.folder) as cluster, tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        os.environ["PYSPARK_PYTHON"] = str(python_for_spark(Path(folder)))
        spark = start_spark()
        try:
            from spark_source import RaftlogSource

            spark.dataSource.register(RaftlogSource)
            spark.dataSource.register(memory_source())
            spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "50000")
            console.print(machine())
            before = Cores.now()
            batches_written(spark, cluster, Path(folder), rows, arguments.best_of)
            micro_batches(spark, cluster, Path(folder), arguments.batches)
            console.print(Cores.now().since(before))
        finally:
            spark.stop()


def batches_written(spark: SparkSession, cluster: LocalCluster, folder: Path, rows: int, best_of: int) -> None:
    """Everything once to warm up, then the best of a few."""
    runs = iter(range(1_000))

    def memory() -> DataFrame:
        frame = spark.read.format("memory_rows").option("rows", rows).load()
        return frame.select("key", "value", "partition")

    def topic(**options: str) -> None:
        name = f"written-{next(runs)}"
        with Admin(cluster.bootstrap) as admin:
            admin.create_topic(name, partitions=PARTITIONS)
            writer = memory().write.format("raftlog").mode("append").options(topic=name, **options)
            writer.option("raftlog.bootstrap.servers", cluster.bootstrap).save()
            reader = spark.read.format("raftlog").option("raftlog.bootstrap.servers", cluster.bootstrap)
            found = reader.options(subscribe=name, columns="offset").load().count()
            if found != rows:
                raise SystemExit(f"{found:,} rows are in topic {name}, {rows:,} were written")
            admin.delete_topic(name)

    ways: dict[str, Callable[[], object]] = {
        "memory into noop": lambda: noop(memory()),
        "memory into Parquet": lambda: memory().write.parquet(str(folder / f"parquet-{next(runs)}")),
        "memory into raftlog": topic,
        "memory into raftlog, exactlyOnce=false": lambda: topic(exactlyOnce="false"),
    }
    table = Table("batch query", *COST_COLUMNS, title=f"{rows:,} rows, counted afterwards")
    for name, way in ways.items():
        table.add_row(name, *cost(way, cluster, best_of).told(rows))
    console.print(table)


def micro_batches(spark: SparkSession, cluster: LocalCluster, folder: Path, batches: int) -> None:
    """Medians of what Spark says of each micro-batch but the first ones, which warm it up."""
    rows = max(batches * PER_BATCH // (PARTITIONS * CHUNK) + 1, 1) * PARTITIONS * CHUNK
    produce(cluster, rows)
    with Admin(cluster.bootstrap) as admin:
        admin.create_topic("streamed", partitions=PARTITIONS)
    # Queries are stopped in the middle of a micro-batch, of which Spark makes pages of errors; what fails is raised.
    spark.sparkContext.setLogLevel("OFF")
    table = Table("micro-batch", "into", "median, ms", "of it addBatch", "micro-batches")
    for kind, condition in {f"{PER_BATCH:,} rows": "true", "empty": "false"}.items():
        for sink in ("noop", "raftlog"):
            reader = spark.readStream.format("raftlog").option("raftlog.bootstrap.servers", cluster.bootstrap)
            reader = reader.options(subscribe=SOURCE, startingOffsets="earliest", maxOffsetsPerTrigger=PER_BATCH)
            frame = reader.load().select("key", "value", "partition").where(condition)
            writer = frame.writeStream.format(sink).option("checkpointLocation", str(folder / f"{sink}-{kind}"))
            if sink == "raftlog":
                writer = writer.options(topic="streamed").option("raftlog.bootstrap.servers", cluster.bootstrap)
            query = writer.trigger(processingTime="0 seconds").start()
            while query.isActive and (query.lastProgress is None or query.lastProgress.batchId < batches):
                query.awaitTermination(1)
            measured = [one.durationMs for one in query.recentProgress if one.batchId >= batches // 5]
            query.stop()
            if query.exception() is not None or not measured:
                raise SystemExit(f"the query into {sink} failed: {query.exception()}")
            whole = statistics.median(one["triggerExecution"] for one in measured)
            added = statistics.median(one.get("addBatch", 0) for one in measured)
            table.add_row(kind, sink, f"{whole:.0f}", f"{added:.0f}", str(len(measured)))
    console.print(table)


if __name__ == "__main__":
    main()
