"""Long work split over several turns of the event loop, so that nothing else waits for all of it.

`stepwise` makes steps of work on many items, `run` does them one a turn, and a `WorkQueue` runs one piece of work after
the other. `in_turns` is for items that have nothing to do with each other: an error in one does not stop the others.
`turns` does the same for a coroutine. Work that is small enough for one turn is done at once. An item is processed only
in its turn, so the function must be correct whatever has happened since the work was submitted.

The quorum's cores have no event loop: the image makes steps (`metadata/image/image.py`), and a tick applies as many as
its time allows (`StateMachine.carry_on`). The steps of `partitions/files/durable.py` are barriers of a disk, not turns.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from typing import TypeAlias, TypeVar

from .ports import Clock, Scheduler

T = TypeVar("T")

Work: TypeAlias = Callable[[], Iterator[None] | None]
"""Begins a piece of work; returns the steps that remain, or None if it is done."""

PER_TURN = 128
"""Items in one turn of `in_turns`. At some tens of microseconds each, a turn takes a few milliseconds."""

ENTRIES_PER_TURN = 64
"""Items in one step of `stepwise`, and works that a `WorkQueue` without a clock begins in one turn: some fifty
microseconds each."""

SLICE_SECONDS = 0.005
"""Maximum time of one turn of a `WorkQueue` with a clock, in seconds."""


def stepwise(items: Iterable[T], do: Callable[[T], None]) -> Iterator[None]:
    """Call `do` for each item, with a stop after every `ENTRIES_PER_TURN`."""
    for number, item in enumerate(items):
        if number and number % ENTRIES_PER_TURN == 0:
            yield
        do(item)


def run(scheduler: Scheduler, steps: Iterator[None], failed: Callable[[Exception], None]) -> None:
    """Do the first step now, each other one in a later turn.

    After an exception `failed` is called, and the caller or the loop gets the exception.
    """
    try:
        for _ in steps:
            scheduler.call_soon(lambda: run(scheduler, steps, failed))
            return
    except Exception as error:
        failed(error)
        raise


def in_turns(
    scheduler: Scheduler,
    items: Sequence[T],
    do: Callable[[T], None],
    done: Callable[[], None] = lambda: None,
    *,
    per_turn: int | None = None,
) -> None:
    """Call `do` for each item, in order: the first `per_turn` (`PER_TURN`) now, the others in later turns; then `done`.

    If `do` raises, the loop reports the error, and the remaining items follow in later turns: other callers wait for
    them.
    """
    count = per_turn or PER_TURN

    def turn(start: int) -> None:
        next_start = start
        try:
            for item in items[start : start + count]:
                next_start += 1
                do(item)
        finally:
            if next_start < len(items):
                scheduler.call_soon(lambda: turn(next_start))
            else:
                done()

    turn(0)


async def turns(count: int, per_turn: int) -> AsyncIterator[slice]:
    """Yield slices of `count` items, one in each turn of the loop."""
    for start in range(0, count, per_turn):
        if start:
            await asyncio.sleep(0)
        yield slice(start, min(start + per_turn, count))


class WorkQueue:
    """Pieces of work in their order, a long one in several turns. None overtakes another.

    With a clock, a turn ends after `SLICE_SECONDS`; if the clock stands still, as in a simulator during an event,
    everything is done at once. Without one, a turn ends after each step, and after `ENTRIES_PER_TURN` works.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        clock: Clock | None = None,
        on_fatal: Callable[[BaseException], None] | None = None,
    ) -> None:
        """An error in a work is raised to the caller of `add` or to the loop.

        Without `on_fatal`, later works follow in a later turn. With it, the queue closes, because they would be applied
        to something with a hole in it; `on_fatal` receives the error if no caller of `add` does.
        """
        self._scheduler = scheduler
        self._clock = clock
        self._on_fatal = on_fatal
        self._waiting: deque[Work] = deque()
        self._steps: Iterator[None] | None = None
        """The remaining steps of the present work."""
        self._busy = False
        """Whether a turn is in progress or scheduled."""
        self._closed = False

    def __len__(self) -> int:
        """The works that have not begun."""
        return len(self._waiting)

    @property
    def closed(self) -> bool:
        """Whether no more work is accepted."""
        return self._closed

    @property
    def idle(self) -> bool:
        """Whether everything is done."""
        return not self._busy

    def add(self, *works: Work) -> None:
        """Do these after all earlier works; at once if those are done."""
        if not self._closed:
            self._waiting.extend(works)
            if not self._busy:
                self._turn()

    def close(self) -> None:
        """Drop everything that is not done, and accept no more work."""
        self._closed = True
        self._waiting.clear()
        self._steps = None

    def _turn(self) -> None:
        self._busy = True
        try:
            self._work_for_a_turn()
        except BaseException:
            self._steps = None
            if self._on_fatal is not None:
                self.close()
            raise
        finally:
            self._busy = self._steps is not None or bool(self._waiting)
            if self._busy:
                self._scheduler.call_soon(self._later_turn)

    def _later_turn(self) -> None:
        try:
            self._turn()
        except BaseException as error:
            if self._on_fatal is not None:
                self._on_fatal(error)
            raise

    def _work_for_a_turn(self) -> None:
        until = self._clock.monotonic() + SLICE_SECONDS if self._clock is not None else 0.0
        begun = 0
        while self._steps is not None or self._waiting:
            if self._steps is None:
                begun += 1
                self._steps = self._waiting.popleft()()
            unfinished = self._steps is not None and next(self._steps, _END) is not _END
            if not unfinished or self._closed:
                self._steps = None
            if (unfinished or self._waiting) and self._is_over(until, unfinished or begun >= ENTRIES_PER_TURN):
                return

    def _is_over(self, until: float, enough: bool) -> bool:
        return enough if self._clock is None else self._clock.monotonic() >= until


_END = object()
