"""A replica that comes back when the only one that has more is away.

What came while it was away was acknowledged, where the minimum allows that, by the other alone. It must not lead: the
partition waits. The proof is the cluster's word that it had left the ISR before the other was killed, beside other
process numbers of both.
"""

from __future__ import annotations

import asyncio

from jepsen_like.clusters.cluster import NodeCluster
from raftlog.client.admin import Admin

from . import crafted_steps
from .injection import Evidence, FaultNotMade
from .membership import until
from .processes import running

SHRUNK_SECONDS = 20.0
ALONE_SECONDS = 1.5
"""In which clients write to the one that is left."""


class LeavingBehind:
    """`crafted_steps.LeaveBehind`."""

    def __init__(self, step: crafted_steps.LeaveBehind, cluster: NodeCluster) -> None:
        self._step = step
        self._cluster = cluster
        self._behind, self._leader = step.nodes
        self._pids: dict[str, int] = {}

    async def begin(self) -> None:
        cluster = self._cluster
        self._pids = running(cluster, self._step.nodes)
        await cluster.kill((self._behind,))
        async with Admin([cluster.bootstrap[cluster.node_id(self._leader)]]) as admin:
            await until(lambda: self._is_out(admin), f"{self._behind} is out of the ISR", SHRUNK_SECONDS)
        await asyncio.sleep(ALONE_SECONDS)
        await cluster.kill((self._leader,))
        await cluster.start((self._behind,))

    async def prove(self) -> Evidence:
        """It was seen out of the ISR before anything else was done."""
        step = self._step
        return {"behind": self._behind, "partition": f"{step.topic}/{step.partition}"}

    async def heal(self) -> Evidence:
        await self._cluster.start(self._step.nodes)
        pids = {node: [pid, self._cluster.pid(node)] for node, pid in self._pids.items()}
        if any(before == after for before, after in pids.values()):
            raise FaultNotMade(f"a process is the one it was: {pids}")
        return {"pids": pids} if pids else {}

    async def _is_out(self, admin: Admin) -> bool:
        description = await admin.describe_topic(self._step.topic)
        (one,) = (one for one in description.partitions if one.partition == self._step.partition)
        return self._cluster.node_id(self._behind) not in one.isr
