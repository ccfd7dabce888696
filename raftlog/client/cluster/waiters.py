"""Tasks that wait until something has changed. Each waits on a future of its own, so that one may give up alone."""

from __future__ import annotations

import asyncio


class Waiters:
    """Belongs to one loop. True while somebody waits."""

    def __init__(self) -> None:
        self._futures: dict[asyncio.Future[None], None] = {}

    def __bool__(self) -> bool:
        return bool(self._futures)

    async def wait(self, deadline: float | None = None) -> bool:
        """Until `wake`; false when the deadline, in loop time, passed. Raises what `fail` is given."""
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
        """All that wait go on."""
        for future in self._futures:
            if not future.done():
                future.set_result(None)
        self._futures = {}

    def fail(self, error: Exception) -> None:
        """All that wait get this error."""
        for future in self._futures:
            if not future.done():
                future.set_exception(error)
        self._futures = {}
