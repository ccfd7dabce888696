"""Nodes that run out of file descriptors, or whose connections are used up by idle clients.

Proofs: the kernel reports every number below a node's limit as taken while more connections wait for one; connections
that a node closed or refused, and the limit that the kernel reports for it.

The heal starts no node, and no replica may have gone offline: whatever a node does without descriptors, it has to
continue by itself once it has some (S10). A node that ended stays down, and the cluster does not recover.
"""

from __future__ import annotations

import asyncio
import contextlib
import time

import msgspec

from jepsen_like.clusters.cluster import NodeCluster
from jepsen_like.clusters.commands import CommandFailed
from jepsen_like.clusters.descriptors import (
    IdleConnections,
    free_below,
    limit_leaving,
    open_numbers,
    set_soft_limit,
    soft_limit,
)

from . import steps
from .disks import ended
from .injection import Evidence, FaultNotMade
from .processes import running

MORE_THAN_SPARE = 16
"""Connections to each listener that need a descriptor and get none."""
TAKEN_SECONDS = 10.0
"""Time within which a node uses up its last descriptor; it pauses for half a second after each connection that it could
not accept.
"""
POLL_SECONDS = 0.02
LOOK_SECONDS = 0.3
LOOKS = 5
"""After this number of looks in a row that find free numbers, the listener has paused twice and used none of them."""
NO_DESCRIPTOR = "no descriptor for a connection"
OFFLINE = "replica offline"


class LogsSince:
    """The log lines of nodes since a moment."""

    def __init__(self, cluster: NodeCluster, nodes: tuple[str, ...]) -> None:
        self._files = {node: cluster.log_file(node) for node in nodes}
        self._from = {node: file.stat().st_size if file.exists() else 0 for node, file in self._files.items()}

    def count(self, event: str) -> dict[str, int]:
        """Return node → the number of lines with this event."""
        found = {}
        for node, file in self._files.items():
            with file.open("rb") as lines:
                lines.seek(self._from[node])
                found[node] = sum(_event(line) == event for line in lines)
        return found

    def check_in_service(self) -> None:
        """Raises `CommandFailed` if a replica went offline, which only a restart of the node would repair."""
        offline = {node: count for node, count in self.count(OFFLINE).items() if count}
        if offline:
            raise CommandFailed(f"replicas went offline for lack of descriptors (log lines by node: {offline})")


def _event(line: bytes) -> object:
    try:
        told = msgspec.json.decode(line)
    except msgspec.DecodeError:
        return None  # The torn last line of a killed node, or a line of its interpreter.
    return told.get("event") if isinstance(told, dict) else None


