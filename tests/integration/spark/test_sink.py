"""Spark writes to a cluster of three nodes: each micro-batch once, whatever happens to tasks and drivers (S1, S13)."""

from __future__ import annotations

import contextlib
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from raftlog.cli.nodes.local_cluster import LocalCluster
from raftlog.sync import Admin, Producer
from tests.support.clusters.cluster import PATIENCE_S, running_cluster
from tests.support.spark.queries import failing, finish, read_committed, sink_position, until
from tests.support.spark.session import session, started

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

pytestmark = [
    pytest.mark.integration,
    # Warnings about sockets between Python and Spark's own processes, which Spark should close.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
]

PARTITIONS = 2


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with running_cluster(3) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def spark(cluster: LocalCluster) -> Iterator[SparkSession]:
    """Two cores, and three attempts for each task."""
    with session("local[2,3]") as spark:
        yield spark


@pytest.fixture
def admin(cluster: LocalCluster) -> Iterator[Admin]:
    with Admin(cluster.bootstrap) as admin:
        yield admin


def produce(cluster: LocalCluster, topic: str, count: int, first: int = 0) -> None:
    """Produce this number of records to each partition, `<partition>-<number>`."""
    with Producer(cluster.bootstrap) as producer:
        for partition in range(PARTITIONS):
            numbers = range(first, first + count)
            values, keys = [b"%d-%d" % (partition, n) for n in numbers], [b"%d" % n for n in numbers]
            producer.send_many(topic, values, keys=keys, partition=partition)


def write(frame: DataFrame, cluster: LocalCluster, topic: str, **options: Any) -> None:
    writer = frame.write.format("raftlog").mode("append").option("raftlog.bootstrap.servers", cluster.bootstrap)
    writer.options(topic=topic, **options).save()


def source(spark: SparkSession, cluster: LocalCluster, topic: str, **options: Any) -> DataFrame:
    reader = spark.readStream.format("raftlog").option("raftlog.bootstrap.servers", cluster.bootstrap)
    return reader.options(subscribe=topic, startingOffsets="earliest", **options).load()


def copy(frame: DataFrame, cluster: LocalCluster, topic: str, checkpoint: Path, **options: Any) -> StreamingQuery:
    """Copy the available records to a topic."""
    writer = frame.writeStream.format("raftlog").option("kafka.bootstrap.servers", cluster.bootstrap)
    writer = writer.options(topic=topic, checkpointLocation=str(checkpoint), **options).trigger(availableNow=True)
    return started(writer.start, 3 * PATIENCE_S)


def undo(checkpoint: Path, batch_id: int) -> None:
    """Restore the state of a driver that died after the commit and before it recorded its completion."""
    (checkpoint / "commits" / str(batch_id)).unlink()
    with contextlib.suppress(FileNotFoundError):
        (checkpoint / "commits" / f".{batch_id}.crc").unlink()


def test_a_batch_query_writes_all_its_rows_to_topics_partitions_and_with_headers(
    spark: SparkSession, cluster: LocalCluster, admin: Admin
) -> None:
    admin.create_topic("one", partitions=PARTITIONS)
    admin.create_topic("two", partitions=PARTITIONS)
    rows = spark.range(4_000).selectExpr(
        "CASE WHEN id % 3 = 0 THEN NULL ELSE CAST(id AS STRING) END AS key",
        "CAST(id AS STRING) AS value",
        "IF(id % 2 = 0, 'one', 'two') AS topic",
        "CASE WHEN id % 5 = 0 THEN 1 END AS partition",
        "IF(id % 1000 = 0, array(struct('a' AS key, CAST('b' AS BINARY) AS value)), NULL) AS headers",
    )
    rows.write.format("raftlog").mode("append").option("raftlog.bootstrap.servers", cluster.bootstrap).save()
    one, two = read_committed(cluster, "one"), read_committed(cluster, "two")
    assert sorted(int(row.value or b"") for row in one) == list(range(0, 4_000, 2))
    assert sorted(int(row.value or b"") for row in two) == list(range(1, 4_000, 2))
    for row in one + two:
        number = int(row.value or b"")
        assert row.key == (None if number % 3 == 0 else row.value)
        assert row.partition == 1 or number % 5
        assert list(row.headers) == ([("a", b"b")] if number % 1000 == 0 else [])
    # The written tables can be read at once.
    again = spark.read.format("raftlog").option("raftlog.bootstrap.servers", cluster.bootstrap)
    assert again.options(subscribe="one,two", columns="offset").load().count() == 4_000


