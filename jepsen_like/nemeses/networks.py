"""Links between nodes that are cut, slow, stalled, reset, or delayed beyond the end of their connection.

Proofs: packets or bytes that a cut kept from arriving; pieces that were delayed; bytes that arrived on stalled
connections; connections that were reset; bytes that arrived after the end of their connection.
"""

from __future__ import annotations

import asyncio
import random

from jepsen_like.clusters.cluster import NodeCluster
from jepsen_like.clusters.proxy import ProxyLinks

from . import steps
from .injection import Evidence, FaultNotMade


def counted(counts: dict[str, int], what: str) -> Evidence:
    """Return the counts above zero. Raises `FaultNotMade` if there is none: the fault had no effect on any traffic."""
    bitten = {name: count for name, count in sorted(counts.items()) if count}
    if not bitten:
        raise FaultNotMade(f"nothing was {what}: no traffic went there")
    return {what: bitten}


def proxies(cluster: NodeCluster) -> ProxyLinks:
    """Return the proxies of the links. Raises `FaultNotMade` if the layout has none."""
    if cluster.proxies is None:
        raise FaultNotMade("this layout has no proxies on its links")
    return cluster.proxies


class Cutting:
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
    """A fault that needs proxies. `_make` begins it, `prove` counts its effects."""

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
    def __init__(self, step: steps.Stall, cluster: NodeCluster) -> None:
        super().__init__(step, cluster)
        self._rng = random.Random(step.seed)

    def _make(self, links: ProxyLinks) -> None:
        links.stall(self._step.links, self._rng)

    async def prove(self) -> Evidence:
        return counted(proxies(self._cluster).stalled(), "stalled")


class Repeating(OnProxies):
    """A fault that a background task repeats."""

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
            self._again.result()  # The task runs until the heal, so it has failed: raise its error.
        return {}

    async def heal(self) -> Evidence:
        if self._again is not None:
            self._again.cancel()
            await asyncio.gather(self._again, return_exceptions=True)
        return await super().heal()


class Resetting(Repeating):
    def __init__(self, step: steps.Reset, cluster: NodeCluster) -> None:
        super().__init__(step, cluster, step.period_ms / 1000)

    def _make(self, links: ProxyLinks) -> None:
        """Do nothing: the task resets."""

    async def prove(self) -> Evidence:
        await super().prove()
        return counted(self._ended, "reset")


class Lingering(Repeating):
    """`steps.Linger`: connections break twice within the time for which their bytes linger."""

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
