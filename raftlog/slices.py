"""Work of many pieces, a slice of it in each turn of the event loop, so that nothing else waits for all of it.

`in_turns` and `all_in_turns` call a function for each item and schedule their own later turns; `stepwise` gives an
iterator of steps that the caller runs; `Following` runs such iterators, one after the other. Work that is small enough
for one turn is done at once. An item is looked at only when its turn has come: the function must be right whatever
happened since the work was handed in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from .ports import Clock, Scheduler

T = TypeVar("T")

PER_TURN = 128
"""Some tens of microseconds each: a few milliseconds."""

ENTRIES_PER_TURN = 64
"""Some fifty microseconds each."""

SLICE_SECONDS = 0.005
"""How long one turn of a `Following` may take."""


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


class Following:
    """Works, one after the other, each an iterator that stops every few milliseconds' worth.

    The first of them goes on until `SLICE_SECONDS` are over, and then the loop has a turn. Nothing overtakes: what is
    added later begins when everything before it has ended. Where nothing takes time (a simulator's clock stands still
    while an event is handled) all is done at once.

    So a broker takes over what the quorum decided: the fence of a broker with a hundred thousand replicas is one entry
    of the log, and seconds of work.
    """

    def __init__(self, clock: Clock, scheduler: Scheduler, on_fatal: Callable[[BaseException], None]) -> None:
        """`on_fatal` is told of an error in a later turn, which nobody else would hear of; in the first one it is
        raised to whoever adds the work."""
        self._clock = clock
        self._scheduler = scheduler
        self._on_fatal = on_fatal
        self._works: deque[Iterator[None]] = deque()
        self._running = False
        self._due = False
        self._failed = False
        """Nothing is taken over any more: it would be applied to a view with a hole in it."""

    def add(self, work: Iterator[None]) -> None:
        """Do this after everything that was added before; now, where that is done."""
        if self._failed:
            return
        self._works.append(work)
        if not self._running and not self._due:
            self._run()

    def _run(self) -> None:
        self._running = True
        try:
            until = self._clock.monotonic() + SLICE_SECONDS
            while self._works:
                for _ in self._works[0]:
                    if self._clock.monotonic() >= until:
                        self._due = True
                        self._scheduler.call_soon(self._go_on)
                        return
                self._works.popleft()
        except BaseException:
            self._failed = True
            self._works.clear()
            raise
        finally:
            self._running = False

    def _go_on(self) -> None:
        self._due = False
        try:
            self._run()
        except BaseException as error:
            self._on_fatal(error)
            raise
