"""A query's progress as committed offsets of a consumer group: `raftlog group describe` shows Spark's lag.

It is informational only: the query follows its own checkpoint. So commits never delay a micro-batch and never fail a
query: they run concurrently, the newest offsets win, and an error is logged once for each kind.

Spark notifies a source of a completed micro-batch only when it plans the one after the next. But the start that it
passes to `latestOffset` is the end of the last completed one, so that is committed here, without delay.
"""

from __future__ import annotations

import asyncio
import logging

from raftlog.api.groups import GroupPartition
from raftlog.errors import RaftlogError
from spark_source.reading.offsets import SourceOffset

from .cluster import Cluster

logger = logging.getLogger("raftlog.spark")


class GroupProgress:
    """Commits a query's progress. Belongs to the event loop of its `Cluster`; must be closed."""

    def __init__(self, cluster: Cluster, group: str) -> None:
        self._cluster = cluster
        self._group = group
        self._wanted: dict[GroupPartition, int] = {}
        self._written: dict[GroupPartition, int] = {}
        self._failed: dict[GroupPartition, int] = {}
        """Offsets whose commit failed; they are retried only once there are newer ones."""
        self._task: asyncio.Task[None] | None = None
        self._told: set[str] = set()

    def publish(self, done: SourceOffset) -> None:
        """Record that all records below these offsets are processed. Does not block."""
        self._wanted = {
            GroupPartition(topic, partition, topic_id): offset
            for topic, topic_id, partition, offset in done.positions()
        }
        if self._task is None and self._wanted not in (self._written, self._failed):
            self._task = asyncio.get_running_loop().create_task(self._write())

    async def written(self, timeout_s: float) -> None:
        """Wait until the published offsets are committed, or have failed, or the time is over."""
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
                except Exception:  # logged here, because no caller awaits it
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
