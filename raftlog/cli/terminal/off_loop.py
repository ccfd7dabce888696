"""Calls that may block, such as reading from a terminal or writing to a full pipe, outside of the event loop.

Each call gets its own daemon thread, for which the end of the program does not wait: Ctrl-C works while standard input
is silent. The program would wait for the threads of a pool. Therefore such calls must hold no lock that the interpreter
needs when it ends, as the buffered standard streams do: they must use descriptors.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def off_loop(call: Callable[[], T]) -> T:
    """Return or raise what the call does. If the wait is cancelled, the call continues and its result is dropped."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result: T | None = None
        failure: BaseException | None = None
        try:
            result = call()
        except Exception as error:  # noqa: BLE001  the caller's error
            failure = error
        # If the loop is closed, nothing waits for the result.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(settle, result, failure)

    threading.Thread(target=run, name="cli-io", daemon=True).start()
    return await future
