"""Five real nodes: one is emptied under load by the command line; nothing is lost, leaders end up balanced (S1)."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Iterator

import msgspec
import pytest

from raftlog import Admin
from raftlog.cli.local_cluster import LocalCluster
from raftlog.client.admin import ThrottleInfo, TopicDescription
from tests.support.cli_runner import run
from tests.support.cluster import all_in_sync, eventually, log_lines, running_cluster, stop_node
from tests.support.cluster_traffic import Traffic, check_exactly

pytestmark = pytest.mark.integration

PARTITIONS = 8
LEAVING = 4


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with running_cluster(5) as running:
        yield running


async def raftlog(cluster: LocalCluster, *arguments: str) -> str:
    """The command line, as an operator runs it. What it prints."""
    result = await asyncio.to_thread(run, *arguments, bootstrap=cluster.bootstrap)
    assert result.code == 0, (result.text, result.stderr)
    return result.text


def held_by(description: TopicDescription, broker: int) -> list[int]:
    return [p.partition for p in description.partitions if broker in p.replicas]


def folders(cluster: LocalCluster, node: int, name: str) -> list[str]:
    return os.listdir(os.path.join(cluster.nodes[node].folder, "data", name))


async def test_a_broker_is_emptied_under_load_stopped_and_forgotten(cluster: LocalCluster) -> None:
    async with Admin(cluster.bootstrap) as admin:
        before = await admin.create_topic("moved", PARTITIONS, replication_factor=3)
        held = held_by(before, LEAVING)
        assert held
        async with Traffic(cluster.bootstrap, "moved", PARTITIONS, records=5, pause=0.05) as traffic:
            await traffic.grows()
            plan = msgspec.json.decode(await raftlog(cluster, "cluster", "drain", str(LEAVING), "--plan", "-o", "json"))
            assert [move["partition"] for move in plan] == held
            assert all(move["bytes"] > 0 for move in plan)
            assert not await admin.list_reassignments()
            await raftlog(cluster, "cluster", "drain", str(LEAVING), "--timeout", "120", "--throttle", "20000000")
            assert await admin.throttle() == ThrottleInfo(), "it ended with the moves"
            after = (await all_in_sync(admin, "moved"))["moved"]
            assert held_by(after, LEAVING) == []
            assert [len(p.replicas) for p in after.partitions] == [3] * PARTITIONS
            await traffic.grows()
            assert await asyncio.to_thread(stop_node, cluster, LEAVING) == 0
            await raftlog(cluster, "cluster", "unregister", str(LEAVING))
            await raftlog(cluster, "cluster", "balance", "--timeout", "120")
            leaders = Counter(p.leader for p in (await all_in_sync(admin, "moved"))["moved"].partitions)
            assert set(leaders) == {0, 1, 2, 3} and set(leaders.values()) == {PARTITIONS // 4}, leaders
            await traffic.grows()
        await check_exactly(cluster.bootstrap, traffic)
        assert not any("unclean" in str(line) for node in cluster.nodes for line in log_lines(node))

        async def forgotten() -> bool:
            return LEAVING not in [node.id for node in (await admin.cluster()).nodes]

        await eventually(forgotten, "broker 4 is forgotten")
        assert "Nothing to move." in await raftlog(cluster, "cluster", "balance", "--plan")
        # What it held was set aside.
        assert folders(cluster, LEAVING, "partitions") == []


@pytest.mark.soak
async def test_a_broker_that_comes_back_gets_its_share_again(cluster: LocalCluster) -> None:
    """Emptied, stopped, forgotten and started again: it registers as a new broker, and a balance brings it to work."""
    async with Admin(cluster.bootstrap) as admin:
        await admin.create_topic("returned", PARTITIONS, replication_factor=3)
        async with Traffic(cluster.bootstrap, "returned", PARTITIONS, records=5, pause=0.05) as traffic:
            await asyncio.to_thread(cluster.start_node, LEAVING)

            async def is_back() -> bool:
                return any(node.id == LEAVING and not node.fenced for node in (await admin.cluster()).nodes)

            await eventually(is_back, "broker 4 is registered again")
            await raftlog(cluster, "cluster", "balance", "--timeout", "120")
            balanced = [await admin.describe_topic(topic.name) for topic in await admin.list_topics()]
            held = Counter(replica for found in balanced for p in found.partitions for replica in p.replicas)
            assert max(held.values()) - min(held.values()) <= 1 and len(held) == 5, held
            await traffic.grows()
        await check_exactly(cluster.bootstrap, traffic)
