"""An asyncio event loop on virtual time: coroutines of one simulated process run as events of the world's heap.

The client library and the request side of a node are written for asyncio. Here they run as they are: a callback that
is due becomes an event of the process's life, so it dies with a killed process, and comes late in a stopped one. Which
callback is next depends on the heap alone; no real clock, thread or socket is involved.

The loop runs while one of its process's events does (`entered`), whichever code scheduled that event: product code that
asks for the running loop finds it.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, TypeVarTuple, Unpack

from jepsen_like.simulator.world.heap import Event, EventHeap, Life

TURN_SECONDS = 1e-6
"""What a turn of a loop takes at least: who looks a rounding error too early, and asks to be called again, is not
called at the same moment for ever."""

TASKS_MIN = 64

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class VirtualHandle(Event):
    """A callback that is due, in the context of whoever asked for it: the event itself, and what asyncio's callers use
    of a handle. Most events of a world with client libraries are these, so each is one object."""

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
        """As `asyncio.Handle` runs it. What it raises is heard by the loop."""
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
        """When it is due."""
        return self.at


class VirtualLoop(asyncio.AbstractEventLoop):
    """Of one life of one simulated process."""

    def __init__(self, heap: EventHeap, life: Life, failed: Callable[[BaseException], None]) -> None:
        """`failed` is told what a callback raised; that is a bug of the product, or of the world."""
        self.heap = heap
        self.life = life
        self.failed = failed
        self._tasks: dict[asyncio.Task[Any], None] = {}
        """Those under way, in the order of their beginning: kept alive, and ended by `end`. Some are done."""
        self._tasks_max = TASKS_MIN
        """When there are so many, those that are done are let go."""

    @contextmanager
    def entered(self) -> Iterator[None]:
        """This is the running loop meanwhile."""
        before = asyncio._get_running_loop()
        asyncio._set_running_loop(self)
        try:
            yield
        finally:
            asyncio._set_running_loop(before)

    def end(self) -> None:
        """Cancel what is under way: nothing may outlive its world half done."""
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
        """There are no threads: it happens now, and whoever waits is told in a later turn."""
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
        """That a task's error was seen by nobody is told when it is collected, at any time or never, so a world does
        not listen to that; and what a callback raised, the loop has heard."""
