"""The measurements of `spark_read.py` and `spark_write.py` for Spark's Kafka connector and Kafka.

The same rows (16-byte keys, 100-byte values, incompressible, two partitions; Spark writes them from memory, including
those that are read afterwards) go to the same number of brokers, with the same replication and `min.insync.replicas`,
through the same Spark, and are counted by the same code: into `noop`, `count()`, a stream of one micro-batch; written;
micro-batches of 1,000 rows and empty ones. The rows from memory (`memory into noop`) are in all of these tables, so
that tables of different runs can be compared.

Some differences are inherent: Kafka acknowledges data in the page caches, raftlog fsynced data (`flush.messages=1`, a
separate row, makes Kafka's brokers fsync first); the connector's sink is at least once, to be compared with
`exactlyOnce=false`; and it cannot skip a column, only drop it afterwards.

    python benchmarks/spark_kafka.py [--rows 4000000] [--written 2000000] [--best-of 3] [--batches 30] [--brokers 3]

Needs `pip install 'raftlog[spark]'`, Java 17 (`python -m spark_source.java`), and for the first run Maven and a network
that reaches Maven Central. If one of them is missing, it says so and exits with 1. Run it with nothing else on the
machine.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kafka_peer import Brokers, Missing, beside, connector_artifacts, fetch, kafka
from measuring import Cores, console
from rich.table import Table
from spark_read import (
    CHUNK,
    PARTITIONS,
    TOPIC,
    Way,
    counted,
    memory_source,
    noop,
    python_for_spark,
    start_spark,
    streamed,
    table_of_costs,
)
from spark_write import KINDS, MICRO_BATCH_COLUMNS, PER_BATCH, medians

from spark_source import java

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KAFKA_VERSION = "4.3.1"
ADMIN_SECONDS = 60
"""The timeout of one request to the brokers; at the start they first elect a controller."""
SECONDS_AT_MOST, SECONDS_TO_CLEAN_UP, JVM_SECONDS = 7200.0, 60.0, 30.0
"""Timeouts: of the whole run; of the cleanup; of Spark's JVM in the cleanup."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, default=4_000_000, help="number of rows to read")
    parser.add_argument(
        "--written", type=int, help="number of rows that a batch query writes (default: half of --rows)"
    )
    parser.add_argument("--best-of", type=int, default=3)
    parser.add_argument("--batches", type=int, default=30)
    parser.add_argument("--brokers", type=int, default=3, choices=(1, 2, 3))
    parser.add_argument("--only", default="", help="run only the variants whose names contain this")
    parser.add_argument("--kafka", default=KAFKA_VERSION, help="version of the brokers")
    parser.add_argument("--connector", help="version of the connector (default: that of the installed PySpark)")
    parser.add_argument("--folder", help="folder for brokers and files; default: the system's temporary folder")
    arguments = parser.parse_args()
    if arguments.batches < 1 or arguments.batches * PER_BATCH > whole_chunks(arguments.rows):
        parser.error(f"{arguments.batches} micro-batches of {PER_BATCH:,} rows need as many --rows")
    try:
        with bounded(SECONDS_AT_MOST):
            compare(arguments)
    except (Missing, java.NoJava) as error:
        sys.exit(str(error))


