"""How a node stops: in order within a bound, and at once after a second signal."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator

import pytest

from raftlog import Admin
from raftlog.broker.identity import CLEAN_SHUTDOWN_FILE
from raftlog.cli.nodes.local_cluster import LocalCluster, LocalNode
from tests.support.clusters.cluster import (
    PATIENCE_S,
    all_in_sync,
    eventually,
    log_lines,
    next_leader,
    running_cluster,
    stop_node,
)
from tests.support.clusters.traffic import read_all

pytestmark = pytest.mark.integration

BOUND_MS = 3_000
"""Less than a node waits for a quorum that does not answer its farewell."""


@contextlib.contextmanager
def without_quorum(cluster: LocalCluster) -> Iterator[None]:
    """Hold the two other nodes, so that node 0 cannot hand over."""
    for peer in (1, 2):
        cluster.pause_node(peer)
    try:
        yield
    finally:
        for peer in (1, 2):
            cluster.resume_node(peer)


def is_marked_clean(node: LocalNode) -> bool:
    return os.path.exists(os.path.join(node.folder, "data", CLEAN_SHUTDOWN_FILE))


async def logged(node: LocalNode, event: str) -> None:
    async def look() -> bool:
        return any(line["event"] == event for line in log_lines(node))

    await eventually(look, f"node {node.node_id} logs {event}")


async def end_of(cluster: LocalCluster, node: LocalNode) -> int:
    """Return the exit code of a node that stops."""
    node.expected_to_run = False
    assert node.process is not None
    code = await asyncio.to_thread(node.process.wait, PATIENCE_S)
    cluster.kill_node(node.node_id)
    return code


async def test_a_second_signal_ends_a_node_at_once() -> None:
    with running_cluster() as cluster:
        node = cluster.nodes[0]
        assert node.process is not None
        with without_quorum(cluster):
            node.process.send_signal(signal.SIGTERM)
            await logged(node, "stopping")
            node.process.send_signal(signal.SIGINT)
            assert await end_of(cluster, node) == 1
        assert log_lines(node)[-1]["event"] == "stopped by a second signal"
        assert not is_marked_clean(node)
        cluster.start_node(0)
        await asyncio.to_thread(cluster.wait_ready, PATIENCE_S)


async def test_a_stop_ends_within_its_bound() -> None:
    with running_cluster(shutdown_timeout_ms=str(BOUND_MS)) as cluster:
        node = cluster.nodes[0]
        assert node.process is not None
        with without_quorum(cluster):
            node.process.terminate()
            assert await end_of(cluster, node) == 1
        last = log_lines(node)[-1]
        assert (last["event"], last["seconds"]) == ("did not stop in time", BOUND_MS / 1000)
        assert not is_marked_clean(node)
        cluster.start_node(0)
        await asyncio.to_thread(cluster.wait_ready, PATIENCE_S)


async def test_a_request_in_progress_is_answered_when_its_node_stops() -> None:
    """S1. Its body arrives after the stop has begun and another node leads the partition, to which it is forwarded."""
    body = b'{"records": [{"value": "late"}]}'
    with running_cluster() as cluster:
        async with Admin(cluster.bootstrap) as admin:
            await admin.create_topic("late", 1, replication_factor=3)
            partition = (await all_in_sync(admin, "late"))["late"].partitions[0]
            leader = partition.leader
            assert leader is not None
            node = cluster.nodes[leader]
            reader, writer = await asyncio.open_connection(node.api.host, node.api.port)
            head = f"POST /v1/topics/late/records HTTP/1.1\r\nHost: {node.api}\r\nContent-Type: application/json\r\n"
            writer.write(f"{head}Content-Length: {len(body)}\r\nExpect: 100-continue\r\n\r\n".encode())
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            stopping = asyncio.create_task(asyncio.to_thread(stop_node, cluster, leader))
            await next_leader(admin, "late", 0, partition.leader_epoch)
            writer.write(body)
            answer = await reader.readuntil(b"\r\n\r\n")
            writer.close()
            assert await stopping == 0
        # A body that is later than a stopping node waits is refused, and the answer says that a retry may succeed.
        status = int(answer.split()[1])
        assert status == 200 or (status == 503 and b"Retry-After" in answer), answer
        if status == 200:
            assert await read_all(cluster.bootstrap, "late", 1, ends=[1]) == [[b"late"]]
        assert is_marked_clean(node)
        assert [line["clean"] for line in log_lines(node) if line["event"] == "stopped"] == [True]
