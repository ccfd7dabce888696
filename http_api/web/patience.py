"""How long requests wait for what was decided elsewhere: one timer for all of them, however many there are.

A timer of its own for each of a thousand requests a second costs more than what they wait for, and next to none of them
ever goes off. All who wait here wait equally long, so the first to come is the first to be overdue.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, TypeVar

from raftlog.errors import RetriableError

T = TypeVar("T")


class Patience:
    """Of one API. Belongs to one loop."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._line: deque[tuple[float, asyncio.Future[Any]]] = deque()
        """(when it is overdue by the loop's clock, what is waited for), the oldest first."""
        self._timer: asyncio.TimerHandle | None = None

    async def wait(self, decided: asyncio.Future[T]) -> T:
        """What `decided` will tell. It is cancelled with its caller and fails when it is overdue, so whoever settles
        it must look first whether that is still to be done.

        Raises what it is told, and `RetriableError("request_timed_out")`.
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
        """Nobody waits any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._line.clear()

    def _look(self) -> None:
        """End what is overdue; come again when the next one is."""
        loop = asyncio.get_running_loop()
        self._timer = None
        while self._line and (self._line[0][1].done() or self._line[0][0] <= loop.time()):
            _, decided = self._line.popleft()
            if not decided.done():
                detail = f"no outcome was known after {self._seconds:.0f} s"
                decided.set_exception(RetriableError("request_timed_out", detail))
        if self._line:
            self._timer = loop.call_at(self._line[0][0], self._look)
