"""Producer ids: requested from the cluster when the sequencer has none for its batches.

The request is harmless to repeat (only an id is lost), so it is retried until it succeeds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import msgspec

from raftlog.client.cluster.api import HttpApi
from raftlog.errors import RaftlogError

logger = logging.getLogger("raftlog.client")

PAUSE = 0.1
AFTER_A_BUG_SECONDS = 1.0
"""Seconds before the retry after an unexpected exception."""


class _Granted(msgspec.Struct):
    producer_id: int
    producer_epoch: int


class IdentitySource:
    """Requests producer ids.

    Belongs to one event loop; `close` it.
    """

    def __init__(
        self, api: HttpApi, granted: Callable[[int, int], None], failed: Callable[[RaftlogError], None]
    ) -> None:
        """`granted(producer_id, producer_epoch)` answers each `ask`; `failed` gets the error of each failed attempt."""
        self._api = api
        self._granted = granted
        self._failed = failed
        self._task: asyncio.Task[None] | None = None

    def ask(self) -> None:
        """Request a producer id; no effect while a request is in flight."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        while True:
            try:
                granted = await self._api.post("/v1/producers", _Granted)
            except RaftlogError as error:
                self._failed(error)
                await asyncio.sleep(PAUSE)
            except Exception as error:  # without this task, no id would be requested again
                logger.exception("requesting a producer id failed")
                self._failed(RaftlogError("internal_error", f"the client failed because of a bug: {error!r}"))
                await asyncio.sleep(AFTER_A_BUG_SECONDS)
            else:
                self._task = None
                self._granted(granted.producer_id, granted.producer_epoch)
                return
