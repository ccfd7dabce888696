"""The scheduler and worker ports on an asyncio loop and on threads.

Handing work to a thread has a price: a future per call through `run_in_executor` costs three times as much as a queue
and one wake-up of the loop. So `ThreadWorker` keeps its own threads, results that become ready together share one
wake-up, and the wake-up uses a descriptor of its own (`LoopWaker`).
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

from raftlog.ports import Timer

from .loop_events import events_of

T = TypeVar("T")
_Done = Callable[[Any, BaseException | None], None]


RESULTS_SECONDS = 0.005
"""Maximum time for which results that became ready together may hold the loop, in seconds."""


def call_on(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> bool:
    """Schedule a call on another thread's loop. A closed loop takes no more calls: it returns False."""
    try:
        loop.call_soon_threadsafe(callback)
    except RuntimeError:
        return False
    return True


class LoopScheduler:
    """`Scheduler` on one asyncio loop. Its calls are made on the loop's thread and happen there."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.call_soon = events_of(loop).call_soon
        """See the port. It is an attribute for speed: it is called for every record that arrives alone."""
        self._instant = 0.0
        """The intended time of the last timer."""
        self._last_due = 0.0
        """The actual time of the last timer: one step of the clock after the previous one if both were intended for the
        same instant."""

    def call_later(self, delay: float, callback: Callable[[], None]) -> Timer:
        # asyncio's heap has no order among equal times; the port promises the order of the calls.
        due = self._loop.time() + delay
        if due == self._instant:
            self._last_due = math.nextafter(self._last_due, math.inf)
        else:
            self._instant = self._last_due = due
        return self._loop.call_at(self._last_due, callback)


class LoopWaker:
    """A way for other threads to have `callback` called on a loop's thread.

    Its own eventfd, if the system has one, costs both threads one short system call; the loop's own
    `call_soon_threadsafe` costs three, and an object.

    Invariant: only `close` closes the descriptor, and nothing wakes after that: the number may belong to another file.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
        self._loop = loop
        self._callback = callback
        self._descriptor = -1
        if hasattr(os, "eventfd"):
            self._descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            loop.add_reader(self._descriptor, self._woken)

    def wake(self) -> None:
        """Request a call of the callback, from any thread. Several requests may lead to one call."""
        if self._descriptor >= 0:
            os.eventfd_write(self._descriptor, 1)
        else:
            call_on(self._loop, self._callback)

    def close(self) -> None:
        """End, from any thread, when no other thread will wake any more. A loop that still runs calls the callback
        once."""
        if not call_on(self._loop, self._last_call):  # The program is ending.
            self._let_go()

    def _woken(self) -> None:
        with contextlib.suppress(BlockingIOError):  # `close` was faster, or a poll reported the event twice
            os.eventfd_read(self._descriptor)
        self._callback()

    def _last_call(self) -> None:
        if self._descriptor >= 0:
            self._loop.remove_reader(self._descriptor)
        self._let_go()
        self._callback()

    def _let_go(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class ThreadWorker:
    """`Worker` with a fixed number of threads. Each result is delivered exactly once, on the loop's thread.

    Invariant: `_waking` is true while a wake-up of the loop is on its way that will find the content of `_results`.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        threads: int,
        name: str = "worker",
        initializer: Callable[[], None] | None = None,
    ) -> None:
        """`initializer` is called once on each thread, before its first work. It must not raise."""
        assert threads > 0, threads
        self._loop = loop
        self._initializer = initializer
        self._work: SimpleQueue[tuple[Callable[[], Any], _Done] | None] = SimpleQueue()
        self._results: deque[tuple[_Done, Any, BaseException | None]] = deque()
        self._waking = False
        self._events = events_of(loop)
        self._waker = LoopWaker(loop, self._take_results)
        self._lock = threading.Lock()
        self._closed = False
        self._threads = [
            threading.Thread(target=self._run, name=f"raftlog-{name}-{number}", daemon=True)
            for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, work: Callable[[], T], done: Callable[[T | None, BaseException | None], None]) -> None:
        assert not self._closed, "the worker is closed"
        self._work.put((work, done))

    @property
    def native_ids(self) -> list[int]:
        """The kernel's ids of the threads."""
        return [thread.native_id for thread in self._threads if thread.native_id is not None]

    def close(self) -> None:
        """Finish the submitted work, then end the threads. Blocks.

        If the loop still runs, undelivered results are still delivered.
        """
        if self._closed:
            return
        self._closed = True
        for _ in self._threads:
            self._work.put(None)
        for thread in self._threads:
            thread.join()
        self._waker.close()

    def _run(self) -> None:
        if self._initializer is not None:
            self._initializer()
        while (item := self._work.get()) is not None:
            work, done = item
            try:
                self._deliver(done, work(), None)
            except BaseException as error:  # noqa: BLE001  the caller's error: `done` gets it on the loop's thread
                self._deliver(done, None, error)
            # References to a call must not survive while this thread waits for the next one.
            del item, work, done

    def _deliver(self, done: _Done, result: Any, error: BaseException | None) -> None:
        with self._lock:
            self._results.append((done, result, error))
            if self._waking:
                return
            self._waking = True
        self._waker.wake()

    def _take_results(self) -> None:
        with self._lock:
            ready, self._results = self._results, deque()
            self._waking = False
        self._events.begin()
        until = self._loop.time() + RESULTS_SECONDS
        try:
            while ready and self._loop.time() < until:
                done, result, error = ready.popleft()
                done(result, error)
        finally:
            # Either the time is over, or one callback failed, which the loop reports. The remaining results must still
            # be delivered.
            if ready:
                self._put_back(ready)
            self._events.end()

    def _put_back(self, ready: deque[tuple[_Done, Any, BaseException | None]]) -> None:
        with self._lock:
            ready.extend(self._results)
            self._results = ready
            if not self._waking:
                self._waking = True
                self._loop.call_soon(self._take_results)
