"""Speculation on a Spark cluster of two hosts.

One task is attempted on both, both attempts write, and one of them is visible, once; the other one's transaction is
aborted (S1, S13). The first attempt pauses after it has written, so that Spark starts another one on the other host;
that one continues to its end when the log has records of both.

Run it by hand: `python -P -m pytest -q -m soak tests/integration/spark/test_speculation.py`. It takes three gigabytes
of memory and the addresses 127.0.0.2 and 127.0.0.3.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from raftlog.cli.nodes.local_cluster import LocalCluster
from raftlog.sync import Admin, Producer
from tests.support.clusters.cluster import PATIENCE_S, running_cluster
from tests.support.spark.queries import read_committed, until_written
from tests.support.spark.session import session
from tests.support.spark.standalone import (
    EXECUTOR_MEMORY_MB,
    skip_unless_there_can_be_hosts,
    spark_cluster,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.integration,
    pytest.mark.soak,
    # Warnings about sockets between Python and Spark's own processes, which Spark should close.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
]

HOSTS = ("127.0.0.2", "127.0.0.3")
ROWS = 500
"""Rows of each of two tasks."""
STUCK = 1
"""The task whose first attempt pauses."""
SETTINGS = {
    "spark.executor.memory": f"{EXECUTOR_MEMORY_MB}m",
    "spark.locality.wait": "0",
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.5",
    # By default Spark passes a sink 10,000 rows at a time: nothing would be written before the end.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "100",
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    skip_unless_there_can_be_hosts(HOSTS)
    with running_cluster(3) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def spark(cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    with spark_cluster(HOSTS, tmp_path_factory.mktemp("spark")) as url, session(url, SETTINGS) as spark:
        yield spark


def racing(cluster: LocalCluster, topic: str) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Rows `<task>/<attempt>/<number>`; the first attempt at one task never ends by itself."""
    written, stuck, patience_s = until_written(cluster.bootstrap, topic), STUCK, PATIENCE_S

    def attempt(batches: Iterator[Any]) -> Iterator[Any]:
        import time

        import pyarrow as pa
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        task, number = context.partitionId(), context.attemptNumber()
        for batch in batches:
            # Longer than all buffers between the two processes together.
            texts = [str(row).encode().ljust(2_000) for row in batch.column(0)]
            yield pa.RecordBatch.from_pydict({"value": pa.array([b"%d/%d/%s" % (task, number, one) for one in texts])})
        if task == stuck and number == 0:
            time.sleep(2 * patience_s)  # Spark ends it when the other one has won
            raise RuntimeError("nobody took the place of the attempt that stands still")
        if task == stuck:
            written(b"%d/0/" % stuck, b"%d/%d/" % (stuck, number))

    return attempt


def check(cluster: LocalCluster, topic: str) -> None:
    """Each number once, of one attempt; both have written, and no transaction is open."""
    until_written(cluster.bootstrap, topic)(b"%d/0/" % STUCK, b"%d/1/" % STUCK)
    found = [(row.value or b"").split(b"/") for row in read_committed(cluster, topic)]
    assert sorted(int(number) for _, _, number in found) == list(range(2 * ROWS))
    tasks = Counter((int(task), int(attempt)) for task, attempt, _ in found)
    assert {task for task, _ in tasks} == {0, 1} and len(tasks) == 2, tasks
    assert (STUCK, 0) not in tasks
    with Admin(cluster.bootstrap) as admin:
        listed = admin.list_transactions()
    assert listed.silent_nodes == []
    assert [one for one in listed.transactions if any(place.topic == topic for place in one.partitions)] == []


def test_of_two_attempts_of_a_batch_query_that_both_write_one_is_visible_s13(
    spark: SparkSession, cluster: LocalCluster
) -> None:
    with Admin(cluster.bootstrap) as admin:
        admin.create_topic("raced", partitions=2)
    rows = spark.range(0, 2 * ROWS, 1, 2).mapInArrow(racing(cluster, "raced"), "value BINARY")
    writer = rows.write.format("raftlog").mode("append").option("raftlog.bootstrap.servers", cluster.bootstrap)
    writer.option("topic", "raced").save()
    check(cluster, "raced")


def test_of_two_attempts_of_a_micro_batch_that_both_write_one_is_visible_s13(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path
) -> None:
    with Admin(cluster.bootstrap) as admin, Producer(cluster.bootstrap) as producer:
        for topic in ("given", "streamed"):
            admin.create_topic(topic, partitions=2)
        for partition in range(2):
            numbers = range(partition * ROWS, (partition + 1) * ROWS)
            producer.send_many("given", [b"%d" % number for number in numbers], partition=partition)
    where = {"raftlog.bootstrap.servers": cluster.bootstrap}
    stream = spark.readStream.format("raftlog").options(subscribe="given", startingOffsets="earliest", **where).load()
    numbers = stream.selectExpr("CAST(CAST(value AS STRING) AS BIGINT) AS id")
    writer = numbers.mapInArrow(racing(cluster, "streamed"), "value BINARY").writeStream.format("raftlog")
    writer = writer.options(topic="streamed", checkpointLocation=str(tmp_path / "checkpoint"), **where)
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(int(4 * PATIENCE_S)), query.status
    assert query.exception() is None
    check(cluster, "streamed")
