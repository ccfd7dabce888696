"""A thread with an event loop of its own, on which an asyncio object does its work for a program that has no loop.

Each object of the blocking client has one such thread: a slow consumer does not hold up a producer, and closing one
ends nothing but its own. A call hands a coroutine over and waits for its end, so Ctrl-C (or a timeout) in the calling
thread cancels it, as it would in the program's own loop. Any thread may call, but not the loop's own: it would wait for
itself.

A thread does not survive a fork, so an object made before one says so instead of waiting for ever.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from raftlog.errors import RetriableError

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
Wrapped = TypeVar("Wrapped")
WrappedHere = TypeVar("WrappedHere", covariant=True)

START_SECONDS = 30.0


class LoopThread:
    """Started by its making, ended by `stop` or when its owner is collected."""

    def __init__(self, owner: object, what: str) -> None:
        """`what` names it in errors and among threads. Raises `RetriableError` (`overloaded`) where the process has no
        thread or no descriptor left for it."""
        self._what = what
        self._process = os.getpid()
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._failed: Exception | None = None
        """Why the loop could not be made."""
        self._running = threading.Event()
        self._lock = threading.Lock()
        """Between handing over a call and the end of the loop."""
        self._thread = threading.Thread(target=self._run, name=f"raftlog-{what}", daemon=True)
        self._start()
        weakref.finalize(owner, self.stop)

    def submit(self, call: Callable[[], Coroutine[Any, Any, Result]]) -> concurrent.futures.Future[Result]:
        """What `call` returns, to come. Raises `RetriableError` (`shutting_down`) when the object is closed."""
        self._check_thread()
        with self._lock:
            loop = self._usable()
            return asyncio.run_coroutine_threadsafe(call(), loop)

    def run(self, call: Callable[[], Coroutine[Any, Any, Result]], timeout: float | None = None) -> Result:
        """What `call` returns, awaited on the thread. Raises what it raises, `TimeoutError` after `timeout` seconds,
        and `RetriableError` (`shutting_down`) when the object is closed, also meanwhile."""
        return self.result(self.submit(call), timeout)

    def result(self, future: concurrent.futures.Future[Result], timeout: float | None = None) -> Result:
        """Of what was submitted. Raises as `run`."""
        try:
            return future.result(timeout)
        except concurrent.futures.CancelledError:
            raise RetriableError("shutting_down", f"the {self._what} was closed meanwhile") from None
        except BaseException:
            future.cancel()  # nobody waits any more: Ctrl-C, the timeout; of no effect where it has ended
            raise

    def call_soon(self, callback: Callable[[], None]) -> None:
        """On the thread, without waiting. Raises as `run`."""
        self._check_thread()
        with self._lock:
            self._usable().call_soon_threadsafe(callback)

    @property
    def closed(self) -> bool:
        """It was stopped."""
        return self._closed

    def stop(self) -> None:
        """End the loop; what still runs on it is cancelled. Harmless when done before."""
        if self._process != os.getpid():
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
            loop, stop = self._loop, self._stop
            if loop is not None and stop is not None:
                loop.call_soon_threadsafe(stop.set)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _start(self) -> None:
        try:
            self._thread.start()
            self._running.wait(START_SECONDS)
        except RuntimeError as error:  # the interpreter's, where the system has no thread left
            self._failed = error
        with self._lock:
            if self._loop is None:
                self._closed = True
                why = self._failed or f"it did not begin within {START_SECONDS:g} s"
                raise RetriableError("overloaded", f"no thread could be started for this {self._what}: {why}")

    def _check_thread(self) -> None:
        """Before the lock: in a forked process nobody may be left who would let go of it."""
        if self._process != os.getpid():
            raise RuntimeError(f"this {self._what} was made before a fork: make one in each process")
        if threading.current_thread() is self._thread:
            raise RuntimeError(f"a blocking {self._what} was called from its own thread, which would wait for itself")

    def _usable(self) -> asyncio.AbstractEventLoop:
        if self._closed or self._loop is None:
            raise RetriableError("shutting_down", f"the {self._what} is closed")
        return self._loop

    def _run(self) -> None:
        try:
            with asyncio.Runner() as runner:
                runner.run(self._main())
        except Exception as error:
            if self._running.is_set():
                raise
            self._failed = error  # whoever waits for the start is told
        finally:
            with self._lock:
                self._closed = True
            self._running.set()

    async def _main(self) -> None:
        with self._lock:
            if self._closed:
                return  # nobody waits for it any more
            self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._running.set()
        await self._stop.wait()


class OnThread(Protocol[WrappedHere]):
    """An object of the blocking client: what it wraps, and the thread that this belongs to."""

    @property
    def _thread(self) -> LoopThread: ...

    @property
    def _wrapped(self) -> WrappedHere: ...


def blocking(
    method: Callable[Concatenate[Wrapped, Parameters], Coroutine[Any, Any, Result]],
) -> Callable[Concatenate[OnThread[Wrapped], Parameters], Result]:
    """The same method of the blocking client: the same arguments, result, errors and documentation."""

    @wraps(method)
    def call(own: OnThread[Wrapped], /, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        return own._thread.run(lambda: method(own._wrapped, *args, **kwargs))

    return call
