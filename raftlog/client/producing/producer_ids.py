"""Producer ids: asked of the cluster when the sequencer has none to name batches with.

Asking twice does no harm (an id is lost), so it is repeated until it works.
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
"""After an exception that nobody foresaw, before it is asked again."""


class _Granted(msgspec.Struct):
    producer_id: int
    producer_epoch: int


class IdentitySource:
    """Belongs to one loop. `close` it."""

    def __init__(
        self, api: HttpApi, granted: Callable[[int, int], None], failed: Callable[[RaftlogError], None]
    ) -> None:
        """`granted(producer_id, producer_epoch)` answers each `ask`; `failed` is told of every failed attempt."""
        self._api = api
        self._granted = granted
        self._failed = failed
        self._task: asyncio.Task[None] | None = None

    def ask(self) -> None:
        """A producer id is wanted. Asking again before it is there changes nothing."""
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
            except Exception as error:  # whatever it is: nobody else asks while this task is there
                logger.exception("asking for a producer id failed")
                self._failed(RaftlogError("internal_error", f"the client met an error: {error!r}"))
                await asyncio.sleep(AFTER_A_BUG_SECONDS)
            else:
                self._task = None
                self._granted(granted.producer_id, granted.producer_epoch)
                return
