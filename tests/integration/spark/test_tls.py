"""Spark's tasks and data listeners with TLS: reading and writing as an executor does, without Spark."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from raftlog.broker.identity import read_identity
from raftlog.cli.nodes.local_cluster import DATA_FOLDER, LocalCluster, free_base_port
from raftlog.errors import RaftlogError
from raftlog.sync import Admin
from raftlog.system.disk import LocalDisk
from spark_source import connections
from spark_source.connections import Connections
from spark_source.driver.batch import plan
from spark_source.reading import options as source_options
from spark_source.reading.filters import Restrictions
from spark_source.tasks import read as executor
from spark_source.writing import decision as sink_decision
from spark_source.writing import options as sink_options
from spark_source.writing import task as sink_task
from spark_source.writing.columns import find
from spark_source.writing.names import MicroBatch
from spark_source.writing.publication import publication
from tests.support.clusters.cluster import PATIENCE_S, stop_and_check, tell
from tests.support.clusters.tls import SETTING, Authority, write
from tests.support.spark.connections import opened

__all__ = ["opened"]

pytestmark = pytest.mark.integration

COLUMNS = find([("value", "binary")], "safe", False)
WORK = MicroBatch("q", "sink", 0)


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


@pytest.fixture(scope="module")
def cluster(authority: Authority) -> Iterator[LocalCluster]:
    with tempfile.TemporaryDirectory(prefix="raftlog-test-") as folder:
        cluster = LocalCluster(folder, 1, free_base_port(1), settings={"tls": SETTING})
        cluster.prepare()
        for node in cluster.nodes:
            data = f"{node.folder}/{DATA_FOLDER}"
            cluster_id = read_identity(LocalDisk(data), data).cluster_id
            write(node.folder, authority, authority.for_node(cluster_id, node.node_id))
        try:
            cluster.start()
            cluster.wait_ready(PATIENCE_S)
            with Admin(cluster.bootstrap) as admin:
                admin.create_topic("safe", partitions=1)
            yield cluster
        except BaseException:
            cluster.kill_all()
            tell(cluster)
            raise
        stop_and_check(cluster)


@pytest.fixture(autouse=True)
def closed_connections(opened: list[Connections]) -> Iterator[None]:
    yield
    for one in opened:
        one.close()


def rows() -> Iterator[pa.RecordBatch]:
    yield pa.RecordBatch.from_pydict({"value": pa.array([b"a", b"b"])})


def test_source_and_sink_need_the_authoritys_certificate_s12(
    cluster: LocalCluster, authority: Authority, tmp_path: Path
) -> None:
    trusted = tmp_path / "authority.pem"
    trusted.write_bytes(authority.pair[0])
    plain = {"raftlog.bootstrap.servers": cluster.bootstrap, "topic": "safe", "deliveryTimeoutMs": "2000"}
    with pytest.raises(RaftlogError, match="this listener speaks TLS only"):
        sink_task.write(sink_options.parse(plain, streaming=True), COLUMNS, WORK, 0, rows())
    told = plain | {"raftlog.tls.authority": str(trusted), "deliveryTimeoutMs": "30000"}
    writing = sink_options.parse(told, streaming=True)
    wanted = publication([sink_task.write(writing, COLUMNS, WORK, 0, rows())], 0)
    assert wanted is not None
    shared = connections.shared(writing.cluster)
    assert shared.run(lambda: sink_decision.publish(shared.api, writing, wanted))

    reading = {name: told[name] for name in ("raftlog.bootstrap.servers", "raftlog.tls.authority")}
    options = source_options.parse(reading | {"subscribe": "safe"}, streaming=False)
    ranges = plan(options, Restrictions())
    found = [batch for one in ranges for batch in executor.read(options, executor.Task(one))]
    assert [value for batch in found for value in batch.column("value").to_pylist()] == [b"a", b"b"]
    without = source_options.parse(
        {"raftlog.bootstrap.servers": cluster.bootstrap, "subscribe": "safe", "fetchTimeoutMs": "2000"}, streaming=False
    )
    with pytest.raises(RaftlogError, match="this listener speaks TLS only"):
        list(executor.read(without, executor.Task(ranges[0])))
