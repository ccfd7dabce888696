"""A clock, a scheduler and a worker that act only on command: deterministic, single-threaded, without waiting."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class ManualClock:
    """Clocks that stand still until they are moved."""

    def __init__(self, *, monotonic: float = 0.0, wall_ms: int = 1_700_000_000_000) -> None:
        self._monotonic = monotonic
        self._wall_ms = float(wall_ms)

    def monotonic(self) -> float:
        return self._monotonic

    def wall_ms(self) -> int:
        return int(self._wall_ms)

    def advance(self, seconds: float) -> None:
        """Advance both clocks."""
        assert seconds >= 0, seconds
        self._monotonic += seconds
        self._wall_ms += seconds * 1000

    def jump_wall(self, milliseconds: int) -> None:
        """Set the wall clock forwards or backwards, without the monotonic one."""
        self._wall_ms += milliseconds


class ManualTimer:
    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class ManualScheduler:
    """`Scheduler` over a `ManualClock`. `run()` runs due calls; `advance()` moves the time from event to event."""

    def __init__(self, clock: ManualClock | None = None) -> None:
        self.clock = clock or ManualClock()
        self._heap: list[tuple[float, int, ManualTimer]] = []
        self._numbers = itertools.count()

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.call_later(0.0, callback)

    def call_later(self, delay: float, callback: Callable[[], None]) -> ManualTimer:
        timer = ManualTimer(callback)
        heapq.heappush(self._heap, (self.clock.monotonic() + delay, next(self._numbers), timer))
        return timer

    def run_one(self) -> bool:
        """Run the next call that is due now; return whether there was one."""
        while self._heap and self._heap[0][0] <= self.clock.monotonic():
            timer = heapq.heappop(self._heap)[2]
            callback, timer.callback = timer.callback, None
            if callback is not None:
                callback()
                return True
        return False

    def run(self, *, limit: int = 100_000) -> int:
        """Run everything that is due now, including its consequences; return the number of calls."""
        done = 0
        while self._heap and self._heap[0][0] <= self.clock.monotonic():
            callback, timer = None, heapq.heappop(self._heap)[2]
            callback, timer.callback = timer.callback, None
            if callback is not None:
                callback()
                done += 1
                assert done < limit, "the scheduler never comes to rest"
        return done

    def advance(self, seconds: float) -> None:
        """Let this much time pass, stopping at every timer on the way."""
        end = self.clock.monotonic() + seconds
        self.run()
        while self._heap and self._heap[0][0] <= end:
            self.clock.advance(max(0.0, self._heap[0][0] - self.clock.monotonic()))
            self.run()
        self.clock.advance(max(0.0, end - self.clock.monotonic()))
        self.run()


class ManualWorker:
    """`Worker` whose work waits in `pending` until `run_one` or `run_all`; results return by the scheduler."""

    def __init__(self, scheduler: ManualScheduler) -> None:
        self.scheduler = scheduler
        self.pending: deque[tuple[Callable[[], Any], Callable[[Any, BaseException | None], None]]] = deque()

    def submit(self, work: Callable[[], T], done: Callable[[T | None, BaseException | None], None]) -> None:
        self.pending.append((work, done))

    def run_one(self) -> None:
        work, done = self.pending.popleft()
        try:
            result = work()
        except Exception as error:
            failure = error
            self.scheduler.call_soon(lambda: done(None, failure))
        else:
            self.scheduler.call_soon(lambda: done(result, None))

    def run_all(self) -> None:
        """Run until neither worker nor scheduler has anything due."""
        while self.pending or self.scheduler.run():
            while self.pending:
                self.run_one()
