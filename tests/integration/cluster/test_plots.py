"""Plots of real nodes: the sums of what each of them leads, before and after a restart."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from raftlog import Admin, Producer
from raftlog.api.plots import Plots
from raftlog.cli.nodes.local_cluster import LocalCluster, LocalNode
from raftlog.client.cluster.api import HttpApi
from raftlog.client.cluster.connection_security import ConnectionSecurity
from raftlog.client.settings import AdminSettings
from tests.support.clusters.cluster import all_in_sync, eventually, running_cluster

pytestmark = pytest.mark.integration


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    with running_cluster() as running:
        yield running


async def plots(node: LocalNode, path: str) -> Plots:
    async with HttpApi(str(node.api), ConnectionSecurity(AdminSettings())) as api:
        return await api.get(f"/v1/plots/{path}", Plots)


async def test_every_node_shows_the_whole_cluster_and_its_past(cluster: LocalCluster) -> None:
    async with Admin(cluster.bootstrap) as admin:
        await admin.create_topic("orders", 3, replication_factor=3)
        async with Producer(cluster.bootstrap) as producer:
            for number in range(60):
                await producer.send_and_wait("orders", b"%d" % number, partition=number % 3)
        await all_in_sync(admin, "orders")

    async def sampled(node: LocalNode) -> float | None:
        found = await plots(node, "topics/orders?minutes=10")
        assert [one.name for one in found.series] == ["records_per_second", "size_bytes"] and not found.unanswered
        values = [value for value in found.series[1].values if value is not None]
        return max(values) if values and max(values) > 0 else None

    sizes = [await eventually(lambda node=node: sampled(node), "a sample") for node in cluster.nodes]
    assert len(set(sizes)) == 1, "every node shows the same sum"

    async def led() -> bool:
        found = await plots(cluster.nodes[1], "nodes")
        leaders = {one.node: one.values for one in found.series if one.name == "leaders"}
        assert sorted(leaders) == [0, 1, 2]
        newest = [next((value for value in reversed(values) if value is not None), None) for values in leaders.values()]
        return None not in newest and sum(value or 0 for value in newest) == 3

    await eventually(led, "a sample of the three leaders")

    gone = cluster.nodes[2]
    await asyncio.to_thread(cluster.kill_node, gone.node_id)
    await asyncio.to_thread(cluster.start_node, gone.node_id)

    async def remembered() -> bool:
        found = await plots(gone, "nodes?minutes=10")
        return any(one.node == gone.node_id and any(one.values) for one in found.series if one.name == "leaders")

    await eventually(remembered, "the samples of before the crash")
