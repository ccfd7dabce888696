"""Nodes die by SIGKILL while an idempotent producer continues: S1, S2, S5 and S10 on real processes and disks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest

from raftlog import Admin
from raftlog.api.topics import TopicDescription
from raftlog.cli.nodes.local_cluster import LocalCluster, is_ready
from raftlog.config import TimingConfig
from tests.support.clusters.cluster import (
    all_in_sync,
    eventually,
    log_lines,
    next_leader,
    running_cluster,
    start_warm,
    warm_node,
)
from tests.support.clusters.traffic import Traffic, check_exactly

pytestmark = pytest.mark.integration

PARTITIONS = 3
SESSION_S = TimingConfig().broker_session_ms / 1000
WARM_ATTEMPTS = 5


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with running_cluster() as running:
        yield running


async def victim_of(admin: Admin, description: TopicDescription, *, controller: bool) -> tuple[int, int]:
    """A partition and its leader, which also leads the quorum if that is requested and possible."""
    quorum = await eventually(lambda: _controller(admin), "a controller")
    led = [(p.partition, p.leader) for p in description.partitions if p.leader is not None]
    fitting = [(partition, leader) for partition, leader in led if (leader == quorum) is controller]
    return (fitting or led)[0]


async def _controller(admin: Admin) -> int | None:
    leader = (await admin.quorum()).leader
    return leader if leader >= 0 else None


async def kill_again_and_again(cluster: LocalCluster, topic: str, kills: int) -> int:
    """SIGKILL a partition's leader, restart it when writes are acknowledged again, and repeat. Returns how many of the
    killed nodes were also the controller."""
    controllers = 0
    async with Admin(cluster.bootstrap) as admin:
        await admin.create_topic(topic, PARTITIONS, replication_factor=3)
        async with Traffic(cluster.bootstrap, topic, PARTITIONS) as traffic:
            for number in range(kills):
                description = (await all_in_sync(admin, topic))[topic]
                await traffic.grows()
                partition, leader = await victim_of(admin, description, controller=number % 2 == 0)
                controllers += leader == await _controller(admin)
                epoch = description.partitions[partition].leader_epoch
                await asyncio.to_thread(cluster.kill_node, leader)
                after = await next_leader(admin, topic, partition, epoch)
                assert after.leader != leader
                await traffic.grows()
                await asyncio.to_thread(cluster.start_node, leader)
            await all_in_sync(admin, topic)
        assert min(traffic.acknowledged_counts) > 0
        await check_exactly(cluster.bootstrap, traffic)
    return controllers


async def test_a_leader_killed_repeatedly_loses_nothing(cluster: LocalCluster) -> None:
    assert await kill_again_and_again(cluster, "killed", 3) >= 1


@pytest.mark.soak
async def test_twenty_killed_leaders_lose_nothing(cluster: LocalCluster) -> None:
    assert await kill_again_and_again(cluster, "killed-often", 20) >= 5


async def test_a_leader_back_within_its_session_does_not_lead_its_old_epoch(cluster: LocalCluster) -> None:
    """S5: its epoch belongs to the ended incarnation. No session may expire, so the new incarnation reports it."""
    topic = "restarted"
    async with Admin(cluster.bootstrap) as admin:
        await admin.create_topic(topic, PARTITIONS, replication_factor=3)
        async with Traffic(cluster.bootstrap, topic, PARTITIONS) as traffic:
            fast = False
            for _ in range(WARM_ATTEMPTS):
                fast = fast or await restart_within_session(cluster, admin, topic, traffic)
                if fast:
                    break
        await check_exactly(cluster.bootstrap, traffic)
    assert fast, f"no restart of {WARM_ATTEMPTS} was faster than a session"


async def restart_within_session(cluster: LocalCluster, admin: Admin, topic: str, traffic: Traffic) -> bool:
    """Kill and restart a leader that is not the controller; returns whether it registered before its session
    expired."""
    description = (await all_in_sync(admin, topic))[topic]
    partition, leader = await victim_of(admin, description, controller=False)
    before = description.partitions[partition]
    lived = (await admin.cluster()).nodes
    old_incarnation = next(node.incarnation for node in lived if node.id == leader)
    node = cluster.nodes[leader]
    lines_before = len(log_lines(node))
    await traffic.grows()

    process = await asyncio.to_thread(warm_node, node)
    await asyncio.to_thread(cluster.kill_node, leader)
    killed_at = time.monotonic()
    start_warm(node, process)

    async def registered() -> bool:
        return any(line["event"] == "registered" for line in log_lines(node)[lines_before:])

    await eventually(registered, f"node {leader} registers again")
    took = time.monotonic() - killed_at
    after = await next_leader(admin, topic, partition, before.leader_epoch)
    assert after.leader_epoch > before.leader_epoch
    alive = {node.id: node.incarnation for node in (await admin.cluster()).nodes}
    assert alive[leader] > old_incarnation
    await eventually(lambda: asyncio.to_thread(is_ready, node.api), f"node {leader} takes requests")
    await traffic.grows()
    return took < SESSION_S