def test_rows_that_cannot_be_written_are_refused_with_the_remedy_s11(
    spark: SparkSession, cluster: LocalCluster, admin: Admin
) -> None:
    admin.create_topic("refused", partitions=PARTITIONS)
    with failing() as told:
        write(spark.range(3), cluster, "refused")
    assert "column id is not one of" in told[0] and "drop('id')" in told[0]
    value = spark.range(3).selectExpr("CAST(id AS STRING) AS value")
    with failing() as told:
        value.write.format("raftlog").mode("overwrite").option("raftlog.bootstrap.servers", cluster.bootstrap).save()
    assert "use mode('append')" in told[0]
    assert read_committed(cluster, "refused") == []


SHAPE = ("CAST(value AS STRING) AS key", "concat_ws('/', partition, offset, upper(CAST(value AS STRING))) AS value")


def test_a_stream_is_written_once_and_continues_where_it_was_s13(
    spark: SparkSession, cluster: LocalCluster, admin: Admin, tmp_path: Path
) -> None:
    """Through a shuffle, whose rows come in any order. The first micro-batch comes again, as after a crash between the
    commit to raftlog and Spark's. The written records are those that Parquet gets."""
    admin.create_topic("in", partitions=PARTITIONS)
    admin.create_topic("out", partitions=PARTITIONS)
    for run in range(2):
        produce(cluster, "in", 100, first=100 * run)
        frame = source(spark, cluster, "in").repartition(3).selectExpr(*SHAPE)
        query = copy(frame, cluster, "out", tmp_path / "checkpoint")
        finish(query)
        assert sink_position(cluster, query.id) == run
        if run == 0:
            undo(tmp_path / "checkpoint", 0)

    batch = spark.read.format("raftlog").option("raftlog.bootstrap.servers", cluster.bootstrap)
    shaped = batch.options(subscribe="in", endingOffsets='{"in": {"0": 200, "1": 200}}').load().selectExpr(*SHAPE)
    shaped.write.parquet(str(tmp_path / "parquet"))
    to_parquet = [row.value.encode() for row in spark.read.parquet(str(tmp_path / "parquet")).collect()]
    to_topic = [row.value or b"" for row in read_committed(cluster, "out")]
    places = {tuple(map(int, value.split(b"/")[:2])) for value in to_topic}
    assert places == {(partition, offset) for partition in range(PARTITIONS) for offset in range(200)}
    assert len(to_topic) == len(to_parquet) == 400
    assert sum(map(zlib.crc32, to_topic)) == sum(map(zlib.crc32, to_parquet))


def fails_once(mark: str) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """A function for tasks: the first attempt at partition 0 fails after it has produced its rows, and records that;
    the rows name the attempt that produced them. It is defined here, so it is pickled by value for Spark."""

    def troubled(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        place, attempt = context.partitionId(), context.attemptNumber()
        for number, batch in enumerate(batches):
            values = [b"%d/%d/%s" % (place, attempt, str(row).encode()) for row in batch["id"]]
            yield pa.RecordBatch.from_pydict({"value": pa.array(values, pa.binary())})
            if place == attempt == 0 and number == 1:
                Path(mark).touch()
                raise RuntimeError("the first attempt fails, as the test wants")

    return troubled


@pytest.fixture
def small_batches(spark: SparkSession) -> Iterator[None]:
    """Settings with which a task gets several batches."""
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "1000")
    yield
    spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")


def check_attempts(cluster: LocalCluster, topic: str, count: int) -> None:
    """The visible records are those of the second attempt at partition 0, and the first one at the other: each number
    once."""
    found = [(row.value or b"").split(b"/") for row in read_committed(cluster, topic)]
    assert sorted(int(number) for _, _, number in found) == list(range(count))
    assert {(place, attempt) for place, attempt, _ in found} == {(b"0", b"1"), (b"1", b"0")}


@pytest.mark.usefixtures("small_batches")
def test_a_failed_attempt_leaves_nothing_s13(
    spark: SparkSession, cluster: LocalCluster, admin: Admin, tmp_path: Path
) -> None:
    admin.create_topic("tried", partitions=PARTITIONS)
    failed = tmp_path / "failed"
    write(spark.range(0, 6_000, 1, 2).mapInArrow(fails_once(str(failed)), "value BINARY"), cluster, "tried")
    assert failed.exists()
    check_attempts(cluster, "tried", 6_000)


