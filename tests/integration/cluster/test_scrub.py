"""Bytes are damaged under a running cluster: `raftlog partition verify` finds them, and the replicas are repaired."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from raftlog import Admin
from raftlog.cli.nodes.local_cluster import LocalCluster, LocalNode
from tests.support.cli_runner import Result, run
from tests.support.clusters.cluster import all_in_sync, eventually, running_cluster
from tests.support.clusters.traffic import Traffic, check_exactly

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with running_cluster() as running:
        yield running


async def verify(cluster: LocalCluster, *arguments: str) -> Result:
    return await asyncio.to_thread(run, "partition", "verify", *arguments, bootstrap=cluster.bootstrap)


def rot(node: LocalNode, topic_id: str) -> Path:
    """Flip one bit of the payload of the node's first batch."""
    folder = Path(node.folder, "data", "partitions", f"{topic_id}-0")
    segment = min(folder.glob("*.log"))
    with open(segment, "r+b") as file:
        file.seek(70)
        (byte,) = file.read(1)
        file.seek(70)
        file.write(bytes([byte ^ 1]))
    return segment


@pytest.mark.parametrize("role", ["follower", "leader"])
async def test_a_damaged_replica_is_found_and_repaired(cluster: LocalCluster, role: str) -> None:
    """S1, S9, under load."""
    topic = f"rotten-{role}"
    async with Admin(cluster.bootstrap) as admin:
        await admin.create_topic(topic, 1, 3, {"segment.bytes": "65536"})
        async with Traffic(cluster.bootstrap, topic, 1) as traffic:
            await traffic.grows(by=200)
            (partition,) = (await all_in_sync(admin, topic))[topic].partitions
            topic_id = (await admin.describe_topic(topic)).id
            leader = partition.leader
            assert leader is not None
            victim = leader if role == "leader" else next(node for node in partition.isr if node != leader)
            segment = rot(cluster.nodes[victim], topic_id)
            found = await verify(cluster, topic, "0", "-o", "json")
            assert found.code == 10, found.stderr
            (replica,) = found.json["replicas"]
            assert (replica["node_id"], replica["topic"], replica["partition"]) == (victim, topic, 0)
            assert replica["findings"][0].startswith(f"{segment.name} at byte 0: ")

            async def whole() -> bool:
                (now,) = (await admin.describe_topic(topic)).partitions
                return len(now.isr) == 3 and now.leader_epoch > partition.leader_epoch

            await eventually(whole, "it is in sync again, in a later leader epoch")
            await traffic.grows(by=100)
        assert any(name.endswith(".quarantined") for name in os.listdir(segment.parent))
        await all_in_sync(admin, topic)
        again = await verify(cluster, topic)
        assert again.code == 0, again.text
        await check_exactly(cluster.bootstrap, traffic)


async def test_an_invalid_request_is_refused_by_name(cluster: LocalCluster) -> None:
    """S11."""
    nowhere = await verify(cluster, "nowhere")
    assert nowhere.code == 1 and "there is no topic" in nowhere.stderr
    nobody = await verify(cluster, "--node", "7")
    assert nobody.code == 1 and "no node 7" in nobody.stderr
    all_of_it = await verify(cluster, "--node", "1", "-o", "json")
    assert all_of_it.code == 0 and all_of_it.json["checked"] >= 0
