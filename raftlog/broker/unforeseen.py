"""Reporting of unexpected exceptions in callbacks and tasks, in the log and as a problem of the node's health.

asyncio reports an uncaught exception to its loop: that of a callback at once, that of a task when the task is
collected. By default that is only a line in the log. Exceptions in replicas are handled elsewhere
(`partitions/upkeep/resets.py`), and one in the quorum's thread stops the node.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from raftlog.ports import Clock, Logger, Scheduler

REMEMBERED_SECONDS = 600.0
REMEMBERED_MAX = 1_000


def raise_soon(scheduler: Scheduler, error: BaseException) -> None:
    """Raise an unexpected error in an event of its own, so that the loop reports it and the present work continues."""

    def raise_it() -> None:
        raise error

    scheduler.call_soon(raise_it)


class UnforeseenErrors:
    """The unexpected errors of one loop."""

    def __init__(self, clock: Clock, logger: Logger) -> None:
        self._clock = clock
        self._logger = logger
        self._times: deque[float] = deque(maxlen=REMEMBERED_MAX)
        self._last = ""

    def hear(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Handle an exception of the loop (`loop.set_exception_handler`)."""
        error = context.get("exception")
        message = str(context.get("message", "an error without a message"))
        self._last = message if error is None else f"{type(error).__name__}: {error}"
        self._times.append(self._clock.monotonic())
        self._logger.error("unforeseen", message=message, exc_info=error)

    def problems(self) -> list[str]:
        """Return the problem for the node's health."""
        since = self._clock.monotonic() - REMEMBERED_SECONDS
        while self._times and self._times[0] < since:
            self._times.popleft()
        if not self._times:
            return []
        return [
            f"{len(self._times)} unexpected errors within {REMEMBERED_SECONDS / 60:.0f} minutes, the last "
            f"{self._last[:200]}: see `unforeseen` in the node's log, and report them as a bug. A restart clears them"
        ]
