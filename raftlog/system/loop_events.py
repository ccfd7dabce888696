"""Work that one event of an event loop defers to its own end, before the loop polls the kernel again.

An event is the arrival of something from a socket or a worker's thread. Its consequences are deferred until it is over,
so that everything in the event shares the work: one write of the log for all appends, one push to a follower for all of
its partitions, one `send` for all messages of a connection. asyncio's own `call_soon` defers as well, but to another
turn of the loop, at the price of a system call and some objects each time. With four such hops for each record, that is
a good part of a record's cost (`docs/performance.md`). So the code that handles an event marks its begin and end, and
at the end deferred calls run:

    1. the calls made until then by `call_soon`, in order. Calls that these defer wait for the loop's next turn: work
       that is sliced stays sliced, and the turn stays short (`SOON_SECONDS`)
    2. the last calls (`at_end`): sending the output that the calls have left in connections

Outside of events both happen in the loop's next turn. Nothing overtakes: a call runs after all earlier ones, wherever
they were made.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from weakref import WeakValueDictionary

SOON_SECONDS = 0.004
"""Total time of deferred calls in seconds after which the rest waits for the loop's next turn, so that others are
served."""


class LoopEvents:
    """The events of one loop. All calls are made on its thread.

    Invariant: `_due` is true if and only if a turn of the loop is scheduled that will run what waits outside of an
    event.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._soon: deque[Callable[[], None]] = deque()
        self._last: list[Callable[[LoopEvents], None]] = []
        self._depth = 0
        self._due = False

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Call at the end of this event, after all earlier calls; outside of an event, in the loop's next turn."""
        self._soon.append(callback)
        if not self._depth:
            self._order()

    def at_end(self, callback: Callable[[LoopEvents], None]) -> None:
        """Call with this object after all that `call_soon` has collected. The callback should not defer anything."""
        self._last.append(callback)
        if not self._depth:
            self._order()

    def begin(self) -> None:
        """Begin an event, perhaps within another one; `end` must follow in any case."""
        self._depth += 1

    def end(self) -> None:
        """End the event and run the deferred calls, unless this event is a part of another one."""
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
        """Run the calls that wait now, as far as there is time."""
        soon, clock, until = self._soon, self._loop.time, 0.0
        for left in range(len(soon), 0, -1):
            callback = soon.popleft()
            try:
                callback()
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:  # noqa: BLE001  like the loop: one failing callback must not affect the others
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
            except BaseException as error:  # noqa: BLE001  as above
                self._failed(callback, error)

    def _failed(self, callback: object, error: BaseException) -> None:
        self._loop.call_exception_handler({"message": f"{callback!r} failed", "exception": error})

    def _order(self) -> None:
        if not self._due:
            self._due = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        """Run the deferred calls in a turn of the loop without another event."""
        self._due = False
        self.begin()
        self.end()


_lock = threading.Lock()
_by_loop: WeakValueDictionary[int, LoopEvents] = WeakValueDictionary()
"""Events by the loop's id. The id is unique while the value lives, because the value holds the loop. The users hold the
value."""


def events_of(loop: asyncio.AbstractEventLoop) -> LoopEvents:
    """Return the events of this loop. All users of a loop share one object. Thread-safe."""
    with _lock:
        found = _by_loop.get(id(loop))
        if found is None:
            found = _by_loop[id(loop)] = LoopEvents(loop)
        return found
