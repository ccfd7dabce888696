"""Load on a cluster during faults, and the check of its records afterwards.

`Traffic` is one idempotent producer that writes numbered records to every partition of a topic until it is stopped, in
order, and records acknowledgements with their offsets. `Reading` is everything that can be read. `check_exactly` is S1
and S2: no acknowledged record is missing, duplicated, changed, moved or out of order.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from raftlog import Consumer, Producer
from raftlog.client import Delivery, DeliveryFuture
from raftlog.errors import ClientClosed, RaftlogError, RetriableError


class PartitionTraffic:
    """One partition: the sent records, in order, and their results."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.sent: list[bytes] = []
        self.deliveries: dict[DeliveryFuture, None] = {}
        self.acknowledged_at: list[float] = []
        """Monotonic times of acknowledgements."""

    @property
    def acknowledged(self) -> list[Delivery]:
        """In the order in which they were sent."""
        return [d.result() for d in self.deliveries if d.done() and d.exception() is None]

    @property
    def acknowledged_count(self) -> int:
        return sum(delivery.count for delivery in self.acknowledged)

    def remember(self, deliveries: Sequence[DeliveryFuture]) -> None:
        for delivery in deliveries:
            if delivery not in self.deliveries:
                self.deliveries[delivery] = None
                delivery.add_done_callback(self._done)

    def _done(self, delivery: DeliveryFuture) -> None:
        if delivery.exception() is None:
            self.acknowledged_at.append(time.monotonic())


class Traffic:
    """A producer that writes until `stop`. The topic must be used by this producer only. `async with`: it writes while
    the block runs, and at its end every sent record must be acknowledged."""

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        partitions: int,
        *,
        records: int = 20,
        pause: float = 0.01,
        name: str = "",
        first: Sequence[int] | None = None,
        client: Mapping[str, Any] | None = None,
    ) -> None:
        """`records` go to each partition every `pause` seconds. `first`: the offsets at which this traffic begins.
        `client`: further options of the client, such as credentials."""
        self.topic = topic
        self.partitions = [PartitionTraffic(number) for number in range(partitions)]
        self.first = list(first or [0] * partitions)
        self._name = name or topic
        self._records = records
        self._pause = pause
        self.client = dict(client or {})
        self._producer = Producer(bootstrap, linger_ms=2, delivery_timeout_ms=300_000, **self.client)
        self._task: asyncio.Task[None] | None = None
        self._stopping = False

    async def __aenter__(self) -> Traffic:
        await self._producer.prepare(self.topic)
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                await self.stop()
        finally:
            if self._task is not None:
                self._task.cancel()
                await asyncio.wait([self._task])
            await self._producer.close(flush=False)

    async def stop(self) -> None:
        """Stop sending, and wait until all records are acknowledged."""
        self._stopping = True
        if self._task is not None:
            await self._task
        await self._producer.flush()

    async def give_up(self) -> None:
        """Abandon the producer, as if its process had died: unacknowledged records may be lost."""
        self._stopping = True
        if self._task is not None:
            await self._task
        await self._producer.close(flush=False)

    @property
    def acknowledged_counts(self) -> list[int]:
        return [partition.acknowledged_count for partition in self.partitions]

    async def grows(self, *, by: int = 1, within: float = 60.0) -> None:
        """Wait until every partition has this number of additional acknowledged records."""
        before = self.acknowledged_counts
        async with asyncio.timeout(within):
            while any(now < then + by for now, then in zip(self.acknowledged_counts, before, strict=True)):  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    async def _run(self) -> None:
        while not self._stopping:
            for partition in self.partitions:
                start = len(partition.sent)
                values = [f"{self._name}/{partition.number}/{start + i}".encode() for i in range(self._records)]
                partition.sent += values
                try:
                    queued = await self._producer.send_many(self.topic, values, partition=partition.number)
                except (ClientClosed, RetriableError) as error:
                    assert error.code == "shutting_down", error
                    return
                partition.remember(queued)
            await asyncio.sleep(self._pause)


async def read_all(
    bootstrap: str, topic: str, partitions: int, *, ends: Sequence[int], client: Mapping[str, Any] | None = None
) -> list[list[bytes | None]]:
    """By partition: every value below these offsets, and the following ones of the same batches. Offsets must be dense
    (S2)."""
    found: list[list[bytes | None]] = [[] for _ in range(partitions)]
    async with Consumer(bootstrap, topic, **(client or {})) as consumer:
        while any(len(values) < end for values, end in zip(found, ends, strict=True)):
            try:
                batch = await consumer.next_batch(timeout=30)
            except RaftlogError as error:
                raise AssertionError(f"{topic} cannot be read: {error}") from error
            assert batch is not None, f"{topic} ends at {list(map(len, found))}, acknowledged are {list(ends)}"
            assert batch.start_offset == len(found[batch.partition]), batch
            found[batch.partition] += batch.values()
    return found


async def check_exactly(bootstrap: str, traffic: Traffic, *, all_acknowledged: bool = True) -> None:
    """Check that acknowledged records are in the log once, unchanged, in order, at the offsets of their
    acknowledgements.

    With `all_acknowledged` the log has no other records; otherwise the next sent ones may follow.
    """
    ends = [first + count for first, count in zip(traffic.first, traffic.acknowledged_counts, strict=True)]
    found = await read_all(bootstrap, traffic.topic, len(traffic.partitions), ends=ends, client=traffic.client)
    for partition, first, values in zip(traffic.partitions, traffic.first, found, strict=True):
        position = first
        for delivery in partition.acknowledged:
            assert delivery.partition == partition.number and delivery.base_offset == position, delivery
            position += delivery.count
        mine = values[first:]
        assert mine == partition.sent[: len(mine)], _first_difference(partition, mine)
        assert len(mine) >= partition.acknowledged_count
        if all_acknowledged:
            assert len(mine) == len(partition.sent) == partition.acknowledged_count


def _first_difference(partition: PartitionTraffic, found: Sequence[bytes | None]) -> str:
    for index, (sent, read) in enumerate(zip(partition.sent, found, strict=False)):
        if sent != read:
            return f"partition {partition.number}: {sent!r} was sent as number {index}, {read!r} was read"
    return f"partition {partition.number}: {len(found)} records were read, {len(partition.sent)} sent"
