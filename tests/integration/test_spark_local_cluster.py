"""Executors that are processes of their own, and speculation, which Spark has only there: the winner shows, and nothing
of the loser (S13).

Run it by hand: `python -P -m pytest -q -m soak tests/integration/test_spark_local_cluster.py`. It takes a gigabyte of
memory for each of two executors.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from raftlog.cli.local_cluster import LocalCluster
from raftlog.sync import Admin
from tests.support.cluster import running_cluster
from tests.support.spark import session
from tests.support.spark_queries import read_committed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.integration,
    pytest.mark.soak,
    # Of sockets between Python and Spark's own processes, which are Spark's to close.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
]

SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.minTaskRuntime": "500ms",
}
SLOW_S = 120.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with running_cluster(3) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def spark(cluster: LocalCluster) -> Iterator[SparkSession]:
    with session("local-cluster[2,2,1024]", SPECULATION) as spark:
        yield spark


def test_of_two_attempts_at_once_one_shows_s13(spark: SparkSession, cluster: LocalCluster, tmp_path: Path) -> None:
    """The first attempt at one task has sent its rows and is slow to end, so Spark starts another; which attempt made a
    row is in the row."""
    with Admin(cluster.bootstrap) as admin:
        admin.create_topic("raced", partitions=2)
    folder = str(tmp_path)

    def slow(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        place, attempt = context.partitionId(), context.attemptNumber()
        for batch in batches:
            values = [b"%d/%d/%s" % (place, attempt, str(row).encode()) for row in batch["id"]]
            yield pa.RecordBatch.from_pydict({"value": pa.array(values, pa.binary())})
        if place == 3:
            Path(folder, f"attempt-{attempt}").touch()
        if place == 3 and attempt == 0:
            time.sleep(SLOW_S)

    rows = spark.range(0, 4_000, 1, 4).mapInArrow(slow, "value BINARY")
    writer = rows.write.format("raftlog").mode("append").option("raftlog.bootstrap.servers", cluster.bootstrap)
    began = time.monotonic()
    writer.option("topic", "raced").save()
    assert time.monotonic() - began < SLOW_S
    assert sorted(one.name for one in tmp_path.iterdir()) == ["attempt-0", "attempt-1"]
    found = [(row.value or b"").split(b"/") for row in read_committed(cluster, "raced")]
    assert sorted(int(number) for _, _, number in found) == list(range(4_000))
    assert {(place, attempt) for place, attempt, _ in found if place == b"3"} == {(b"3", b"1")}
    # It is read there, too.
    reader = spark.read.format("raftlog").option("raftlog.bootstrap.servers", cluster.bootstrap)
    assert reader.option("subscribe", "raced").load().count() == 4_000
