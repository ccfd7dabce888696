"""Executors as separate processes, one of which dies after it has written.

Its rows are written again, once, and its open transaction holds up no reader (S13). Speculation needs two hosts
(`test_speculation.py`).

Run it by hand: `python -P -m pytest -q -m soak tests/integration/spark/test_local_cluster.py`. It takes a gigabyte of
memory for each of two executors.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from raftlog.cli.nodes.local_cluster import LocalCluster
from raftlog.sync import Admin
from tests.support.clusters.cluster import running_cluster
from tests.support.spark.queries import read_committed, until_written
from tests.support.spark.session import session

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


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with running_cluster(3) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def spark(cluster: LocalCluster) -> Iterator[SparkSession]:
    # By default Spark passes a sink 10,000 rows at a time: nothing would be written before the end.
    with session("local-cluster[2,1,1024]", {"spark.sql.execution.arrow.maxRecordsPerBatch": "100"}) as spark:
        yield spark


def test_an_executor_that_dies_after_it_has_written_leaves_nothing_s13(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path
) -> None:
    """Each row contains the attempt that produced it."""
    with Admin(cluster.bootstrap) as admin:
        admin.create_topic("survived", partitions=2)
    killed = str(tmp_path / "killed")
    written = until_written(cluster.bootstrap, "survived")

    def deadly(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        place, attempt = context.partitionId(), context.attemptNumber()
        for batch in batches:
            # Longer than all buffers between the two processes together.
            values = [b"%d/%d/%s" % (place, attempt, str(row).encode().ljust(1_000)) for row in batch["id"]]
            yield pa.RecordBatch.from_pydict({"value": pa.array(values, pa.binary())})
        if place == 1 and attempt == 0 and not Path(killed).exists():
            written(b"1/0/")
            Path(killed).touch()
            # This worker's parent is Spark's daemon for Python, whose parent is the executor.
            executor = int(Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[1])
            os.kill(executor, signal.SIGKILL)

    rows = spark.range(0, 4_000, 1, 4).mapInArrow(deadly, "value BINARY")
    writer = rows.write.format("raftlog").mode("append").option("raftlog.bootstrap.servers", cluster.bootstrap)
    writer.option("topic", "survived").save()
    assert Path(killed).exists()
    found = [(row.value or b"").split(b"/") for row in read_committed(cluster, "survived")]
    assert sorted(int(number) for _, _, number in found) == list(range(4_000))
    assert {attempt for place, attempt, _ in found if place == b"1"} == {b"1"}
    # It is read there, too.
    reader = spark.read.format("raftlog").option("raftlog.bootstrap.servers", cluster.bootstrap)
    assert reader.option("subscribe", "survived").load().count() == 4_000
