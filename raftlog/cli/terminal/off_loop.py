"""Calls that may block, such as reading from a terminal or writing to a full pipe, outside of the event loop.

Each call gets its own daemon thread, for which the end of the program does not wait: Ctrl-C works while standard input
is silent. The program would wait for the threads of a pool. Therefore such calls must hold no lock that the interpreter
needs when it ends, as the buffered standard streams do: they must use descriptors.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def off_loop(call: Callable[[], T]) -> T:
    """Return or raise what the call does. If the wait is cancelled, the call continues and its result is dropped."""
    future: concurrent.futures.Future[T] = concurrent.futures.Future()
    future.set_running_or_notify_cancel()  # from here on it cannot be cancelled

    def run() -> None:
        try:
            future.set_result(call())
        except Exception as error:  # noqa: BLE001  the caller's error
            future.set_exception(error)

    threading.Thread(target=run, name="cli-io", daemon=True).start()
    return await asyncio.wrap_future(future)
