"""Virtual time: one heap of events, ordered by (time, order of scheduling), so that a run is a function of its seed.

An event without a delay comes right after the current one, as at the end of an event of the product's loop.

A `Life` is one run of one simulated process. Everything that it scheduled dies with it: after a crash its timers,
worker completions and deliveries are popped and dropped. `SimScheduler`, `SimClock` and `SimWorker` are the product's
ports on top of the heap. A worker's job runs at one instant and its completion arrives at a later one, so that a crash
can fall between the two: the bytes are on disk, but the completion was never delivered.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import TypeVar

from raftlog.errors import RaftlogError

from .breaking import InjectedError

T = TypeVar("T")


class Event:
    """A scheduled call; `cancel` makes it void."""

    __slots__ = ("at", "callback", "cancelled", "held", "life", "order")

    def __init__(self, life: Life | None, callback: Callable[[], None]) -> None:
        """`EventHeap.put` sets the time."""
        self.at = 0.0
        self.order = 0
        self.life = life
        self.callback = callback
        self.cancelled = False
        self.held = False
        """Whether it waits for the end of its process's pause."""

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
    """The single clock and event queue of a simulated world."""

    def __init__(self) -> None:
        self.now = 0.0
        self.events_run = 0
        self._order = 0
        self._heap: list[tuple[float, int, Event]] = []
        self._at_once: deque[Event] = deque()
        """Events of the present moment: they come before all others, in the order of scheduling."""

    def schedule(self, delay: float, callback: Callable[[], None], life: Life | None = None) -> Event:
        """Call back in `delay` virtual seconds, unless cancelled or the life has ended by then."""
        event = Event(life, callback)
        self.put(delay, event)
        return event

    def put(self, delay: float, event: Event) -> None:
        """Schedule an existing event in `delay` virtual seconds."""
        order = event.order = self._order = self._order + 1
        event.held = False
        if delay > 0.0:
            at = event.at = self.now + delay
            heappush(self._heap, (at, order, event))
        else:
            event.at = self.now
            self._at_once.append(event)

    def resume(self, life: Life) -> None:
        """End the pause of a life now. Events that it held are due at once, in their original order.

        Otherwise messages that arrive from now on would overtake those that arrived during the pause.
        """
        until, life.paused_until = life.paused_until, 0.0
        if until <= self.now:
            return
        for _, _, event in self._heap:
            if event.life is life and event.held:
                event.at = self.now
        # In place, since a running `run_until` has the list.
        self._heap[:] = [(event.at, order, event) for _, order, event in self._heap]
        heapify(self._heap)

    def run_until(self, end: float, run: Callable[[Event], None]) -> None:
        """Pass the events that are due before `end` to `run`, in order; `run` calls `event.callback`."""
        heap, at_once = self._heap, self._at_once
        while at_once or (heap and heap[0][0] < end):
            event = at_once.popleft() if at_once else heappop(heap)[2]
            life = event.life
            if event.cancelled or (life is not None and not life.alive):
                continue
            if life is not None and life.paused_until > event.at:
                # A stopped process does everything later, in the original order.
                event.at = life.paused_until
                event.held = True
                heappush(heap, (event.at, event.order, event))
                continue
            self.now = event.at
            self.events_run += 1
            run(event)
        self.now = max(self.now, end)


class SimClock:
    """A node's two clocks: the monotonic one may run fast or slow, the wall clock may be wrong."""

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
    """The `Worker` port of one life: jobs take a random time and may overtake one another."""

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
