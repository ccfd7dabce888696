"""A node that is short of file descriptors: replicas stay in service, and everything continues afterwards (S10)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
import sys
from collections.abc import AsyncIterator, Iterator

import pytest

from raftlog import Admin, Consumer, Producer
from raftlog.cli.nodes.local_cluster import LocalCluster, LocalNode
from raftlog.model import Endpoint
from tests.support.clusters.cluster import PATIENCE_S, eventually, log_lines, running_cluster

pytestmark = pytest.mark.integration

LIMIT = 1100
RECORDS = 24
VALUE = 250_000
ASKED = 2_000
"""The number of connections, far more than the limit allows."""
AT_ONCE = 100


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """One node, restarted with few descriptors: its old segments are read from files."""
    with running_cluster(1) as running:
        asyncio.run(fill(running))
        running.stop()
        running.program = ("bash", "-c", f'ulimit -n {LIMIT}; exec "$0" "$@"', *running.program)
        running.start()
        running.wait_ready(PATIENCE_S)
        yield running


async def fill(cluster: LocalCluster) -> None:
    async with Admin(cluster.bootstrap) as admin, Producer(cluster.bootstrap) as producer:
        await admin.create_topic("t", partitions=1, replication_factor=1, configs={"segment.bytes": "1048576"})
        for _ in range(RECORDS):
            await producer.send_and_wait("t", os.urandom(VALUE), partition=0)


def pid_of(node: LocalNode) -> int:
    assert node.process is not None
    return node.process.pid


def open_files(node: LocalNode) -> int:
    return len(os.listdir(f"/proc/{pid_of(node)}/fd"))


async def connect(one: socket.socket, endpoint: Endpoint) -> None:
    one.setblocking(False)
    with contextlib.suppress(ConnectionResetError):  # It was one too many, and is refused already.
        await asyncio.get_running_loop().sock_connect(one, (endpoint.host, endpoint.port))


@contextlib.asynccontextmanager
async def idle_connections(node: LocalNode) -> AsyncIterator[list[socket.socket]]:
    """Open connections to both listeners, a hundred at a time, more than the node keeps."""
    idle: list[socket.socket] = []
    try:
        for _ in range(0, ASKED, AT_ONCE):
            several = [socket.socket() for _ in range(AT_ONCE)]
            idle += several
            async with asyncio.timeout(PATIENCE_S):
                await asyncio.gather(
                    *(connect(one, node.data if number % 2 else node.api) for number, one in enumerate(several))
                )
        yield idle
    finally:
        for one in idle:
            one.close()


async def consume_all(bootstrap: str) -> int:
    async with Consumer(bootstrap, "t", prefetch_bytes=1 << 20) as consumer:
        found = 0
        async with asyncio.timeout(PATIENCE_S):
            while found < RECORDS:
                found += len(await consumer.poll(4, 1.0))
        return found


async def works(cluster: LocalCluster) -> bool:
    """A record can be written and the partition has a leader."""
    async with Admin(cluster.bootstrap) as admin, Producer(cluster.bootstrap, delivery_timeout_ms=5_000) as producer:
        await producer.send_and_wait("t", b"x", partition=0)
        return (await admin.describe_topic("t")).partitions[0].leader == 0


async def told(node: LocalNode) -> bool:
    return any(line["event"] == "no descriptor for a connection" for line in log_lines(node))


def stays_in_service(node: LocalNode) -> None:
    events = [line["event"] for line in log_lines(node)]
    assert "replica offline" not in events
    assert sum(event == "no descriptor for a connection" for event in events) <= 2


async def test_idle_connections_do_not_take_the_logs_descriptors(cluster: LocalCluster) -> None:
    node = cluster.nodes[0]
    async with Consumer(cluster.bootstrap, "t", prefetch_bytes=1 << 20) as consumer:
        found = len(await consumer.poll(1, PATIENCE_S))
        async with idle_connections(node):
            async with asyncio.timeout(PATIENCE_S):
                while found < RECORDS:
                    found += len(await consumer.poll(4, 1.0))
            assert open_files(node) < LIMIT - 200
    assert await eventually(lambda: works(cluster), "the node works again")
    stays_in_service(node)


@pytest.mark.skipif(sys.platform != "linux", reason="prlimit(2) is Linux's")
async def test_a_node_without_any_descriptor_recovers_when_it_has_some(cluster: LocalCluster) -> None:
    """Its limit is set below its number of open descriptors: every open fails until the limit is restored."""
    node = cluster.nodes[0]
    soft, hard = resource.prlimit(pid_of(node), resource.RLIMIT_NOFILE)
    async with Consumer(cluster.bootstrap, "t", prefetch_bytes=1 << 20) as consumer:
        found = len(await consumer.poll(1, PATIENCE_S))
        resource.prlimit(pid_of(node), resource.RLIMIT_NOFILE, (16, hard))
        try:
            with socket.socket() as waits:
                waits.setblocking(False)
                waits.connect_ex((node.api.host, node.api.port))
                await eventually(lambda: told(node), "the node says that it has none")
                for _ in range(4):
                    found += len(await consumer.poll(1, 0.5))
        finally:
            resource.prlimit(pid_of(node), resource.RLIMIT_NOFILE, (soft, hard))
        async with asyncio.timeout(PATIENCE_S):
            while found < RECORDS:
                found += len(await consumer.poll(4, 1.0))
    assert await eventually(lambda: works(cluster), "the node works again")
    stays_in_service(node)
