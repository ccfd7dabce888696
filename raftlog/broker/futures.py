"""Awaiting answers that other packages give to a callback."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def answer_of(ask: Callable[[Callable[[T], None]], None]) -> T:
    """Return what `ask` passes to the callback that it receives."""
    answered: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    ask(lambda answer: resolve(answered, answer))
    return await answered


def resolve(future: asyncio.Future[T], answer: T) -> None:
    """Set the result of a future, unless its waiter is gone."""
    if not future.done():
        future.set_result(answer)
