"""Explanations by real nodes: the first finding names what was done to them.

The tests share a cluster: each repairs what it broke, and has topics of its own.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from urllib.parse import quote

import pytest

from raftlog import Admin, Consumer, Producer
from raftlog.api.explain import Explanation
from raftlog.cli.nodes.local_cluster import LocalCluster, LocalNode
from raftlog.client.cluster.api import HttpApi
from raftlog.client.cluster.connection_security import ConnectionSecurity
from raftlog.client.settings import AdminSettings
from raftlog.errors import InvalidRequest
from tests.support.clusters.cluster import PATIENCE_S, all_in_sync, eventually, known_everywhere, running_cluster

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with running_cluster() as running:
        yield running


async def explain(node: LocalNode, path: str) -> Explanation:
    async with HttpApi(str(node.api), ConnectionSecurity(AdminSettings())) as api:
        return await api.get(f"/v1/explain/{path}", Explanation)


async def explained(node: LocalNode, path: str, code: str) -> Explanation:
    """Wait until the first finding has this code: what was done to the cluster takes effect after a while."""
    seen: list[str] = []

    async def look() -> Explanation | None:
        found = await explain(node, path)
        seen[:] = [one.code for one in found.findings]
        return found if seen[0] == code else None

    try:
        return await eventually(look, f"{code} as the cause of {path}")
    except AssertionError as error:
        raise AssertionError(f"{error}; findings: {seen}") from None


def partition(topic: str, query: str = "") -> str:
    return f"topics/{quote(topic)}/partitions/0{query}"


async def whole(cluster: LocalCluster) -> None:
    """Start the nodes that are down, and wait until each node knows that all are up."""
    for node in cluster.nodes:
        await asyncio.to_thread(cluster.start_node, node.node_id)

    async def all_alive(node: LocalNode) -> bool:
        async with Admin(str(node.api)) as admin:
            return not any(one.fenced for one in (await admin.cluster()).nodes)

    for node in cluster.nodes:
        await eventually(lambda node=node: all_alive(node), f"node {node.node_id} knows that all are up")  # type: ignore[misc]


async def filled(cluster: LocalCluster, admin: Admin, topic: str, count: int = 20, **configs: str) -> None:
    """Create a topic with one partition on all nodes, with records that every replica has."""
    await admin.create_topic(
        topic, 1, replication_factor=3, configs={k.replace("_", "."): v for k, v in configs.items()}
    )
    async with Producer(cluster.bootstrap) as producer:
        for number in range(count):
            await producer.send_and_wait(topic, b"%d" % number)
    await all_in_sync(admin, topic)
    await known_everywhere(cluster, topic)


async def test_a_healthy_partition_and_a_record_on_every_replica(cluster: LocalCluster) -> None:
    async with Admin(cluster.bootstrap) as admin:
        await filled(cluster, admin, "well")
    for node in cluster.nodes:
        found = await explained(node, partition("well", "?offset=7"), "healthy")
        assert found.record is not None and found.record.committed
        assert [place.state for place in found.record.places] == ["fsynced"] * 3
        assert found.record.not_before_ms is not None and found.record.not_after_ms is not None
        assert found.record.not_before_ms <= found.record.not_after_ms
        assert any(line.reason == "created" for line in found.timeline)
        assert not found.unanswered and len(found.consequences) == 3
    async with Admin(cluster.bootstrap) as admin:
        same = await admin.explain_partition("well", 0, offset=7, principal="User:bob")
        assert (same.findings[0].code, same.subject) == (found.findings[0].code, found.subject)
        assert same.record is not None and same.record.offset == 7
        for refused in (
            admin.explain_group("none"),
            admin.explain_transaction("none"),
            admin.explain_partition("no", 0),
        ):
            with pytest.raises(InvalidRequest):
                await refused


async def test_a_dead_node_and_too_few_replicas_and_no_majority(cluster: LocalCluster) -> None:
    async with Admin(cluster.bootstrap) as admin:
        await filled(cluster, admin, "orders")
        await filled(cluster, admin, "strict", min_insync_replicas="3")
        leader = (await admin.describe_topic("orders")).partitions[0].leader
    assert leader is not None
    asked, other = (node for node in cluster.nodes if node.node_id != leader)
    await asyncio.to_thread(cluster.kill_node, leader)
    found = await explained(asked, partition("orders"), "node_dead")
    assert found.findings[0].node == leader and f"start node {leader}" in found.findings[0].remedies[0]
    lost = [line for line in found.timeline if line.reason == "fenced" and line.text.startswith(f"node {leader} lost")]
    assert lost, [line.text for line in found.timeline]
    assert any(line.reason == "elected" for line in found.timeline)
    assert any(one.code == "voter_lost" and one.node == leader for one in found.findings)
    assert [one.severity for one in found.consequences if one.node == asked.node_id] == ["critical"]

    strict = await explained(asked, partition("strict"), "below_min_isr")
    assert f"node {leader} is down" in strict.findings[0].summary

    await asyncio.to_thread(cluster.kill_node, other.node_id)
    alone = await explained(asked, partition("orders"), "quorum_without_majority")
    assert str(leader) in alone.unanswered and str(other.node_id) in alone.unanswered

    for number in (leader, other.node_id):
        await asyncio.to_thread(cluster.start_node, number)
    await explained(asked, partition("strict"), "healthy")
    await whole(cluster)
    # The restarted nodes remember what they saw before, and learn the rest from the others.
    again = await explain(cluster.nodes[other.node_id], partition("orders"))
    assert any(line.reason == "elected" for line in again.timeline)


async def test_the_history_survives_a_restart_of_all_nodes(cluster: LocalCluster) -> None:
    async with Admin(cluster.bootstrap) as admin:
        await filled(cluster, admin, "kept")
        before = (await admin.describe_topic("kept")).partitions[0]
    assert before.leader is not None
    await asyncio.to_thread(cluster.kill_node, before.leader)
    other = next(node for node in cluster.nodes if node.node_id != before.leader)
    await explained(other, partition("kept"), "node_dead")

    async def written() -> bool:
        found = await explain(other, partition("kept"))
        return any(line.reason == "elected" for line in found.timeline)

    await eventually(written, "the election in the timeline")
    for node in cluster.nodes:
        if node.running:
            await asyncio.to_thread(cluster.kill_node, node.node_id)
    for node in cluster.nodes:
        await asyncio.to_thread(cluster.start_node, node.node_id)
    await asyncio.to_thread(cluster.wait_ready, PATIENCE_S)
    await whole(cluster)
    found = await eventually(lambda: explain(other, partition("kept")), "an answer")
    assert any(line.reason == "created" for line in found.timeline), [line.text for line in found.timeline]


async def test_a_paused_node_is_as_dead_as_a_stopped_one(cluster: LocalCluster) -> None:
    async with Admin(cluster.bootstrap) as admin:
        await filled(cluster, admin, "paused")
        leader = (await admin.describe_topic("paused")).partitions[0].leader
    asked, victim = (node for node in cluster.nodes if node.node_id != leader)
    cluster.pause_node(victim.node_id)
    try:
        found = await explained(asked, partition("paused"), "node_dead")
    finally:
        cluster.resume_node(victim.node_id)
    assert found.findings[0].node == victim.node_id
    assert "within 2 s" in found.unanswered[str(victim.node_id)]
    await explained(asked, partition("paused"), "healthy")


async def test_an_open_transaction_and_a_member_without_commits(cluster: LocalCluster) -> None:
    async with Admin(cluster.bootstrap) as admin:
        await filled(cluster, admin, "payments")
    asked = cluster.nodes[0]
    async with Producer(cluster.bootstrap, transactional_id="billing") as producer:
        async with producer.transaction() as transaction:
            await transaction.send_and_wait("payments", b"open", partition=0)
            found = await explained(asked, partition("payments"), "open_transaction")
            assert "'billing'" in found.findings[0].summary and "stable offset at 20" in found.findings[0].summary
            opened = await explained(asked, "transactions/billing", "transaction_open")
            assert "payments/0 from offset 20" in opened.findings[0].summary
        await explained(asked, partition("payments"), "healthy")
    ended = await explained(asked, "transactions/billing", "transaction_ended")
    assert not ended.unanswered
    async with Consumer.subscribe(cluster.bootstrap, "readers", ["payments"], auto_offset_reset="earliest") as consumer:
        assert await eventually(lambda: consumer.poll(1, 1.0), "a record")
        stuck = await explained(asked, "groups/readers", "member_stuck")
        assert "has never committed" in stuck.findings[0].summary and "payments/0" in stuck.findings[0].summary


async def test_a_throttled_move(cluster: LocalCluster) -> None:
    async with Admin(cluster.bootstrap) as admin:
        await admin.create_topic("moved", 1, replication_factor=2)
        async with Producer(cluster.bootstrap) as producer:
            for _ in range(40):
                await producer.send_and_wait("moved", os.urandom(100_000), partition=0)
        placed = (await all_in_sync(admin, "moved"))["moved"].partitions[0]
        target = next(node.node_id for node in cluster.nodes if node.node_id not in placed.replicas)
        await admin.alter_reassignments({("moved", 0): [placed.replicas[0], target]}, throttle=20_000)
        found = await explained(cluster.nodes[0], partition("moved"), "throttled_move")
        assert found.findings[0].node == target
        assert any("leader.replication.throttled.rate is 20.0 kB/s" in line for line in found.findings[0].evidence)
        await admin.alter_reassignments({("moved", 0): None})
