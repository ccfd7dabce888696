"""Clients of a cluster whose nodes are replaced one after the other. None of them may see an error.

`RollingClients` is a producer with `acks=all`, a transactional producer that also commits a group's offsets, and a
consumer group of two members. An exception in any of them ends the test. `check` compares what was acknowledged with
what the cluster has: nothing lost, nothing twice, order kept (S1, S2), transactions whole (S13), offsets in place (S8).
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from types import TracebackType

from raftlog import Admin, Consumer, Producer
from tests.support.clusters.cluster import PATIENCE_S, eventually
from tests.support.clusters.traffic import Traffic, check_exactly

ACKED, COPIES = "acknowledged", "copies"
PARTITIONS = 3


class Copying:
    """A program that reads a topic as a member of a group and writes transactions, exactly once.

    It has no handling of errors: an error of the client is a failure of the test.
    """

    def __init__(self, bootstrap: str) -> None:
        self._consumer = Consumer.subscribe(
            bootstrap, "copies", [ACKED], auto_offset_reset="earliest", enable_auto_commit=False
        )
        self._producer = Producer(bootstrap, transactional_id="copies-1")
        self._stopping = asyncio.Event()
        self.copied: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
        """The values that were committed, by partition of the source and of the copy."""
        self.transactions = 0

    async def run(self) -> None:
        async with self._consumer as consumer, self._producer as producer:
            while not self._stopping.is_set():
                records = await consumer.poll(timeout=0.5)
                if not records:
                    continue
                async with producer.transaction() as transaction:
                    for record in records:
                        transaction.send(COPIES, record.value, partition=record.partition)
                    transaction.send_offsets(consumer)
                self.transactions += 1
                for record in records:
                    assert record.value is not None
                    self.copied[record.partition].append(record.value)

    def stop(self) -> None:
        self._stopping.set()


class Reading:
    """Two members of a group that read everything and commit as they go."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._stopping = asyncio.Event()
        self.read: list[set[bytes]] = [set() for _ in range(PARTITIONS)]

    async def member(self) -> None:
        async with Consumer.subscribe(
            self._bootstrap, "readers", [ACKED], auto_offset_reset="earliest", auto_commit_interval_ms=200
        ) as consumer:
            while not self._stopping.is_set():
                for record in await consumer.poll(timeout=0.5):
                    assert record.value is not None
                    self.read[record.partition].add(record.value)

    def stop(self) -> None:
        self._stopping.set()


class RollingClients:
    """All clients; they run while the block runs. At its end everything is stopped in order and checked."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._stack = AsyncExitStack()
        self.traffic = Traffic(bootstrap, ACKED, PARTITIONS, records=10, pause=0.02)
        self.copying = Copying(bootstrap)
        self.reading = Reading(bootstrap)
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> RollingClients:
        async with Admin(self._bootstrap) as admin:
            for topic in (ACKED, COPIES):
                await admin.create_topic(topic, PARTITIONS, replication_factor=3)
        await self._stack.enter_async_context(self.traffic)
        programs = (self.copying.run(), self.reading.member(), self.reading.member())
        self._tasks = [asyncio.create_task(program) for program in programs]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                await self._finish()
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            if kind is not None:
                await self._stack.__aexit__(kind, error, traceback)

    def raise_errors(self) -> None:
        """Raise the error of a client that ended by one."""
        for task in self._tasks:
            if task.done():
                task.result()

    async def progress(self) -> None:
        """Wait until every client has done more work."""
        copied, read = list(map(len, self.copying.copied)), list(map(len, self.reading.read))

        async def more() -> bool:
            self.raise_errors()
            now = (*map(len, self.copying.copied), *map(len, self.reading.read))
            return all(after > before for after, before in zip(now, (*copied, *read), strict=True))

        await self.traffic.grows(by=20)
        await eventually(more, "every client continues")

    async def _finish(self) -> None:
        """Stop writing, let the readers catch up, stop them, and check everything."""
        await self._stack.__aexit__(None, None, None)
        ends = self.traffic.acknowledged_counts

        async def caught_up() -> bool:
            self.raise_errors()
            return all(len(values) == end for values, end in zip(self.copying.copied, ends, strict=True)) and all(
                len(values) == end for values, end in zip(self.reading.read, ends, strict=True)
            )

        await eventually(caught_up, f"everything up to {ends} is read and copied")
        self.copying.stop()
        self.reading.stop()
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*self._tasks)
        await self.check()

    async def check(self) -> None:
        """Compare the cluster with what the clients were answered."""
        await check_exactly(self._bootstrap, self.traffic)
        for partition, values in zip(self.traffic.partitions, self.copying.copied, strict=True):
            assert values == partition.sent, "the copy has every record once, in order"
        await self._check_copies()
        async with Admin(self._bootstrap) as admin:
            for group in ("copies", "readers"):
                offsets = await admin.group_offsets(group)
                committed = {one.partition: one.offset for one in offsets}
                assert committed == dict(enumerate(self.traffic.acknowledged_counts)), (group, offsets)

    async def _check_copies(self) -> None:
        """Check that the topic of copies has each committed record once (S13). Markers are holes for its readers."""
        for number, values in enumerate(self.copying.copied):
            found: list[bytes | None] = []
            async with Consumer(self._bootstrap, COPIES, partitions=[number]) as consumer:
                while len(found) < len(values):
                    batch = await consumer.next_batch(timeout=30)
                    assert batch is not None, f"{COPIES}/{number} ends after {len(found)} of {len(values)} records"
                    found += batch.values()
                assert await consumer.next_batch(timeout=1) is None, "more records than were committed"
            assert found == values
