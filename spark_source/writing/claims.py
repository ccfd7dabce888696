"""Unique numbers for task attempts of a streaming query: each is claimed once, also across crashes.

The highest claimed number is a position in the quorum. A claim advances it from its present value, or is refused
(compare-and-set, S7). So two claims never overlap. If an answer is lost, further numbers are claimed and the former
ones stay unused. A worker process claims several numbers at a time, because it outlives many tasks.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from raftlog.client.transactions.api import TransactionApi
from raftlog.errors import InvalidRequest, RaftlogError, RetriableError
from raftlog.wire import CommitRequest, PositionMove

CLAIMED_TOGETHER = 4
"""A small number, so that the attempts at one micro-batch have adjacent numbers, and so few blocks."""
REMEMBERED_QUERIES = 64
"""The claimed numbers of further queries are dropped: numbers are not scarce."""
LONGEST_PAUSE = 0.05
"""The maximum random pause, in seconds, after a claim that lost to a concurrent one."""
_OTHERS_WERE_FASTER = frozenset({"position_taken", "offset_moved"})


async def position_of(api: TransactionApi, name: str) -> int:
    """Return a named position; -1 if it was never moved."""
    found = await api.position(name)
    return -1 if found is None else found


class AttemptNumbers:
    """The claimed numbers of one worker process at one cluster. Belongs to one event loop."""

    def __init__(self, api: TransactionApi, pause: Callable[[], float] | None = None) -> None:
        """`pause`: seconds to wait before the next try."""
        self._api = api
        self._pause = pause or (lambda: random.uniform(0, LONGEST_PAUSE))
        self._claimed: dict[str, range] = {}
        """Position → claimed numbers that are not used yet."""

    async def next(self, position: str, *, timeout: float) -> int:
        """Return a number that no other attempt has. Raises `InvalidRequest`, or `RetriableError` after `timeout`
        seconds."""
        left = self._claimed.pop(position, range(0)) or await self._claim(position, timeout)
        self._claimed[position] = left[1:]
        if len(self._claimed) > REMEMBERED_QUERIES:
            del self._claimed[next(iter(self._claimed))]
        return left[0]

    async def _claim(self, position: str, timeout: float) -> range:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while True:
            try:
                return await self._try(position, deadline - loop.time())
            except RaftlogError as error:
                faster = isinstance(error, InvalidRequest) and error.code in _OTHERS_WERE_FASTER
                if not (faster or error.retriable):
                    raise
                pause = self._pause()
                if loop.time() + pause >= deadline:
                    told = (
                        f"no number for a task's attempt could be claimed in {timeout:g} s; the last error was {error}"
                    )
                    raise RetriableError("overloaded", told) from error
            await asyncio.sleep(pause)

    async def _try(self, position: str, left: float) -> range:
        current = await position_of(self._api, position)
        new = current + CLAIMED_TOGETHER
        wanted = CommitRequest(0, (), positions=(PositionMove(position, current, new),))
        await self._api.commit(wanted, timeout=max(0.1, left))
        return range(current + 1, new + 1)
