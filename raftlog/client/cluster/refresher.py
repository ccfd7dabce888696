"""Refreshes a client's metadata on request, one refresh at a time.

While a partition changes its leader, refreshes follow one another every 20 to 100 ms; the third in a row begins with
another node, since the one that answered may be cut off from the quorum.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

from raftlog.errors import RaftlogError

from .api import HttpApi
from .metadata import ClusterMetadata, TopicDescription

logger = logging.getLogger("raftlog.client")

AFTER_A_BUG_SECONDS = 1.0
"""Seconds before the retry after an unexpected exception."""

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
        retried.
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
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._nodes_wanted and not self._closed:
                await self._pause(loop.time())
                topics, self._wanted, self._nodes_wanted = list(self._wanted), {}, False
                try:
                    answers = await self._metadata.refresh(topics, timeout=REFRESH_TIMEOUT)
                    self._refreshed(answers)
                except RaftlogError as error:
                    self._ask_again(topics, error)
                except Exception as error:  # the waiters for these topics would wait forever
                    logger.exception("refreshing the cluster's metadata failed")
                    self._ask_again(
                        topics, RaftlogError("internal_error", f"the client failed because of a bug: {error!r}")
                    )
                    await asyncio.sleep(AFTER_A_BUG_SECONDS)
                self._last_end = loop.time()
        finally:
            self._task = None

    def _ask_again(self, topics: list[str], error: RaftlogError) -> None:
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
