"""Real clusters for tests of faults: under a little load, checked after each fault, with nothing left at their end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Awaitable, Collection
from functools import partial

import pytest

from jepsen_like.clusters import clocks, health, leftovers, ownership
from jepsen_like.clusters.capabilities import lack
from jepsen_like.clusters.cluster import NodeCluster
from jepsen_like.nemeses.injection import carry_out
from jepsen_like.nemeses.injections import injection_of
from jepsen_like.nemeses.steps import Step
from jepsen_like.run_records import Fault
from raftlog import Admin, Producer
from raftlog.errors import RaftlogError

from .cluster import PATIENCE_S, eventually

TOPIC = "broken"
PARTITIONS = 3
PAUSE_S = 0.1
HOLD_S = 0.6
"""The duration of a fault: several periods of every periodic action in a cluster."""


def need(*names: str) -> None:
    """Skip the calling test, with the missing ability of this machine."""
    for name in sorted(names):
        if (why := lack(name)) is not None:
            pytest.skip(why)


@contextlib.asynccontextmanager
async def under_load(opening: Awaitable[NodeCluster]) -> AsyncIterator[NodeCluster]:
    """A started cluster with a topic that is written to. At its end every node stops in order, and nothing is left."""
    before = our_networks()
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
    assert our_networks() <= before


async def write(cluster: NodeCluster) -> None:
    """Write until cancelled, whatever the results. A partition that accepts nothing does not hold up the others."""

    async def fill(partition: int) -> None:
        while True:
            with contextlib.suppress(RaftlogError):
                await producer.send_and_wait(TOPIC, bytes(200), partition=partition)
            await asyncio.sleep(PAUSE_S)

    async with Producer(cluster.bootstrap) as producer:
        await asyncio.gather(*(fill(number) for number in range(PARTITIONS)))


async def bites(cluster: NodeCluster, step: Step, hold: float = HOLD_S) -> Fault:
    """Inject the fault, prove it, heal it, and wait until every partition has accepted records again."""
    (fault,) = await bite_together(cluster, step, hold=hold)
    return fault


async def bite_together(cluster: NodeCluster, *steps: Step, hold: float = HOLD_S) -> list[Fault]:
    """The same for several independent faults, in their order."""
    await grows(cluster)
    told: dict[Step, Fault] = {}
    origin = time.monotonic_ns()
    async with asyncio.TaskGroup() as group:
        for step in steps:
            tell = partial(told.__setitem__, step)
            group.create_task(carry_out(step, injection_of(step, cluster), cluster, hold, origin, tell))
    for step in steps:
        fault = told[step]
        assert fault.error == "" and fault.evidence, fault
        assert fault.kind == step.kind and fault.targets == step.targets
        assert fault.ended - fault.began >= hold * 1e9
    recovery = await health.recover(cluster.bootstrap, write_to=[TOPIC], within=PATIENCE_S)
    assert recovery.written_s is not None
    assert not cluster.claimed
    return [told[step] for step in steps]


async def grows(cluster: NodeCluster) -> None:
    """Wait until the load has written to every partition again."""
    async with Admin(cluster.bootstrap) as admin:
        for partition in range(PARTITIONS):
            before: int | None = None

            async def more(partition: int = partition) -> bool:
                nonlocal before
                latest = (await admin.offsets(TOPIC, partition)).latest
                before = latest if before is None else before
                return latest > before

            await eventually(more, f"{TOPIC}/{partition} grows")


def our_networks() -> set[str]:
    """Namespaces and interfaces of this process's clusters."""
    folders = [folder for folder in (leftovers.NAMESPACES, leftovers.INTERFACES) if folder.exists()]
    return {name for folder in folders for name in os.listdir(folder) if ownership.owner(name) == os.getpid()}


def nothing_is_left(cluster: NodeCluster, pids: Collection[int | None]) -> None:
    """Check that the cluster left nothing: no process (`pids`: its last ones), mount, loop device, folder or shared
    memory."""
    assert not cluster.folder.exists()
    with open("/proc/self/mounts", encoding="utf-8") as mounts:
        assert str(cluster.folder) not in mounts.read()
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
