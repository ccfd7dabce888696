"""Wall clocks that are set, once or back and forth. The proof is what a node's own API says that the time is.

What is *not* here: how a clock is set (`jepsen_like/clusters/clocks.py`), by how much (`plans.py`).
"""

from __future__ import annotations

import asyncio
import time

from jepsen_like.clusters import clocks
from jepsen_like.clusters.clocks import Clocks, ClockUnreadable
from jepsen_like.clusters.cluster import NodeCluster

from . import steps
from .injection import Evidence, FaultNotMade

TOLERANCE_SECONDS = 3.0
"""Of what a node says: it tells whole seconds, and answers a little later on a busy machine."""
BACK_SECONDS = 20.0
POLL_SECONDS = 0.1
LOOKS_MAX = 200
"""At a strobe."""


async def told(cluster: NodeCluster, node: str) -> float:
    """By how much its clock is ahead, by its own word. Raises `FaultNotMade`."""
    try:
        return round(await clocks.offset_of(cluster.processes[node].api), 1)
    except ClockUnreadable as error:
        raise FaultNotMade(str(error)) from None


def clocks_of(cluster: NodeCluster) -> Clocks:
    """Raises `FaultNotMade` where they cannot be set."""
    if cluster.clocks is None:
        raise FaultNotMade("this cluster's clocks cannot be set")
    return cluster.clocks


async def set_back(cluster: NodeCluster, nodes: tuple[str, ...]) -> None:
    """Until each that runs says so. Raises `FaultNotMade` where one does not."""
    if cluster.clocks is None:
        return
    for node in nodes:
        cluster.clocks.set(node, 0.0)
    deadline = time.monotonic() + BACK_SECONDS
    for node in nodes:
        while cluster.pid(node) is not None:
            try:
                if abs(await clocks.offset_of(cluster.processes[node].api)) <= TOLERANCE_SECONDS:
                    break
                why = "is not what it was"
            except ClockUnreadable as error:
                why = str(error)  # It may be paused or cut off by another fault: its file says the right thing.
            if time.monotonic() > deadline:
                raise FaultNotMade(f"{node}'s clock {why}")
            await asyncio.sleep(POLL_SECONDS)


class Bumping:
    """`steps.Bump`."""

    def __init__(self, step: steps.Bump, cluster: NodeCluster) -> None:
        self._step = step
        self._cluster = cluster

    async def begin(self) -> None:
        for node, seconds in zip(self._step.nodes, self._step.seconds, strict=True):
            clocks_of(self._cluster).set(node, seconds)

    async def prove(self) -> Evidence:
        offsets = {}
        for node, seconds in zip(self._step.nodes, self._step.seconds, strict=True):
            offsets[node] = await told(self._cluster, node)
            if abs(offsets[node] - seconds) > TOLERANCE_SECONDS:
                raise FaultNotMade(f"{node} was set by {seconds} s, and is {offsets[node]} s ahead")
        return {"offsets": offsets}

    async def heal(self) -> Evidence:
        await set_back(self._cluster, self._step.nodes)
        return {}


class Strobing:
    """`steps.Strobe`."""

    def __init__(self, step: steps.Strobe, cluster: NodeCluster) -> None:
        self._step = step
        self._cluster = cluster
        self._again: asyncio.Task[None] | None = None
        self._leaps = 0

    async def begin(self) -> None:
        self._again = asyncio.create_task(self._go_on(clocks_of(self._cluster)))

    async def _go_on(self, settable: Clocks) -> None:
        while True:
            ahead = self._step.seconds if self._leaps % 2 == 0 else 0.0
            for node in self._step.nodes:
                settable.set(node, ahead)
            self._leaps += 1
            await asyncio.sleep(self._step.period)

    async def prove(self) -> Evidence:
        """Each must have been seen here and there; asked at odd moments, for it may answer in step with the strobe."""
        seen: dict[str, set[bool]] = {}
        for node in self._step.nodes:
            places = seen.setdefault(node, set())
            for look in range(LOOKS_MAX):
                offset = await told(self._cluster, node)
                places.add(abs(offset) > abs(self._step.seconds) / 2)
                if len(places) == 2:
                    break
                await asyncio.sleep(self._step.period * (0.37 + 0.11 * (look % 5)))
            else:
                raise FaultNotMade(f"{node}'s clock was seen to stand still")
        return {"leaps": self._leaps, "seconds": self._step.seconds, "seen": sorted(seen)}

    async def heal(self) -> Evidence:
        if self._again is not None:
            self._again.cancel()
            await asyncio.gather(self._again, return_exceptions=True)
        await set_back(self._cluster, self._step.nodes)
        return {}
