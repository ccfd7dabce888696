"""The topics that a group member reads: one `TopicConsumer` per topic, and the offsets after the records handed out.

Topics are identified by their ids, under which positions are committed. So records of a deleted topic are never handed
out as those of a new topic with the same name, nor the reverse, even if a node is stale; both may be assigned for a
while.

A change of the assignment affects only the partitions that come or go; the prefetched records of the others stay. A
paused partition keeps its position and is neither handed out nor fetched.

A cancelled call must leave positions and readers consistent, so code that changes both never waits. If a topic is gone,
its reader is closed, and opened again after a while: only the group knows whether the topic was deleted, and the node
that said so may have been stale.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from raftlog.api.groups import GroupPartition
from raftlog.client.consuming.counts import ReadCounts
from raftlog.client.consuming.records import ConsumedBatch, ConsumerRecord
from raftlog.client.consuming.topic_consumer import TopicConsumer
from raftlog.client.settings import ConsumerSettings, GroupConsumerSettings
from raftlog.config import MIB
from raftlog.errors import RaftlogError

from .starts import GONE

READ_AGAIN_SECONDS = 1.0


class Topic(NamedTuple):
    """One of the topics that have had this name."""

    name: str
    topic_id: str


def topic_of(partition: GroupPartition) -> Topic:
    """Return the partition's topic."""
    return Topic(partition.topic, partition.topic_id)


