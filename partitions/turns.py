"""Something done for each of many replicas, some at a time, so that no turn of the loop is as long as all of them.

Whoever is next is looked at when its turn has come: what is done must be right whatever happened since it was asked for
(a driver that was closed meanwhile does nothing). So few that one turn is enough are done at once.

What is *not* here: order among several such passes, and work that is an iterator of its own (`Following`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeVar

from raftlog.ports import Scheduler

T = TypeVar("T")

PER_TURN = 128
"""Some tens of microseconds each: a few milliseconds."""


def in_turns(
    scheduler: Scheduler, items: Sequence[T], do: Callable[[T], None], done: Callable[[], None] = lambda: None
) -> None:
    """Call `do` for each item, in order: the first `PER_TURN` now, the others in later turns of the loop; then `done`.
    Where `do` raises, which the loop reports, the others come in later turns all the same."""

    def turn(start: int) -> None:
        next_start = start
        try:
            for item in items[start : start + PER_TURN]:
                next_start += 1
                do(item)
        finally:
            if next_start < len(items):
                scheduler.call_soon(lambda: turn(next_start))
            else:
                done()

    turn(0)


def all_in_turns(scheduler: Scheduler, items: deque[T], do: Callable[[T], None], *, per_turn: int) -> None:
    """Call `do` for each item, in order, so many a turn, the first ones now. Where it raises, which the loop reports,
    the others come in later turns all the same: theirs is somebody else's answer."""
    try:
        for _ in range(min(len(items), per_turn)):
            do(items.popleft())
    finally:
        if items:
            scheduler.call_soon(lambda: all_in_turns(scheduler, items, do, per_turn=per_turn))
