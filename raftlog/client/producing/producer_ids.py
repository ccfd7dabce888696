"""Producer ids: requested from the cluster when the sequencer has none for its batches.

The request is harmless to repeat (only an id is lost), so it is retried until it succeeds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from raftlog.api.records import Producer
from raftlog.client.cluster.api import HttpApi
from raftlog.client.cluster.attempts import attempt, cancel
from raftlog.client.cluster.connection_security import blames_credential
from raftlog.errors import RaftlogError

PAUSE = 0.1


class IdentitySource:
    """Requests producer ids.

    Belongs to one event loop; `close` it.
    """

    def __init__(
        self, api: HttpApi, granted: Callable[[int, int], None], failed: Callable[[RaftlogError], None]
    ) -> None:
        """`granted(producer_id, producer_epoch)` answers each `ask`; `failed` gets the error of each failed attempt.

        An error of the credential ends the attempts: then `granted` is not called.
        """
        self._api = api
        self._granted = granted
        self._failed = failed
        self._task: asyncio.Task[None] | None = None

    def ask(self) -> None:
        """Request a producer id; no effect while a request is in flight."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        await cancel(self._task)

    async def _run(self) -> None:
        granted, refused = None, False

        def failed(error: RaftlogError) -> None:
            nonlocal refused
            refused = blames_credential(error)
            self._failed(error)

        while granted is None and not refused:
            asking = self._api.post("/v1/producers", Producer)
            granted = await attempt(asking, "requesting a producer id", failed, pause=PAUSE)
        self._task = None
        if granted is not None:
            self._granted(granted.producer_id, granted.producer_epoch)
