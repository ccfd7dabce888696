"""Real clusters for tests to break: under a little load, looked at after each fault, with nothing left at their end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Awaitable, Collection

import pytest

from jepsen_like.clusters import clocks, health, leftovers
from jepsen_like.clusters.capabilities import lack
from jepsen_like.clusters.cluster import NodeCluster
from jepsen_like.nemeses.injection import carry_out
from jepsen_like.nemeses.injections import injection_of
from jepsen_like.nemeses.steps import Step
from jepsen_like.run_records import Fault
from raftlog import Admin, Producer
from raftlog.errors import RaftlogError
from tests.support.cluster import PATIENCE_S

TOPIC = "broken"
PARTITIONS = 3
PAUSE_S = 0.05
HOLD_S = 0.6
"""A fault lasts so long: several beats of everything that beats in a cluster."""


def need(*names: str) -> None:
    """Skips the test that calls it, and says what this machine lacks."""
    for name in sorted(names):
        if (why := lack(name)) is not None:
            pytest.skip(why)


@contextlib.asynccontextmanager
async def under_load(opening: Awaitable[NodeCluster]) -> AsyncIterator[NodeCluster]:
    """A started cluster with a topic that is written to. At its end every node stops in order, and nothing is left."""
    cluster = await opening
    try:
        await cluster.start()
        await health.until_in_sync(cluster.bootstrap, PATIENCE_S)
        async with Admin(cluster.bootstrap) as admin:
            await admin.create_topic(TOPIC, PARTITIONS, min(len(cluster.nodes), 3), {"segment.bytes": "20000"})
        await health.until_in_sync(cluster.bootstrap, PATIENCE_S)
        load = asyncio.create_task(write(cluster))
        try:
            yield cluster
        finally:
            load.cancel()
            await asyncio.gather(load, return_exceptions=True)
        pids = [cluster.pid(node) for node in cluster.nodes]
        assert await cluster.stop() == dict.fromkeys(cluster.nodes, 0)
    finally:
        for node in cluster.nodes:
            print(f"--- {node}", cluster.processes[node].log_tail(20), sep="\n")  # noqa: T201
        await cluster.close()
    nothing_is_left(cluster, pids)


async def write(cluster: NodeCluster) -> None:
    """Until it is cancelled, whatever becomes of it. A partition that takes nothing holds up no other."""

    async def fill(partition: int) -> None:
        while True:
            with contextlib.suppress(RaftlogError):
                await producer.send_and_wait(TOPIC, bytes(200), partition=partition)
            await asyncio.sleep(PAUSE_S)

    async with Producer(cluster.bootstrap) as producer:
        await asyncio.gather(*(fill(number) for number in range(PARTITIONS)))


async def bites(cluster: NodeCluster, step: Step, hold: float = HOLD_S) -> Fault:
    """The fault, once it is proved, healed, and every partition took records again."""
    told: list[Fault] = []
    origin = time.monotonic_ns()
    await carry_out(step, injection_of(step, cluster), cluster, hold, origin, told.append)
    (fault,) = told
    assert fault.error == "" and fault.evidence, fault
    assert fault.kind == step.kind and fault.targets == step.targets
    assert fault.ended - fault.began >= hold * 1e9
    recovery = await health.recover(cluster.bootstrap, write_to=[TOPIC], within=PATIENCE_S)
    assert recovery.written_s is not None
    assert not cluster.claimed
    return fault


async def last_offset(cluster: NodeCluster, partition: int = 0) -> int:
    """Records come again and again: a cluster that is down for a moment is asked again."""
    async with asyncio.timeout(PATIENCE_S), Admin(cluster.bootstrap) as admin:
        while True:
            with contextlib.suppress(RaftlogError):
                return (await admin.offsets(TOPIC, partition)).latest
            await asyncio.sleep(PAUSE_S)


def nothing_is_left(cluster: NodeCluster, pids: Collection[int | None]) -> None:
    """No process (`pids`: its last ones), namespace, interface, mount, loop device or folder of this process's."""
    ours = str(os.getpid())
    assert not cluster.folder.exists()
    with open("/proc/self/mounts", encoding="utf-8") as mounts:
        assert str(cluster.folder) not in mounts.read()
    for folder, prefix in ((leftovers.NAMESPACES, f"raftlog-{ours}-"), (leftovers.INTERFACES, f"rl{ours}x")):
        names = os.listdir(folder) if folder.exists() else []
        assert [name for name in names if name.startswith(prefix)] == []
    for device in sorted(os.listdir("/sys/block")):
        backing = f"/sys/block/{device}/loop/backing_file"
        if os.path.exists(backing):
            with contextlib.suppress(OSError), open(backing, encoding="utf-8") as file:
                assert str(cluster.folder) not in file.read()
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
            assert str(cluster.folder).encode() not in file.read(), f"process {pid} is left"
    for node in cluster.processes.values():
        assert node.pid is None
    for pid in pids:
        assert not clocks.SHARED_MEMORY.joinpath(f"faketime_shm_{pid}").exists()
