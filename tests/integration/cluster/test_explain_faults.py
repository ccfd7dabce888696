"""Explanations by real nodes of what their disks, networks, certificates and rules do to a partition: the first finding
names it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import tempfile
import urllib.request
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import pytest

from raftlog import Admin, Producer
from raftlog.api.explain import Explanation
from raftlog.api.topics import TopicDescription
from raftlog.broker.identity import read_identity
from raftlog.cli.nodes.local_cluster import DATA_FOLDER, SETTINGS_FILE, LocalCluster, LocalNode, free_base_port
from raftlog.errors import RaftlogError
from raftlog.model import TopicId, TopicPartition
from raftlog.system.disk import LocalDisk
from tests.support.clusters import troubled_node
from tests.support.clusters.cluster import (
    all_in_sync,
    eventually,
    known_everywhere,
    running_cluster,
    started,
)
from tests.support.clusters.small_disks import cluster_on_small_disks, small_disks
from tests.support.clusters.tls import SETTING, Authority, write
from tests.support.clusters.troubled_node import Fault, begin

from .test_explain import explain, explained, filled, partition, whole

pytestmark = pytest.mark.integration

PROGRAM = (sys.executable, "-P", os.path.abspath(troubled_node.__file__))


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """A cluster whose nodes have faults on request. The tests that use it repair what they broke."""
    with tempfile.TemporaryDirectory(prefix="raftlog-test-") as folder:
        timing = {"timing": "{replica_lag_max_ms = 1500}"}
        cluster = LocalCluster(folder, 3, free_base_port(3), settings=timing, program=PROGRAM)
        with started(cluster):
            yield cluster


async def roles(cluster: LocalCluster, admin: Admin, topic: str) -> tuple[LocalNode, LocalNode, LocalNode]:
    """Return the partition's leader, a follower that does not lead the quorum, and the third node."""
    placed = (await all_in_sync(admin, topic))[topic].partitions[0]
    controller = (await admin.cluster()).controller
    others = [node for node in cluster.nodes if node.node_id != placed.leader]
    others.sort(key=lambda node: node.node_id == controller)
    return next(node for node in cluster.nodes if node.node_id == placed.leader), others[0], others[1]


async def led_elsewhere(cluster: LocalCluster, admin: Admin, name: str) -> tuple[str, LocalNode, LocalNode, LocalNode]:
    """Create a topic whose leader does not lead the quorum; return it with `roles`."""
    for number in range(4):  # Leaders are spread over the nodes.
        topic = f"{name}-{number}"
        await filled(cluster, admin, topic)
        controller = (await admin.cluster()).controller
        found = await roles(cluster, admin, topic)
        if found[0].node_id != controller:
            return topic, *found
    raise AssertionError("the quorum's leader leads every partition")


async def keep_writing(cluster: LocalCluster, topic: str) -> None:
    """Write records, whatever becomes of them, until this is cancelled."""
    async with Producer(cluster.bootstrap, delivery_timeout_ms=20_000) as producer:
        while True:
            with contextlib.suppress(RaftlogError):
                await producer.send_and_wait(topic, b"x" * 100, partition=0)
            await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def written(cluster: LocalCluster, topic: str) -> AsyncIterator[None]:
    """Keep writing while the block runs."""
    task = asyncio.create_task(keep_writing(cluster, topic))
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_a_lost_voter_is_the_cause_where_it_has_no_replica(cluster: LocalCluster) -> None:
    async with Admin(cluster.bootstrap) as admin:
        await admin.create_topic("pair", 1, replication_factor=2)
        placed = (await all_in_sync(admin, "pair"))["pair"].partitions[0]
    voter = next(node for node in cluster.nodes if node.node_id not in placed.replicas)
    asked = next(node for node in cluster.nodes if node is not voter)
    await asyncio.to_thread(cluster.kill_node, voter.node_id)
    found = await explained(asked, partition("pair"), "voter_lost")
    assert found.findings[0].node == voter.node_id
    assert f"start node {voter.node_id}" in found.findings[0].remedies
    await whole(cluster)


async def test_the_disk_of_a_follower_is_slow(cluster: LocalCluster) -> None:
    async with Admin(cluster.bootstrap) as admin:
        await filled(cluster, admin, "slow")
        _, follower, asked = await roles(cluster, admin, "slow")
    begin(Fault.SLOW_DISK, follower.folder)
    async with written(cluster, "slow"):
        found = await explained(asked, partition("slow"), "slow_disk")
    assert found.findings[0].node == follower.node_id
    troubled_node.end(Fault.SLOW_DISK, follower.folder)


