"""Exceptions that nobody foresaw, out of the ports of a node's partitions: the disk, the clock, messages that come.

While the fault is on, a call raises now and then, before or after it did its work. The product cannot know the class.
What comes out of an event all the same is heard by the loop, as in production: the rest of that event did not happen.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from raftlog.ports import Clock, Link, LinkHandler

LASTING = ("close", "fileno", "lose", "syncs_all", "exists")
"""Calls of a disk and of its files that never raise what nobody foresaw."""


class InjectedError(Exception):
    """No code of the product catches it by its name."""


class Breaks:
    """Those of one node."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.probability = 0.0
        """Of a call."""
        self.broke = 0

    def call(self, name: str, work: Callable[[], Any]) -> Any:
        """The work, unless it breaks."""
        if not self.probability or self._rng.random() >= self.probability:
            return work()
        self.broke += 1
        if self._rng.random() < 0.5:
            work()
        raise InjectedError(name)


class BreakingPort:
    """A disk, or one of its files, whose calls break."""

    def __init__(self, inner: Any, breaks: Breaks) -> None:
        self._inner = inner
        self._breaks = breaks

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name in LASTING or not callable(found):
            return found

        def call(*arguments: Any, **options: Any) -> Any:
            return self._breaks.call(name, lambda: found(*arguments, **options))

        return call

    def open(self, path: str, **options: Any) -> BreakingPort:
        """A file that breaks as well."""
        return BreakingPort(self._breaks.call("open", lambda: self._inner.open(path, **options)), self._breaks)


class BreakingClock:
    """The time of day cannot be told now and then."""

    def __init__(self, inner: Clock, breaks: Breaks) -> None:
        self._inner = inner
        self._breaks = breaks

    def monotonic(self) -> float:
        return self._inner.monotonic()

    def wall_ms(self) -> int:
        return self._breaks.call("wall_ms", self._inner.wall_ms)  # type: ignore[no-any-return]


class BreakingHandler:
    """A link's owner that breaks at a message. The link goes with it, as a connection does whose handler failed."""

    def __init__(self, inner: LinkHandler, breaks: Breaks, heard: Callable[[InjectedError], None]) -> None:
        self._inner = inner
        self._breaks = breaks
        self._heard = heard

    def on_opened(self, link: Link) -> None:
        self._inner.on_opened(link)

    def on_message(self, link: Link, message: memoryview) -> None:
        try:
            self._breaks.call("message", lambda: self._inner.on_message(link, message))
        except InjectedError as error:
            self._heard(error)
            link.close()

    def on_closed(self, link: Link) -> None:
        self._inner.on_closed(link)
