"""The driver's cache of the logs' bounds, refreshed only as often as they can have changed.

Spark asks an idle query for its latest offset sixty times a second. Three rules keep that cheap:

* an answer is valid for `FRESH_S`;
* after `CALM_S` without a change, a long poll waits at the cluster, and the last answer stays valid until it ends;
* topics are looked up again only every `TOPICS_S`, or if a leader no longer knows one.

While the cluster is unreachable, the last answer remains valid for the query's `requestTimeoutMs`; then the query gets
the error. A partition without a leader keeps its last bounds and delays no other.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from raftlog.errors import RaftlogError, RetriableError
from spark_source.reading.log_bounds import KnownEnds, PartitionBounds, Picture, TopicBounds
from spark_source.reading.offsets import SourceOffset

from .cluster import RETRY_PAUSE_S, Cluster, ReadTopic

logger = logging.getLogger("raftlog.spark")

FRESH_S = 0.05
CALM_S = 1.0
TOPICS_S = 5.0
POLL_S = 5.0


class LatestBounds:
    """The cached bounds. Belongs to the event loop of its `Cluster`; one caller at a time. Must be closed before the
    cluster."""

    def __init__(self, cluster: Cluster, request_timeout_s: float) -> None:
        self._cluster = cluster
        self._timeout = request_timeout_s
        self._known = KnownEnds()
        self._topics: Mapping[str, ReadTopic] = {}
        self._topics_at = float("-inf")
        self._picture: dict[str, TopicBounds] = {}
        self._complete = False
        """Whether every partition has answered at least once."""
        self._asked_at = float("-inf")
        self._changed_at = float("-inf")
        self._poll: asyncio.Task[None] | None = None

    async def close(self) -> None:
        if self._poll is not None:
            self._poll.cancel()
            await asyncio.wait([self._poll])

    @property
    def topics(self) -> Mapping[str, ReadTopic]:
        """The topics of the last lookup, some seconds old; none before the first `picture`."""
        return self._topics

    def expect(self, start: SourceOffset) -> None:
        """Record that the logs have reached these offsets by a checkpoint: a lower end is not accepted for a while."""
        self._known.expect((topic_id, partition, offset) for _, topic_id, partition, offset in start.positions())

    async def picture(self, *, fresh: bool = False) -> Picture:
        """Return the subscribed topics with their bounds. `fresh`: bypass the cache.

        Raises a `RaftlogError` if the cluster is unreachable, or if the options name something impossible.
        """
        loop = asyncio.get_running_loop()
        if self._complete and not fresh:
            waiting = self._poll is not None and not self._poll.done()
            if waiting or loop.time() - self._asked_at < FRESH_S:
                return self._picture
        deadline = loop.time() + self._timeout
        while True:
            try:
                await self._ask(look_up=fresh)
            except RaftlogError as error:
                if not error.retriable or loop.time() >= deadline:
                    raise
                if self._complete and not fresh and loop.time() - self._asked_at < self._timeout:
                    return self._picture
            else:
                if self._complete:
                    self._poll_if_calm()
                    return self._picture
                if loop.time() >= deadline:
                    raise RetriableError("leader_not_available", self._missing())
            await asyncio.sleep(RETRY_PAUSE_S)

    # --- Inside -------------------------------------------------------------------------------------------------------

    async def _ask(self, *, look_up: bool) -> None:
        now = asyncio.get_running_loop().time()
        if look_up or now - self._topics_at >= TOPICS_S:
            self._topics = await self._cluster.subscribed()
            self._topics_at = now
        answers = await self._cluster.bounds(self._topics)
        now = asyncio.get_running_loop().time()
        picture: dict[str, TopicBounds] = {}
        complete, doubtful = True, False
        for name, topic in self._topics.items():
            partitions: dict[int, PartitionBounds] = {}
            before = self._picture.get(name)
            for partition in topic.partitions:
                answer = answers[topic.topic_id, partition]
                if isinstance(answer, PartitionBounds):
                    end = self._known.judge(topic.topic_id, partition, answer.end, now)
                    partitions[partition] = PartitionBounds(answer.start, end)
                    continue
                if not answer.retriable:
                    self._topics_at = float("-inf")  # the topic was deleted, or created again,
                    doubtful = True  # or this node is stale
                if before is not None and before.topic_id == topic.topic_id and partition in before.partitions:
                    partitions[partition] = before.partitions[partition]
                else:
                    complete = False
            picture[name] = TopicBounds(name, topic.topic_id, partitions)
        if doubtful:
            self._cluster.ask_another()
        self._known.forget_except(topic.topic_id for topic in self._topics.values())
        if picture != self._picture:
            self._changed_at = now
        self._picture, self._complete, self._asked_at = picture, complete, now

    def _missing(self) -> str:
        missing = [
            f"{name}/{partition}"
            for name, topic in self._topics.items()
            for partition in topic.partitions
            if partition not in self._picture[name].partitions
        ]
        return f"no leader reported the offsets of {', '.join(missing[:10])} within {self._timeout:g} s"

    def _poll_if_calm(self) -> None:
        loop = asyncio.get_running_loop()
        idle = self._poll is None or self._poll.done()
        if idle and loop.time() - self._changed_at >= CALM_S and not self._known.doubted():
            self._poll = loop.create_task(self._wait_for_news())

    async def _wait_for_news(self) -> None:
        ends = {
            (topic.topic_id, partition): bounds.end
            for topic in self._picture.values()
            for partition, bounds in topic.partitions.items()
        }
        if not ends:
            await asyncio.sleep(POLL_S)
            return
        try:
            await self._cluster.wait_for_news(ends, POLL_S)
        except RaftlogError as error:
            logger.debug("waiting for news ended: %s", error)  # whatever the error is, the next request reports it
            await asyncio.sleep(RETRY_PAUSE_S)
        except Exception:  # likewise; no caller awaits it
            logger.exception("waiting for news ended")
            await asyncio.sleep(RETRY_PAUSE_S)