def compare(arguments: argparse.Namespace) -> None:
    """Raises `Missing` or `java.NoJava` if this machine lacks a prerequisite."""
    java_home = java.find()
    os.environ["JAVA_HOME"] = str(java_home)
    connector, jars = connector_jars(arguments.connector, java_home)
    with (
        kafka(arguments.folder, arguments.brokers, arguments.kafka, java_home) as brokers,
        tempfile.TemporaryDirectory(dir=arguments.folder) as folder,
    ):
        os.environ["PYSPARK_PYTHON"] = str(python_for_spark(Path(folder)))
        spark = start_spark({"spark.jars": ",".join(map(str, jars))})
        try:
            console.print(
                f"Spark {spark.version}, its connector {connector}, {arguments.brokers} x Kafka {arguments.kafka}"
            )
            spark.dataSource.register(memory_source())
            peer = Peer(spark, brokers, Path(folder))
            peer.wait_ready()
            rows = whole_chunks(arguments.rows)
            peer.reading(rows, arguments.best_of, arguments.only)
            peer.writing(whole_chunks(arguments.written or rows // 2), arguments.best_of, arguments.only)
            if not arguments.only:
                peer.micro_batches(arguments.batches)
        finally:
            end(spark)


def end(spark: SparkSession) -> None:
    """Stop Spark and its JVM, which would otherwise outlive this process by some seconds."""
    gateway: Any = spark.sparkContext._gateway
    try:
        spark.stop()
    finally:
        gateway.proc.stdin.close()
        try:
            gateway.proc.wait(JVM_SECONDS)
        except subprocess.TimeoutExpired:
            gateway.proc.kill()
            gateway.proc.wait()


def connector_jars(version: str | None, java_home: Path) -> tuple[str, list[Path]]:
    """Return the connector's version, and the jars that it needs beyond Spark's. Raises `Missing`."""
    try:
        import pyspark
    except ImportError as error:
        raise Missing("there is no PySpark: pip install 'raftlog[spark]'") from error
    wanted = version or pyspark.__version__
    shipped = sorted(Path(pyspark.__file__).parent.glob("jars/*.jar"))
    try:
        return wanted, beside(fetch(connector_artifacts(wanted), java_home), shipped)
    except Missing as error:
        if version is not None:
            raise
        told = "Where Maven Central has no connector of this PySpark, --connector selects that of the previous release."
        raise Missing(f"{error}\n{told}") from error


def whole_chunks(rows: int) -> int:
    """Round up to whole batches: the source in memory yields whole batches, the same number to each partition."""
    unit = PARTITIONS * CHUNK
    return -(-max(rows, 1) // unit) * unit


@contextlib.contextmanager
def bounded(seconds: float) -> Iterator[None]:
    """Limit the time of a block that waits for a JVM or a broker: after `seconds`, or on SIGTERM, it ends and
    everything that it started is removed. The cleanup has a limit, too: the alarm rings repeatedly."""

    def late(*_: object) -> None:
        raise SystemExit(f"not done in {seconds:.0f} s")

    def ended(*_: object) -> None:
        raise SystemExit("ended by SIGTERM")

    signal.signal(signal.SIGALRM, late)
    signal.signal(signal.SIGTERM, ended)
    signal.setitimer(signal.ITIMER_REAL, seconds, SECONDS_TO_CLEAN_UP)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


class Peer:
    """Kafka, as Spark's connector sees it."""

    def __init__(self, spark: SparkSession, brokers: Brokers, folder: Path) -> None:
        self.spark, self.brokers, self.folder = spark, brokers, folder
        self.address = {"kafka.bootstrap.servers": brokers.bootstrap}
        self.runs = iter(range(1_000))
        self.jvm: Any = spark._jvm

    # --- Topics, by Kafka's own client in Spark's JVM ---

    def admin(self, ask: Callable[[Any], Any]) -> Any:
        """Return the answer to a request to an `Admin`."""
        properties = self.jvm.java.util.Properties()
        properties.put("bootstrap.servers", self.brokers.bootstrap)
        properties.put("default.api.timeout.ms", str(ADMIN_SECONDS * 1000))
        admin = self.jvm.org.apache.kafka.clients.admin.AdminClient.create(properties)
        try:
            return ask(admin).get(ADMIN_SECONDS, self.jvm.java.util.concurrent.TimeUnit.SECONDS)
        finally:
            admin.close(self.jvm.java.time.Duration.ofSeconds(ADMIN_SECONDS))

    def wait_ready(self) -> None:
        """Wait until all brokers belong to the cluster, since a topic is placed on all of them."""
        for _ in range(ADMIN_SECONDS):
            self.brokers.check()
            if self.admin(lambda admin: admin.describeCluster().nodes()).size() == len(self.brokers.nodes):
                return
            self.jvm.java.lang.Thread.sleep(500)
        raise Missing(f"Kafka's brokers did not form a cluster:\n{self.brokers.nodes[0].tail()}")

    def create(self, name: str, configuration: Mapping[str, str]) -> None:
        jvm = self.jvm
        topic = jvm.org.apache.kafka.clients.admin.NewTopic(
            name, jvm.java.util.Optional.of(PARTITIONS), jvm.java.util.Optional.empty()
        ).configs(dict(configuration))
        self.admin(lambda admin: admin.createTopics([topic]).all())

    def delete(self, name: str) -> None:
        self.admin(lambda admin: admin.deleteTopics([name]).all())

    # --- Rows ---

    def memory(self, rows: int) -> DataFrame:
        return self.spark.read.format("memory_rows").option("rows", rows).load()

    def topic(self, name: str) -> DataFrame:
        return self.spark.read.format("kafka").options(**self.address, subscribe=name).load()

    def stream(self, name: str, **options: Any) -> DataFrame:
        reader = self.spark.readStream.format("kafka").options(**self.address, subscribe=name, **options)
        return reader.option("startingOffsets", "earliest").load()

    def write(self, rows: int, name: str, configuration: Mapping[str, str]) -> None:
        self.create(name, configuration)
        frame = self.memory(rows).select("key", "value", "partition")
        frame.write.format("kafka").mode("append").options(**self.address, topic=name).save()

    # --- Measurements ---

    def reading(self, rows: int, best_of: int, only: str) -> None:
        """The variants of `spark_read.py`."""
        self.write(rows, TOPIC, {})
        counted(self.topic(TOPIC), rows)

        def stream() -> None:
            streamed(self.stream(TOPIC), self.folder / f"checkpoint-{next(self.runs)}", rows)

        ways: dict[str, Way] = {
            "Kafka into noop": lambda: noop(self.topic(TOPIC)),
            "Kafka, key and value of it, into noop": lambda: noop(self.topic(TOPIC).select("key", "value")),
            "memory into noop": lambda: noop(self.memory(rows)),
            "Kafka count()": lambda: counted(self.topic(TOPIC), rows),
            "memory count()": lambda: counted(self.memory(rows), rows),
            "Kafka stream into noop": stream,
        }
        self.table(ways, rows, best_of, only)

    def writing(self, rows: int, best_of: int, only: str) -> None:
        """The batch queries of `spark_write.py`."""

        def topic(**configuration: str) -> Callable[[], None]:
            name = f"written-{next(self.runs)}"
            self.write(rows, name, {key.replace("_", "."): value for key, value in configuration.items()})
            return lambda: checked(name)

        def checked(name: str) -> None:
            counted(self.topic(name), rows)
            self.delete(name)

        def memory() -> DataFrame:
            return self.memory(rows).select("key", "value", "partition")

        ways: dict[str, Way] = {
            "memory into noop": lambda: noop(memory()),
            "memory into Kafka": topic,
            "memory into Kafka, flush.messages=1": lambda: topic(flush_messages="1"),
        }
        self.table(ways, rows, best_of, only)

    def table(self, ways: Mapping[str, Way], rows: int, best_of: int, only: str) -> None:
        chosen = {name: way for name, way in ways.items() if only in name}
        if chosen:
            table_of_costs(chosen, self.brokers, rows, best_of)

    def micro_batches(self, batches: int) -> None:
        """The streaming queries of `spark_write.py`."""
        self.create("streamed", {})
        # Queries are stopped in the middle of a micro-batch, for which Spark prints pages of errors.
        self.spark.sparkContext.setLogLevel("OFF")
        table, before = Table(*MICRO_BATCH_COLUMNS), Cores.now()
        for kind, condition in KINDS.items():
            for sink in ("noop", "kafka"):
                frame = self.stream(TOPIC, maxOffsetsPerTrigger=PER_BATCH).select("key", "value", "partition")
                writer = frame.where(condition).writeStream.format(sink)
                writer = writer.option("checkpointLocation", str(self.folder / f"{sink}-{kind}"))
                if sink == "kafka":
                    writer = writer.options(**self.address, topic="streamed")
                table.add_row(kind, sink, *medians(writer, batches))
        console.print(table)
        console.print(Cores.now().since(before))


if __name__ == "__main__":
    main()
