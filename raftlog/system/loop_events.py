"""What one event of an event loop leaves to be done, done at its end: before the loop asks the kernel for another.

An event is what a socket or a worker's thread brought. What it leads to is put off until it is over, so that whatever
else happens in it shares the work: one write of the log for all that was appended, one push to a follower for all of
its partitions, one `send` for all messages of a connection. asyncio's own `call_soon` puts off as well, to another turn
of the loop: a system call to ask for events, and some objects, each time. On a chain of four such hops for each record
that is a good part of what a record costs (`docs/performance.md`). So whoever handles an event says where it begins
and ends, and what is put off meanwhile happens at the end:

    1. the calls that were made until then (`call_soon`), in the order they were made. What those put off waits for the
       loop's next turn: work that is done in slices stays in slices, and the turn stays short (`SOON_SECONDS`)
    2. what has to be last (`at_end`): sending what the calls have left in the outputs of connections

Outside of events both happen in the loop's next turn. Nothing overtakes: a call is made after all that were made
before it, wherever that was.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from weakref import WeakValueDictionary

SOON_SECONDS = 0.004
"""Calls that take longer than this together leave the rest to the loop's next turn: others are served in between."""


class LoopEvents:
    """The events of one loop; all calls belong to its thread.

    Invariant: `_due` if and only if a turn of the loop is ordered that will find whatever waits outside of an event.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._soon: deque[Callable[[], None]] = deque()
        self._last: list[Callable[[LoopEvents], None]] = []
        self._depth = 0
        self._due = False

    def call_soon(self, callback: Callable[[], None]) -> None:
        """At the end of this event, after what was called before; outside of one in the loop's next turn."""
        self._soon.append(callback)
        if not self._depth:
            self._order()

    def at_end(self, callback: Callable[[LoopEvents], None]) -> None:
        """As `call_soon`, after all of those; it is given this object. It should put off nothing itself."""
        self._last.append(callback)
        if not self._depth:
            self._order()

    def begin(self) -> None:
        """An event begins, perhaps within another one; `end` must follow, whatever happens."""
        self._depth += 1

    def end(self) -> None:
        """The event is over: what was put off is done, unless this is only a part of another event."""
        if self._depth == 1:
            try:
                if self._soon:
                    self._call()
                if self._last:
                    self._finish()
            finally:
                self._depth = 0
                if self._soon or self._last:
                    self._order()
        else:
            self._depth -= 1

    def _call(self) -> None:
        """Those that wait now, as far as there is time."""
        soon, clock, until = self._soon, self._loop.time, 0.0
        for left in range(len(soon), 0, -1):
            callback = soon.popleft()
            try:
                callback()
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:  # noqa: BLE001  as the loop does: the others are not to suffer for it
                self._failed(callback, error)
            if left > 1:
                now = clock()
                until = until or now + SOON_SECONDS
                if now > until:
                    return

    def _finish(self) -> None:
        last, self._last = self._last, []
        for callback in last:
            try:
                callback(self)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:  # noqa: BLE001  likewise
                self._failed(callback, error)

    def _failed(self, callback: object, error: BaseException) -> None:
        self._loop.call_exception_handler({"message": f"{callback!r} failed", "exception": error})

    def _order(self) -> None:
        if not self._due:
            self._due = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        """A turn of the loop, in which nothing else happened."""
        self._due = False
        self.begin()
        self.end()


_lock = threading.Lock()
_by_loop: WeakValueDictionary[int, LoopEvents] = WeakValueDictionary()
"""By the loop's id, which is nobody else's for as long as the value lives: that holds the loop. Its users hold it."""


def events_of(loop: asyncio.AbstractEventLoop) -> LoopEvents:
    """Those of this loop, from any thread: all who use it mean the same ones."""
    with _lock:
        found = _by_loop.get(id(loop))
        if found is None:
            found = _by_loop[id(loop)] = LoopEvents(loop)
        return found
