"""A query's progress, written to a consumer group: `raftlog group describe` then shows how far Spark is behind.

Only for looking at: the query goes by its own checkpoint. So writing never holds a micro-batch up and never fails a
query: it happens beside it, the newest offsets win, and what goes wrong is logged, once for each kind of error.

Spark tells a source that a micro-batch is done when it plans the one after the next. But what it hands to
`latestOffset` as the start is the end of the last one that is done: that is what is written here, without a lag.
"""

from __future__ import annotations

import asyncio
import logging

from raftlog.client.groups.api import GroupPartition
from raftlog.errors import RaftlogError
from spark_source.reading.offsets import SourceOffset

from .cluster import Cluster

logger = logging.getLogger("raftlog.spark")


class GroupProgress:
    """Belongs to the loop of its `Cluster`; `close` it."""

    def __init__(self, cluster: Cluster, group: str) -> None:
        self._cluster = cluster
        self._group = group
        self._wanted: dict[GroupPartition, int] = {}
        self._written: dict[GroupPartition, int] = {}
        self._failed: dict[GroupPartition, int] = {}
        """What could not be written; it is not tried again before there is something newer."""
        self._task: asyncio.Task[None] | None = None
        self._told: set[str] = set()

    def publish(self, done: SourceOffset) -> None:
        """All below these offsets is done. Returns at once."""
        self._wanted = {
            GroupPartition(topic, partition, topic_id): offset
            for topic, topic_id, partition, offset in done.positions()
        }
        if self._task is None and self._wanted not in (self._written, self._failed):
            self._task = asyncio.get_running_loop().create_task(self._write())

    async def written(self, timeout_s: float) -> None:
        """Until what was published is written, or could not be, or the time is over."""
        if self._task is not None:
            await asyncio.wait([self._task], timeout=timeout_s)

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _write(self) -> None:
        try:
            while self._wanted != self._written:
                wanted = self._wanted
                news = {place: offset for place, offset in wanted.items() if self._written.get(place) != offset}
                try:
                    if news:
                        await self._cluster.commit(self._group, news)
                except RaftlogError as error:
                    self._failed = wanted
                    self._tell(error)
                    return
                except Exception:  # nobody else would hear of it
                    self._failed = wanted
                    logger.exception("the query's progress could not be written to the group %s", self._group)
                    return
                self._written = wanted
        finally:
            self._task = None

    def _tell(self, error: RaftlogError) -> None:
        if error.code not in self._told:
            self._told.add(error.code)
            logger.warning("the query's progress could not be written to the group %s: %s", self._group, error)
