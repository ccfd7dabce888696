"""The way in which blocking calls leave the event loop, which the caller chooses."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

T = TypeVar("T")


class OffLoop(Protocol):
    """Runs a blocking call elsewhere, and returns or raises what it does."""

    def __call__(self, call: Callable[[], T], /) -> Awaitable[T]: ...
