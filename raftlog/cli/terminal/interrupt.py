"""Ctrl-C and SIGTERM: a command that carries records ends in order, and says how far it came.

`asyncio.run` cancels its task at the first Ctrl-C. The task takes note (`go_on`), does what is left to do within
bounded time, and ends with `EXIT_INTERRUPTED`. A second Ctrl-C ends it where it is.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any


def run_until_interrupted(work: Coroutine[Any, Any, bool]) -> bool:
    """`asyncio.run`, where SIGTERM (as `timeout` and service managers send it) interrupts too. False: it was
    interrupted."""
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
    """In the `except` of the cancellation: from here the task may wait again."""
    task = asyncio.current_task()
    assert task is not None
    task.uncancel()
