"""Long work split over several turns of the event loop, so that nothing else waits for all of it.

`in_turns` and `all_in_turns` call a function for each item and schedule their own later turns. `stepwise` returns an
iterator of steps, which the caller runs; `Following` runs such iterators one after the other. Work that is small enough
for one turn is done at once. An item is processed only in its turn, so the function must be correct whatever has
happened since the work was submitted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from .ports import Clock, Scheduler

T = TypeVar("T")

PER_TURN = 128
"""Items in one turn of `in_turns`. At some tens of microseconds each, a turn takes a few milliseconds."""

ENTRIES_PER_TURN = 64
"""Items in one step of `stepwise`, at some fifty microseconds each."""

SLICE_SECONDS = 0.005
"""Maximum time of one turn of a `Following`, in seconds."""


def in_turns(
    scheduler: Scheduler, items: Sequence[T], do: Callable[[T], None], done: Callable[[], None] = lambda: None
) -> None:
    """Call `do` for each item, in order: the first `PER_TURN` now, the others in later turns; then call `done`.

    If `do` raises, the loop reports the error, and the remaining items follow in later turns.
    """

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
    """Call `do` for each item, in order, `per_turn` of them in each turn, beginning now.

    If `do` raises, the loop reports the error, and the remaining items follow in later turns: other callers wait for
    them.
    """
    try:
        for _ in range(min(len(items), per_turn)):
            do(items.popleft())
    finally:
        if items:
            scheduler.call_soon(lambda: all_in_turns(scheduler, items, do, per_turn=per_turn))


def stepwise(items: Iterable[T], do: Callable[[T], None]) -> Iterator[None]:
    """Call `do` for each item, with a stop after every `ENTRIES_PER_TURN`."""
    for number, item in enumerate(items):
        if number and number % ENTRIES_PER_TURN == 0:
            yield
        do(item)


def fits_a_turn(items: Sequence[object]) -> bool:
    """Return whether all of these items can be processed in one turn."""
    return len(items) <= ENTRIES_PER_TURN


def in_turns_of(items: Sequence[T], do: Callable[[T], None]) -> Iterator[None] | None:
    """Call `do` for each item: now if they fit one turn; otherwise return the remaining steps."""
    if not fits_a_turn(items):
        return stepwise(items, do)
    for item in items:
        do(item)
    return None


class Following:
    """A queue of work items, each an iterator that yields every few milliseconds.

    The first item runs until `SLICE_SECONDS` are over; then the loop has a turn. Items never overtake one another: a
    new one begins when all earlier ones have ended. If the clock stands still, as in a simulator during an event,
    everything is done at once.

    A broker applies the quorum's decisions in this way: the fencing of a broker with a hundred thousand replicas is one
    entry of the log and seconds of work.
    """

    def __init__(self, clock: Clock, scheduler: Scheduler, on_fatal: Callable[[BaseException], None]) -> None:
        """`on_fatal` receives an error from a later turn. One in the first turn is raised to the caller of `add`."""
        self._clock = clock
        self._scheduler = scheduler
        self._on_fatal = on_fatal
        self._works: deque[Iterator[None]] = deque()
        self._running = False
        self._due = False
        self._failed = False
        """True after an error: no more work is accepted, because it would be applied to a view with a hole in it."""

    def add(self, work: Iterator[None]) -> None:
        """Do this after all earlier work; at once if that is done."""
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
