"""Work of many pieces, a slice of it in each turn of the event loop, so that nothing else waits for all of it.

`in_turns` and `all_in_turns` call a function for each item and schedule their own later turns; `stepwise` gives an
iterator of steps that the caller runs. Work that is small enough for one turn is done at once. An item is looked at
only when its turn has come: the function must be right whatever happened since the work was handed in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from .ports import Scheduler

T = TypeVar("T")

PER_TURN = 128
"""Some tens of microseconds each: a few milliseconds."""

ENTRIES_PER_TURN = 64
"""Some fifty microseconds each."""


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


def stepwise(items: Iterable[T], do: Callable[[T], None]) -> Iterator[None]:
    """`do` for each, with a stop after every `ENTRIES_PER_TURN`."""
    for number, item in enumerate(items):
        if number and number % ENTRIES_PER_TURN == 0:
            yield
        do(item)


def fits_a_turn(items: Sequence[object]) -> bool:
    """Whether nothing else has to wait while something is done for all of these."""
    return len(items) <= ENTRIES_PER_TURN


def in_turns_of(items: Sequence[T], do: Callable[[T], None]) -> Iterator[None] | None:
    """`do` for each: now, where they are so few that nothing has to wait for it; else the steps."""
    if not fits_a_turn(items):
        return stepwise(items, do)
    for item in items:
        do(item)
    return None
