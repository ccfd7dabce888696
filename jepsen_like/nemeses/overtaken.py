"""A leader that dies while its partition is on its way to other replicas, which have hardly anything yet.

What is moved is moved back at the heal, as fast as it can. The proof is the cluster's own word that it was on its way,
and that the followers were fenced, beside another process number of the leader.

What is *not* here: moves alone (`membership.py`).
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from jepsen_like.clusters.cluster import NodeCluster
from raftlog.errors import RaftlogError

from . import crafted_steps
from .injection import Evidence, FaultNotMade
from .membership import MOVED_SECONDS, Moving, until
from .processes import await_state, pause, resume, running

BYTES_PER_SECOND = 1
"""Of a move: one batch goes whole, and no other for minutes."""
FENCED_SECONDS = 10.0
NOTICED_SECONDS = 0.5
"""What the leader has for telling the quorum who is in sync without those that were fenced."""


class MovingAndKilling(Moving):
    """`steps.MoveAndKill`."""

    def __init__(self, step: crafted_steps.MoveAndKill, cluster: NodeCluster) -> None:
        super().__init__(cluster)
        self._step = step
        self._leader, *followers = step.nodes
        self._followers = tuple(followers)
        self._before_the_kill: int | None = None

    async def begin(self) -> None:
        step, cluster = self._step, self._cluster
        await self._move({(step.topic, step.partition): (step.receiver, self._leader)}, throttle=BYTES_PER_SECOND)
        await until(self._copies, "the new replica is being copied to", MOVED_SECONDS)
        pids = running(cluster, self._followers)
        pause(cluster, self._followers)
        await await_state(pids, stopped=True)
        try:
            await until(self._is_fenced, "the followers are fenced", FENCED_SECONDS)
            await asyncio.sleep(NOTICED_SECONDS)
        finally:
            resume(cluster, self._followers)
        self._before_the_kill = running(cluster, (self._leader,))[self._leader]
        await cluster.kill((self._leader,))

    async def prove(self) -> Evidence:
        """It was seen on its way before anything else was done."""
        return {"killed": self._leader, "fenced": list(self._followers), "receiver": self._step.receiver}

    async def heal(self) -> Evidence:
        resume(self._cluster, self._followers)
        await self._cluster.start((self._leader,))
        pid = self._cluster.pid(self._leader)
        try:
            if self._before:
                with suppress(RaftlogError):  # Where nothing is left to move there is no throttle either.
                    await self._admin.alter_reassignments({}, throttle=0)
        finally:
            evidence = await super().heal()
        if self._before_the_kill is not None and pid == self._before_the_kill:
            raise FaultNotMade(f"{self._leader} is the process that it was")
        return evidence

    async def _copies(self) -> bool:
        step = self._step
        return any(
            one.moving and (one.topic, one.partition) == (step.topic, step.partition)
            for one in await self._admin.list_reassignments()
        )

    async def _is_fenced(self) -> bool:
        """All of them, as brokers."""
        fenced = {one.id for one in (await self._admin.cluster()).nodes if one.fenced}
        return fenced >= {self._cluster.node_id(node) for node in self._followers}
