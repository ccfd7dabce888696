"""Nodes that are killed, paused, or started with another monotonic clock.

Proofs: another process id after a kill; the kernel's state (`/proc/<pid>/stat`) of a paused process; the offset that
the kernel reports for a process's monotonic clock.
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
    """Return node → process id of those that run. Raises `FaultNotMade` if none does."""
    found = {node: pid for node in nodes if (pid := cluster.pid(node)) is not None}
    if not found:
        raise FaultNotMade(f"none of {', '.join(nodes)} is running")
    return found


def process_state(pid: int) -> str:
    """Return the state in `/proc/<pid>/stat`; empty if the process does not exist."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


async def await_state(pids: dict[str, int], stopped: bool) -> None:
    """Wait until all of these processes are stopped, or none is. Raises `FaultNotMade`."""
    deadline = time.monotonic() + STATE_SECONDS
    while time.monotonic() < deadline:
        states = {node: process_state(pid) for node, pid in pids.items()}
        if all((state == STOPPED) is stopped for state in states.values()):
            return
        await asyncio.sleep(POLL_SECONDS)
    raise FaultNotMade(f"after {STATE_SECONDS:.0f} s the process states are {states}")


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
            raise FaultNotMade(f"a process was not restarted: {pids}")
        return {"pids": pids} if pids else {}


class Pausing:
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
            raise FaultNotMade(f"another process resumed them: the process states are {states}")
        return {"states": states, "aim": self._step.aim}

    async def heal(self) -> Evidence:
        resume(self._cluster, self._step.nodes)
        await await_state(self._pids, stopped=False)
        return {}


def pause(cluster: NodeCluster, nodes: tuple[str, ...]) -> None:
    """Send SIGSTOP."""
    for node in nodes:
        cluster.processes[node].signal(signal.SIGSTOP)


def resume(cluster: NodeCluster, nodes: tuple[str, ...]) -> None:
    """Send SIGCONT."""
    for node in nodes:
        cluster.processes[node].signal(signal.SIGCONT)


class OffsettingMonotonic:
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
            raise FaultNotMade(f"the kernel reports the clock offsets {offsets}")
        return {"offsets": offsets}

    async def heal(self) -> Evidence:
        await self._restart(0)
        return {}

    async def _restart(self, seconds: int) -> None:
        for node in self._step.nodes:
            self._cluster.processes[node].monotonic_offset = seconds
        await self._cluster.kill(self._step.nodes)
        await self._cluster.start(self._step.nodes)