class GroupReading:
    """Reads the assigned partitions.

    It belongs to one event loop; `close` it.
    """

    def __init__(self, bootstrap: str | Sequence[str], settings: GroupConsumerSettings) -> None:
        self._bootstrap = bootstrap
        self._settings = settings
        self.positions: dict[GroupPartition, int] = {}
        """Next offset to hand out, by partition that is read."""
        self.paused: set[GroupPartition] = set()
        """Partitions among them that are paused."""
        self.counts = ReadCounts()
        """The counts of what all readers fetched, former ones too."""
        self._readers: dict[Topic, TopicConsumer] = {}
        self._again_at: dict[Topic, float] = {}
        """Topics whose reader failed, with the loop time at which they get a new one."""
        self._former: set[asyncio.Task[None]] = set()
        """Former readers that are closing their connections."""
        self._ahead: deque[tuple[GroupPartition, ConsumerRecord]] = deque()
        """Records that were fetched together with others that were handed out."""
        self._batches: deque[tuple[GroupPartition, ConsumedBatch]] = deque()
        """Batches that were fetched together with others that were handed out."""

    # --- Records -----------------------------------------------------------------------------------------------------

    def look_ahead(self, max_records: int) -> list[ConsumerRecord]:
        """Return up to `max_records` of the records that are here, without handing them out."""
        self._give_back(self._batches)
        if not self._ahead:
            self._move_over_holes()
        return [record for _, record in islice(self._ahead, max_records)]

    def hand_out(self, max_records: int) -> list[ConsumerRecord]:
        """Return up to `max_records` of the records that are here."""
        records: list[ConsumerRecord] = []
        while self._ahead and len(records) < max_records:
            partition, record = self._ahead.popleft()
            assert partition in self.positions, f"{partition} is read but not assigned"
            self.positions[partition] = record.offset + 1
            records.append(record)
        if not self._ahead:
            self._move_over_holes()
        return records

    def next_batch(self) -> ConsumedBatch | None:
        """Hand out a batch that is here. It may have no records, if compaction or an abort removed all of them."""
        self._give_back(self._ahead)
        if not self._batches:
            self._move_over_holes()
            return None
        partition, batch = self._batches.popleft()
        assert partition in self.positions, f"{partition} is read but not assigned"
        self.positions[partition] = batch.end_offset
        if not self._batches:
            self._move_over_holes()
        return batch

    def _give_back(self, held: Iterable[tuple[GroupPartition, object]]) -> None:
        """Have what was fetched and not handed out fetched again, for a call that hands it out in another form."""
        for partition in sorted({partition for partition, _ in held}):
            self.seek(partition, self.positions[partition])

    def _move_over_holes(self) -> None:
        """Move positions past markers and aborted records behind the last record.

        So a consumer that has read everything has no lag, and commits the offset of the next record.
        """
        read = {topic: reader.positions for topic, reader in self._readers.items()}
        for partition, position in self.positions.items():
            further = read.get(topic_of(partition), {}).get(partition.partition, -1)
            if further > position and partition not in self.paused:
                self.positions[partition] = further

    async def wait(self, max_records: int, deadline: float, wanted: asyncio.Event, *, batches: bool = False) -> bool:
        """Wait until a reader has records, or a batch, or `wanted` is set.

        Returns False if the deadline (loop time) passed first.
        """
        loop = asyncio.get_running_loop()
        if deadline <= loop.time():
            return False
        self._read_again(loop.time())
        left = min([deadline, *self._again_at.values()]) - loop.time()
        reads = {
            topic: loop.create_task(
                self._read_batch(topic, reader, left) if batches else self._read(topic, reader, max_records, left)
            )
            for topic, reader in sorted(self._readers.items())
        }
        waits = loop.create_task(wanted.wait())
        try:
            await asyncio.wait([*reads.values(), waits], timeout=left, return_when=asyncio.FIRST_COMPLETED)
        finally:
            # A read that is cancelled while it waits has taken nothing.
            for task in (*reads.values(), waits):
                task.cancel()
            outcomes = await asyncio.gather(*reads.values(), waits, return_exceptions=True)
        for topic, outcome in zip(reads, outcomes, strict=False):
            if isinstance(outcome, RaftlogError) and outcome.code in GONE:
                self._close(topic)
                self._forget_ahead(partition for partition in self.positions if topic_of(partition) == topic)
                self._again_at[topic] = loop.time() + READ_AGAIN_SECONDS
            elif isinstance(outcome, Exception):
                raise outcome
        return bool(self._ahead or self._batches) or loop.time() < deadline

    @property
    def prefetched_bytes(self) -> int:
        """Bytes that were fetched ahead of the program."""
        return sum(reader.prefetched_bytes for reader in self._readers.values())

    @property
    def lag(self) -> dict[GroupPartition, int]:
        """Number of offsets between the position and the readable end, where a leader has reported it."""
        found = {}
        for partition, position in self.positions.items():
            reader = self._readers.get(topic_of(partition))
            end = None if reader is None else reader.end_offsets.get(partition.partition)
            if end is not None:
                found[partition] = max(0, end - position)
        return found

    @property
    def caught_up(self) -> bool:
        """True if partitions are read, and for all of them the position is known to be at the readable end."""
        lag = self.lag
        return bool(lag) and len(lag) == len(self.positions) and not any(lag.values())

    # --- Assignment --------------------------------------------------------------------------------------------------

    def begin(self, starts: Mapping[GroupPartition, int]) -> None:
        """Begin to read these partitions as well."""
        self.positions.update(starts)
        self._follow({topic_of(partition) for partition in starts})

    def stop(self, partitions: Iterable[GroupPartition]) -> None:
        """Stop reading these partitions."""
        gone = set(partitions)
        for partition in gone:
            self.positions.pop(partition, None)
        self.paused -= gone
        self._forget_ahead(gone)
        self._follow({topic_of(partition) for partition in gone})

    def seek(self, partition: GroupPartition, offset: int) -> None:
        """Continue at `offset` in a partition that is read."""
        self.positions[partition] = offset
        self._forget_ahead({partition})
        reader = self._readers.get(topic_of(partition))
        if reader is not None:
            reader.go_on_at(partition.partition, offset)

    def pause(self, partitions: Iterable[GroupPartition]) -> None:
        """Pause partitions that are read."""
        paused = set(partitions)
        self.paused |= paused
        held_back = {partition for partition, _ in (*self._ahead, *self._batches)}
        for partition in sorted(paused):
            if partition in held_back:
                self.seek(partition, self.positions[partition])
        self._pause_readers(paused)

    def resume(self, partitions: Iterable[GroupPartition]) -> None:
        """Resume partitions that are paused."""
        resumed = set(partitions)
        self.paused -= resumed
        self._pause_readers(resumed)

    async def close(self) -> None:
        """Close all connections."""
        for topic in sorted(self._readers):
            self._close(topic)
        await asyncio.gather(*self._former)

    # --- Inside ------------------------------------------------------------------------------------------------------

    async def _read(self, topic: Topic, reader: TopicConsumer, max_records: int, timeout: float) -> None:
        """Poll one reader, and queue its records without waiting in between.

        The caller may be cancelled at any time, and more than once.
        """
        records = await reader.poll(max_records, timeout)
        self._ahead.extend((GroupPartition(topic.name, record.partition, topic.topic_id), record) for record in records)

    async def _read_batch(self, topic: Topic, reader: TopicConsumer, timeout: float) -> None:
        """Take the next batch of one reader, and queue it without waiting in between, as `_read` does."""
        batch = await reader.next_batch(timeout)
        if batch is not None:
            self._batches.append((GroupPartition(topic.name, batch.partition, topic.topic_id), batch))

    def _follow(self, topics: Iterable[Topic]) -> None:
        """Make the readers of these topics follow the present assignment."""
        for topic in sorted(topics):
            starts = {one.partition: offset for one, offset in self.positions.items() if topic_of(one) == topic}
            reader = self._readers.get(topic)
            if not starts:
                self._close(topic)
                self._again_at.pop(topic, None)
            elif reader is not None:
                reader.assign(starts)
            elif topic not in self._again_at:
                self._open(topic, starts)

    def _open(self, topic: Topic, starts: Mapping[int, int]) -> None:
        self._readers[topic] = reader = TopicConsumer(
            self._bootstrap, topic.name, sorted(starts), starts, topic_id=topic.topic_id, settings=self._of_one_topic()
        )
        reader.counts = self.counts
        self._pause_readers(partition for partition in self.paused if topic_of(partition) == topic)

    def _of_one_topic(self) -> ConsumerSettings:
        """Return the settings of one topic's consumer, with an equal share of `prefetch_bytes`, at least one MiB."""
        own = self._settings
        share = own.prefetch_bytes // len({topic_of(partition) for partition in self.positions})
        return ConsumerSettings(
            prefetch_bytes=max(MIB, share),
            on_out_of_range=own.auto_offset_reset,
            isolation=own.isolation,
            **own.connection,
        )

    def _close(self, topic: Topic) -> None:
        reader = self._readers.pop(topic, None)
        if reader is not None:
            closing = asyncio.get_running_loop().create_task(reader.close())
            self._former.add(closing)
            closing.add_done_callback(self._former.discard)

    def _read_again(self, now: float) -> None:
        for topic in [topic for topic, due in self._again_at.items() if due <= now]:
            del self._again_at[topic]
            self._follow([topic])

    def _pause_readers(self, partitions: Iterable[GroupPartition]) -> None:
        for partition in partitions:
            reader = self._readers.get(topic_of(partition))
            if reader is not None and partition in self.paused:
                reader.pause([partition.partition])
            elif reader is not None:
                reader.resume([partition.partition])

    def _forget_ahead(self, partitions: Iterable[GroupPartition]) -> None:
        gone = set(partitions)
        self._ahead = deque(one for one in self._ahead if one[0] not in gone)
        self._batches = deque(one for one in self._batches if one[0] not in gone)
