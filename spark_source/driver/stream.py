"""A streaming query on its driver, independent of Spark's classes: its start, the next offset, the tasks, and data
loss.

Spark calls from one thread, in one process that lives as long as the run. Every call is bounded, because a call that
hangs would hang the query.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace

from spark_source.connections import Connections
from spark_source.reading import losses, planning
from spark_source.reading.log_bounds import PartitionBounds, Picture, TopicBounds
from spark_source.reading.offsets import PartitionRange, SourceOffset, planned_ranges
from spark_source.reading.options import SourceOptions
from spark_source.reading.planning import TriggerGate
from spark_source.reading.splitting import split

from .cluster import RETRY_PAUSE_S, Cluster, ReadTopic
from .group_progress import GroupProgress
from .latest import LatestBounds
from .subscription import STALE_NODE_S, check_all_there, missing_topics, start_of, surely_lost, surely_readable

logger = logging.getLogger("raftlog.spark")

PROGRESS_WAIT_S = 2.0
"""Seconds that a query that ends on its own waits for its progress to be committed."""


class StreamDriver:
    """One run of a query. Used from one thread; must be closed."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._connections = Connections(options.cluster)
        self._cluster = Cluster(self._connections.api, options)
        self._latest = LatestBounds(self._cluster, options.request_timeout_ms / 1000)
        self._progress = None if options.group is None else GroupProgress(self._cluster, options.group)
        self._gate = TriggerGate(options.min_offsets_per_trigger, options.max_trigger_delay_ms)
        self._initial: SourceOffset | None = None
        self._freeze = False
        self._frozen: Picture | None = None
        self._started = False
        self._done: SourceOffset | None = None
        """The last offset that is known to be processed."""
        self._told: set[str] = set()

    def close(self) -> None:
        """Close all connections. Idempotent."""
        if self._connections.usable:
            try:
                self._connections.run(self._close)
            finally:
                self._connections.close()

    # --- Offsets ------------------------------------------------------------------------------------------------------

    def initial(self) -> SourceOffset:
        """Return the start of a query without a checkpoint; the same at every call."""
        if self._initial is None:
            self._initial = self._connections.run(self._begin)
        return self._initial

    def freeze(self) -> None:
        """Read only the records that exist at the next call of `next` (`Trigger.AvailableNow`): by then the query's
        position is known, and an end below it is not accepted at once."""
        self._freeze = True

    def next(self, start: SourceOffset, limit: int | None, *, wait_for_enough: bool) -> SourceOffset:
        """Return the offset after `start`, which is processed; `start` itself if there is nothing to read, or too
        little."""
        return self._connections.run(lambda: self._next(start, limit, wait_for_enough))

    def latest(self) -> SourceOffset | None:
        """Return the ends of the logs regardless of limits, for the query's progress. None before the first read."""
        if self._done is None:
            return None
        done = self._done
        return self._connections.run(lambda: self._ends(done))

    # --- Tasks --------------------------------------------------------------------------------------------------------

    def plan(self, start: SourceOffset, end: SourceOffset) -> list[PartitionRange]:
        """Return one range per task. Raises `DataLoss`."""
        ranges = planned_ranges(start, end)
        readable = self._connections.run(lambda: self._readable(ranges)) if ranges else []
        return split(readable, self._options.min_partitions, self._options.max_records_per_partition)

    # --- On the loop --------------------------------------------------------------------------------------------------

    async def _close(self) -> None:
        if self._progress is not None:
            await self._progress.close()
        await self._latest.close()

    async def _begin(self) -> SourceOffset:
        picture = await self._latest.picture(fresh=True)
        deadline = asyncio.get_running_loop().time() + STALE_NODE_S
        while missing_topics(self._options, picture) and asyncio.get_running_loop().time() < deadline:
            self._cluster.ask_another()  # it may just have been created
            await asyncio.sleep(RETRY_PAUSE_S)
            picture = await self._latest.picture(fresh=True)
        check_all_there(self._options, picture)
        return planning.begin(picture, await start_of(self._cluster, self._options, picture))

    async def _next(self, start: SourceOffset, limit: int | None, wait_for_enough: bool) -> SourceOffset:
        if not self._started:
            self._latest.expect(start)
            self._cluster.expect(start.topic_ids, start.ends)
            self._started = True
        self._publish(start)
        picture = await self._news(start)
        if wait_for_enough and self._frozen is None:
            now_ms = int(asyncio.get_running_loop().time() * 1000)
            if not self._gate.opens(planning.backlog(start, picture), now_ms):
                return start
        following = planning.advance(start, picture, limit)
        if self._frozen is not None and following == start and self._progress is not None:
            await self._progress.written(PROGRESS_WAIT_S)
        return following

    async def _news(self, start: SourceOffset) -> Picture:
        """Return the ranges to read after `start`, once losses are reported."""
        if self._frozen is not None:
            return self._frozen
        picture = await self._latest.picture(fresh=self._freeze)
        if losses.since(start, picture):
            self._tell(await surely_lost(self._cluster, lambda: self._lost_since(start)))
            picture = await self._latest.picture()
        if self._freeze:
            self._frozen = picture
        return picture

    async def _lost_since(self, start: SourceOffset) -> list[losses.Loss]:
        return await self._still_subscribed(losses.since(start, await self._latest.picture(fresh=True)))

    async def _ends(self, done: SourceOffset) -> SourceOffset:
        return planning.advance(done, await self._latest.picture(), None)

    def _publish(self, done: SourceOffset) -> None:
        if self._done != done:
            self._done = done
            if self._progress is not None:
                self._progress.publish(done)

    async def _still_subscribed(self, lost: Sequence[losses.Loss]) -> list[losses.Loss]:
        """Return the losses without those of topics that exist but that the options no longer name: these are left
        out on purpose."""
        gone = {loss.topic for loss in lost if loss.kind is losses.LossKind.DELETED}
        there = await self._cluster.named(sorted(gone)) if gone else {}
        for name in there:
            self._say(f"the query no longer reads topic {name}: its options do not name it")
        return [loss for loss in lost if loss.topic not in there]

    async def _readable(self, ranges: Sequence[PartitionRange]) -> list[PartitionRange]:
        readable, lost = await surely_readable(self._cluster, ranges, lambda: self._bounds(ranges))
        self._tell(lost)
        return readable

    async def _bounds(self, ranges: Sequence[PartitionRange]) -> Picture:
        """Return the present bounds of these topics. A partition whose leader is unreachable, or does not know its end
        yet, is assumed to have the whole range: its task will find out."""
        planned = {(one.topic_id, one.partition): one for one in ranges}
        topics = await self._topics_of(ranges)
        partitions: dict[str, dict[int, PartitionBounds]] = {name: {} for name in topics}
        for (topic_id, partition), answer in (await self._cluster.bounds(topics)).items():
            one = planned[topic_id, partition]
            start = answer.start if isinstance(answer, PartitionBounds) else one.start
            end = answer.end if isinstance(answer, PartitionBounds) else one.end
            partitions[one.topic][partition] = PartitionBounds(start, max(end, one.end))
        return {name: TopicBounds(name, topic.topic_id, partitions[name]) for name, topic in topics.items()}

    async def _topics_of(self, ranges: Sequence[PartitionRange]) -> dict[str, ReadTopic]:
        """Return the topics of these ranges, each with the partitions concerned; looked up only if that was not done a
        moment ago."""
        planned: dict[tuple[str, str], list[int]] = {}
        for one in ranges:
            planned.setdefault((one.topic, one.topic_id), []).append(one.partition)
        known = self._latest.topics
        sure = {name for name, topic_id in planned if name in known and known[name].topic_id == topic_id}
        topics = {name: known[name] for name in sure}
        topics |= await self._cluster.named(sorted({name for name, _ in planned} - sure))
        return {
            name: replace(topic, partitions=tuple(planned.get((name, topic.topic_id), ())))
            for name, topic in topics.items()
        }

    # --- Losses -------------------------------------------------------------------------------------------------------

    def _tell(self, lost: Sequence[losses.Loss]) -> None:
        if lost and self._options.fail_on_data_loss:
            raise losses.DataLoss(lost)
        for loss in lost:
            self._say(f"continuing without {loss}")

    def _say(self, text: str) -> None:
        """Log a loss once per run: every trigger finds it again."""
        if text not in self._told and len(self._told) < 10_000:
            self._told.add(text)
            logger.warning("%s", text)
