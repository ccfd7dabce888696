"""The audit log's lines as records of a topic, appended by this node through whichever broker leads the partition.

The topic is an ordinary one: the operator creates it, with replicas, retention and access rules as the trail deserves.
Every line is one record. Batches are not idempotent: when an outcome is unknown, its lines count as a gap rather than
being sent twice. Lines of batches that were acknowledged before count as written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TypeAlias

from metadata.view import ClusterView
from raftlog.errors import InvalidRequest, RetriableError, error_from_code
from raftlog.model import Acks, TopicPartition
from raftlog.ports import Clock
from raftlog.records.batch import Codec, encode
from raftlog.wire import ProducePartition, ProduceRequest, ProduceResponse

from .log import Written

BATCH_BYTES = 256 * 1024
TIMEOUT_MS = 10_000

Produce: TypeAlias = Callable[[ProduceRequest, Sequence[memoryview]], Awaitable[ProduceResponse]]


class TopicSink:
    """An `AuditSink` that appends to a topic. All calls are made on the broker's loop."""

    def __init__(self, topic: str, view: ClusterView, clock: Clock, produce: Produce) -> None:
        self._topic = topic
        self._view = view
        self._clock = clock
        self._produce = produce
        self._next_partition = 0
        self._task: asyncio.Task[None] | None = None

    @property
    def name(self) -> str:
        return f"topic {self._topic!r}"

    def write(self, lines: Sequence[bytes], written: Written) -> None:
        acknowledged = 0

        async def append() -> None:
            nonlocal acknowledged
            for batch in _batches(lines):
                await self._append_batch(batch)
                acknowledged += len(batch)

        self._task = asyncio.get_running_loop().create_task(append())
        self._task.add_done_callback(lambda done: written(_error_of(done), acknowledged))

    async def _append_batch(self, lines: Sequence[bytes]) -> None:
        partition = self._choose()
        packed = encode(
            [line.rstrip(b"\n") for line in lines], codec=Codec.LZ4, base_timestamp_ms=self._clock.wall_ms()
        )
        request = ProduceRequest(
            correlation_id=0,
            acks=Acks.ALL,
            timeout_ms=TIMEOUT_MS,
            partitions=[ProducePartition(partition.topic_id, partition.partition, len(packed))],
        )
        response = await self._produce(request, [memoryview(packed)])
        (answer,) = response.partitions
        if answer.error:
            raise error_from_code(answer.error, answer.detail)

    def _choose(self) -> TopicPartition:
        """Return the topic's next partition that has a leader."""
        topic = self._view.topic(self._topic)
        if topic is None:
            raise InvalidRequest("unknown_topic", f"create topic {self._topic!r}, or remove it from [security.audit]")
        for _ in range(topic.partition_count):
            self._next_partition = (self._next_partition + 1) % topic.partition_count
            record = self._view.partition(TopicPartition(topic.topic_id, self._next_partition))
            if record is not None and record.has_leader:
                return record.topic_partition
        raise RetriableError("leader_not_available", f"no partition of topic {self._topic!r} has a leader")


def _batches(lines: Sequence[bytes]) -> Iterator[list[bytes]]:
    """Yield the lines in batches of at most `BATCH_BYTES`, unless a single line is longer."""
    batch: list[bytes] = []
    size = 0
    for line in lines:
        if batch and size + len(line) > BATCH_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(line)
        size += len(line)
    if batch:
        yield batch


def _error_of(task: asyncio.Task[None]) -> BaseException | None:
    return asyncio.CancelledError() if task.cancelled() else task.exception()
