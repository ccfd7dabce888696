"""Unforeseen exceptions from the ports of a node's partitions: the disk, the clock, incoming messages.

While the fault lasts, a call sometimes raises, before or after it did its work. The product cannot know the exception's
class. If it escapes from an event, the loop logs it, as in production: the rest of that event did not happen.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from raftlog.ports import Clock, Link, LinkHandler

LASTING = ("close", "fileno", "lose", "syncs_all", "exists")
"""Calls of a disk and its files that never raise unforeseen exceptions."""


class InjectedError(Exception):
    """The injected exception, which no code of the product catches by name."""


class Breaks:
    """The injected exceptions of one node."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.probability = 0.0
        """Probability for a call."""
        self.broke = 0

    def call(self, name: str, work: Callable[[], Any]) -> Any:
        """Do the work, or raise before or after it."""
        if not self.probability or self._rng.random() >= self.probability:
            return work()
        self.broke += 1
        if self._rng.random() < 0.5:
            work()
        raise InjectedError(name)


class BreakingPort:
    """A disk, or one of its files, whose calls may raise."""

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
        """Return a file whose calls may raise as well."""
        return BreakingPort(self._breaks.call("open", lambda: self._inner.open(path, **options)), self._breaks)


class BreakingClock:
    """A clock whose wall time sometimes cannot be read."""

    def __init__(self, inner: Clock, breaks: Breaks) -> None:
        self._inner = inner
        self._breaks = breaks

    def monotonic(self) -> float:
        return self._inner.monotonic()

    def wall_ms(self) -> int:
        return self._breaks.call("wall_ms", self._inner.wall_ms)  # type: ignore[no-any-return]


class BreakingHandler:
    """A handler of a link that may raise at a message. The link closes then, like a connection whose handler failed."""

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
