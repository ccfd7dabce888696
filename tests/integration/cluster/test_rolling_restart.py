"""A rolling restart under load: nothing is lost, and no client sees an error. S1, S2, S8, S10, S13."""

from __future__ import annotations

import asyncio

import pytest

from raftlog import Admin
from raftlog.api.cluster import RollCheck
from raftlog.cli.nodes.local_cluster import LocalCluster
from raftlog.errors import InvalidRequest
from tests.support.cli_runner import run
from tests.support.clusters.cluster import all_in_sync, eventually, running_cluster, stop_node
from tests.support.clusters.rolling import ACKED, COPIES, RollingClients

pytestmark = pytest.mark.integration


async def may_be_stopped(admin: Admin, node: int) -> RollCheck:
    async def look() -> RollCheck | None:
        found = await admin.roll_check(node)
        return found if found.safe else None

    return await eventually(look, f"node {node} may be stopped")


async def roll(cluster: LocalCluster, clients: RollingClients, node: int) -> None:
    """Stop one node once that is safe, start it again, and wait until all is as before."""
    async with Admin(cluster.bootstrap) as admin:
        await may_be_stopped(admin, node)
        assert await asyncio.to_thread(stop_node, cluster, node) == 0
        await clients.progress()
        others = [other for other in range(3) if other != node]
        unsafe = await admin.roll_check(others[0])
        assert not unsafe.safe
        assert any("required in-sync replicas" in reason for reason in unsafe.reasons), unsafe
        assert any("metadata quorum would have 1 of 3 voters, and needs 2" in r for r in unsafe.reasons), unsafe
        cluster.start_node(node)
        await all_in_sync(admin, ACKED, COPIES)
    await clients.progress()


async def test_a_rolling_restart_loses_nothing_and_shows_no_error_to_clients() -> None:
    with running_cluster() as cluster:
        async with RollingClients(cluster.bootstrap) as clients:
            await clients.progress()
            for node in range(3):
                await roll(cluster, clients, node)
        assert clients.copying.transactions > 0
        await asyncio.to_thread(check_commands, cluster)


def check_commands(cluster: LocalCluster) -> None:
    """`raftlog cluster roll-check` of a healthy cluster, and of one in which a node is down."""
    done = run("cluster", "roll-check", "0", "--wait", bootstrap=cluster.bootstrap)
    assert (done.code, done.text) == (0, "node 0 may be stopped\n")
    stop_node(cluster, 1)
    done = run("cluster", "roll-check", "0", "--wait", "--timeout", "0.1", bootstrap=cluster.bootstrap)
    assert done.code == 10 and done.lines[0] == "node 0 must not be stopped now"
    assert any(f"{ACKED}/0 would have 1 of 2 required" in line for line in done.lines)
    assert run("cluster", "roll-check", "0", "-o", "json", bootstrap=cluster.bootstrap).json["safe"] is False


async def test_a_node_that_does_not_exist_is_refused() -> None:
    with running_cluster(1) as cluster:
        async with Admin(cluster.bootstrap) as admin:
            with pytest.raises(InvalidRequest) as refused:
                await admin.roll_check(7)
            assert refused.value.code == "not_found"
            alone = await admin.roll_check(0)
            assert alone.reasons == ["the metadata quorum would have 0 of 1 voters, and needs 1"]
