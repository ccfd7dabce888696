"""Calls that may block, such as reading from a terminal or writing to a full pipe, beside the event loop.

Each call gets a daemon thread of its own, which the end of the program does not wait for: Ctrl-C works while standard
input has nothing to say. A pool's threads would be waited for. Such calls must therefore hold no lock that the
interpreter wants when it ends, as the buffered standard streams do: use their descriptors.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def off_loop(call: Callable[[], T]) -> T:
    """What the call returns or raises. When the waiting is cancelled, the call goes on and its result is dropped."""
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
        except Exception as error:  # noqa: BLE001 -- it is the caller's
            failure = error
        # A loop that is closed has nobody who waits.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(settle, result, failure)

    threading.Thread(target=run, name="cli-io", daemon=True).start()
    return await future
