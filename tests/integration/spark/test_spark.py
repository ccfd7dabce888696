"""Spark reads a cluster of three nodes, through the built wheel: columns, micro-batches, restarts, losses."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import raftlog
from raftlog.cli.nodes.local_cluster import LocalCluster
from raftlog.sync import Admin, Producer
from tests.support.clusters.cluster import PATIENCE_S, running_cluster
from tests.support.spark.queries import failing, finish, until
from tests.support.spark.session import ROOT, Arrived, session, started

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

pytestmark = [
    pytest.mark.integration,
    # Warnings about sockets between Python and Spark's own processes, which Spark should close.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with running_cluster(3) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def spark(cluster: LocalCluster) -> Iterator[SparkSession]:
    with session() as spark:
        yield spark


@pytest.fixture
def admin(cluster: LocalCluster) -> Iterator[Admin]:
    with Admin(cluster.bootstrap) as admin:
        yield admin


def produce(cluster: LocalCluster, topic: str, count: int, partitions: int = 2, first: int = 0) -> None:
    """Produce this number of records to each partition, `<partition>-<number>`, with the number as key."""
    with Producer(cluster.bootstrap) as producer:
        for partition in range(partitions):
            numbers = range(first, first + count)
            values, keys = [b"%d-%d" % (partition, n) for n in numbers], [b"%d" % n for n in numbers]
            producer.send_many(topic, values, keys=keys, partition=partition)


def batch(spark: SparkSession, cluster: LocalCluster, **options: Any) -> DataFrame:
    reader = spark.read.format("raftlog").option("kafka.bootstrap.servers", cluster.bootstrap)
    return reader.options(**options).load()


def stream(
    spark: SparkSession, cluster: LocalCluster, arrived: Arrived, checkpoint: Path, *, now: bool, **options: Any
) -> StreamingQuery:
    """A query that collects its records. `now`: only the available records."""
    reader = spark.readStream.format("raftlog").option("raftlog.bootstrap.servers", cluster.bootstrap)
    writer = reader.options(columns="partition,offset,value", **options).load().writeStream
    writer = writer.foreachBatch(arrived).option("checkpointLocation", str(checkpoint))
    writer = writer.trigger(availableNow=True) if now else writer.trigger(processingTime="0 seconds")
    return started(writer.start, PATIENCE_S)


def every(partitions: int, count: int) -> list[tuple[int, int]]:
    return [(partition, offset) for partition in range(partitions) for offset in range(count)]


@pytest.fixture(scope="module")
def orders(cluster: LocalCluster) -> str:
    """A topic: 2,000 records in each of two partitions, and a tombstone with a header behind those of the second."""
    with Admin(cluster.bootstrap) as admin, Producer(cluster.bootstrap) as producer:
        admin.create_topic("orders", partitions=2)
        produce(cluster, "orders", 2_000)
        producer.send("orders", None, key=b"gone", partition=1, timestamp_ms=1_000, headers={"a": b"b"})
    return "orders"


def test_a_batch_has_the_kafka_connectors_columns(spark: SparkSession, cluster: LocalCluster, orders: str) -> None:
    """Without a registration: Spark finds `pyspark_raftlog` in the wheel."""
    frame = batch(spark, cluster, subscribe=orders, includeHeaders="true")
    assert [(field.name, field.dataType.simpleString()) for field in frame.schema] == [
        ("key", "binary"),
        ("value", "binary"),
        ("topic", "string"),
        ("partition", "int"),
        ("offset", "bigint"),
        ("timestamp", "timestamp"),
        ("timestampType", "int"),
        ("headers", "array<struct<key:string,value:binary>>"),
    ]
    table = frame.orderBy("partition", frame["offset"]).toArrow()
    rows = table.to_pylist()
    assert [(row["partition"], row["offset"]) for row in rows] == [*every(2, 2_000), (1, 2_000)]
    assert [row["value"] for row in rows[:3]] == [b"0-0", b"0-1", b"0-2"]
    assert {row["topic"] for row in rows} == {"orders"}
    last = rows[-1]
    assert (last["key"], last["value"], last["timestampType"]) == (b"gone", None, 0)
    assert last["timestamp"].timestamp() == 1.0
    assert last["headers"] == [{"key": "a", "value": b"b"}] and rows[0]["headers"] == []
    assert batch(spark, cluster, subscribe=orders, columns="offset").count() == 4_001


def test_conditions_select_ranges(spark: SparkSession, cluster: LocalCluster, orders: str) -> None:
    options = {"subscribePattern": f"{orders[:3]}.*", "filterPushdown": "true", "minPartitions": "4"}
    frame = batch(spark, cluster, columns="partition,offset,timestamp", **options)
    assert frame.rdd.getNumPartitions() == 4
    chosen = frame.where("partition = 1 AND offset >= 1990 AND offset < 2000")
    assert sorted(row.offset for row in chosen.collect()) == list(range(1990, 2000))
    late = frame.where("timestamp > timestamp'2020-01-01 00:00:00'")
    assert late.count() == 4_000


def test_micro_batches_keep_limits_and_resume_where_they_were(
    spark: SparkSession, cluster: LocalCluster, admin: Admin, tmp_path: Path
) -> None:
    """Three runs of a query over one checkpoint, with records in between: every offset once (S1)."""
    admin.create_topic("resumed", partitions=2)
    arrived = Arrived()
    for run in range(3):
        produce(cluster, "resumed", 100, first=100 * run)
        options = {"subscribe": "resumed", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "150"}
        finish(stream(spark, cluster, arrived, tmp_path, now=True, group="spark-lag", **options))
    assert arrived.sizes == [150, 50] * 3
    assert arrived.places() == every(2, 300)
    assert sorted(row["value"] for row in arrived.rows()) == sorted(b"%d-%d" % place for place in every(2, 300))
    # The last micro-batch of a run is in the group's offsets, too.
    lag = {one.partition: (one.offset, one.lag) for one in admin.group_offsets("spark-lag")}
    assert lag == {0: (300, 0), 1: (300, 0)}


def test_a_driver_that_died_before_its_first_commit_skips_nothing(
    spark: SparkSession, cluster: LocalCluster, admin: Admin, tmp_path: Path
) -> None:
    """Batch 0 was planned from the latest offset, and its commit is lost; meanwhile records arrived."""
    admin.create_topic("trap", partitions=2)
    produce(cluster, "trap", 10)
    arrived = Arrived()
    query = stream(spark, cluster, arrived, tmp_path, now=False, subscribe="trap")
    until(lambda: bool(arrived.tables), "batch 0, which reads nothing")
    produce(cluster, "trap", 20, first=10)
    until(lambda: sum(arrived.sizes) == 40, "batch 1")
    query.stop()
    # As if all of it had been batch 0, of which nothing was committed. The records may have come in several batches, of
    # which each later one names the start of its own partitions only; a batch 0 names all.
    planned = max((file for file in (tmp_path / "offsets").iterdir() if file.name.isdigit()), key=lambda f: int(f.name))
    first_offsets = tmp_path / "offsets" / "0"
    *lines, first = first_offsets.read_text().splitlines()
    last = json.loads(planned.read_text().splitlines()[-1])
    first_offsets.write_text("\n".join([*lines, json.dumps({**last, "base": json.loads(first)["base"]})]))
    for file in (*(tmp_path / "offsets").iterdir(), *(tmp_path / "commits").iterdir()):
        if file != first_offsets:
            file.unlink()
    produce(cluster, "trap", 5, first=30)
    again = Arrived()
    finish(stream(spark, cluster, again, tmp_path, now=True, subscribe="trap"))
    assert again.places() == [(partition, offset) for partition in range(2) for offset in range(10, 35)]


def test_a_query_continues_while_a_leader_dies(
    spark: SparkSession, cluster: LocalCluster, admin: Admin, tmp_path: Path
) -> None:
    admin.create_topic("moved", partitions=2)
    produce(cluster, "moved", 50)
    arrived = Arrived()
    query = stream(spark, cluster, arrived, tmp_path, now=False, subscribe="moved", startingOffsets="earliest")
    until(lambda: sum(arrived.sizes) == 100, "what was there")
    leader = admin.describe_topic("moved").partitions[0].leader
    assert leader is not None
    cluster.kill_node(leader)
    produce(cluster, "moved", 50, first=50)
    until(lambda: sum(arrived.sizes) >= 200, "what came after the leader's death")
    query.stop()
    assert arrived.places() == every(2, 100)
    cluster.start_node(leader)
    cluster.wait_ready(PATIENCE_S)


class Undone(Exception):
    """The program changed its mind."""


async def transact(cluster: LocalCluster, topic: str, values: list[bytes], *, commit: bool) -> None:
    async with raftlog.Producer(cluster.bootstrap) as producer:
        with contextlib.suppress(Undone):
            async with producer.transaction() as transaction:
                await transaction.send_many(topic, values, partition=0)
                if not commit:
                    await producer.flush()
                    raise Undone
                await transaction.commit(wait="visible")


def test_only_committed_transactions_are_read(
    spark: SparkSession, cluster: LocalCluster, admin: Admin, tmp_path: Path
) -> None:
    """S13, in batches and streams. The log ends with a marker, which is no record."""
    admin.create_topic("decided", partitions=1)
    asyncio.run(transact(cluster, "decided", [b"seen", b"too"], commit=True))
    asyncio.run(transact(cluster, "decided", [b"never"] * 3, commit=False))
    asyncio.run(transact(cluster, "decided", [b"last"], commit=True))
    options = {"subscribe": "decided", "startingOffsets": "earliest"}
    assert [row.value for row in batch(spark, cluster, **options).collect()] == [b"seen", b"too", b"last"]
    arrived = Arrived()
    finish(stream(spark, cluster, arrived, tmp_path, now=True, maxOffsetsPerTrigger="2", **options))
    assert [row["value"] for row in arrived.rows()] == [b"seen", b"too", b"last"]


def test_the_documents_example_runs(spark: SparkSession, cluster: LocalCluster, orders: str, tmp_path: Path) -> None:
    text = (ROOT / "docs/spark.md").read_text()
    example = text.partition("```python\n")[2].partition("```")[0]
    example = example.replace("127.0.0.1:9640", cluster.bootstrap).replace("/data", str(tmp_path))
    names: dict[str, Any] = {"spark": spark}

    def run() -> StreamingQuery:
        exec(compile(example, "docs/spark.md", "exec"), names)  # noqa: S102
        query: StreamingQuery = names["query"]
        return query

    query = started(run, PATIENCE_S)
    query.stop()
    assert query.exception() is None
    assert names["batch"].count() == spark.read.parquet(str(tmp_path / "orders")).count() == 4_001


def test_errors_reach_the_driver_unchanged(
    spark: SparkSession, cluster: LocalCluster, orders: str, tmp_path: Path
) -> None:
    with failing() as told:
        batch(spark, cluster, subscribe=orders, startingOffset="earliest").count()
    assert "option startingoffset is not known" in told[0]
    with failing() as told:
        batch(spark, cluster, subscribe="nowhere").count()
    assert "unknown_topic: there is no topic nowhere to read" in told[0]
    with failing() as told:
        finish(stream(spark, cluster, Arrived(), tmp_path / "a", now=True, subscribe="nowhere"))
    assert "unknown_topic: there is no topic nowhere to read" in told[0]
    with failing() as told:
        nobody = spark.read.format("raftlog").option("raftlog.bootstrap.servers", "127.0.0.1:1")
        nobody.option("subscribe", orders).option("requestTimeoutMs", "500").load().count()
    assert "cannot connect to 127.0.0.1:1" in told[0]


def test_a_loss_is_reported_with_its_kind_and_range(
    spark: SparkSession, cluster: LocalCluster, admin: Admin, tmp_path: Path
) -> None:
    admin.create_topic("lost", partitions=2)
    produce(cluster, "lost", 50)
    options = {"subscribe": "lost", "startingOffsets": "earliest"}
    arrived = Arrived()
    finish(stream(spark, cluster, arrived, tmp_path, now=True, **options))
    produce(cluster, "lost", 50, first=50)
    admin.delete_records("lost", {1: 70})
    with failing() as told:
        finish(stream(spark, cluster, arrived, tmp_path, now=True, **options))
    assert "lost/1 [50, 70): retention overtook the query" in told[0]
    finish(stream(spark, cluster, arrived, tmp_path, now=True, failOnDataLoss="false", **options))
    kept = [place for place in every(2, 100) if place[0] == 0 or not 50 <= place[1] < 70]
    assert arrived.places() == kept
    admin.delete_topic("lost")
    admin.create_topic("lost", partitions=2)
    with failing() as told:
        finish(stream(spark, cluster, arrived, tmp_path, now=True, **options))
    assert "lost/0 [100, ...): the topic was deleted and created again" in told[0]
    with failing() as told:
        batch(spark, cluster, subscribe="lost", endingOffsets='{"lost": {"0": 5, "1": -1}}').count()
    assert "lost/0 [0, 5): the offset lies beyond the log's end" in told[0]


def test_the_source_can_be_registered_by_hand(spark: SparkSession, cluster: LocalCluster, orders: str) -> None:
    from spark_source import RaftlogSource

    spark.dataSource.register(RaftlogSource)
    assert batch(spark, cluster, subscribe=orders, columns="offset").count() == 4_001
