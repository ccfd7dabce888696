"""Voters that go and come back, partitions that are moved and moved back, brokers that are emptied.

What is asked is what an operator asks, through `Admin`, and may be refused: then there was no fault. Taking it back is
asked again and again until it is so, for other faults may hold it up; it is bounded. The proof is the cluster's own
answer: voters, replicas.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from jepsen_like.clusters.cluster import NodeCluster
from raftlog.client.admin import Admin
from raftlog.errors import RaftlogError, RetriableError

from . import steps
from .injection import Evidence, FaultNotMade

BACK_SECONDS = 120.0
MOVED_SECONDS = 30.0
POLL_SECONDS = 0.2

Where = dict[tuple[str, int], tuple[str, ...]]
"""Partition → the nodes of its replicas."""


async def until(holds: Callable[[], Awaitable[bool]], what: str, within: float) -> None:
    """Asks again and again; an error of the cluster is a no. Raises `RetriableError` (`request_timed_out`)."""
    deadline = time.monotonic() + within
    last = "no"
    while True:
        try:
            if await holds():
                return
        except RaftlogError as error:
            last = str(error)
        if time.monotonic() > deadline:
            raise RetriableError("request_timed_out", f"not within {within:.0f} s: {what}; the last answer: {last}")
        await asyncio.sleep(POLL_SECONDS)


class RemovingVoter:
    """`steps.RemoveVoter`."""

    def __init__(self, step: steps.RemoveVoter, cluster: NodeCluster) -> None:
        self._step = step
        self._node = cluster.node_id(step.node)
        self._admin = Admin(cluster.bootstrap)
        self._asked = False
        self._before: list[int] = []

    async def begin(self) -> None:
        self._before = sorted((await self._admin.quorum()).voters)
        self._asked = True  # An answer may be lost, and the change made.
        await self._admin.remove_voter(self._node)

    async def prove(self) -> Evidence:
        after = sorted((await self._admin.quorum()).voters)
        if self._node in after:
            raise FaultNotMade(f"the voters are {after} as before")
        return {"before": self._before, "after": after}

    async def heal(self) -> Evidence:
        try:
            if self._asked and self._node in self._before:
                await until(self._votes_again, f"{self._step.node} votes again", BACK_SECONDS)
        finally:
            await self._admin.close()
        return {}

    async def _votes_again(self) -> bool:
        if self._node not in (await self._admin.quorum()).voters:
            await self._admin.add_voter(self._node)
        return True


class Moving:
    """Partitions that are elsewhere for a while."""

    def __init__(self, cluster: NodeCluster) -> None:
        self._cluster = cluster
        self._admin = Admin(cluster.bootstrap)
        self._before: Where = {}
        self._wanted: Where = {}

    async def _move(self, wanted: Where, *, throttle: int | None = None) -> None:
        """Ask for it. Raises `FaultNotMade` where all of it is refused."""
        self._before = await self._where(wanted)
        self._wanted = wanted
        outcomes = await self._admin.alter_reassignments(self._as_ids(wanted), throttle=throttle)
        refused = [outcome.error for outcome in outcomes if outcome.error is not None]
        if len(refused) == len(outcomes):
            raise FaultNotMade(f"no move was accepted: {refused[:1]}")

    async def prove(self) -> Evidence:
        """Some of it is where it was wanted, or on its way."""
        now = await self._where(self._wanted)
        moving = {(one.topic, one.partition) for one in await self._admin.list_reassignments()}
        changed = {
            f"{topic}/{partition}": {"before": list(before), "now": list(now[topic, partition])}
            for (topic, partition), before in self._before.items()
            if now.get((topic, partition), before) != before or (topic, partition) in moving
        }
        if not changed:
            raise FaultNotMade("every partition is where it was")
        return {"moved": changed}

    async def heal(self) -> Evidence:
        try:
            if self._before:
                await until(self._is_back, "partitions are where they were", BACK_SECONDS)
        finally:
            await self._admin.close()
        return {}

    async def _is_back(self) -> bool:
        """Asks for what is elsewhere; a topic that is gone has no place."""
        now = await self._where(self._before)
        moving = {(one.topic, one.partition) for one in await self._admin.list_reassignments()}
        elsewhere = {where: self._before[where] for where, at in now.items() if at != self._before[where]}
        asked = {where: wanted for where, wanted in elsewhere.items() if where not in moving}
        if asked:
            await self._admin.alter_reassignments(self._as_ids(asked))
        # What is on its way elsewhere is asked for again: a move may be replaced by another.
        replaced = {where: wanted for where, wanted in elsewhere.items() if where in moving}
        if replaced:
            await self._admin.alter_reassignments(self._as_ids(replaced))
        return not elsewhere and not moving & set(self._before)

    async def _where(self, partitions: Where) -> Where:
        """Where these are now, of topics that still exist."""
        found: Where = {}
        known = {topic.name for topic in await self._admin.list_topics()}
        for topic in sorted({topic for topic, _ in partitions} & known):
            for one in (await self._admin.describe_topic(topic)).partitions:
                if (topic, one.partition) in partitions:
                    found[topic, one.partition] = tuple(self._cluster.name_of(node) for node in one.replicas)
        return found

    def _as_ids(self, wanted: Where) -> dict[tuple[str, int], list[int]]:
        return {where: [self._cluster.node_id(node) for node in nodes] for where, nodes in wanted.items()}


class Reassigning(Moving):
    """`steps.Reassign`."""

    def __init__(self, step: steps.Reassign, cluster: NodeCluster) -> None:
        super().__init__(cluster)
        self._step = step

    async def begin(self) -> None:
        await self._move({(topic, partition): nodes for topic, partition, nodes in self._step.moves})


class Draining(Moving):
    """`steps.Drain`."""

    def __init__(self, step: steps.Drain, cluster: NodeCluster) -> None:
        super().__init__(cluster)
        self._node = step.node

    async def begin(self) -> None:
        moves = await self._admin.plan_moves([self._cluster.node_id(self._node)])
        if not moves:
            raise FaultNotMade(f"{self._node} holds no replica")
        name = self._cluster.name_of
        await self._move({(one.topic, one.partition): tuple(map(name, one.target_replicas)) for one in moves})
