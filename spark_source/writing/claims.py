"""Numbers for task attempts of a streaming query: each is claimed once, whoever asks, also long after a crash.

The highest number that was claimed is a position in the quorum, and a claim moves it up from where it is, or is
refused (compare-and-set, S7). So two claims never overlap, also where an answer was lost: then the numbers are claimed
again, further up, and the former ones belong to nobody. A worker process claims some at a time: it lives over many
tasks, and need not ask for each.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from raftlog.client.transactions.api import CommitRequest, PositionMove, TransactionApi
from raftlog.errors import InvalidRequest, RaftlogError, RetriableError

CLAIMED_TOGETHER = 4
"""Few, so that the attempts at one micro-batch have numbers, and so blocks, that lie close together."""
REMEMBERED_QUERIES = 64
"""What is claimed for a query beyond that is given up: numbers are not scarce."""
LONGEST_PAUSE = 0.05
"""Seconds, at random, after a claim that another one was faster than."""
_OTHERS_WERE_FASTER = frozenset({"position_taken", "offset_moved"})


class AttemptNumbers:
    """Of one worker process, for one cluster. Belongs to one event loop."""

    def __init__(self, api: TransactionApi, pause: Callable[[], float] | None = None) -> None:
        """`pause`: seconds to wait before the next try."""
        self._api = api
        self._pause = pause or (lambda: random.uniform(0, LONGEST_PAUSE))
        self._claimed: dict[str, range] = {}
        """Position → numbers that nobody has got yet."""

    async def next(self, position: str, *, timeout: float) -> int:
        """A number that nobody else has. Raises `InvalidRequest`, or `RetriableError` after `timeout` seconds."""
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
        found = await self._api.position(position)
        current = -1 if found is None else found
        new = current + CLAIMED_TOGETHER
        wanted = CommitRequest((), positions=(PositionMove(position, current, new),))
        await self._api.commit(wanted, timeout=max(0.1, left))
        return range(current + 1, new + 1)
