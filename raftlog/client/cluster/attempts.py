"""Background tasks: one attempt of what is repeated until it succeeds, and the end of a task."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from raftlog.errors import RaftlogError

logger = logging.getLogger("raftlog.client")

T = TypeVar("T")

AFTER_A_BUG_SECONDS = 1.0
"""Seconds before the retry after an unexpected exception."""


async def attempt(
    work: Coroutine[Any, Any, T], what: str, failed: Callable[[RaftlogError], None], *, pause: float = 0.0
) -> T | None:
    """Return the result of `work`. If it fails, call `failed` with the error, wait `pause` seconds and return None."""
    try:
        return await work
    except RaftlogError as error:
        failed(error)
        if pause:
            await asyncio.sleep(pause)
    except Exception as error:  # if it ended the task, those that wait for the result would wait forever
        logger.exception("%s failed", what)
        failed(failed_by_bug(error))
        await asyncio.sleep(AFTER_A_BUG_SECONDS)
    return None


async def cancel(task: asyncio.Task[None] | None) -> None:
    """Cancel a task, if there is one, and wait for its end."""
    if task is not None:
        task.cancel()
        await asyncio.wait([task])


def failed_by_bug(error: Exception) -> RaftlogError:
    """Return the error that reports an unexpected exception."""
    return RaftlogError("internal_error", f"the client failed because of a bug: {error!r}")
