"""A rolling upgrade under load, from an earlier revision of this repository to today's code. S1, S2, S8, S10, S13.

The earlier code runs from its own files with today's libraries, and prepares the data folders. It is made to support
one feature level less than it does, so that there is a level to raise. Clients are today's, which need nodes that have
groups on data connections: the revision is one of the first that do.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import pytest

from raftlog import Admin
from raftlog.cli.nodes.local_cluster import LocalCluster, free_base_port
from raftlog.version import FEATURE_LEVEL
from tests.support.clusters.cluster import PATIENCE_S, all_in_sync, eventually, started, stop_node
from tests.support.clusters.rolling import ACKED, COPIES, RollingClients

pytestmark = [pytest.mark.integration, pytest.mark.soak]

ROOT = Path(__file__).parents[3]
REVISION = "ad256666"
LEVEL = 5
NEW = [sys.executable, "-P", "-m", "raftlog.cli.main"]
_OLD = f"""
import raftlog.version
raftlog.version.FEATURE_LEVEL = {LEVEL}
from raftlog.cli.main import main
main()
"""


def old_program(folder: Path) -> list[str]:
    """Unpack the revision, and return its command line."""
    archive = subprocess.run(["git", "archive", REVISION], cwd=ROOT, capture_output=True, check=False)
    if archive.returncode:
        pytest.skip(f"the history of this repository, with revision {REVISION}, is not here")
    with tarfile.open(fileobj=BytesIO(archive.stdout)) as tar:
        tar.extractall(folder, filter="data")
    return ["env", f"PYTHONPATH={folder}", sys.executable, "-P", "-c", _OLD]


@pytest.fixture
def old_cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """A running cluster of the earlier revision."""
    old = old_program(tmp_path / "code")
    cluster = LocalCluster(str(tmp_path / "cluster"), 3, free_base_port(3), program=old)
    voters = ",".join(f"{node.node_id}@{node.data}" for node in cluster.nodes)
    for node in cluster.nodes:
        init = [*old, "server", "init", "--data-folder", f"{node.folder}/data", "--node-id", str(node.node_id)]
        subprocess.run([*init, "--cluster-id", "upgraded", "--voters", voters], check=True, timeout=PATIENCE_S)
    with started(cluster):
        yield cluster


async def replace(cluster: LocalCluster, clients: RollingClients, node: int) -> None:
    """Stop one node and start it with the cluster's present program."""
    assert await asyncio.to_thread(stop_node, cluster, node) == 0
    await clients.progress()
    cluster.start_node(node)
    await asyncio.to_thread(cluster.wait_ready, PATIENCE_S)
    async with Admin(cluster.bootstrap) as admin:
        await all_in_sync(admin, ACKED, COPIES)
    await clients.progress()


async def feature_level(cluster: LocalCluster) -> int:
    async with Admin(cluster.bootstrap) as admin:
        return (await admin.cluster()).feature_level


async def test_a_rolling_upgrade_loses_nothing_and_shows_no_error_to_clients(
    old_cluster: LocalCluster,
) -> None:
    cluster, old = old_cluster, old_cluster.program
    async with RollingClients(cluster.bootstrap) as clients:
        await clients.progress()
        assert await feature_level(cluster) == LEVEL
        # Two nodes forward, one of them back, and then all: until the level is raised, a downgrade is possible.
        for node, program in ((0, NEW), (1, NEW), (0, old), (0, NEW), (2, NEW)):
            cluster.program = program
            await replace(cluster, clients, node)
            assert await feature_level(cluster) == LEVEL, "an upgrade alone raises nothing"
        async with Admin(cluster.bootstrap) as admin:
            finalized = await admin.finalize_feature_level()
            assert (finalized.feature_level_before, finalized.feature_level) == (LEVEL, FEATURE_LEVEL)

        async def raised() -> bool:
            return await feature_level(cluster) == FEATURE_LEVEL

        await eventually(raised, "every node sees the level")
        await clients.progress()
        await replace(cluster, clients, 1)
