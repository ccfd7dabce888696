"""Voters are added and removed under TLS, on real processes.

One voter grows to two, hands over, and returns on a new disk with its old certificate (S7, S9, S12).
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from raftlog import Admin
from raftlog.api.quorum import QuorumInfo
from raftlog.broker.identity import init_data_folder, read_identity
from raftlog.cli.nodes.local_cluster import DATA_FOLDER, LocalCluster, free_base_port
from raftlog.system.disk import LocalDisk
from tests.support.cli_runner import run
from tests.support.clusters.cluster import PATIENCE_S, eventually, log_lines, stop_and_check, tell
from tests.support.clusters.tls import SETTING, Authority, write

pytestmark = pytest.mark.integration


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    """Node 0 votes, node 1 observes."""
    with tempfile.TemporaryDirectory(prefix="raftlog-test-") as folder:
        made = LocalCluster(folder, 2, free_base_port(2), settings={"tls": SETTING})
        made.prepare()
        authority = Authority()
        for node in made.nodes:
            write(node.folder, authority, authority.for_node(cluster_id_of(made, node.node_id), node.node_id))
        try:
            made.start()
            made.wait_ready(PATIENCE_S)
            yield made
        except BaseException:
            made.kill_all()
            tell(made)
            raise
        stop_and_check(made)


def data_of(cluster: LocalCluster, node: int) -> Path:
    return Path(cluster.nodes[node].folder) / DATA_FOLDER


def cluster_id_of(cluster: LocalCluster, node: int) -> str:
    folder = str(data_of(cluster, node))
    return read_identity(LocalDisk(folder), folder).cluster_id


async def change(cluster: LocalCluster, action: str, node: int) -> None:
    done = await asyncio.to_thread(run, "--bootstrap", cluster.bootstrap, "quorum", action, str(node))
    assert done.code == 0 and "are now" in done.text, done.stderr


async def test_a_voter_is_added_hands_over_and_returns_on_a_new_disk(cluster: LocalCluster) -> None:
    async with Admin(cluster.bootstrap) as admin:
        assert (await admin.quorum()).voters == [0]
        await eventually(lambda: caught_up(admin, 1), "the observer follows under TLS")
        await change(cluster, "add", 1)
        await change(cluster, "remove", 0)  # it leads, and hands over
        status = await eventually(lambda: led_by(admin, 1), "the former observer leads alone")
        assert status.voters == [1]
        await asyncio.to_thread(cluster.kill_node, 0)
        cluster_id = cluster_id_of(cluster, 0)
        shutil.rmtree(data_of(cluster, 0))
        now = {1: cluster.nodes[1].data}
        init_data_folder(str(data_of(cluster, 0)), cluster_id=cluster_id, node_id=0, voters=now, observer=True)
        await asyncio.to_thread(cluster.start_node, 0)
        await asyncio.to_thread(cluster.wait_ready, PATIENCE_S)
        await eventually(lambda: caught_up(admin, 0), "it follows on its new disk")
        await change(cluster, "add", 0)
        assert sorted((await admin.quorum()).voters) == [0, 1]
        await admin.create_topic("agreed-by-both", partitions=1, replication_factor=2)
    for node in cluster.nodes:
        lines = log_lines(node)
        assert any(line["event"] == "quorum_voters" and line["voters"] == [0, 1] for line in lines)
        assert not any(line["event"] == "quorum_link_dropped" for line in lines)


async def caught_up(admin: Admin, node: int) -> bool:
    status = await admin.quorum()
    return status.match_index.get(str(node), -1) >= status.commit_index


async def led_by(admin: Admin, node: int) -> QuorumInfo | None:
    status = await admin.quorum()
    return status if status.leader == node else None
