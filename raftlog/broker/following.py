"""What the quorum decided, taken over in order and a slice at a time, so that no entry holds the broker's loop.

A fence of a broker with a hundred thousand replicas is one entry of the log, and seconds of work here: each gets
another record. `Following` is a line of such works, each an iterator that stops every few milliseconds' worth; it goes
on with the first of them until `SLICE_SECONDS` are over, and then lets the loop have a turn. Nothing overtakes: what is
added later begins when everything before it has ended.

Where nothing takes time (a simulator's clock stands still while an event is handled) all is done at once.

What is *not* here: what is done (`wiring.py`, `partitions/manager.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from raftlog.ports import Clock, Scheduler

SLICE_SECONDS = 0.005
"""How long one turn may take."""


class Following:
    """Works, one after the other."""

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
