"""A replica that returns while the only replica with more records is down.

The records written during its absence were acknowledged by the other alone, if the minimum ISR allows that. The
returning replica must not lead: the partition waits. The proof is the cluster's own report that it had left the ISR
before the other was killed, and new process ids of both.
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
"""Time during which clients write to the remaining replica."""


class LeavingBehind:
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
            await until(lambda: self._is_out(admin), f"{self._behind} has left the ISR", SHRUNK_SECONDS)
        await asyncio.sleep(ALONE_SECONDS)
        await cluster.kill((self._leader,))
        await cluster.start((self._behind,))

    async def prove(self) -> Evidence:
        """The replica was seen outside the ISR before the leader was killed."""
        step = self._step
        return {"behind": self._behind, "partition": f"{step.topic}/{step.partition}"}

    async def heal(self) -> Evidence:
        await self._cluster.start(self._step.nodes)
        pids = {node: [pid, self._cluster.pid(node)] for node, pid in self._pids.items()}
        if any(before == after for before, after in pids.values()):
            raise FaultNotMade(f"a process was not restarted: {pids}")
        return {"pids": pids} if pids else {}

    async def _is_out(self, admin: Admin) -> bool:
        description = await admin.describe_topic(self._step.topic)
        (one,) = (one for one in description.partitions if one.partition == self._step.partition)
        return self._cluster.node_id(self._behind) not in one.isr
