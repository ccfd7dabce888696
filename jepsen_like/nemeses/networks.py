"""Links between nodes that are cut, slow, stalled, reset, or late.

Proofs: packets or bytes that a cut kept from arriving; pieces that waited; bytes that came over stalled connections;
connections that were ended; bytes that arrived after their connection had been.
"""

from __future__ import annotations

import asyncio
import random

from jepsen_like.clusters.cluster import NodeCluster
from jepsen_like.clusters.proxy import ProxyLinks

from . import steps
from .injection import Evidence, FaultNotMade


def counted(counts: dict[str, int], what: str) -> Evidence:
    """Those above zero. Raises `FaultNotMade` where there is none: nobody would have noticed the fault."""
    bitten = {name: count for name, count in sorted(counts.items()) if count}
    if not bitten:
        raise FaultNotMade(f"nothing was {what}: no traffic went there")
    return {what: bitten}


def proxies(cluster: NodeCluster) -> ProxyLinks:
    """Raises `FaultNotMade` where the layout has none."""
    if cluster.proxies is None:
        raise FaultNotMade("this layout has no proxies on its links")
    return cluster.proxies


class Cutting:
    """`steps.Cut`."""

    def __init__(self, step: steps.Cut, cluster: NodeCluster) -> None:
        self._step = step
        self._links = cluster.links

    async def begin(self) -> None:
        await self._links.cut(self._step.links)

    async def prove(self) -> Evidence:
        return {**counted(await self._links.stopped(), "stopped"), "shape": self._step.shape}

    async def heal(self) -> Evidence:
        await self._links.heal()
        return {}


class OnProxies:
    """What only proxies do. `_make` begins it, `_proof` counts."""

    def __init__(self, step: steps.OnLinks, cluster: NodeCluster) -> None:
        self._step = step
        self._cluster = cluster

    async def begin(self) -> None:
        self._make(proxies(self._cluster))

    def _make(self, links: ProxyLinks) -> None:
        raise NotImplementedError

    async def prove(self) -> Evidence:
        return {}

    async def heal(self) -> Evidence:
        if self._cluster.proxies is not None:
            await self._cluster.proxies.heal()
        return {}


class Slowing(OnProxies):
    """`steps.Slow`."""

    def __init__(self, step: steps.Slow, cluster: NodeCluster) -> None:
        super().__init__(step, cluster)
        self._delay, self._jitter = step.delay_ms / 1000, step.jitter_ms / 1000

    def _make(self, links: ProxyLinks) -> None:
        links.slow(self._step.links, self._delay, self._jitter)

    async def prove(self) -> Evidence:
        links = proxies(self._cluster)
        counts = {name: links.conditions[name].delayed_pieces for name in self._step.links}
        return {**counted(counts, "delayed"), "delay_s": self._delay, "jitter_s": self._jitter}


class Stalling(OnProxies):
    """`steps.Stall`."""

    def __init__(self, step: steps.Stall, cluster: NodeCluster) -> None:
        super().__init__(step, cluster)
        self._rng = random.Random(step.seed)

    def _make(self, links: ProxyLinks) -> None:
        links.stall(self._step.links, self._rng)

    async def prove(self) -> Evidence:
        return counted(proxies(self._cluster).stalled(), "stalled")


class Repeating(OnProxies):
    """What is done again and again, by a task of its own."""

    def __init__(self, step: steps.Reset | steps.Linger, cluster: NodeCluster, period: float) -> None:
        super().__init__(step, cluster)
        self._period = period
        self._again: asyncio.Task[None] | None = None
        self._ended: dict[str, int] = {}

    async def begin(self) -> None:
        await super().begin()
        self._again = asyncio.create_task(self._go_on(proxies(self._cluster)))

    async def _go_on(self, links: ProxyLinks) -> None:
        while True:
            for name, count in links.reset(self._step.links).items():
                self._ended[name] = self._ended.get(name, 0) + count
            await asyncio.sleep(self._period)

    async def prove(self) -> Evidence:
        if self._again is not None and self._again.done():
            self._again.result()  # It goes on until the heal: it failed.
        return {}

    async def heal(self) -> Evidence:
        if self._again is not None:
            self._again.cancel()
            await asyncio.gather(self._again, return_exceptions=True)
        return await super().heal()


class Resetting(Repeating):
    """`steps.Reset`."""

    def __init__(self, step: steps.Reset, cluster: NodeCluster) -> None:
        super().__init__(step, cluster, step.period_ms / 1000)

    def _make(self, links: ProxyLinks) -> None:
        """The task does it."""

    async def prove(self) -> Evidence:
        await super().prove()
        return counted(self._ended, "reset")


class Lingering(Repeating):
    """`steps.Linger`: connections break twice for each time that bytes linger."""

    def __init__(self, step: steps.Linger, cluster: NodeCluster) -> None:
        super().__init__(step, cluster, step.linger_ms / 2000)
        self._delay, self._seconds = step.delay_ms / 1000, step.linger_ms / 1000

    def _make(self, links: ProxyLinks) -> None:
        links.linger(self._step.links, self._delay, self._seconds)

    async def prove(self) -> Evidence:
        await super().prove()
        links = proxies(self._cluster)
        counts = {name: links.conditions[name].lingered_bytes for name in self._step.links}
        return {**counted(counts, "late"), "reset": dict(self._ended)}
