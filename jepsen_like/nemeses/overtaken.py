"""A leader that dies while its partition moves to other replicas, which have hardly any data yet.

The partition is moved back at the heal, without a throttle. The proof is the cluster's own report that the move was in
progress, and a new process id of the leader.
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
"""Throttle of the move: one batch is copied whole, and no other for minutes."""


class MovingAndKilling(Moving):
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
        await until(self._copies, "the new replica is being filled", MOVED_SECONDS)
        self._pid = running(cluster, (self._leader,))[self._leader]
        # A replica that counts as in sync is not throttled, so from here on nothing may reach the receiver. The
        # follower that gets the request can reach both, and all of this is over before any node is missed.
        await cluster.links.cut(apart([(self._leader,)], (self._leader, step.receiver)))
        async with Admin(cluster.bootstrap[cluster.node_id(step.followers[0])]) as admin:
            await admin.alter_reassignments(self._as_ids({where: (step.receiver, self._leader)}))
        await cluster.kill((self._leader,))

    async def prove(self) -> Evidence:
        """The move was seen in progress before anything else was done."""
        step = self._step
        return {"receiver": step.receiver, "partition": f"{step.topic}/{step.partition}"}

    async def heal(self) -> Evidence:
        await self._cluster.links.heal()
        await self._cluster.start((self._leader,))
        pids = [self._pid, self._cluster.pid(self._leader)]
        if self._before:
            with suppress(RaftlogError):  # If nothing is left to move, there is no throttle either.
                await self._admin.alter_reassignments({}, throttle=0)
        await super().heal()
        if self._pid == pids[1]:
            raise FaultNotMade(f"{self._leader} was not restarted")
        return {"pids": {self._leader: pids}} if self._pid else {}

    async def _copies(self) -> bool:
        step = self._step
        return any(
            one.moving and (one.topic, one.partition) == (step.topic, step.partition)
            for one in await self._admin.list_reassignments()
        )
