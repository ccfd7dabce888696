"""Answers that other rooms give to a callback, awaited."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def answer_of(ask: Callable[[Callable[[T], None]], None]) -> T:
    """What `ask` gives to the callback that it is handed."""
    answered: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    ask(lambda answer: resolve(answered, answer))
    return await answered


def resolve(future: asyncio.Future[T], answer: T) -> None:
    """Give a future its answer, unless whoever waited has gone."""
    if not future.done():
        future.set_result(answer)
