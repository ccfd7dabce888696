"""The deadline of requests that wait for a decision made elsewhere: one timer for all of them.

A timer for each of a thousand requests a second would cost more than the decisions themselves, and almost none of them
would ever fire. All waits have the same length, so the first to begin is the first to be overdue.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, TypeVar

from raftlog.errors import RetriableError

T = TypeVar("T")


class Patience:
    """The waits of one API. Belongs to one event loop."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._line: deque[tuple[float, asyncio.Future[Any]]] = deque()
        """(deadline by the loop's clock, the awaited future), the oldest first."""
        self._timer: asyncio.TimerHandle | None = None

    async def wait(self, decided: asyncio.Future[T]) -> T:
        """Await `decided`. It is cancelled with its caller and fails at its deadline, so the code that sets its result
        must first check that it is still pending.

        Raises the future's own exception, and `RetriableError("request_timed_out")`.
        """
        if not decided.done():
            loop = asyncio.get_running_loop()
            while self._line and self._line[0][1].done():
                self._line.popleft()
            self._line.append((loop.time() + self._seconds, decided))
            if self._timer is None:
                self._timer = loop.call_later(self._seconds, self._look)
        return await decided

    def close(self) -> None:
        """Cancel the timer; no request waits any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._line.clear()

    def _look(self) -> None:
        """Fail the overdue waits, and set the timer for the next one."""
        loop = asyncio.get_running_loop()
        self._timer = None
        while self._line and (self._line[0][1].done() or self._line[0][0] <= loop.time()):
            _, decided = self._line.popleft()
            if not decided.done():
                detail = f"the outcome is unknown after {self._seconds:.0f} s"
                decided.set_exception(RetriableError("request_timed_out", detail))
        if self._line:
            self._timer = loop.call_at(self._line[0][0], self._look)
