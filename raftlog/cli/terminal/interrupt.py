"""Ctrl-C and SIGTERM: a command that carries records ends in order and reports its progress.

`asyncio.run` cancels its task at the first Ctrl-C. The task acknowledges that (`go_on`), finishes within bounded time,
and ends with `EXIT_INTERRUPTED`. A second Ctrl-C ends it at once.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any


def run_until_interrupted(work: Coroutine[Any, Any, bool]) -> bool:
    """Run `work` with `asyncio.run`. Return False if it was interrupted.

    SIGTERM (from `timeout` and service managers) interrupts it like Ctrl-C.
    """
    try:
        return asyncio.run(_with_sigterm(work))
    except asyncio.CancelledError:
        return False


async def _with_sigterm(work: Coroutine[Any, Any, bool]) -> bool:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await work


def go_on() -> None:
    """Allow the task to wait again. Call it in the `except` clause of the cancellation."""
    task = asyncio.current_task()
    assert task is not None
    task.uncancel()
