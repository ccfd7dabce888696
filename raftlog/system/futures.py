"""Awaiting answers that are given to a callback."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from raftlog.errors import RaftlogError
from raftlog.ports import Answer

T = TypeVar("T")


async def answer_of(ask: Callable[[Callable[[T], None]], None]) -> T:
    """Return what `ask` passes to the callback that it receives."""
    answered: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    ask(lambda answer: resolve(answered, answer))
    return await answered


def future_of(ask: Callable[[Answer[T]], None]) -> asyncio.Future[T]:
    """Call `ask`; return a future for the outcome that it passes to its callback: the result, or the error to raise.

    Raises what `ask` raises. The operation continues if the future is cancelled.
    """
    outcome: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def answer(told: T | RaftlogError) -> None:
        if not isinstance(told, RaftlogError):
            resolve(outcome, told)
        elif not outcome.done():
            outcome.set_exception(told)

    ask(answer)
    return outcome


def resolve(future: asyncio.Future[T], answer: T) -> None:
    """Set the result of a future, unless its waiter is gone."""
    if not future.done():
        future.set_result(answer)
