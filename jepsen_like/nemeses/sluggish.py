"""Fsyncs that are slow for a while before another fault.

Then requests in flight wait for an fsync when the fault comes: a record that is acknowledged too early is not on any
disk yet, and one that is on disk is not acknowledged yet.
"""

from __future__ import annotations

import asyncio

from jepsen_like.clusters.cluster import NodeCluster
from jepsen_like.clusters.commands import in_thread
from jepsen_like.clusters.system_calls import Injection as SystemCalls

from . import crafted_steps
from .injection import Evidence, FaultNotMade
from .processes import Killing, running

SLUGGISH_SECONDS = 1.5
"""Long enough that everything in flight waits for an fsync."""


class Sluggish:
    """Nodes whose fsyncs are slow, from `begin` to `end`."""

    def __init__(self, cluster: NodeCluster, milliseconds: int) -> None:
        self._cluster = cluster
        self._what = f"delay_enter={milliseconds * 1000}"
        self._calls: dict[str, SystemCalls] = {}
        self.touched: dict[str, int] = {}
        """Node → fsyncs that were slowed down."""

    async def begin(self, nodes: tuple[str, ...]) -> None:
        """Slow the fsyncs down and let the nodes run for a while.

        Raises `CommandFailed`, and `FaultNotMade` if no fsync was affected.
        """
        for node, pid in running(self._cluster, nodes).items():
            self._calls[node] = SystemCalls(pid, self._cluster.folder / f"{node}.strace", self._what)
            await in_thread(self._calls[node].begin)
        await asyncio.sleep(SLUGGISH_SECONDS)
        self.touched = {node: await in_thread(calls.count) for node, calls in self._calls.items()}
        if not any(self.touched.values()):
            raise FaultNotMade("no process called fsync")

    async def end(self) -> None:
        """Idempotent."""
        for calls in self._calls.values():
            await in_thread(calls.end)


class KillingWhileSlow(Killing):
    def __init__(self, step: crafted_steps.SlowKill, cluster: NodeCluster) -> None:
        super().__init__(step, cluster)
        self._slowed = step.slowed
        self._sluggish = Sluggish(cluster, step.slow_ms)

    async def begin(self) -> None:
        await self._sluggish.begin(self._slowed)
        await super().begin()
        # The surviving nodes alone now decide soon about everything in flight.
        await self._sluggish.end()

    async def prove(self) -> Evidence:
        return {**await super().prove(), "slowed": self._sluggish.touched}

    async def heal(self) -> Evidence:
        await self._sluggish.end()
        return await super().heal()
