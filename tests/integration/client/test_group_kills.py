"""A consumer group while a member and a node are killed every five seconds.

Nothing is lost, and records that are read twice lie at or above the offset that was committed when their partition last
changed its owner (S8, S10).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections.abc import Iterator
from typing import Any

import pytest

from raftlog import Admin, Consumer
from raftlog.cli.nodes.local_cluster import LocalCluster
from raftlog.client import GroupPartition
from raftlog.errors import RaftlogError
from tests.support.client.parts import MortalCalls, mortal_members
from tests.support.clusters.cluster import PATIENCE_S, eventually, running_cluster
from tests.support.clusters.traffic import Traffic

__all__ = ["mortal_members"]

pytestmark = pytest.mark.integration

PARTITIONS = 6
MEMBERS = 3
KILL_EVERY_S = 5.0
SECONDS = float(os.environ.get("RAFTLOG_GROUP_KILLS_SECONDS", "60"))
"""For a manual run, 15 is enough."""
SETTINGS: dict[str, Any] = {
    "auto_offset_reset": "earliest",
    "enable_auto_commit": False,
    "session_timeout_ms": 2_000,
    "heartbeat_interval_ms": 200,
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with running_cluster() as running:
        yield running


class Books:
    """Everything that all members together have read and committed."""

    def __init__(self) -> None:
        self.read: list[set[int]] = [set() for _ in range(PARTITIONS)]
        self.committed = [0] * PARTITIONS
        """By acknowledged commits."""
        self.twice = 0
        self.tenures = 0


class Worker:
    """A member's process: reads, commits what it has read, and records both."""

    def __init__(self, cluster: LocalCluster, topic: str, books: Books) -> None:
        self._books = books
        self._next: dict[int, int] = {}
        """Partition → the next expected offset in this tenure."""
        self._consumer = Consumer.subscribe(
            cluster.bootstrap, "killed", [topic], on_assigned=self._assigned, on_revoked=self._gone,
            on_lost=self._gone, **SETTINGS,
        )  # fmt: skip
        self._calls = MortalCalls.latest
        self._task = asyncio.create_task(self._work())

    def _assigned(self, partitions: list[GroupPartition]) -> None:
        positions = self._consumer.positions
        for one in partitions:
            start, committed = positions[one], self._books.committed[one.partition]
            assert start >= committed, f"S8: {one} begins at {start}, and {committed} was committed"
            self._books.tenures += 1
            self._next[one.partition] = start

    def _gone(self, partitions: list[GroupPartition]) -> None:
        for one in partitions:
            del self._next[one.partition]

    async def _work(self) -> None:
        while True:
            for record in await self._consumer.poll(timeout=0.2):
                due = self._next[record.partition]
                assert record.offset == due, f"{record.partition}: {record.offset} came where {due} is due"
                self._next[record.partition] = due + 1
                seen = self._books.read[record.partition]
                self._books.twice += record.offset in seen
                seen.add(record.offset)
            await self._commit()

    async def _commit(self) -> None:
        positions = self._consumer.positions
        try:
            await self._consumer.commit(timeout=2.0)
        except RaftlogError:
            return  # The commit may have been executed; the next owner begins there or below.
        for one, offset in positions.items():
            self._books.committed[one.partition] = max(self._books.committed[one.partition], offset)

    def check(self) -> None:
        """Raise the error of its process, if it died without being killed."""
        if self._task.done():
            self._task.result()

    async def stop(self) -> None:
        """Stop in order."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        await self._consumer.close()

    async def die(self) -> None:
        """Die without leaving the group."""
        self._calls.dead = True
        self._task.cancel()
        await asyncio.wait([self._task])
        await self._consumer.close()


@pytest.mark.soak
@pytest.mark.usefixtures("mortal_members")
async def test_a_member_and_a_node_killed_every_five_seconds(cluster: LocalCluster) -> None:
    topic, books, rng = "kills", Books(), random.Random(7)
    async with Admin(cluster.bootstrap) as admin:
        await admin.create_topic(topic, PARTITIONS, replication_factor=3)
        workers = [Worker(cluster, topic, books) for _ in range(MEMBERS)]
        async with Traffic(cluster.bootstrap, topic, PARTITIONS, records=5, pause=0.05) as traffic:
            for number in range(int(SECONDS / KILL_EVERY_S)):
                await asyncio.sleep(KILL_EVERY_S)  # the schedule of the kills is the subject of this test
                for worker in workers:
                    worker.check()
                await workers.pop(0).die()
                node = rng.randrange(3) if number % 3 else await coordinator_of(admin)
                cluster.kill_node(node)
                cluster.start_node(node)
                workers.append(Worker(cluster, topic, books))
        ends = traffic.acknowledged_counts

        async def all_read() -> bool:
            for worker in workers:
                worker.check()
            return all(len(seen) >= end for seen, end in zip(books.read, ends, strict=True))

        await eventually(all_read, f"everything up to {ends} is read")
        for worker in workers:
            await worker.stop()
    await asyncio.to_thread(cluster.wait_ready, PATIENCE_S)  # the node killed last may not take a signal yet
    assert [seen == set(range(end)) for seen, end in zip(books.read, ends, strict=True)] == [True] * PARTITIONS
    assert books.tenures > PARTITIONS, "partitions changed owners"


async def coordinator_of(admin: Admin) -> int:
    async def look() -> int | None:
        return (await admin.describe_group("killed")).coordinator

    return await eventually(look, "the group has a coordinator")
