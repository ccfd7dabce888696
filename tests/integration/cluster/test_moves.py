"""Moves between five real nodes by the command line.

A throttled move keeps its rate, gives way to another and is cancelled; one node is drained under load. Nothing is lost,
and leaders end up balanced (S1).
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Iterator

import msgspec
import pytest

from raftlog import Admin, Producer
from raftlog.api.moves import ThrottleInfo
from raftlog.api.topics import TopicDescription
from raftlog.cli.nodes.local_cluster import LocalCluster
from tests.support.cli_runner import run
from tests.support.clusters.cluster import all_in_sync, eventually, log_lines, running_cluster, stop_node
from tests.support.clusters.traffic import Traffic, check_exactly

pytestmark = pytest.mark.integration

PARTITIONS = 8
LEAVING = 4
RATE = 60_000
BATCH_BYTES = 50_000


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with running_cluster(5) as running:
        yield running


async def raftlog(cluster: LocalCluster, *arguments: str) -> str:
    """Run the command line as an operator would; returns its output."""
    result = await asyncio.to_thread(run, *arguments, bootstrap=cluster.bootstrap)
    assert result.code == 0, (result.text, result.stderr)
    return result.text


def held_by(description: TopicDescription, broker: int) -> list[int]:
    return [p.partition for p in description.partitions if broker in p.replicas]


def folders(cluster: LocalCluster, node: int, name: str) -> list[str]:
    return os.listdir(os.path.join(cluster.nodes[node].folder, "data", name))


async def held_bytes(admin: Admin, topic: str) -> dict[int, int]:
    """The bytes of the topic's one partition on each node's disk."""
    found = (await admin.replicas()).items()
    return {node: replica.size_bytes for node, replicas in found for replica in replicas if replica.topic == topic}


async def test_a_throttled_move_keeps_its_rate_is_replaced_and_ends_when_it_is_released(cluster: LocalCluster) -> None:
    """By bytes: the receiver's data is bounded from above by the rate and the time since the request, so on a slow
    machine it has less. All of it would take a minute at this rate, and takes a fraction of a second without one."""
    name = "throttled"
    async with Admin(cluster.bootstrap) as admin, Producer(cluster.bootstrap) as producer:
        (before,) = (await admin.create_topic(name, 1, replication_factor=2)).partitions
        first, second = [node for node in range(4) if node not in before.replicas][:2]
        for _ in range(100):
            await asyncio.gather(*await producer.send_many(name, [os.urandom(1_000) for _ in range(40)], partition=0))
        full = (await held_bytes(admin, name))[before.replicas[0]]
        assert full > 60 * RATE, "the move must take far longer than this test looks at it"

        async def is_copying(node: int) -> bool:
            return (await held_bytes(admin, name)).get(node, 0) > 0

        async with Traffic(cluster.bootstrap, name, 1, records=1, pause=0.05, first=[4_000]) as traffic:
            for target in (first, second):
                began = time.monotonic()
                assignment = f"{name}/0={before.replicas[0]},{target}"
                await raftlog(cluster, "cluster", "reassign", assignment, "--throttle", str(RATE), "--no-wait")
                await eventually(lambda target=target: is_copying(target), f"{target} receives")  # type: ignore[misc]
                acknowledged = traffic.acknowledged_counts[0]
                for _ in range(4):
                    has = (await held_bytes(admin, name))[target]
                    allowed = RATE * (time.monotonic() - began + 1) + BATCH_BYTES
                    assert has <= allowed, "rate, a second's worth, one message"
                    await asyncio.sleep(0.25)
                assert traffic.acknowledged_counts[0] > acknowledged, "who writes does not wait for it (acks=all)"
            (moving,) = await admin.list_reassignments()
            assert (moving.target_replicas[1], moving.adding_replicas) == (second, [second]), "the first was replaced"
            assert (await admin.throttle()).leader_rate == RATE
            await raftlog(cluster, "cluster", "reassign", "--throttle", "0")

            async def is_over() -> bool:
                return not await admin.list_reassignments()

            await eventually(is_over, "the move is over once it is not throttled")
        assert (await admin.describe_topic(name)).partitions[0].replicas == [before.replicas[0], second]
        last = await producer.send_and_wait(name, b"last", partition=0)
        assert last.offset == 4_000 + len(traffic.partitions[0].sent)
        await admin.delete_topic(name)


async def test_a_broker_is_drained_under_load_stopped_and_unregistered(cluster: LocalCluster) -> None:
    async with Admin(cluster.bootstrap) as admin:
        before = await admin.create_topic("moved", PARTITIONS, replication_factor=3)
        held = held_by(before, LEAVING)
        assert held
        async with Traffic(cluster.bootstrap, "moved", PARTITIONS, records=5, pause=0.05) as traffic:
            await traffic.grows()
            plan = msgspec.json.decode(await raftlog(cluster, "cluster", "drain", str(LEAVING), "--plan", "-o", "json"))
            assert [move["partition"] for move in plan if move["topic"] == "moved"] == held
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
        # Its replicas' folders were set aside.
        assert folders(cluster, LEAVING, "partitions") == []


@pytest.mark.soak
async def test_a_broker_that_returns_gets_its_share_again(cluster: LocalCluster) -> None:
    """Drained, stopped, unregistered and started again: it registers as a new broker, and a balance gives it
    replicas."""
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