async def test_a_follower_gets_no_records_and_leaves_the_isr(cluster: LocalCluster) -> None:
    async with Admin(cluster.bootstrap) as admin:
        await filled(cluster, admin, "shrunk")
        _, follower, asked = await roles(cluster, admin, "shrunk")
    begin(Fault.NO_PUSHES, follower.folder)
    async with written(cluster, "shrunk"):
        found = await explained(asked, partition("shrunk"), "isr_shrunk")
    assert found.findings[0].node == follower.node_id
    assert any(line.reason == "lagged" for line in found.timeline)
    # Lost records are fetched again only over a new link.
    await asyncio.to_thread(cluster.kill_node, follower.node_id)
    troubled_node.end(Fault.NO_PUSHES, follower.folder)
    await whole(cluster)


async def test_the_leader_is_cut_off_from_the_quorum(cluster: LocalCluster) -> None:
    async with Admin(cluster.bootstrap) as admin:
        topic, leader, _, asked = await led_elsewhere(cluster, admin, "alone")
    begin(Fault.NO_QUORUM, leader.folder)
    found = await explained(asked, partition(topic), "leader_cut_off")
    assert found.findings[0].node == leader.node_id
    troubled_node.end(Fault.NO_QUORUM, leader.folder)
    await whole(cluster)


async def test_all_replicas_restart_unclean_and_lose_their_tails(cluster: LocalCluster) -> None:
    """All nodes are killed, and what a `flush=os` topic had not written back is lost with the page caches."""
    async with Admin(cluster.bootstrap) as admin:
        await admin.create_topic("buffered", 1, 2, configs={"flush": "os"})
        async with Producer(cluster.bootstrap) as producer:
            for number in range(20):
                await producer.send_and_wait("buffered", b"%d" % number)
        described = (await all_in_sync(admin, "buffered"))["buffered"]
        await known_everywhere(cluster, "buffered")
    holders = described.partitions[0].replicas
    asked = next(node for node in cluster.nodes if node.node_id not in holders)
    for node in cluster.nodes:
        await asyncio.to_thread(cluster.kill_node, node.node_id)
    kept = [
        lose_the_tail(cluster.nodes[holder], described, batches)
        for batches, holder in ((2, holders[0]), (5, holders[1]))
    ]
    assert kept == [18, 15]

    for number in (asked.node_id, holders[0]):
        await asyncio.to_thread(cluster.start_node, number)
    await found_too(asked, "node_dead", holders[1])
    await found_too(asked, "unclean_restart", holders[0])
    waits = await explained(asked, partition("buffered"), "no_leader")
    assert "may lack records" in waits.findings[0].summary

    await asyncio.to_thread(cluster.start_node, holders[1])
    found = await explained(asked, partition("buffered", "?offset=19"), "recovery_election")
    cause = found.findings[0]
    assert cause.node == holders[0] and "flush=os" in cause.summary and "at offset 18 and beyond" in cause.summary
    assert cause.summary.startswith(f"nodes {min(holders)} and {max(holders)} restarted")
    assert any("flush=fsync" in line for line in cause.remedies)
    assert found.record is not None and {place.state for place in found.record.places} == {"absent"}
    unclean = [line.text for line in found.timeline if line.reason == "unclean_restart"]
    assert len(unclean) == 2 and any("its log ends at 18" in line for line in unclean), found.timeline
    assert any(line.reason == "recovery" for line in found.timeline)


async def found_too(node: LocalNode, code: str, about: int) -> None:
    """Wait until a finding about `buffered` has this code and node."""

    async def look() -> bool:
        found = await explain(node, partition("buffered"))
        return any((one.code, one.node) == (code, about) for one in found.findings)

    await eventually(look, f"{code} of node {about}")


def lose_the_tail(node: LocalNode, topic: TopicDescription, batches: int) -> int:
    """Cut the last batches off a replica's only segment, one of them in the middle. Return the number that is left."""
    folder = Path(node.folder) / DATA_FOLDER / "partitions" / TopicPartition(TopicId(topic.id_bytes), 0).directory_name
    (segment,) = folder.glob("*.log")
    content = segment.read_bytes()
    starts = []
    at = 0
    while at < len(content):
        starts.append(at)
        at += 12 + int.from_bytes(content[at + 8 : at + 12], "big")  # base offset, length, the rest of the batch
    os.truncate(segment, starts[-batches] + 20)
    return len(starts) - batches


