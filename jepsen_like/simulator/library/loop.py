"""An asyncio event loop on virtual time: coroutines of one simulated process run as events of the world's heap.

The client library and a node's request handlers are written for asyncio, and run here unchanged: a callback becomes an
event of the process's life, so it dies with a killed process and is late in a paused one. Only the heap decides which
callback is next; no real clock, thread or socket is involved.

The loop is the running loop during every event of its process (`entered`), whichever code scheduled the event. So
product code that asks for the running loop finds it.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, TypeVarTuple, Unpack

from jepsen_like.simulator.world.heap import Event, EventHeap, Life

TURN_SECONDS = 1e-6
"""Least duration of a turn of a loop. Code that wakes up too early by a rounding error and calls itself again would
otherwise be called at the same moment without end.
"""

TASKS_MIN = 64

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class VirtualHandle(Event):
    """A callback in the context of its scheduler: both the heap's event and what asyncio's callers use of a handle.
    Most events of a world with client libraries are such callbacks, so each is one object.
    """

    __slots__ = ("_arguments", "_context", "_function", "loop")

    def __init__(
        self,
        callback: Callable[..., object],
        arguments: tuple[Any, ...],
        loop: VirtualLoop,
        context: contextvars.Context | None,
    ) -> None:
        self.life = loop.life
        self.cancelled = False
        self.loop = loop
        self._function: Callable[..., object] | None = callback
        self._arguments = arguments
        self._context = contextvars.copy_context() if context is None else context

    def callback(self) -> None:
        """Run the callback like `asyncio.Handle` does. The loop gets any exception."""
        assert self._function is not None
        try:
            self._context.run(self._function, *self._arguments)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:  # noqa: BLE001  the loop hears it, whatever it is
            self.loop.failed(error)

    def cancel(self) -> None:
        self.cancelled = True
        self._function = None
        self._arguments = ()

    def when(self) -> float:
        """The time at which it is due."""
        return self.at


class VirtualLoop(asyncio.AbstractEventLoop):
    """The loop of one life of one simulated process."""

    def __init__(self, heap: EventHeap, life: Life, failed: Callable[[BaseException], None]) -> None:
        """`failed` gets each exception of a callback, which is a bug of the product or of the world."""
        self.heap = heap
        self.life = life
        self.failed = failed
        self._tasks: dict[asyncio.Task[Any], None] = {}
        """The running tasks, in the order of their start, which keeps them alive until `end`. Some may be done."""
        self._tasks_max = TASKS_MIN
        """At this number of tasks, those that are done are dropped."""

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Inside the `with` block this is the running loop."""
        before = asyncio._get_running_loop()
        asyncio._set_running_loop(self)
        try:
            yield
        finally:
            asyncio._set_running_loop(before)

    def end(self) -> None:
        """Cancel all running tasks: no task may survive its world unfinished."""
        for task in list(self._tasks):
            task.cancel()

    def calls(self, event: Event) -> bool:
        """Whether the event is a callback of this loop."""
        return isinstance(event, VirtualHandle) and event.loop is self

    # --- asyncio.AbstractEventLoop -----------------------------------------------------------------------------------

    def time(self) -> float:
        return self.heap.now

    def call_soon(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        handle = VirtualHandle(callback, args, self, context)
        self.heap.put(0.0, handle)
        return handle  # type: ignore[return-value]

    def call_soon_threadsafe(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self,
        delay: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self.heap.now + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        handle = VirtualHandle(callback, args, self, context)
        self.heap.put(max(when - self.heap.now, TURN_SECONDS), handle)
        return handle  # type: ignore[return-value]

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
    ) -> asyncio.Task[T]:
        if len(self._tasks) >= self._tasks_max:
            self._tasks = {task: None for task in self._tasks if not task.done()}
            self._tasks_max = TASKS_MIN + 2 * len(self._tasks)
        made = asyncio.Task(coro, loop=self, name=name, context=context)
        self._tasks[made] = None
        return made

    def run_in_executor(self, executor: Any, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        """Run the function at once, as there are no threads; the future's callbacks run in a later turn."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001  as a thread would hand it over
            future.set_exception(error)
        return future

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.call_exception_handler(context)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Do nothing: asyncio reports an unretrieved exception of a task at its garbage collection, at any time or
        never, so a world ignores it. The loop has already got the exceptions of callbacks.
        """
