"""Tasks that wait for a change, each on a future of its own, so that one can give up alone."""

from __future__ import annotations

import asyncio


class Waiters:
    """Waiting tasks of one event loop.

    True while at least one task waits.
    """

    def __init__(self) -> None:
        self._futures: dict[asyncio.Future[None], None] = {}

    def __bool__(self) -> bool:
        return bool(self._futures)

    async def wait(self, deadline: float | None = None) -> bool:
        """Wait for `wake`; return False if the deadline (loop time) passed. Raises what `fail` is given."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._futures[future] = None
        try:
            async with asyncio.timeout_at(deadline):
                await future
        except TimeoutError:
            return False
        finally:
            self._futures.pop(future, None)
        return True

    def wake(self) -> None:
        """Let all waiting tasks continue."""
        for future in self._futures:
            if not future.done():
                future.set_result(None)
        self._futures = {}

    def fail(self, error: Exception) -> None:
        """Raise this error in all waiting tasks."""
        for future in self._futures:
            if not future.done():
                future.set_exception(error)
        self._futures = {}
