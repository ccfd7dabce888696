"""What a member of a group reads: a `Consumer` for each topic, and the offsets after what was handed out.

Topics are told apart by their ids: positions are committed under them. So the records of a topic that was deleted are
never handed out as those of another that has its name now, nor the other way round, whatever a node that is behind
says; and both may be assigned for a while.

A change of the assignment touches only the partitions that come or go: what was fetched ahead of the others stays. A
partition that is paused keeps its place and is not handed out, nor fetched.

A call that is cancelled must leave positions and readers in step, so whatever changes both never waits. Where a topic
is gone, its reader is closed, and made anew after a while: the group says what has become of the topic, and the node
that was asked may merely have been behind.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from ssl import SSLContext
from typing import NamedTuple

from raftlog.client.consuming.consumer import Consumer
from raftlog.client.consuming.records import ConsumerRecord
from raftlog.config import MIB
from raftlog.errors import RaftlogError

from .api import GroupPartition
from .starts import GONE

READ_AGAIN_SECONDS = 1.0


class Topic(NamedTuple):
    """One of those that have had this name."""

    name: str
    topic_id: str


def topic_of(partition: GroupPartition) -> Topic:
    """Of which it is."""
    return Topic(partition.topic, partition.topic_id)


class GroupReading:
    """Belongs to one event loop; `close` it."""

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        prefetch_bytes: int,
        on_out_of_range: str,
        isolation: str,
        ssl: SSLContext | None,
    ) -> None:
        """`prefetch_bytes`: of all topics together, each of which gets a share, one MiB at least."""
        self._bootstrap = bootstrap
        self._prefetch_bytes = prefetch_bytes
        self._on_out_of_range = on_out_of_range
        self._isolation = isolation
        self._ssl = ssl
        self.positions: dict[GroupPartition, int] = {}
        """What is read → the next offset to hand out."""
        self.paused: set[GroupPartition] = set()
        """Of those."""
        self._readers: dict[Topic, Consumer] = {}
        self._again_at: dict[Topic, float] = {}
        """Topics whose reader failed, and when they get another, in loop time."""
        self._former: set[asyncio.Task[None]] = set()
        """Former readers that let go of their connections."""
        self._ahead: deque[tuple[GroupPartition, ConsumerRecord]] = deque()
        """Came with others that were handed out."""

    # --- Records -----------------------------------------------------------------------------------------------------

    def hand_out(self, max_records: int) -> list[ConsumerRecord]:
        """Of those that are here."""
        records: list[ConsumerRecord] = []
        while self._ahead and len(records) < max_records:
            partition, record = self._ahead.popleft()
            assert partition in self.positions, f"{partition} is read and not assigned"
            self.positions[partition] = record.offset + 1
            records.append(record)
        if not self._ahead:
            self._move_over_holes()
        return records

    def _move_over_holes(self) -> None:
        """Behind the last record there may be markers, and records of transactions that were aborted: who has read all
        that there is has no lag, and commits where the next one will be."""
        read = {topic: reader.positions for topic, reader in self._readers.items()}
        for partition, position in self.positions.items():
            further = read.get(topic_of(partition), {}).get(partition.partition, -1)
            if further > position and partition not in self.paused:
                self.positions[partition] = further

    async def wait(self, max_records: int, deadline: float, wanted: asyncio.Event) -> bool:
        """Until some reader has records, or `wanted` is set; false when the deadline, in loop time, passed."""
        loop = asyncio.get_running_loop()
        if deadline <= loop.time():
            return False
        self._read_again(loop.time())
        left = min([deadline, *self._again_at.values()]) - loop.time()
        reads = {
            topic: loop.create_task(self._read(topic, reader, max_records, left))
            for topic, reader in sorted(self._readers.items())
        }
        waits = loop.create_task(wanted.wait())
        try:
            await asyncio.wait([*reads.values(), waits], timeout=left, return_when=asyncio.FIRST_COMPLETED)
        finally:
            # Who is stopped while it waits has taken nothing.
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
        return bool(self._ahead) or loop.time() < deadline

    @property
    def lag(self) -> dict[GroupPartition, int]:
        """How far positions are behind what may be read, where a leader has told that."""
        found = {}
        for partition, position in self.positions.items():
            reader = self._readers.get(topic_of(partition))
            end = None if reader is None else reader.end_offsets.get(partition.partition)
            if end is not None:
                found[partition] = max(0, end - position)
        return found

    # --- What is read ------------------------------------------------------------------------------------------------

    def begin(self, starts: Mapping[GroupPartition, int]) -> None:
        """Read these, too."""
        self.positions.update(starts)
        self._follow({topic_of(partition) for partition in starts})

    def stop(self, partitions: Iterable[GroupPartition]) -> None:
        """Read these no more."""
        gone = set(partitions)
        for partition in gone:
            self.positions.pop(partition, None)
        self.paused -= gone
        self._forget_ahead(gone)
        self._follow({topic_of(partition) for partition in gone})

    def seek(self, partition: GroupPartition, offset: int) -> None:
        """Go on there in a partition that is read."""
        self.positions[partition] = offset
        self._forget_ahead({partition})
        reader = self._readers.get(topic_of(partition))
        if reader is not None:
            reader.go_on_at(partition.partition, offset)

    def pause(self, partitions: Iterable[GroupPartition]) -> None:
        """Of those that are read."""
        paused = set(partitions)
        self.paused |= paused
        held_back = {partition for partition, _ in self._ahead}
        for partition in sorted(paused):
            if partition in held_back:
                self.seek(partition, self.positions[partition])
        self._pause_readers(paused)

    def resume(self, partitions: Iterable[GroupPartition]) -> None:
        """Of those that are paused."""
        resumed = set(partitions)
        self.paused -= resumed
        self._pause_readers(resumed)

    async def close(self) -> None:
        """Let go of all connections."""
        for topic in sorted(self._readers):
            self._close(topic)
        await asyncio.gather(*self._former)

    # --- Inside ------------------------------------------------------------------------------------------------------

    async def _read(self, topic: Topic, reader: Consumer, max_records: int, timeout: float) -> None:
        """What was taken is here in the same turn: whoever waits may be cancelled at any time, and more than once."""
        records = await reader.poll(max_records, timeout)
        self._ahead.extend((GroupPartition(topic.name, record.partition, topic.topic_id), record) for record in records)

    def _follow(self, topics: Iterable[Topic]) -> None:
        """The readers of these topics read what is assigned now."""
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
        share = self._prefetch_bytes // len({topic_of(partition) for partition in self.positions})
        self._readers[topic] = Consumer(
            self._bootstrap,
            topic.name,
            sorted(starts),
            starts,
            prefetch_bytes=max(MIB, share),
            on_out_of_range=self._on_out_of_range,
            isolation=self._isolation,
            topic_id=topic.topic_id,
            ssl=self._ssl,
        )
        self._pause_readers(partition for partition in self.paused if topic_of(partition) == topic)

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
