"""The reading of one `raftlog consume`: partitions of one or several topics, or as a member of a consumer group.

Both sources yield records of one partition at a time, with their number, and end after `timeout` seconds without new
records. `flushed` is called whenever the source is about to wait, and before a group's offsets may be committed: what
was yielded must be written by then, so that a member that dies has committed nothing that was not.
"""

from __future__ import annotations

import asyncio
import math
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Self

import msgspec

from .run import RecordColumns, runs

if TYPE_CHECKING:
    from raftlog.client import ConsumedBatch, Consumer
    from raftlog.client.groups.consumer import GroupConsumer

LONG = 3600.0
"""Maximum wait in seconds; without a timeout the wait is repeated."""
LOOK_EVERY = 0.1
"""Seconds between looks whether the end was reached, while only markers are left."""
POLL_RECORDS = 500

Flush = Callable[[], Awaitable[None]]


class Span(msgspec.Struct, frozen=True):
    """The offsets of a partition that are to be read: `[start, end)`, as they were at the beginning."""

    topic: str
    partition: int
    start: int
    end: int

    @property
    def offsets(self) -> int:
        return max(0, self.end - self.start)


class Source(ABC):
    """A source of records; use it with `async with`."""

    @abstractmethod
    def records(
        self, flushed: Flush, max_records: int | None, timeout: float | None
    ) -> AsyncIterator[tuple[RecordColumns, int]]:
        """Yield records of one partition, and how many of them are to be shown."""

    @abstractmethod
    async def __aenter__(self) -> Self: ...

    @abstractmethod
    async def __aexit__(self, kind: type[BaseException] | None, *error: object) -> None: ...


class TopicSource(Source):
    """Reads partitions of topics from given offsets on, one consumer for each topic."""

    def __init__(self, consumers: Mapping[str, Consumer], until: Sequence[Span] = ()) -> None:
        """`until`: end when these partitions, which are all of them, are read; empty: never."""
        self._consumers = consumers
        self._ends = {(span.topic, span.partition): span.end for span in until if span.offsets}
        self._ends_somewhere = bool(until)
        self._stack = AsyncExitStack()
        self._reads: dict[str, asyncio.Task[ConsumedBatch | None]] = {}

    async def records(
        self, flushed: Flush, max_records: int | None, timeout: float | None
    ) -> AsyncIterator[tuple[RecordColumns, int]]:
        left = math.inf if max_records is None else max_records
        loop = asyncio.get_running_loop()
        heard_at = loop.time()
        while left and not self._is_over():
            batch = await self._next(0.0)
            if batch is None:
                await flushed()
                wait = LONG if timeout is None else max(0.0, heard_at + timeout - loop.time())
                batch = await self._next(min(wait, LOOK_EVERY) if self._ends_somewhere else wait)
                if batch is None and timeout is not None and loop.time() >= heard_at + timeout:
                    return
            if batch is not None:
                heard_at = loop.time()
                count = int(min(self._wanted(batch), left))
                left -= count
                if count:
                    yield batch, count

    async def __aenter__(self) -> Self:
        try:
            for consumer in self._consumers.values():
                await self._stack.enter_async_context(consumer)
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *error: object) -> None:
        for read in self._reads.values():
            read.cancel()
        await asyncio.gather(*self._reads.values(), return_exceptions=True)
        await self._stack.aclose()

    async def _next(self, wait: float) -> ConsumedBatch | None:
        """Return the next batch of any topic, or None after `wait` seconds."""
        if len(self._consumers) == 1:
            (only,) = self._consumers.values()
            return await only.next_batch(timeout=wait)
        loop = asyncio.get_running_loop()
        for topic, consumer in self._consumers.items():
            # A read goes on while others are served: it is cancelled only at the end, or it would be begun again.
            if topic not in self._reads:
                self._reads[topic] = loop.create_task(consumer.next_batch(timeout=LONG))
        done, _ = await asyncio.wait(
            self._reads.values(), timeout=max(wait, 0.001), return_when=asyncio.FIRST_COMPLETED
        )
        for topic, read in list(self._reads.items()):
            if read in done:
                # The topic that was served goes to the end of the queue.
                del self._reads[topic]
                batch = read.result()
                if batch is not None:
                    return batch
        return None

    def _is_over(self) -> bool:
        if not self._ends_somewhere or any(read.done() for read in self._reads.values()):
            return False  # a batch that was read and not shown is behind its consumer's position
        for topic, partition in list(self._ends):
            if self._consumers[topic].positions.get(partition, -1) >= self._ends[topic, partition]:
                del self._ends[topic, partition]
        return not self._ends

    def _wanted(self, batch: ConsumedBatch) -> int:
        """Return the number of records of a batch that were there at the beginning."""
        if not self._ends_somewhere:
            return len(batch)
        end = self._ends.get((batch.topic, batch.partition), -1)
        return len(batch) if batch.end_offset <= end else bisect_left(batch.offsets(), end)


class GroupSource(Source):
    """Reads as a member of a group, from its committed offsets on, and commits what was written."""

    def __init__(self, consumer: GroupConsumer) -> None:
        self._consumer = consumer

    async def records(
        self, flushed: Flush, max_records: int | None, timeout: float | None
    ) -> AsyncIterator[tuple[RecordColumns, int]]:
        left = math.inf if max_records is None else max_records
        loop = asyncio.get_running_loop()
        heard_at = loop.time()
        while left:
            wait = LONG if timeout is None else max(0.0, heard_at + timeout - loop.time())
            # The next poll, and the end, count the records of this one as processed.
            await flushed()
            records = await self._consumer.poll(int(min(POLL_RECORDS, left)), timeout=min(wait, 1.0))
            left -= len(records)
            for run in runs(records):
                yield run, len(run)
            if records:
                heard_at = loop.time()
            elif timeout is not None and loop.time() >= heard_at + timeout:
                return

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *error: object) -> None:
        await self._consumer.close(processed=kind is None)
