"""A node's view brought to all that the quorum has decided by now: what a linearizable read is made of (S7).

Any node answers for the whole cluster out of its own view, which may be behind. Whoever would refuse something, or
choose by names, counts and brokers, on the word of that view alone comes here first.

What is *not* here: the barrier itself (`metadata/quorum_node.py`), and whether a decision is still right when it is
applied, which only the state machine can say.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from metadata.engine import Fate, Outcome

from .futures import resolve

VIEW_GRACE_SECONDS = 1.0
"""How long a view may take, beyond the quorum's own time, to come to the index that the quorum named."""


class Reads(Protocol):
    """The part of the quorum that is needed here."""

    def read_barrier(self, done: Callable[[Outcome], None], *, timeout: float = 5.0) -> None: ...


async def catch_up(quorum: Reads, when_view_reaches: Callable[[int, Callable[[], None]], None], seconds: float) -> bool:
    """Bring the view to all that was decided before this call. False: the quorum does not answer within `seconds`, or
    the view does not follow it."""
    reached: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def answered(outcome: Outcome) -> None:
        if outcome.fate is Fate.APPLIED:
            when_view_reaches(outcome.index, lambda: resolve(reached, True))
        else:
            resolve(reached, False)

    quorum.read_barrier(answered, timeout=seconds)
    try:
        return await asyncio.wait_for(reached, seconds + VIEW_GRACE_SECONDS)
    except TimeoutError:
        return False
