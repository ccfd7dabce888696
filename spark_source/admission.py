"""How much a micro-batch takes: a greatest number of offsets, shared out by backlog; a least number, waited for. Pure.

`maxOffsetsPerTrigger` is kept exactly, unless more partitions have records than it allows: each of them gets one then,
so that none waits for ever behind the large ones. (Kafka's connector rounds, and may take more.)

What is *not* here: which partitions there are (`planning.py`).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TypeVar

Key = TypeVar("Key", bound=Hashable)


def admit(backlogs: Mapping[Key, int], limit: int | None) -> dict[Key, int]:
    """Of each backlog how much; `limit` None: all of it. Everybody with a backlog gets something."""
    waiting = {key: backlog for key, backlog in backlogs.items() if backlog > 0}
    total = sum(waiting.values())
    if limit is None or total <= limit:
        return waiting
    shares = dict.fromkeys(waiting, 1)
    spare, rest = limit - len(waiting), total - len(waiting)
    if spare <= 0:
        return shares
    fractions: list[tuple[int, Key]] = []
    for key, backlog in waiting.items():
        share, fraction = divmod(spare * (backlog - 1), rest)
        shares[key] += share
        fractions.append((fraction, key))
    left = limit - sum(shares.values())
    for _, key in sorted(fractions, key=lambda one: -one[0])[:left]:
        shares[key] += 1
    return shares


class TriggerGate:
    """`minOffsetsPerTrigger` and `maxTriggerDelay`: closed until enough is there, or it was closed for long."""

    def __init__(self, min_offsets: int | None, max_delay_ms: int) -> None:
        self._min_offsets = min_offsets
        self._max_delay_ms = max_delay_ms
        self._opened_at_ms: int | None = None

    def opens(self, backlog: int, now_ms: int) -> bool:
        """Whether a micro-batch may begin with so many offsets. `now_ms`: a clock
        that only rises. The first one may."""
        if self._min_offsets is None:
            return True
        late = self._opened_at_ms is None or now_ms - self._opened_at_ms >= self._max_delay_ms
        if backlog <= 0 or (backlog < self._min_offsets and not late):
            return False
        self._opened_at_ms = now_ms
        return True