class CutCluster(LocalCluster):
    """A cluster in which one node may have a dead address for another one: it cannot be dialed in that direction."""

    cut: tuple[int, int] | None = None

    def write_settings(self, node: LocalNode) -> None:
        super().write_settings(node)
        if self.cut is not None and self.cut[0] == node.node_id:
            path = Path(node.folder) / SETTINGS_FILE
            there = self.nodes[self.cut[1]].data.port
            path.write_text(path.read_text().replace(f"port = {there}\n", f"port = {there + 5}\n"))


async def test_the_network_is_cut_in_one_direction() -> None:
    with tempfile.TemporaryDirectory(prefix="raftlog-test-") as folder:
        cluster = CutCluster(folder, 3, free_base_port(3))
        with started(cluster):
            async with Admin(cluster.bootstrap) as admin:
                topic, leader, follower, asked = await led_elsewhere(cluster, admin, "cut")
            cluster.cut = (follower.node_id, leader.node_id)
            await asyncio.to_thread(cluster.kill_node, follower.node_id)
            await asyncio.to_thread(cluster.start_node, follower.node_id)
            found = await explained(asked, partition(topic), "network_cut")
            assert found.findings[0].node == follower.node_id
            assert f"from node {follower.node_id} to node {leader.node_id}" in found.findings[0].summary


async def test_a_full_disk() -> None:
    with small_disks(1) as disks, cluster_on_small_disks(disks) as cluster:
        async with Admin(cluster.bootstrap) as admin:
            await filled(cluster, admin, "full", min_insync_replicas="1")
        await asyncio.to_thread(disks[0].fill)
        found = await explained(cluster.nodes[1], partition("full"), "full_disk")
        assert found.findings[0].node == 0 and "free some space on node 0" in found.findings[0].remedies[0]
        os.remove(os.path.join(disks[0].path, "filler"))
        await explained(cluster.nodes[1], partition("full"), "healthy")


async def test_a_certificate_expires() -> None:
    with tempfile.TemporaryDirectory(prefix="raftlog-test-") as folder:
        cluster = LocalCluster(folder, 3, free_base_port(3), settings={"tls": SETTING})
        cluster.prepare()
        authority = Authority()
        for node in cluster.nodes:
            data = f"{node.folder}/{DATA_FOLDER}"
            cluster_id = read_identity(LocalDisk(data), data).cluster_id
            write(node.folder, authority, authority.for_node(cluster_id, node.node_id))
        with started(cluster):
            async with Admin(cluster.bootstrap) as admin:
                await admin.create_topic("expiring", 1, replication_factor=3)
                placed = (await all_in_sync(admin, "expiring"))["expiring"].partitions[0]
            follower = next(node for node in cluster.nodes if node.node_id != placed.leader)
            soon = authority.for_node(cluster_id, follower.node_id, days=6 / 86_400)
            write(follower.folder, authority, soon)
            asked = next(node for node in cluster.nodes if node is not follower)
            found = await explained(asked, partition("expiring"), "expired_certificate")
            assert found.findings[0].node == follower.node_id
            write(follower.folder, authority, authority.for_node(cluster_id, follower.node_id))
            await explained(asked, partition("expiring"), "healthy")


def test_a_rule_refuses_a_principal_s12() -> None:
    with running_cluster(secure=True) as cluster:
        security = cluster.security
        assert security is not None
        base, context = f"https://{cluster.nodes[0].api}", security.client_context()

        def call(method: str, path: str, body: object = None) -> bytes:
            data = None if body is None else msgspec.json.encode(body)
            headers = {"Authorization": f"Bearer {security.token()}", "Content-Type": "application/json"}
            request = urllib.request.Request(f"{base}{path}", data, headers, method=method)
            with urllib.request.urlopen(request, timeout=60, context=context) as answer:
                content: bytes = answer.read()
            return content

        def explanation() -> Explanation:
            found = call("GET", f"/v1/explain/{partition('orders', '?principal=User:bob')}")
            return msgspec.json.decode(found, type=Explanation)

        call("POST", "/v1/topics", {"name": "orders", "partitions": 1})
        call("POST", "/v1/users", {"name": "bob"})
        rule = {"principal": "User:bob", "resource_type": "topic", "name": "orders"}
        call("POST", "/v1/acls", {"acls": [{**rule, "operation": "read"}]})
        found = explanation()
        assert found.findings[0].code == "acl_denied" and "write" in found.findings[0].summary
        call("POST", "/v1/acls", {"acls": [{**rule, "operation": "write"}]})
        assert explanation().findings[0].code == "healthy"
        call("POST", "/v1/acls", {"acls": [{**rule, "operation": "write", "permission": "deny"}]})
        found = explanation()
        assert found.findings[0].code == "acl_denied" and "deny" in str(found.findings[0].evidence).lower()
