"""Nodes that are killed, paused, or given another monotonic clock.

Proofs: another process number after a kill; the kernel's word (`/proc/<pid>/stat`) that a paused process stands still;
the offset that the kernel gives for a process's monotonic clock.
"""

from __future__ import annotations

import asyncio
import signal
import time

from jepsen_like.clusters import time_namespace
from jepsen_like.clusters.cluster import NodeCluster

from . import crafted_steps, steps
from .injection import Evidence, FaultNotMade

STATE_SECONDS = 5.0
POLL_SECONDS = 0.01
STOPPED = "T"


def running(cluster: NodeCluster, nodes: tuple[str, ...]) -> dict[str, int]:
    """Process numbers of those that run. Raises `FaultNotMade` where none does."""
    found = {node: pid for node in nodes if (pid := cluster.pid(node)) is not None}
    if not found:
        raise FaultNotMade(f"none of {', '.join(nodes)} runs")
    return found


def process_state(pid: int) -> str:
    """As `/proc/<pid>/stat` has it; empty where there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


async def await_state(pids: dict[str, int], stopped: bool) -> None:
    """Until all stand still, or none does. Raises `FaultNotMade`."""
    deadline = time.monotonic() + STATE_SECONDS
    while time.monotonic() < deadline:
        states = {node: process_state(pid) for node, pid in pids.items()}
        if all((state == STOPPED) is stopped for state in states.values()):
            return
        await asyncio.sleep(POLL_SECONDS)
    raise FaultNotMade(f"after {STATE_SECONDS:.0f} s the kernel says {states}")


class Killing:
    """`steps.Kill`."""

    def __init__(self, step: steps.Kill | crafted_steps.SlowKill, cluster: NodeCluster) -> None:
        self._step = step
        self._cluster = cluster
        self._before: dict[str, int] = {}

    async def begin(self) -> None:
        self._before = running(self._cluster, self._step.nodes)
        await self._cluster.kill(self._step.nodes)

    async def prove(self) -> Evidence:
        return {"aim": self._step.aim}

    async def heal(self) -> Evidence:
        await self._cluster.start(self._step.nodes)
        pids = {node: [pid, self._cluster.pid(node)] for node, pid in self._before.items()}
        if any(before == after for before, after in pids.values()):
            raise FaultNotMade(f"a process is the one it was: {pids}")
        return {"pids": pids} if pids else {}


class Pausing:
    """`steps.Pause`."""

    def __init__(self, step: steps.Pause, cluster: NodeCluster) -> None:
        self._step = step
        self._cluster = cluster
        self._pids: dict[str, int] = {}

    async def begin(self) -> None:
        self._pids = running(self._cluster, self._step.nodes)
        pause(self._cluster, self._step.nodes)
        await await_state(self._pids, stopped=True)

    async def prove(self) -> Evidence:
        states = {node: process_state(pid) for node, pid in self._pids.items()}
        if set(states.values()) != {STOPPED}:
            raise FaultNotMade(f"somebody else let them go: the kernel says {states}")
        return {"states": states, "aim": self._step.aim}

    async def heal(self) -> Evidence:
        resume(self._cluster, self._step.nodes)
        await await_state(self._pids, stopped=False)
        return {}


def pause(cluster: NodeCluster, nodes: tuple[str, ...]) -> None:
    """SIGSTOP."""
    for node in nodes:
        cluster.processes[node].signal(signal.SIGSTOP)


def resume(cluster: NodeCluster, nodes: tuple[str, ...]) -> None:
    """SIGCONT."""
    for node in nodes:
        cluster.processes[node].signal(signal.SIGCONT)


class OffsettingMonotonic:
    """`steps.MonotonicOffset`."""

    def __init__(self, step: steps.MonotonicOffset, cluster: NodeCluster) -> None:
        self._step = step
        self._cluster = cluster

    async def begin(self) -> None:
        running(self._cluster, self._step.nodes)
        await self._restart(self._step.seconds)

    async def prove(self) -> Evidence:
        offsets = {}
        for node, pid in running(self._cluster, self._step.nodes).items():
            if time_namespace.shares_our_time(pid):
                raise FaultNotMade(f"{node} has the machine's monotonic clock")
            offsets[node] = time_namespace.offset_of(pid)
        if set(offsets.values()) != {self._step.seconds}:
            raise FaultNotMade(f"the kernel says {offsets}")
        return {"offsets": offsets}

    async def heal(self) -> Evidence:
        await self._restart(0)
        return {}

    async def _restart(self, seconds: int) -> None:
        for node in self._step.nodes:
            self._cluster.processes[node].monotonic_offset = seconds
        await self._cluster.kill(self._step.nodes)
        await self._cluster.start(self._step.nodes)