class RunningOut:
    """`steps.FewDescriptors`.

    A connection to a node's data listener takes two descriptors, and the listener accepts as many connections at once
    as numbers are left: none of them gets its second, and all are closed. If numbers stay free because of that, the
    node's limit is lowered to the first of them.
    """

    def __init__(self, step: steps.FewDescriptors, cluster: NodeCluster) -> None:
        self._step = step
        self._cluster = cluster
        self._logs: LogsSince | None = None
        self._before: dict[str, tuple[int, int]] = {}
        """Node → its process id and limit before the fault."""
        self._limits: dict[str, int] = {}
        self._crowds: list[IdleConnections] = []
        self._lowering: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        self._logs = LogsSince(self._cluster, self._step.nodes)
        for node, pid in running(self._cluster, self._step.nodes).items():
            self._before[node] = (pid, soft_limit(pid))
            self._limits[node] = limit_leaving(self._step.spare, open_numbers(pid))
            set_soft_limit(pid, self._limits[node])
        for node in self._limits:
            self._crowds.append(crowd(self._cluster, node, self._step.spare + MORE_THAN_SPARE))
            await self._crowds[-1].begin()
        self._lowering = asyncio.create_task(self._lower())

    async def _lower(self) -> None:
        left = dict.fromkeys(self._before, 0)
        """Node → the number of looks in a row that found free numbers."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            for node, (pid, _) in self._before.items():
                with contextlib.suppress(
                    ProcessLookupError, FileNotFoundError
                ):  # The process ended, which `prove` and `heal` report.
                    taken = open_numbers(pid)
                    left[node] = left[node] + 1 if free_below(self._limits[node], taken) else 0
                    if left[node] == LOOKS:
                        self._limits[node] = limit_leaving(0, taken)
                        set_soft_limit(pid, self._limits[node])
                        left[node] = 0

    async def prove(self) -> Evidence:
        """Prove that all numbers are taken at one moment: a node that can opens and closes some all the time."""
        assert self._logs is not None and self._lowering is not None
        if self._lowering.done():
            self._lowering.result()
        gone = ended(self._cluster, self._step.nodes)
        left = {node: pid for node, (pid, _) in self._before.items() if self._cluster.pid(node) == pid}
        taken = {node: await self._all_taken(node, pid) for node, pid in left.items()}
        if not taken and not gone:
            raise FaultNotMade("the nodes were restarted meanwhile")
        return {"limits": self._limits, "open": taken, "told": self._logs.count(NO_DESCRIPTOR), "ended": gone}

    async def _all_taken(self, node: str, pid: int) -> int:
        """Return the number of open descriptors once no number below the limit is free. Raises `FaultNotMade`."""
        deadline = time.monotonic() + TAKEN_SECONDS
        while True:
            limit = self._limits[node]
            taken = open_numbers(pid)
            if soft_limit(pid) != limit:
                raise FaultNotMade(f"another process set the limit of {node} to {soft_limit(pid)}")
            free = free_below(limit, taken)
            if not free:
                return len(taken)
            if time.monotonic() > deadline:
                raise FaultNotMade(f"{node} has {free} descriptors left below its limit of {limit}")
            await asyncio.sleep(POLL_SECONDS)

    async def heal(self) -> Evidence:
        gone = ended(self._cluster, self._step.nodes)
        if self._lowering is not None:
            self._lowering.cancel()
            await asyncio.gather(self._lowering, return_exceptions=True)
        for node, (pid, limit) in self._before.items():
            if self._cluster.pid(node) == pid:
                with contextlib.suppress(ProcessLookupError):
                    set_soft_limit(pid, limit)
        for one in self._crowds:
            await one.end()
        if self._logs is not None:
            self._logs.check_in_service()
        return {"ended": gone} if gone else {}


class Crowding:
    """`steps.IdleConnections`. Its nodes keep their low limits until another fault restarts them."""

    def __init__(self, step: steps.IdleConnections, cluster: NodeCluster) -> None:
        self._step = step
        self._cluster = cluster
        self._logs: LogsSince | None = None
        self._stopped: tuple[str, ...] = ()
        """Nodes that this fault has stopped and not started again."""
        self._crowds: dict[str, IdleConnections] = {}

    async def begin(self) -> None:
        step = self._step
        running(self._cluster, step.nodes)
        self._logs = LogsSince(self._cluster, step.nodes)
        for node in step.nodes:
            self._cluster.processes[node].descriptors = step.limit
        self._stopped = step.nodes
        await self._cluster.kill(step.nodes)
        await self._cluster.start(step.nodes)
        self._stopped = ()
        for node in step.nodes:
            self._crowds[node] = crowd(self._cluster, node, step.connections)
            await self._crowds[node].begin()

    async def prove(self) -> Evidence:
        """Prove that both listeners of each node turn connections away, while the node keeps some descriptors for
        itself.
        """
        found: dict[str, Evidence] = {}
        for node, pid in running(self._cluster, self._step.nodes).items():
            limit = soft_limit(pid)
            if limit != self._step.limit:
                raise FaultNotMade(f"{node} was started with {self._step.limit} descriptors and has {limit}")
            turned_away = await self._turned_away(node)
            found[node] = {**turned_away, "open": len(open_numbers(pid))}
        return {"limit": self._step.limit, "nodes": found, "ended": ended(self._cluster, self._step.nodes)}

    async def _turned_away(self, node: str) -> Evidence:
        process, idle = self._cluster.processes[node], self._crowds[node]
        deadline = time.monotonic() + TAKEN_SECONDS
        while not (idle.ended[process.api] and idle.ended[process.data]):
            if time.monotonic() > deadline:
                raise FaultNotMade(
                    f"{node} turned too few connections away: its API ended {idle.ended[process.api]}, "
                    f"its data listener ended {idle.ended[process.data]}"
                )
            await asyncio.sleep(POLL_SECONDS)
        return {"api_ended": idle.ended[process.api], "data_ended": idle.ended[process.data]}

    async def heal(self) -> Evidence:
        gone = ended(self._cluster, self._step.nodes)
        for node in self._step.nodes:
            self._cluster.processes[node].descriptors = None
        for one in self._crowds.values():
            await one.end()
        if self._stopped:
            await self._cluster.start(self._stopped)
        if self._logs is not None:
            self._logs.check_in_service()
        return {"ended": gone} if self._crowds and gone else {}


def crowd(cluster: NodeCluster, node: str, each: int) -> IdleConnections:
    """Return `each` connections to each of the node's two listeners."""
    process = cluster.processes[node]
    return IdleConnections((process.api, process.data), each)
