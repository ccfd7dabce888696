"""Virtual time: one heap of events, keyed by (time, order of scheduling), so that a run is a function of its seed. What
is to happen at once comes right after the present event, as at the end of an event of the product's loop.

A `Life` is one run of one simulated process. Whatever it scheduled dies with it: after a crash its timers, worker
completions and deliveries are popped and dropped. `SimScheduler`, `SimClock` and `SimWorker` are the product's ports on
top of the heap. A worker's job runs at one instant and its completion arrives at a later one, so that a crash can fall
between the two: the bytes are on disk, but nobody was told.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from typing import TypeVar

from raftlog.errors import RaftlogError

from .breaking import InjectedError

T = TypeVar("T")


class Event:
    """A call that is due; `cancel` makes it void."""

    __slots__ = ("at", "callback", "cancelled", "life", "order")

    def __init__(self, life: Life | None, callback: Callable[[], None]) -> None:
        """`EventHeap.put` sets when it is due."""
        self.at = 0.0
        self.order = 0
        self.life = life
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Life:
    """One run of one process."""

    __slots__ = ("alive", "name", "paused_until")

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.paused_until = 0.0


class EventHeap:
    """The one clock and the one queue of a simulated world."""

    def __init__(self) -> None:
        self.now = 0.0
        self.events_run = 0
        self._order = 0
        self._heap: list[tuple[float, int, Event]] = []
        self._at_once: deque[Event] = deque()
        """Those of the present moment: they come before all others, in the order in which they were scheduled."""

    def schedule(self, delay: float, callback: Callable[[], None], life: Life | None = None) -> Event:
        """Call back `delay` virtual seconds from now, unless cancelled or the life has ended by then."""
        event = Event(life, callback)
        self.put(delay, event)
        return event

    def put(self, delay: float, event: Event) -> None:
        """Have an event that was made elsewhere `delay` virtual seconds from now."""
        order = event.order = self._order = self._order + 1
        if delay > 0.0:
            at = event.at = self.now + delay
            heappush(self._heap, (at, order, event))
        else:
            event.at = self.now
            self._at_once.append(event)

    def run_until(self, end: float, run: Callable[[Event], None]) -> None:
        """Hand what is due before `end` to `run`, in order; `run` calls `event.callback`."""
        heap, at_once = self._heap, self._at_once
        while at_once or (heap and heap[0][0] < end):
            event = at_once.popleft() if at_once else heappop(heap)[2]
            life = event.life
            if event.cancelled or (life is not None and not life.alive):
                continue
            if life is not None and life.paused_until > event.at:
                # A stopped process does late what it would have done: everything, in its old order.
                event.at = life.paused_until
                heappush(heap, (event.at, event.order, event))
                continue
            self.now = event.at
            self.events_run += 1
            run(event)
        self.now = max(self.now, end)


class SimClock:
    """A node's two clocks: the monotonic one may run fast or slow, the wall may be off."""

    def __init__(self, heap: EventHeap, *, drift: float = 1.0, wall_offset_ms: int = 0) -> None:
        self._heap = heap
        self._drift = drift
        self.wall_offset_ms = wall_offset_ms

    def monotonic(self) -> float:
        return self._heap.now * self._drift

    def wall_ms(self) -> int:
        return 1_700_000_000_000 + int(self._heap.now * 1000) + self.wall_offset_ms


class SimScheduler:
    """The `Scheduler` port of one life."""

    def __init__(self, heap: EventHeap, life: Life) -> None:
        self._heap = heap
        self._life = life

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._heap.schedule(0.0, callback, self._life)

    def call_later(self, delay: float, callback: Callable[[], None]) -> Event:
        return self._heap.schedule(delay, callback, self._life)


class SimWorker:
    """The `Worker` port of one life: jobs take a drawn time and may overtake one another."""

    def __init__(self, heap: EventHeap, life: Life, rng: random.Random, latency: Callable[[], float]) -> None:
        self._heap = heap
        self._life = life
        self._rng = rng
        self._latency = latency

    def submit(self, work: Callable[[], T], done: Callable[[T | None, BaseException | None], None]) -> None:
        def run() -> None:
            result: T | None = None
            error: BaseException | None = None
            try:
                result = work()
            except (RaftlogError, OSError, InjectedError) as raised:
                error = raised
            self._heap.schedule(self._rng.uniform(0.0, 0.0005), lambda: done(result, error), self._life)

        self._heap.schedule(self._latency(), run, self._life)
