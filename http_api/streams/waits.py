"""A wait of a stream that others end: something else has happened."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableSet
from typing import TypeVar

T = TypeVar("T")


class Waits:
    """The waits of one stream, one after the other."""

    def __init__(self, polls: MutableSet[asyncio.Timeout]) -> None:
        """`polls`: the waits that the API ends when it stops."""
        self._polls = polls
        self._present: asyncio.Timeout | None = None
        self._is_woken = False

    def wake(self) -> None:
        """End the present wait, or else the next one."""
        self._is_woken = True
        if self._present is not None and not self._present.expired():
            self._present.reschedule(asyncio.get_running_loop().time())

    async def run(self, work: Callable[[], Awaitable[T]], within_s: float) -> T | None:
        """Return the result of `work`, which is cancelled after that time or by `wake`: then None."""
        if self._is_woken:
            self._is_woken = False
            return None
        self._present = asyncio.timeout(within_s)
        self._polls.add(self._present)
        try:
            async with self._present:
                return await work()
        except TimeoutError:
            if not self._present.expired():
                raise
            return None
        finally:
            self._polls.discard(self._present)
            self._present = None
            self._is_woken = False

    async def pause(self, seconds: float) -> None:
        """Wait for that time, or less."""
        await self.run(lambda: asyncio.sleep(seconds), seconds + 1)
