"""Futures that callbacks of other rooms give their answers to."""

from __future__ import annotations

import asyncio
from typing import TypeVar

T = TypeVar("T")


def resolve(future: asyncio.Future[T], answer: T) -> None:
    """Give a future its answer, unless whoever waited has gone."""
    if not future.done():
        future.set_result(answer)
