"""One range of offsets of one partition, read in order on an executor.

The leader may change meanwhile, and nodes may fail: the client's `Fetcher` continues with the next one. The range names
the topic's id, so another topic of the same name is never read. Missing records in the range are a loss, reported
by its kind (`spark_source/reading/losses.py`); with `failOnDataLoss=false` the reader continues after them.

A range may end in offsets without a record (transaction markers, compacted records), so its end is a position, not a
record. Every wait is bounded: `fetchTimeoutMs` without progress is an error.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from raftlog.client.cluster.api import HttpApi
from raftlog.client.consuming.fetcher import Fetcher
from raftlog.client.consuming.reader import PartitionReader
from raftlog.client.consuming.records import ConsumedBatch
from raftlog.client.settings import ConsumerSettings
from raftlog.config import KIB, MIB
from raftlog.errors import RaftlogError, RetriableError
from spark_source.driver.cluster import Cluster
from spark_source.driver.subscription import report, surely_readable
from spark_source.reading import losses
from spark_source.reading.log_bounds import END_GRACE_S, PartitionBounds, TopicBounds
from spark_source.reading.offsets import PartitionRange
from spark_source.reading.options import SourceOptions

PREFETCH_BYTES = 8 * MIB
"""The maximum number of bytes fetched ahead, which is also the most that is fetched needlessly beyond a range's end."""
PREFETCH_LEAST = 256 * KIB
PREFETCH_PER_OFFSET = KIB
"""Bytes fetched ahead per offset: a small range does not need more."""
TAKE_BYTES = 4 * MIB
"""The approximate bytes handed over at once: a call to another thread costs as much as a hundred records."""
LONG_POLL_S = 0.5
_LOSS_CODES = frozenset({"offset_out_of_range", "unknown_topic", "unknown_partition"})


class RangeReader:
    """Reads one range. Belongs to one event loop; must be closed."""

    def __init__(self, api: HttpApi, options: SourceOptions, one: PartitionRange) -> None:
        """The caller keeps the ownership of `api`."""
        self._api = api
        self._options = options
        self._cluster = Cluster(api, options)
        self._cluster.expect({one.topic: one.topic_id})
        self._range = one
        self._timeout = options.fetch_timeout_ms / 1000
        self._fetcher = self._open(one.start)
        self._over = not one.size

    async def close(self) -> None:
        await self._fetcher.close()

    async def take(self) -> list[ConsumedBatch]:
        """Return the next batches, of which the first and the last may extend beyond the range; none at its end.

        Raises `DataLoss`, or the `RaftlogError` that prevents further reading.
        """
        while not self._over:
            try:
                return await self._take()
            except RaftlogError as error:
                if error.code not in _LOSS_CODES:
                    raise
                await self._lost(error)
        return []

    # --- Inside -------------------------------------------------------------------------------------------------------

    def _open(self, start: int) -> Fetcher:
        partition = self._range.partition
        prefetch = min(max(self._range.size * PREFETCH_PER_OFFSET, PREFETCH_LEAST), PREFETCH_BYTES)
        settings = ConsumerSettings(prefetch_bytes=prefetch)
        topic_id = bytes.fromhex(self._range.topic_id)
        return Fetcher(self._api, self._range.topic, [partition], {partition: start}, settings, topic_id)

    async def _take(self) -> list[ConsumedBatch]:
        loop = asyncio.get_running_loop()
        began, reached = loop.time(), -1
        while True:
            reader = self._reader()
            batches = self._ready() if reader is not None else []
            if batches or self._over:
                return batches
            self._fetcher.check()
            if reader is not None and reader.fetch_offset > reached:
                began, reached = loop.time(), reader.fetch_offset
            waited = loop.time() - began
            if reader is not None and waited >= END_GRACE_S and self._seems_to_end(reader):
                self._ends_early(reader)
                return []
            if waited >= self._timeout:
                raise self._timed_out(reader)
            await self._fetcher.changed.wait(loop.time() + LONG_POLL_S)

    def _reader(self) -> PartitionReader | None:
        """Return the partition's reader, once a node has described the topic."""
        return self._fetcher.readers.get(self._range.partition)

    def _ready(self) -> list[ConsumedBatch]:
        """Return the fetched batches, up to the range's end."""
        batches: list[ConsumedBatch] = []
        size = 0
        while size < TAKE_BYTES and not self._over:
            reader = self._fetcher.next_ready()
            batch = None if reader is None else reader.take()
            if reader is None or batch is None:
                break
            reader.finished(batch)
            self._over = batch.end_offset >= self._range.end
            if batch.start_offset < self._range.end:
                batches.append(batch)
                size += batch.size_bytes
        reader = self._fetcher.readers[self._range.partition]
        self._over = self._over or reader.position >= self._range.end
        self._fetcher.took()
        return batches

    def _seems_to_end(self, reader: PartitionReader) -> bool:
        return 0 <= reader.readable_end <= reader.fetch_offset < self._range.end

    def _ends_early(self, reader: PartitionReader) -> None:
        """Whether the leader has had less than was committed at planning time, and for a long time."""
        name, number = self._range.topic, self._range.partition
        report(self._options, [losses.beyond_end(name, number, self._range.end, reader.readable_end)])
        self._over = True

    async def _lost(self, error: RaftlogError) -> None:
        """Ask the cluster why the client cannot continue. Raises `error` if nothing is lost."""
        reader = self._fetcher.readers.get(self._range.partition)
        position = self._range.start if reader is None else max(reader.position, self._range.start)
        left = self._range._replace(start=position)
        readable, lost = await surely_readable(self._cluster, [left], self._picture)
        if not lost:
            raise error
        report(self._options, lost)
        if not readable:
            self._over = True
            return
        self._range = readable[0]
        await self._fetcher.close()
        self._fetcher = self._open(self._range.start)

    async def _picture(self) -> dict[str, TopicBounds]:
        topics = await self._cluster.named([self._range.topic])
        topic = topics.get(self._range.topic)
        if topic is None:
            return {}
        if topic.topic_id != self._range.topic_id:
            return {topic.name: TopicBounds(topic.name, topic.topic_id, {})}
        chosen = replace(topic, partitions=(self._range.partition,))
        (bounds,) = (await self._cluster.bounds({topic.name: chosen})).values()
        if not isinstance(bounds, PartitionBounds):
            raise bounds
        return {topic.name: TopicBounds(topic.name, topic.topic_id, {self._range.partition: bounds})}

    def _timed_out(self, reader: PartitionReader | None) -> RetriableError:
        why = self._fetcher.last_error or self._api.last_error or "neither a record nor an error arrived"
        where = "its leader is not known" if reader is None else f"at offset {reader.position}"
        return RetriableError("request_timed_out", f"{self._range}: no record for {self._timeout:g} s ({where}): {why}")
