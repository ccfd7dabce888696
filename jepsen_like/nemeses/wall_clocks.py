"""Wall clocks that are set, once or back and forth. The proof is the time that a node's own API reports."""

from __future__ import annotations

import asyncio
import time

from jepsen_like.clusters import clocks
from jepsen_like.clusters.clocks import Clocks, ClockUnreadable
from jepsen_like.clusters.cluster import NodeCluster

from . import steps
from .injection import Evidence, FaultNotMade
from .processes import running

TOLERANCE_SECONDS = 3.0
"""Tolerance for a node's report: it has whole seconds, and a busy machine answers a little later."""
BACK_SECONDS = 20.0
POLL_SECONDS = 0.1
LOOKS_MAX = 40
"""Looks at a node's clock during a strobe."""


async def told(cluster: NodeCluster, node: str) -> float | None:
    """Return how far ahead the node's clock is by its own report, or None if it does not answer.

    A node that another fault has paused or stopped does not answer, and its clock is set all the same.
    """
    try:
        tls = None if cluster.security is None else cluster.security.context()
        return round(await clocks.offset_of(cluster.processes[node].api, tls), 1)
    except ClockUnreadable:
        return None


def clocks_of(cluster: NodeCluster) -> Clocks:
    """Return the clocks. Raises `FaultNotMade` if they cannot be set."""
    if cluster.clocks is None:
        raise FaultNotMade("this cluster's clocks cannot be set")
    return cluster.clocks


async def set_back(cluster: NodeCluster, nodes: tuple[str, ...]) -> None:
    """Set the clocks back and wait until no node reports otherwise. Raises `FaultNotMade` if one still does after a
    time.
    """
    if cluster.clocks is None:
        return
    for node in nodes:
        cluster.clocks.set(node, 0.0)
    deadline = time.monotonic() + BACK_SECONDS
    for node in nodes:
        while (offset := await told(cluster, node)) is not None and abs(offset) > TOLERANCE_SECONDS:
            if time.monotonic() > deadline:
                raise FaultNotMade(f"{node}'s clock was set back, but is still {offset} s ahead")
            await asyncio.sleep(POLL_SECONDS)


async def proof_of(cluster: NodeCluster, nodes: tuple[str, ...], wrong: tuple[float, ...]) -> Evidence:
    """Return the offsets that the nodes report, ignoring those that do not answer.

    Raises `FaultNotMade` if one reports another offset, or none answers.
    """
    offsets = {}
    for node, seconds in zip(nodes, wrong, strict=True):
        offset = await told(cluster, node)
        if offset is None:
            continue
        if abs(offset - seconds) > TOLERANCE_SECONDS:
            raise FaultNotMade(f"{node}'s clock was set by {seconds} s, but is {offset} s ahead")
        offsets[node] = offset
    if not offsets:
        raise FaultNotMade("no node reported its time")
    return {"offsets": offsets}


class Bumping:
    def __init__(self, step: steps.Bump, cluster: NodeCluster) -> None:
        self._step = step
        self._cluster = cluster

    async def begin(self) -> None:
        for node, seconds in zip(self._step.nodes, self._step.seconds, strict=True):
            clocks_of(self._cluster).set(node, seconds)

    async def prove(self) -> Evidence:
        return await proof_of(self._cluster, self._step.nodes, self._step.seconds)

    async def heal(self) -> Evidence:
        await set_back(self._cluster, self._step.nodes)
        return {}


class StartingWrong:
    def __init__(self, step: steps.WrongStart, cluster: NodeCluster) -> None:
        self._step = step
        self._cluster = cluster

    async def begin(self) -> None:
        settable = clocks_of(self._cluster)
        running(self._cluster, self._step.nodes)
        await self._cluster.kill(self._step.nodes)
        for node, seconds in zip(self._step.nodes, self._step.seconds, strict=True):
            settable.set(node, seconds)
        await self._cluster.start(self._step.nodes)

    async def prove(self) -> Evidence:
        return await proof_of(self._cluster, self._step.nodes, self._step.seconds)

    async def heal(self) -> Evidence:
        await set_back(self._cluster, self._step.nodes)
        return {}


class Strobing:
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
        """Prove that a clock was seen in both positions.

        The looks come at irregular intervals, since regular ones could be in step with the strobe.
        """
        leapt = [node for node in self._step.nodes if await self._leaps_about(node)]
        if self._again is not None and self._again.done():
            self._again.result()
        if not leapt:
            raise FaultNotMade("no clock was seen to jump")
        return {"leaps": self._leaps, "seconds": self._step.seconds, "seen": leapt}

    async def _leaps_about(self, node: str) -> bool:
        places: set[bool] = set()
        for look in range(LOOKS_MAX):
            offset = await told(self._cluster, node)
            if offset is None:
                return False
            places.add(abs(offset) > abs(self._step.seconds) / 2)
            if len(places) == 2:
                return True
            await asyncio.sleep(self._step.period * (0.37 + 0.11 * (look % 5)))
        return False

    async def heal(self) -> Evidence:
        if self._again is not None:
            self._again.cancel()
            await asyncio.gather(self._again, return_exceptions=True)
        await set_back(self._cluster, self._step.nodes)
        return {}
