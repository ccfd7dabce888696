"""No callback and no task of a node dies unheard: what comes out of one is in the log, and a problem of its health.

asyncio tells its loop of an exception that nobody caught: a callback's at once, a task's when the task is thrown away.
By default that is a line in the log, which nobody reads. What a replica meets goes another way
(`partitions/upkeep/resets.py`), and so does what the quorum's thread meets: that node stops.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from raftlog.ports import Clock, Logger

REMEMBERED_SECONDS = 600.0
REMEMBERED_MAX = 1_000


class UnforeseenErrors:
    """Those of one loop."""

    def __init__(self, clock: Clock, logger: Logger) -> None:
        self._clock = clock
        self._logger = logger
        self._times: deque[float] = deque(maxlen=REMEMBERED_MAX)
        self._last = ""

    def hear(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """The loop's exception handler (`loop.set_exception_handler`)."""
        error = context.get("exception")
        message = str(context.get("message", "an error without a word"))
        self._last = message if error is None else f"{type(error).__name__}: {error}"
        self._times.append(self._clock.monotonic())
        self._logger.error("unforeseen", message=message, exc_info=error)

    def problems(self) -> list[str]:
        """For the node's health."""
        since = self._clock.monotonic() - REMEMBERED_SECONDS
        while self._times and self._times[0] < since:
            self._times.popleft()
        if not self._times:
            return []
        return [
            f"{len(self._times)} errors that nobody foresaw within {REMEMBERED_SECONDS / 60:.0f} minutes, the last "
            f"{self._last[:200]}: the node's log has them (`unforeseen`). Report them; a restart begins anew"
        ]
