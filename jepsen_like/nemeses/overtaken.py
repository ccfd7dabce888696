"""A leader that dies while its partition is on its way to other replicas, which have hardly anything yet.

What is moved is moved back at the heal, as fast as it can. The proof is the cluster's own word that it was on its way,
beside another process number of the leader.
"""

from __future__ import annotations

from contextlib import suppress

from jepsen_like.clusters.cluster import NodeCluster
from raftlog.client.admin import Admin
from raftlog.errors import RaftlogError

from . import crafted_steps
from .injection import Evidence, FaultNotMade
from .membership import MOVED_SECONDS, Moving, until
from .processes import running
from .targets import apart

BYTES_PER_SECOND = 1
"""Of a move: one batch goes whole, and no other for minutes."""


class MovingAndKilling(Moving):
    """`crafted_steps.MoveAndKill`."""

    def __init__(self, step: crafted_steps.MoveAndKill, cluster: NodeCluster) -> None:
        super().__init__(cluster)
        self._step = step
        (self._leader,) = step.nodes
        self._pid = 0

    async def begin(self) -> None:
        step, cluster = self._step, self._cluster
        where = step.topic, step.partition
        more = (step.receiver, self._leader, *step.followers)
        await self._move({where: more}, throttle=BYTES_PER_SECOND)
        await until(self._copies, "the new replica is being copied to", MOVED_SECONDS)
        self._pid = running(cluster, (self._leader,))[self._leader]
        # A replica that is taken to be in sync is not throttled: so nothing may come there from here on. Whoever is
        # asked reaches both, and all of it is over before anybody is missed.
        await cluster.links.cut(apart([(self._leader,)], (self._leader, step.receiver)))
        async with Admin(cluster.bootstrap[cluster.node_id(step.followers[0])]) as admin:
            await admin.alter_reassignments(self._as_ids({where: (step.receiver, self._leader)}))
        await cluster.kill((self._leader,))

    async def prove(self) -> Evidence:
        """It was seen on its way before anything else was done."""
        step = self._step
        return {"receiver": step.receiver, "partition": f"{step.topic}/{step.partition}"}

    async def heal(self) -> Evidence:
        await self._cluster.links.heal()
        await self._cluster.start((self._leader,))
        pids = [self._pid, self._cluster.pid(self._leader)]
        if self._before:
            with suppress(RaftlogError):  # Where nothing is left to move there is no throttle either.
                await self._admin.alter_reassignments({}, throttle=0)
        await super().heal()
        if self._pid == pids[1]:
            raise FaultNotMade(f"{self._leader} is the process that it was")
        return {"pids": {self._leader: pids}} if self._pid else {}

    async def _copies(self) -> bool:
        step = self._step
        return any(
            one.moving and (one.topic, one.partition) == (step.topic, step.partition)
            for one in await self._admin.list_reassignments()
        )
