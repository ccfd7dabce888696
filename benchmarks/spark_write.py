"""Rows per second that Spark writes to a cluster, and the fixed cost of a micro-batch.

Batch queries write the same rows (16-byte keys, 100-byte values, incompressible, yielded from memory) to a topic, with
and without transactions, to Parquet files, and to `noop`, which is the ceiling of Spark's Python sources. Every write
to a topic is counted by a second reader after the clock has stopped.

Streaming queries from topic to topic run micro-batches of a bounded number of records (1,000), and empty ones, in which
new records arrive but none passes the filter. The median of each kind is reported, beside the same query into `noop`.

    python benchmarks/spark_write.py [--rows 2000000] [--best-of 3] [--batches 30]

Needs `pip install 'raftlog[spark]'` and Java (`python -m spark_source.java`). Run it with nothing else on the machine.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from measuring import Cores, a_cluster, console
from rich.table import Table
from spark_read import (
    CHUNK,
    PARTITIONS,
    Way,
    counted,
    memory_source,
    noop,
    produce,
    python_for_spark,
    start_spark,
    table_of_costs,
)

from raftlog.cli.nodes.local_cluster import LocalCluster
from raftlog.sync import Admin
from spark_source import java

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

PER_BATCH = 1_000
START_SECONDS, BATCH_SECONDS = 120.0, 10.0
"""The timeout of a streaming query."""
SOURCE = "rows"
"""The topic that `spark_read.produce` creates."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--best-of", type=int, default=3)
    parser.add_argument("--batches", type=int, default=30)
    parser.add_argument("--folder", help="folder for cluster and files; default: the system's temporary folder")
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
            batches_written(spark, cluster, Path(folder), rows, arguments.best_of)
            before = Cores.now()
            micro_batches(spark, cluster, Path(folder), arguments.batches)
            console.print(Cores.now().since(before))
        finally:
            spark.stop()


def batches_written(spark: SparkSession, cluster: LocalCluster, folder: Path, rows: int, best_of: int) -> None:
    """Run everything once to warm up, then take the best of a few rounds."""
    runs = iter(range(1_000))

    def memory() -> DataFrame:
        frame = spark.read.format("memory_rows").option("rows", rows).load()
        return frame.select("key", "value", "partition")

    def topic(**options: str) -> Callable[[], None]:
        name = f"written-{next(runs)}"
        with Admin(cluster.bootstrap) as admin:
            admin.create_topic(name, partitions=PARTITIONS)
        writer = memory().write.format("raftlog").mode("append").options(topic=name, **options)
        writer.option("raftlog.bootstrap.servers", cluster.bootstrap).save()
        return lambda: checked(name)

    def checked(name: str) -> None:
        reader = spark.read.format("raftlog").option("raftlog.bootstrap.servers", cluster.bootstrap)
        counted(reader.options(subscribe=name, columns="offset").load(), rows)
        with Admin(cluster.bootstrap) as admin:
            admin.delete_topic(name)

    ways: dict[str, Way] = {
        "memory into noop": lambda: noop(memory()),
        "memory into Parquet": lambda: memory().write.parquet(str(folder / f"parquet-{next(runs)}")),
        "memory into raftlog": topic,
        "memory into raftlog, exactlyOnce=false": lambda: topic(exactlyOnce="false"),
    }
    table_of_costs(ways, cluster, rows, best_of)


def micro_batches(spark: SparkSession, cluster: LocalCluster, folder: Path, batches: int) -> None:
    """Report medians of Spark's figures for the micro-batches, without the first ones, which warm up the query."""
    rows = max(batches * PER_BATCH // (PARTITIONS * CHUNK) + 1, 1) * PARTITIONS * CHUNK
    produce(cluster, rows)
    with Admin(cluster.bootstrap) as admin:
        admin.create_topic("streamed", partitions=PARTITIONS)
    # Queries are stopped in the middle of a micro-batch, for which Spark prints pages of errors; real failures are
    # raised.
    spark.sparkContext.setLogLevel("OFF")
    table = Table(*MICRO_BATCH_COLUMNS)
    for kind, condition in KINDS.items():
        for sink in ("noop", "raftlog"):
            reader = spark.readStream.format("raftlog").option("raftlog.bootstrap.servers", cluster.bootstrap)
            reader = reader.options(subscribe=SOURCE, startingOffsets="earliest", maxOffsetsPerTrigger=PER_BATCH)
            frame = reader.load().select("key", "value", "partition").where(condition)
            writer = frame.writeStream.format(sink).option("checkpointLocation", str(folder / f"{sink}-{kind}"))
            if sink == "raftlog":
                writer = writer.options(topic="streamed").option("raftlog.bootstrap.servers", cluster.bootstrap)
            table.add_row(kind, sink, *medians(writer, batches))
    console.print(table)


MICRO_BATCH_COLUMNS = ("micro-batch", "into", "median, ms", "of it addBatch", "micro-batches")
KINDS = {f"{PER_BATCH:,} rows": "true", "empty": "false"}
"""The names of kinds of micro-batches, and their filters."""


def medians(writer: DataStreamWriter, batches: int) -> tuple[str, str, str]:
    """Return the medians of a query of `batches` micro-batches; the first fifth of them warms it up."""
    query = writer.trigger(processingTime="0 seconds").start()
    deadline = time.monotonic() + START_SECONDS + BATCH_SECONDS * batches
    while query.isActive and (query.lastProgress is None or query.lastProgress.batchId < batches):
        query.awaitTermination(1)
        if time.monotonic() > deadline:
            raise SystemExit(
                f"{batches} micro-batches took longer than {BATCH_SECONDS} s each; at {query.lastProgress}"
            )
    measured = [one.durationMs for one in query.recentProgress if one.batchId >= batches // 5]
    query.stop()
    if query.exception() is not None or not measured:
        raise SystemExit(f"a query of micro-batches failed: {query.exception()}")
    whole = statistics.median(one["triggerExecution"] for one in measured)
    added = statistics.median(one.get("addBatch", 0) for one in measured)
    return f"{whole:.0f}", f"{added:.0f}", str(len(measured))


if __name__ == "__main__":
    main()
