"""Disks without a free block, of one node or of all.

The nodes start, decide, free space and continue without intervention (S10), and no acknowledged record is lost (S1).
"""

from __future__ import annotations

import asyncio
import contextlib
import os

import pytest

from raftlog import Admin, Consumer, Producer
from raftlog.cli.nodes.local_cluster import LocalCluster
from raftlog.errors import RaftlogError
from tests.support.clusters.cluster import PATIENCE_S, all_in_sync, eventually
from tests.support.clusters.small_disks import SmallDisk, cluster_on_small_disks, small_disks

pytestmark = pytest.mark.integration

TOPIC = "t"
CONFIGS = {"segment.bytes": "1048576", "min.insync.replicas": "1"}
SMALL, LARGE = 100, 250_000
FULL_BYTES = 100_000
"""A disk with less free space than this is full."""


async def write(cluster: LocalCluster, size: int) -> int:
    """Write records until the cluster accepts no more, or there are enough; returns the offset behind the last
    acknowledged one."""
    end = 0
    with contextlib.suppress(RaftlogError):
        async with Producer(cluster.bootstrap, delivery_timeout_ms=3_000) as producer:
            for _ in range(120 if size == LARGE else 4_000):
                placed = await producer.send_and_wait(TOPIC, os.urandom(size), partition=0)
                end = placed.offset + 1
    return end


async def fill(cluster: LocalCluster, disks: list[SmallDisk], size: int) -> int:
    """Fill the disk with records, and then with another program's file, while records of this size are still sent."""
    end = await write(cluster, LARGE)
    for disk in disks:
        await asyncio.to_thread(disk.fill)
    end = max(end, await write(cluster, size))
    async with asyncio.timeout(PATIENCE_S):
        while any(disk.free >= FULL_BYTES for disk in disks):  # A node may have freed its ballast or a segment since.
            for disk in disks:
                await asyncio.to_thread(disk.fill)
    return end


async def takes_records(cluster: LocalCluster) -> bool:
    async with Producer(cluster.bootstrap, delivery_timeout_ms=5_000) as producer:
        await producer.send_and_wait(TOPIC, b"x", partition=0)
    return True


async def read_from(cluster: LocalCluster, start: int, end: int) -> set[int]:
    """Return the offsets of the records in between."""
    found: set[int] = set()
    async with Consumer(cluster.bootstrap, TOPIC, start={0: start}) as consumer, asyncio.timeout(PATIENCE_S):
        while not found or max(found) + 1 < end:
            found.update(record.offset for record in await consumer.poll(1_000, 1.0))
    return {offset for offset in found if offset < end}


def crash_and_start(cluster: LocalCluster, count: int) -> None:
    for node in cluster.nodes[:count]:
        cluster.kill_node(node.node_id)
    for node in cluster.nodes[:count]:
        cluster.start_node(node.node_id)
    cluster.wait_ready(PATIENCE_S)


@pytest.mark.parametrize(
    ("nodes", "full", "size"),
    [
        pytest.param(3, 3, SMALL, id="all three, small batches"),
        pytest.param(3, 3, LARGE, id="all three, large batches"),
        pytest.param(3, 1, SMALL, id="one of three, small batches"),
        pytest.param(3, 1, LARGE, id="one of three, large batches", marks=pytest.mark.soak),
        pytest.param(1, 1, SMALL, id="alone, small batches", marks=pytest.mark.soak),
        pytest.param(1, 1, LARGE, id="alone, large batches", marks=pytest.mark.soak),
    ],
)
async def test_disks_without_a_free_block_recover_by_retention(nodes: int, full: int, size: int) -> None:
    with small_disks(full) as disks, cluster_on_small_disks(disks, nodes, retention_check_ms="500") as cluster:
        async with Admin(cluster.bootstrap) as admin:
            await admin.create_topic(TOPIC, partitions=1, replication_factor=nodes, configs=CONFIGS)
            end = await fill(cluster, disks, size)
            # A start writes, and so does each decision of the quorum: both on a full disk.
            await asyncio.to_thread(crash_and_start, cluster, full)
            await eventually(lambda: known(admin), "the topic is known again")
            start = end - 3
            await eventually(lambda: alter(admin), "the quorum takes another retention")
            await eventually(lambda: roomy(disks), "retention has made room")
            await eventually(lambda: takes_records(cluster), "records are taken again")
            await eventually(lambda: well(admin), "nobody is short of room any more")
            await all_in_sync(admin, TOPIC)
            found = await eventually(lambda: read_from(cluster, start, end), "what was acknowledged is read")
            assert found == set(range(start, end))


async def known(admin: Admin) -> bool:
    return (await admin.describe_topic(TOPIC)).partitions[0].leader is not None


async def alter(admin: Admin) -> bool:
    """By size, so that the last records stay."""
    await admin.alter_topic(TOPIC, {"retention.bytes": str(4 * 1024 * 1024)})
    return True


async def roomy(disks: list[SmallDisk]) -> bool:
    return all(disk.free > 3_000_000 for disk in disks)


async def well(admin: Admin) -> bool:
    return not any("short of room" in problem for problem in (await admin.health()).problems)