@pytest.mark.usefixtures("small_batches")
def test_a_failed_attempt_of_a_stream_leaves_nothing_s13(
    spark: SparkSession, cluster: LocalCluster, admin: Admin, tmp_path: Path
) -> None:
    admin.create_topic("numbers", partitions=PARTITIONS)
    admin.create_topic("tried-again", partitions=PARTITIONS)
    with Producer(cluster.bootstrap) as producer:
        for partition in range(PARTITIONS):
            values = [b"%d" % number for number in range(partition, 6_000, PARTITIONS)]
            producer.send_many("numbers", values, partition=partition)
    failed = tmp_path / "failed"
    numbers = source(spark, cluster, "numbers").selectExpr("CAST(CAST(value AS STRING) AS BIGINT) AS id")
    frame = numbers.mapInArrow(fails_once(str(failed)), "value BINARY")
    query = copy(frame, cluster, "tried-again", tmp_path / "checkpoint")
    finish(query)
    assert failed.exists() and sink_position(cluster, query.id) == 0
    check_attempts(cluster, "tried-again", 6_000)


def test_a_micro_batch_without_rows_only_moves_the_position_s13(
    spark: SparkSession, cluster: LocalCluster, admin: Admin, tmp_path: Path
) -> None:
    admin.create_topic("dull", partitions=PARTITIONS)
    admin.create_topic("sieved", partitions=PARTITIONS)
    for run in range(2):
        produce(cluster, "dull", 10, first=10 * run)
        frame = source(spark, cluster, "dull").where("value LIKE '%-15'").select("value")
        query = copy(frame, cluster, "sieved", tmp_path / "checkpoint")
        finish(query)
        assert sink_position(cluster, query.id) == run
        found = sorted(row.value or b"" for row in read_committed(cluster, "sieved"))
        assert found == ([b"0-15", b"1-15"] if run else [])


def test_a_stream_continues_to_write_while_a_leader_dies_s13(
    spark: SparkSession, cluster: LocalCluster, admin: Admin, tmp_path: Path
) -> None:
    admin.create_topic("from", partitions=PARTITIONS)
    admin.create_topic("to", partitions=PARTITIONS)
    produce(cluster, "from", 50)
    frame = source(spark, cluster, "from", maxOffsetsPerTrigger=20).selectExpr(*SHAPE)
    writer = frame.writeStream.format("raftlog").option("raftlog.bootstrap.servers", cluster.bootstrap)
    query = started(writer.options(topic="to", checkpointLocation=str(tmp_path / "checkpoint")).start, 3 * PATIENCE_S)
    until(lambda: len(read_committed(cluster, "to")) >= 40, "micro-batches are published")
    leader = admin.describe_topic("to").partitions[0].leader
    assert leader is not None
    cluster.kill_node(leader)
    try:
        produce(cluster, "from", 50, first=50)
        until(lambda: len(read_committed(cluster, "to")) >= 200, "those after the leader's death are, too")
        assert query.exception() is None
        query.stop()
    finally:
        cluster.start_node(leader)
        cluster.wait_ready(PATIENCE_S)
    places = Counter(tuple(map(int, (row.value or b"").split(b"/")[:2])) for row in read_committed(cluster, "to"))
    assert places == Counter((partition, offset) for partition in range(PARTITIONS) for offset in range(100))


def test_a_failed_query_leaves_nothing_and_holds_up_no_reader_s13(
    spark: SparkSession, cluster: LocalCluster, admin: Admin
) -> None:
    admin.create_topic("none", partitions=PARTITIONS)

    def fail(batches: Iterator[Any]) -> Iterator[Any]:
        yield from batches
        raise RuntimeError("as the test wants")

    rows = spark.range(0, 2_000, 1, 2).selectExpr("CAST(id AS STRING) AS value").mapInArrow(fail, "value STRING")
    with failing() as told:
        write(rows, cluster, "none")
    assert "as the test wants" in told[0]
    with Producer(cluster.bootstrap) as producer:
        producer.send("none", b"behind it", partition=0)
        producer.send("none", b"behind it", partition=1)
    assert [row.value for row in read_committed(cluster, "none")] == [b"behind it"] * 2


def test_without_exactly_once_rows_are_written_as_well(
    spark: SparkSession, cluster: LocalCluster, admin: Admin
) -> None:
    admin.create_topic("plain", partitions=PARTITIONS)
    write(spark.range(500).selectExpr("CAST(id AS STRING) AS value"), cluster, "plain", exactlyOnce="false")
    assert sorted(int(row.value or b"") for row in read_committed(cluster, "plain")) == list(range(500))
