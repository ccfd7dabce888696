"""Refreshes a client's metadata on request, one refresh at a time.

While a partition changes its leader, refreshes follow one another every 20 to 100 ms; the third in a row begins with
another node, since the one that answered may be cut off from the quorum.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TypeAlias

from raftlog.api.topics import TopicDescription
from raftlog.errors import RaftlogError

from .api import HttpApi
from .attempts import attempt, cancel
from .connection_security import blames_credential
from .metadata import ClusterMetadata

PAUSE_MIN = 0.02
PAUSE_MAX = 0.1
REFRESH_TIMEOUT = 2.0
CALM = 1.0
"""Seconds without a refresh after which the next one does not count as a repetition."""

Refreshed: TypeAlias = Callable[[Mapping[str, TopicDescription | RaftlogError]], None]


class MetadataRefresher:
    """Refreshes metadata.

    Belongs to one event loop; `close` it.
    """

    def __init__(
        self, api: HttpApi, metadata: ClusterMetadata, refreshed: Refreshed, failed: Callable[[RaftlogError], None]
    ) -> None:
        """Configure the callbacks.

        `refreshed` gets what is known of the requested topics; `failed` gets the error if no node answered, which is
        retried unless the credential is the reason.
        """
        self._api = api
        self._metadata = metadata
        self._refreshed = refreshed
        self._failed = failed
        self._wanted: dict[str, None] = {}
        self._nodes_wanted = False
        self._in_a_row = 0
        self._last_end = -CALM
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def ask(self, topics: Iterable[str]) -> None:
        """Request a refresh of these topics and of the nodes, without waiting."""
        self._wanted.update(dict.fromkeys(topics))
        self._nodes_wanted = True
        if self._task is None and not self._closed:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        self._closed = True
        await cancel(self._task)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._nodes_wanted and not self._closed:
                await self._pause(loop.time())
                topics, self._wanted, self._nodes_wanted = list(self._wanted), {}, False
                again = partial(self._ask_again, topics)
                await attempt(self._refresh(topics), "refreshing the cluster's metadata", again)
                self._last_end = loop.time()
        finally:
            self._task = None

    async def _refresh(self, topics: list[str]) -> None:
        self._refreshed(await self._metadata.refresh(topics, timeout=REFRESH_TIMEOUT))

    def _ask_again(self, topics: list[str], error: RaftlogError) -> None:
        if blames_credential(error):
            self._failed(error)
            return
        self._wanted.update(dict.fromkeys(topics))
        self._nodes_wanted = True
        self._failed(error)

    async def _pause(self, now: float) -> None:
        if now - self._last_end >= CALM:
            self._in_a_row = 0
            return
        self._in_a_row += 1
        if self._in_a_row % 3 == 0:
            self._api.prefer_another()
        pause = min(PAUSE_MIN * 2 ** min(self._in_a_row - 1, 4), PAUSE_MAX)
        await asyncio.sleep(max(0.0, self._last_end + pause - now))
