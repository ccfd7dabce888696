"""A warning if a member of a group has no partitions because the topics that it subscribed to do not exist.

The group waits for such topics, since they may be created later. So a misspelt name is no error, and would look like a
topic without records.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from raftlog.api.topics import TopicDescription
from raftlog.client.cluster.api import HttpApi
from raftlog.client.cluster.attempts import attempt, cancel
from raftlog.client.cluster.metadata import topic_path
from raftlog.errors import InvalidRequest, RaftlogError

logger = logging.getLogger("raftlog.client")

LOOK_AFTER = 3.0
"""Seconds that a member has no partitions before it looks for its topics."""


class MissingTopics:
    """Looks once for the topics of a member that has no partitions. Belongs to one event loop; `close` it."""

    def __init__(self, api: HttpApi, group: str, topics: Sequence[str], pattern: str) -> None:
        self._api = api
        self._group = group
        self._topics = topics
        self._pattern = pattern
        self._since: float | None = None
        """Loop time since which the member has no partitions."""
        self._task: asyncio.Task[None] | None = None

    def polled(self, *, has_partitions: bool) -> None:
        """Note a poll of a member; look if it has had no partitions for a while."""
        loop = asyncio.get_running_loop()
        if has_partitions:
            self._since = None
        elif self._since is None:
            self._since = loop.time()
        elif self._task is None and loop.time() - self._since >= LOOK_AFTER:
            self._task = loop.create_task(self._look())

    async def close(self) -> None:
        await cancel(self._task)

    async def _look(self) -> None:
        missing: list[str] = []
        for topic in self._topics:
            if await attempt(self._exists(topic), "looking for a topic", self._unanswered) is False:
                missing.append(topic)
        if missing:
            named = ", ".join(map(repr, missing))
            logger.warning(
                "group %r reads nothing: there is no topic %s; it will be read once it is created", self._group, named
            )
        elif not self._topics:
            told = "group %r reads nothing: it has as many members as partitions already, or no topic matches %r"
            logger.warning(told, self._group, self._pattern)

    async def _exists(self, topic: str) -> bool:
        try:
            await self._api.get(topic_path(topic), TopicDescription)
        except InvalidRequest as error:
            return error.code != "unknown_topic"
        return True

    def _unanswered(self, error: RaftlogError) -> None:
        logger.debug("the cluster did not say whether a topic exists: %s", error)
