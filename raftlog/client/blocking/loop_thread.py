"""A thread with its own event loop, which runs an asyncio object for a program without a loop.

Each object of the blocking client has one such thread, so a slow consumer does not block a producer, and closing one
object affects no other. A call submits a coroutine and waits for its end; Ctrl-C or a timeout in the calling thread
cancels it, as it would in the program's own loop. Any thread may call except the loop's own, which would deadlock.

A thread does not survive a fork, so an object made before a fork raises an error instead of waiting forever.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from raftlog.errors import ClientClosed, RetriableError

Result = TypeVar("Result")

START_SECONDS = 30.0


class LoopThread:
    """An event loop on a thread of its own.

    It starts when it is made, and ends with `stop` or when its owner is garbage collected.
    """

    def __init__(self, owner: object, what: str) -> None:
        """`what` names it in error texts and in the list of threads.

        Raises `RetriableError` (`overloaded`) if the process has no thread or file descriptor left for it.
        """
        self._what = what
        self._process = os.getpid()
        self._closed = False
        self._stop: asyncio.Event | None = None
        self._loop: concurrent.futures.Future[asyncio.AbstractEventLoop] = concurrent.futures.Future()
        """The running loop, or the error that kept it from starting."""
        self._lock = threading.Lock()
        """Serializes submitting a call with the end of the loop."""
        self._thread = threading.Thread(target=self._run, name=f"raftlog-{what}", daemon=True)
        try:
            self._thread.start()
            self._loop.result(START_SECONDS)
        except Exception as error:
            with self._lock:
                self._closed = True
            why = str(error) or f"it did not start within {START_SECONDS:g} s"
            raise RetriableError("overloaded", f"no thread could be started for this {what}: {why}") from error
        weakref.finalize(owner, self.stop)

    def submit(self, call: Callable[[], Coroutine[Any, Any, Result]]) -> concurrent.futures.Future[Result]:
        """Submit `call`, and return a future of its result. Raises `ClientClosed` once closed."""
        self._check_thread()
        with self._lock:
            loop = self._usable()
            return asyncio.run_coroutine_threadsafe(call(), loop)

    def run(self, call: Callable[[], Coroutine[Any, Any, Result]], timeout: float | None = None) -> Result:
        """Run `call` on the thread and return its result.

        Raises what it raises, `TimeoutError` after `timeout` seconds, and `ClientClosed` if the object is closed before
        or meanwhile.
        """
        return self.result(self.submit(call), timeout)

    def result(self, future: concurrent.futures.Future[Result], timeout: float | None = None) -> Result:
        """Wait for a submitted call and return its result. Raises as `run` does."""
        try:
            return future.result(timeout)
        except concurrent.futures.CancelledError:
            raise ClientClosed(f"the {self._what} was closed during this call") from None
        except BaseException:
            future.cancel()  # the caller gave up (Ctrl-C, timeout); no effect if the call has ended
            raise

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Call `callback` on the thread, without waiting. Raises as `run` does."""
        self._check_thread()
        with self._lock:
            self._usable().call_soon_threadsafe(callback)

    @property
    def belongs_to_this_process(self) -> bool:
        """Whether this is the process that made it, rather than a fork of it."""
        return self._process == os.getpid()

    @property
    def closed(self) -> bool:
        """Whether it was stopped."""
        return self._closed

    def stop(self) -> None:
        """End the loop and cancel what still runs on it. Idempotent."""
        if self._process != os.getpid():
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if self._stop is not None:
                self._loop.result().call_soon_threadsafe(self._stop.set)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _check_thread(self) -> None:
        """Refuse a call from a forked process or from the loop's own thread.

        This runs before the lock is taken: in a forked process, the thread that holds the lock may not exist.
        """
        if self._process != os.getpid():
            raise RuntimeError(f"this {self._what} was made before a fork: make one in each process")
        if threading.current_thread() is self._thread:
            raise RuntimeError(f"a blocking {self._what} was called from its own thread, which would wait for itself")

    def _usable(self) -> asyncio.AbstractEventLoop:
        if self._closed:
            raise ClientClosed(f"the {self._what} is closed: create a new one")
        return self._loop.result()

    def _run(self) -> None:
        try:
            with asyncio.Runner() as runner:
                runner.run(self._main())
        except Exception as error:
            if self._loop.done():
                raise
            self._loop.set_exception(error)  # raised in the constructor, which waits for the start
        finally:
            with self._lock:
                self._closed = True

    async def _main(self) -> None:
        with self._lock:
            if self._closed:
                return  # the constructor gave up waiting
            self._stop = asyncio.Event()
            self._loop.set_result(asyncio.get_running_loop())
        await self._stop.wait()
