"""Calls from the quorum's thread to the broker's loop.

They are collected, passed over together, in order, and made in slices, so that a long batch of events does not block
the broker's loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

SLICE_SECONDS = 0.005
"""Seconds for which one batch of callbacks may hold the broker's loop before other tasks run."""

T = TypeVar("T")


class Bridge:
    """The bridge from one thread to one loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._collected: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._arrived: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()

    def post(self, callback: Callable[..., None], *args: Any) -> None:
        """Call this on the loop at the next `flush`. Called on the thread."""
        self._collected.append((callback, args))

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
                self.loop.call_soon_threadsafe(self._take, collected)
            except RuntimeError:
                return  # the broker's loop is closed: there is no receiver left

    def _take(self, collected: list[tuple[Callable[..., None], tuple[Any, ...]]]) -> None:
        idle = not self._arrived
        self._arrived.extend(collected)
        if idle:
            self._slice()

    def _slice(self) -> None:
        until = self.loop.time() + SLICE_SECONDS
        try:
            while self._arrived and self.loop.time() < until:
                callback, args = self._arrived.popleft()
                callback(*args)
        finally:
            if self._arrived:
                self.loop.call_soon(self._slice)
