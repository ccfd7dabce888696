"""Spark Connect: source and sink in a remote session. Nothing is registered: the server finds the wheel.

Run it by hand, with `pip install 'pyspark[connect]'`: `python -P -m pytest -q -m soak
tests/integration/spark/test_connect.py`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from raftlog.cli.nodes.local_cluster import LocalCluster
from raftlog.sync import Admin
from spark_source import java
from tests.support.clusters.cluster import PATIENCE_S, running_cluster
from tests.support.spark.queries import read_committed
from tests.support.spark.session import SETTINGS, python_for_spark, unpacked_wheel

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.integration,
    pytest.mark.soak,
    # Warnings of Spark's own, about sockets and the versions of its dependencies.
    pytest.mark.filterwarnings("ignore"),
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with running_cluster(1) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def spark(cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    pytest.importorskip("grpc", reason="pip install 'pyspark[connect]'")
    try:
        home = java.find()
    except java.NoJava as error:
        pytest.skip(str(error))
    from pyspark.sql import SparkSession

    folder = tmp_path_factory.mktemp("spark")
    with pytest.MonkeyPatch.context() as environment:
        environment.setitem(os.environ, "JAVA_HOME", str(home))
        environment.setitem(os.environ, "PYSPARK_PYTHON", str(python_for_spark(folder, unpacked_wheel(folder))))
        builder = SparkSession.builder.remote("local[2]")
        for name, value in SETTINGS.items():
            builder = builder.config(name, value)
        spark = builder.getOrCreate()
        yield spark
        spark.stop()


def test_source_and_sink_work_by_a_remote_session(spark: SparkSession, cluster: LocalCluster, tmp_path: Path) -> None:
    assert type(spark).__module__ == "pyspark.sql.connect.session"
    with Admin(cluster.bootstrap) as admin:
        admin.create_topic("near", partitions=1)
        admin.create_topic("far", partitions=1)
    where = {"raftlog.bootstrap.servers": cluster.bootstrap}
    rows = spark.range(100).selectExpr("CAST(id AS STRING) AS value")
    rows.write.format("raftlog").mode("append").options(topic="near", **where).save()
    assert spark.read.format("raftlog").options(subscribe="near", **where).load().count() == 100
    stream = spark.readStream.format("raftlog").options(subscribe="near", startingOffsets="earliest", **where).load()
    writer = stream.select("value").writeStream.format("raftlog").options(topic="far", **where)
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    assert query.awaitTermination(int(PATIENCE_S))
    assert query.exception() is None
    assert sorted(int(row.value or b"") for row in read_committed(cluster, "far")) == list(range(100))
