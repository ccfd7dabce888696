"""Frames in a broker's name from somebody else, at the data ports of a cluster without TLS (S1, S10, S11).

Without TLS nothing authenticates a peer, so a frame in its name can cause an election, or drop its link for a moment.
It must not end a process, lose what was acknowledged, or keep the links from recovering.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Iterator

import pytest

from metadata.quorum import protocol as qp
from partitions.replication import protocol as rp
from raftlog import Admin
from raftlog.cli.nodes.local_cluster import LocalCluster
from raftlog.errors import RaftlogError
from raftlog.model import Endpoint
from tests.support.clusters.cluster import all_in_sync, eventually, running_cluster
from tests.support.clusters.forged import (
    Present,
    appends,
    is_credible,
    mutated,
    quorum_frames,
    replication_frames,
    replication_hello,
)
from tests.support.clusters.traffic import Traffic, check_exactly
from tests.support.clusters.wire import talking

pytestmark = pytest.mark.integration

STORM_SECONDS = 10.0
TOPIC = "t"
STRANGER = 77
"""A node id that no node has."""


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    with running_cluster() as running:
        yield running


async def directory_of(data: Endpoint, cluster_id: str) -> bytes:
    """The node's own hello names its disk to everybody who says hello."""
    async with talking(data, qp.QUORUM_PATH) as talk:
        talk.send(qp.encode(qp.Hello(1, cluster_id, STRANGER, bytes(16))))
        answer = qp.decode(await talk.answer())
        assert isinstance(answer, qp.Hello)
        return answer.directory_id


async def present(cluster: LocalCluster, admin: Admin, node: int) -> Present:
    """The numbers that a frame in this node's name must have to be believed."""
    quorum, described = await admin.quorum(), await admin.describe_topic(TOPIC)
    told = await admin.cluster()
    directory = await directory_of(cluster.nodes[node].data, told.cluster_id)
    (incarnation,) = (one.incarnation for one in told.nodes if one.id == node)
    (partition,) = described.partitions
    return Present(
        told.cluster_id,
        directory,
        incarnation,
        described.id_bytes,
        partition.leader_epoch,
        quorum.term,
        quorum.last_index,
    )


async def storm(cluster: LocalCluster, admin: Admin, receiver: int, node: int, until: float) -> int:
    """Send frames in the name of `node` to `receiver`: as they are, mutated, and again. Returns their number."""
    rng = random.Random(receiver * 10 + node)
    data, sent, kept = cluster.nodes[receiver].data, 0, list[bytes]()
    known: Present | None = None
    while time.monotonic() < until:
        with contextlib.suppress(RaftlogError, OSError, TimeoutError, AssertionError):
            if known is None or rng.random() < 0.1:
                known = await present(cluster, admin, node)
            quorum = rng.random() < 0.7
            path = qp.QUORUM_PATH if quorum else rp.REPLICATION_PATH
            frames = quorum_frames(node, known) if quorum else replication_frames(known)
            hello = qp.Hello(1, known.cluster_id, node, known.directory_id, "127.0.0.1", 1)
            first = qp.encode(hello) if quorum else replication_hello(node, known)
            async with talking(data, path) as talk:
                talk.send(first)
                for _ in range(rng.randrange(1, 12)):
                    frame = rng.choice(frames)
                    frame = rng.choice((frame, mutated(frame, rng), rng.choice(kept) if kept else frame))
                    kept = [*kept[-50:], frame]
                    if quorum and rng.random() < 0.2:
                        frame = rng.choice(appends(known))
                    elif quorum and is_credible(frame):
                        continue
                    talk.send(frame)
                    sent += 1
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(asyncio.shield(talk.closed), 0.05)
    return sent


async def test_frames_in_a_brokers_name_end_no_process_and_lose_nothing(cluster: LocalCluster) -> None:
    async with Admin(cluster.bootstrap) as admin:
        await admin.create_topic(TOPIC, 1, replication_factor=3, configs={"min.insync.replicas": "2"})
        await all_in_sync(admin, TOPIC)
        async with Traffic(cluster.bootstrap, TOPIC, 1) as traffic:
            await traffic.grows()
            until = time.monotonic() + STORM_SECONDS
            pairs = [(receiver, node) for receiver in range(3) for node in range(3) if node != receiver]
            sent = await asyncio.gather(*(storm(cluster, admin, *pair, until) for pair in pairs))
            assert sum(sent) > 100, sent
            assert cluster.died() == []
            await traffic.grows()
            await all_in_sync(admin, TOPIC)
            await eventually(lambda: _all_follow(admin), "every voter follows the leader and counts")
        await check_exactly(cluster.bootstrap, traffic)


async def _all_follow(admin: Admin) -> bool:
    status = await admin.quorum()
    return not status.forgetful and all(
        status.match_index.get(str(node), 0) >= status.commit_index for node in range(3)
    )
