"""Ctrl-C and SIGTERM: a command that carries records ends in order and reports its progress.

`asyncio.run` cancels its task at the first Ctrl-C. The task acknowledges that (`go_on`), finishes within bounded time,
and ends with `EXIT_INTERRUPTED`. A second Ctrl-C ends it at once.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

from click.exceptions import Abort

T = TypeVar("T")


def run_until_interrupted(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` with `asyncio.run` and return its result. Raises `Abort` if it was interrupted.

    SIGTERM (from `timeout` and service managers) interrupts it like Ctrl-C.
    """
    try:
        return asyncio.run(_with_sigterm(work))
    except asyncio.CancelledError:
        raise Abort from None


async def _with_sigterm(work: Coroutine[Any, Any, T]) -> T:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await work


def go_on() -> None:
    """Allow the task to wait again. Call it in the `except` clause of the cancellation."""
    task = asyncio.current_task()
    assert task is not None
    task.uncancel()
