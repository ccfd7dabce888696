"""Voters that are removed and added back, partitions that are moved and moved back, brokers that are drained.

The requests are an operator's, sent through `Admin`, and may be refused: then there was no fault. The change back is
retried until it succeeds, because other faults may delay it; the time is bounded. The proof is the cluster's own
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
    """Poll until `holds` is true; an error of the cluster counts as false. Raises `RetriableError`
    (`request_timed_out`).
    """
    deadline = time.monotonic() + within
    last = "no"
    while True:
        try:
            if await holds():
                return
        except RaftlogError as error:
            last = str(error)
        if time.monotonic() > deadline:
            raise RetriableError("request_timed_out", f"not within {within:.0f} s: {what}; last answer: {last}")
        await asyncio.sleep(POLL_SECONDS)


class RemovingVoter:
    def __init__(self, step: steps.RemoveVoter, cluster: NodeCluster) -> None:
        self._step = step
        self._node = cluster.node_id(step.node)
        self._admin = Admin(cluster.bootstrap)
        self._asked = False
        self._before: list[int] = []

    async def begin(self) -> None:
        self._before = sorted((await self._admin.quorum()).voters)
        self._asked = True  # Set before the request: its answer may be lost although the change was made.
        await self._admin.remove_voter(self._node)

    async def prove(self) -> Evidence:
        after = sorted((await self._admin.quorum()).voters)
        if self._node in after:
            raise FaultNotMade(f"the voters are still {after}")
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
    """Partitions that are moved away for a while."""

    def __init__(self, cluster: NodeCluster) -> None:
        self._cluster = cluster
        self._admin = Admin(cluster.bootstrap)
        self._before: Where = {}
        self._wanted: Where = {}

    async def _move(self, wanted: Where, *, throttle: int | None = None) -> None:
        """Request the moves. Raises `FaultNotMade` if all of them are refused."""
        self._before = await self._where(wanted)
        self._wanted = wanted
        outcomes = await self._admin.alter_reassignments(self._as_ids(wanted), throttle=throttle)
        refused = [outcome.error for outcome in outcomes if outcome.error is not None]
        if len(refused) == len(outcomes):
            raise FaultNotMade(f"no move was accepted: {refused[:1]}")

    async def prove(self) -> Evidence:
        """Prove that some partitions are at their new places, or on their way."""
        now = await self._where(self._wanted)
        moving = {(one.topic, one.partition) for one in await self._admin.list_reassignments()}
        changed = {
            f"{topic}/{partition}": {"before": list(before), "now": list(now[topic, partition])}
            for (topic, partition), before in self._before.items()
            if now.get((topic, partition), before) != before or (topic, partition) in moving
        }
        if not changed:
            raise FaultNotMade("no partition has moved")
        return {"moved": changed}

    async def heal(self) -> Evidence:
        try:
            if self._before:
                await until(self._is_back, "partitions are back at their places", BACK_SECONDS)
        finally:
            await self._admin.close()
        return {}

    async def _is_back(self) -> bool:
        """Request the missing moves back, and return whether all partitions are back; deleted topics are ignored."""
        now = await self._where(self._before)
        moving = {(one.topic, one.partition) for one in await self._admin.list_reassignments()}
        elsewhere = {where: self._before[where] for where, at in now.items() if at != self._before[where]}
        asked = {where: wanted for where, wanted in elsewhere.items() if where not in moving}
        if asked:
            await self._admin.alter_reassignments(self._as_ids(asked))
        # A partition that is still moving away gets a new request: it replaces the move.
        replaced = {where: wanted for where, wanted in elsewhere.items() if where in moving}
        if replaced:
            await self._admin.alter_reassignments(self._as_ids(replaced))
        return not elsewhere and not moving & set(self._before)

    async def _where(self, partitions: Where) -> Where:
        """Return the current places of these partitions, for topics that still exist."""
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
    def __init__(self, step: steps.Reassign, cluster: NodeCluster) -> None:
        super().__init__(cluster)
        self._step = step

    async def begin(self) -> None:
        await self._move({(topic, partition): nodes for topic, partition, nodes in self._step.moves})


class Draining(Moving):
    def __init__(self, step: steps.Drain, cluster: NodeCluster) -> None:
        super().__init__(cluster)
        self._node = step.node

    async def begin(self) -> None:
        moves = await self._admin.plan_moves([self._cluster.node_id(self._node)])
        if not moves:
            raise FaultNotMade(f"{self._node} holds no replica")
        name = self._cluster.name_of
        await self._move({(one.topic, one.partition): tuple(map(name, one.target_replicas)) for one in moves})
