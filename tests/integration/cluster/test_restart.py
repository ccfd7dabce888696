"""Nodes and whole clusters stop and restart, in order and by SIGKILL; topics are created and deleted meanwhile."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from raftlog import Admin, Producer
from raftlog.api.topics import TopicDescription
from raftlog.broker.identity import CLEAN_SHUTDOWN_FILE
from raftlog.cli.nodes.local_cluster import LocalCluster, LocalNode, is_ready
from raftlog.config import TimingConfig
from raftlog.system.disk import LocalDisk
from raftlog.wire import FetchPartition, FetchRequest
from tests.support.clusters.cluster import (
    PATIENCE_S,
    all_in_sync,
    eventually,
    log_lines,
    next_leader,
    node_api,
    process_is_gone,
    running_cluster,
    stop_node,
)
from tests.support.clusters.traffic import Traffic, check_exactly, read_all
from tests.support.clusters.wire import fetch_raw

pytestmark = pytest.mark.integration

SESSION_S = TimingConfig().broker_session_ms / 1000
RECOVERY_S = 10.0
ATTEMPTS = 4


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with running_cluster() as running:
        yield running


def data_folder(node: LocalNode) -> str:
    return os.path.join(node.folder, "data")


def is_marked_clean(node: LocalNode) -> bool:
    return os.path.exists(os.path.join(data_folder(node), CLEAN_SHUTDOWN_FILE))


def has_replica(node: LocalNode, description: TopicDescription) -> bool:
    """Of partition 0, on its disk."""
    return os.path.exists(os.path.join(data_folder(node), "partitions", f"{description.id}-0"))


async def test_a_cluster_killed_as_a_whole_recovers_by_itself(cluster: LocalCluster) -> None:
    """S1, S7, S10: there was no node to take over."""
    async with Admin(cluster.bootstrap) as admin:
        await admin.create_topic("kept", 3, 3, {"segment.bytes": "65536", "retention.ms": "3600000"})
        await admin.create_topic("left", 2, 3, {"min.insync.replicas": "3"})
        # One producer continues through it all; the other one dies with the cluster.
        async with Traffic(cluster.bootstrap, "kept", 3) as kept, Traffic(cluster.bootstrap, "left", 2) as left:
            before = await all_in_sync(admin, "kept", "left")
            await kept.grows(by=100)
            await left.grows(by=100)
            await asyncio.to_thread(cluster.kill_all)
            await left.give_up()
            began = time.monotonic()
            await asyncio.to_thread(cluster.start)

            async def all_led() -> dict[str, TopicDescription] | None:
                now = {topic: await admin.describe_topic(topic) for topic in before}
                led = all(p.leader is not None for d in now.values() for p in d.partitions)
                return now if led else None

            await eventually(all_led, "every partition is led again", within=RECOVERY_S)
            await kept.grows()
            assert time.monotonic() - began < 2 * RECOVERY_S
            after = await all_in_sync(admin, "kept", "left")
        await check_exactly(cluster.bootstrap, kept)
        await check_exactly(cluster.bootstrap, left, all_acknowledged=False)
        assert {"kept", "left"} <= {topic.name for topic in await admin.list_topics()}
    for topic, old in before.items():
        new = after[topic]
        assert (new.id, new.configs, new.overrides) == (old.id, old.configs, old.overrides)
        for was, now in zip(old.partitions, new.partitions, strict=True):
            assert now.replicas == was.replicas and now.min_insync_replicas == was.min_insync_replicas
            assert now.leader_epoch > was.leader_epoch, "the lives that led are over (S5)"


async def test_an_orderly_stop_hands_leaderships_over(cluster: LocalCluster) -> None:
    took = []
    async with Admin(cluster.bootstrap) as admin:
        await admin.create_topic("handed-over", 3, replication_factor=3)
        async with Traffic(cluster.bootstrap, "handed-over", 3) as traffic:
            for attempt in range(ATTEMPTS):
                partition = attempt % 3
                info = (await all_in_sync(admin, "handed-over"))["handed-over"].partitions[partition]
                await traffic.grows()
                assert info.leader is not None
                node = cluster.nodes[info.leader]
                assert not is_marked_clean(node)
                began = time.monotonic()
                stopping = asyncio.create_task(asyncio.to_thread(stop_node, cluster, info.leader))
                after = await next_leader(admin, "handed-over", partition, info.leader_epoch)
                took.append(time.monotonic() - began)
                assert after.leader != info.leader
                await traffic.grows()
                assert await stopping == 0
                assert is_marked_clean(node)
                lines_before = len(log_lines(node))
                await asyncio.to_thread(cluster.start_node, info.leader)
                await all_in_sync(admin, "handed-over")
                started = [line for line in log_lines(node)[lines_before:] if line["event"] == "started"]
                assert [line["clean"] for line in started] == [True]
                if min(took) < SESSION_S:
                    break
        await check_exactly(cluster.bootstrap, traffic)
    # A node that dies silently is detected no earlier than a session after its last heartbeat.
    assert min(took) < SESSION_S, took


async def test_a_topic_recreated_while_a_node_is_down_is_another_topic(cluster: LocalCluster) -> None:
    """The name is the same, the records are not: the returning node must not confuse them."""
    topic = "twice"
    async with Admin(cluster.bootstrap) as admin:
        old = await admin.create_topic(topic, 1, replication_factor=3)
        async with Producer(cluster.bootstrap) as producer:
            await producer.send_many(topic, [b"old %d" % n for n in range(500)])
        old = (await all_in_sync(admin, topic))[topic]
        away = old.partitions[0].replicas[0]
        absent = cluster.nodes[away]
        assert has_replica(absent, old)
        await asyncio.to_thread(cluster.kill_node, away)
        await eventually(lambda: _is_fenced(admin, away), f"node {away} is missed")
        await admin.delete_topic(topic)
        new = await admin.create_topic(topic, 1, replication_factor=3)
        assert new.id != old.id and away in new.partitions[0].replicas
        values = [b"new %d" % n for n in range(200)]
        async with Producer(cluster.bootstrap) as producer:
            await producer.send_many(topic, values)

        await asyncio.to_thread(cluster.start_node, away)
        in_sync = asyncio.create_task(all_in_sync(admin, topic))
        await watch_what_it_serves(absent, topic, old, in_sync)
        for node in cluster.nodes:
            await eventually(lambda node=node: _has_no_replica(node, old), "the old folder goes")  # type: ignore[misc]
        values += await lead_from(cluster, admin, topic, away)
        assert await read_all(cluster.bootstrap, topic, 1, ends=[len(values)]) == [values]
        answered = await fetch_raw(absent.api, FetchRequest(1, 0, 0, 1 << 20, [FetchPartition(old.id_bytes, 0, 0, 1)]))
        assert [p.error for p in answered.partitions] == ["unknown_topic"]


async def watch_what_it_serves(
    node: LocalNode, topic: str, old: TopicDescription, until: asyncio.Task[dict[str, TopicDescription]]
) -> None:
    """From its first answer on, the returning node shows records of the new topic or none."""
    answers = 0
    async with node_api(node) as api:
        while not until.done() or not answers:
            try:
                answer = await api.get(f"/v1/topics/{topic}/partitions/0/records?offset=earliest")
            except aiohttp.ClientError:
                await asyncio.sleep(0.02)
                continue
            if answer.status == 200:
                answers += 1
                shown = [record["value"] for record in answer.document["records"]]
                assert [value for value in shown if not value.startswith("new ")] == []
            else:
                # It does not know the cluster yet, or no leader. Answering that the topic does not exist would be
                # wrong.
                assert answer.document["code"] in {"quorum_unavailable", "leader_not_available", "not_leader"}, answer
            await asyncio.sleep(0.02)
    await until


async def lead_from(cluster: LocalCluster, admin: Admin, topic: str, wanted: int) -> list[bytes]:
    """Make one node the leader: the second is stopped until it leaves the ISR, then the first dies. Returns the records
    written meanwhile."""
    info = (await all_in_sync(admin, topic))[topic].partitions[0]
    assert info.leader is not None
    if info.leader == wanted:
        return []
    leader = info.leader
    second = next(replica for replica in info.replicas if replica not in {leader, wanted})
    cluster.pause_node(second)
    try:

        async def alone() -> bool:
            now = (await admin.describe_topic(topic)).partitions[0]
            return sorted(now.isr) == sorted([leader, wanted]) and now.leader == leader

        await eventually(alone, f"node {second} leaves the ISR")
        written = [b"new, written to two"]
        async with Producer(cluster.bootstrap) as producer:
            await producer.send_many(topic, written)
        await asyncio.to_thread(cluster.kill_node, leader)
    finally:
        cluster.resume_node(second)

    async def leads() -> bool:
        return (await admin.describe_topic(topic)).partitions[0].leader == wanted

    await eventually(leads, f"node {wanted} leads: of the ISR it is the only one left")
    await asyncio.to_thread(cluster.start_node, leader)
    await all_in_sync(admin, topic)
    return written


async def _is_fenced(admin: Admin, node_id: int) -> bool:
    return any(node.id == node_id and node.fenced for node in (await admin.cluster()).nodes)


async def _has_no_replica(node: LocalNode, description: TopicDescription) -> bool:
    return not has_replica(node, description)


_PARENT = """
import sys, time
from raftlog.cli.nodes.local_cluster import LocalCluster, free_base_port
cluster = LocalCluster(sys.argv[1], 1, free_base_port(1))
cluster.start()
cluster.wait_ready(60)
node = cluster.nodes[0]
print(node.process.pid, node.api.port, flush=True)
time.sleep(600)
"""


def test_the_nodes_of_a_killed_parent_stop_in_order(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-P", "-c", _PARENT, str(tmp_path)], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid, port = map(int, parent.stdout.readline().split())
        os.kill(parent.pid, signal.SIGKILL)
    node = LocalCluster(str(tmp_path), 1, port).nodes[0]
    deadline = time.monotonic() + PATIENCE_S
    while not process_is_gone(pid):
        assert time.monotonic() < deadline, f"node 0 lives on:\n{node.log_tail()}"
        time.sleep(0.05)
    assert log_lines(node)[-1]["event"] == "stopped"
    assert is_marked_clean(node)
    LocalDisk(data_folder(node)).lock("lock").close()
    assert not is_ready(node.api)


async def test_snapshots_of_the_metadata_are_as_frequent_as_configured() -> None:
    """S7: state that is only in the snapshot survives a kill."""
    with running_cluster(1, metadata_snapshot_entries="10") as cluster:
        node = cluster.nodes[0]
        names = {f"topic-{number}" for number in range(15)}
        async with Admin(cluster.bootstrap) as admin:
            for name in sorted(names):
                await admin.create_topic(name, 1, 1)
            snapshot = Path(data_folder(node), "quorum", "snapshot")
            await eventually(lambda: asyncio.to_thread(snapshot.exists), "a snapshot is written")
            await asyncio.to_thread(cluster.kill_node, 0)
            await asyncio.to_thread(cluster.start)
            await asyncio.to_thread(cluster.wait_ready, PATIENCE_S)
            assert {topic.name for topic in await admin.list_topics()} == names
