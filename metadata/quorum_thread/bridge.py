"""Calls from the quorum's thread to the broker's loop.

They are collected, passed over together, in order, and made in slices, so that a long batch of events does not block
the broker's loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from raftlog.ports import Clock
from raftlog.slices import WorkQueue
from raftlog.system.runtime import LoopScheduler

T = TypeVar("T")


class Bridge:
    """The bridge from one thread to one loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        self.loop = loop
        self._collected: list[Callable[[], None]] = []
        self._arrived = WorkQueue(LoopScheduler(loop), clock)

    def post(self, callback: Callable[..., None], *args: Any) -> None:
        """Call this on the loop at the next `flush`. Called on the thread."""
        self._collected.append(partial(callback, *args))

    def carry(self, callback: Callable[[T], None]) -> Callable[[T], None]:
        """Return a callback that the thread may call; it posts `callback`."""
        return lambda value: self.post(callback, value)

    def call(self, callback: Callable[..., None], *args: Any) -> None:
        """Post the call and flush."""
        self.post(callback, *args)
        self.flush()

    def flush(self) -> None:
        """Pass the collected calls to the loop. Called on the thread."""
        if self._collected:
            collected, self._collected = self._collected, []
            try:
                self.loop.call_soon_threadsafe(self._arrived.add, *collected)
            except RuntimeError:
                return  # the broker's loop is closed: there is no receiver left
