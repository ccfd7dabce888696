"""What the handlers of one API share: the broker, the limits, the codec threads and what is held and under way.

Everything that grows with the number or size of requests is counted here, and refused as `overloaded` above its bound.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

import structlog
from aiohttp import web

from http_api.service.service import BrokerService
from raftlog.errors import RaftlogError, RetriableError

from .hosts import HostPolicy
from .limits import OFFLOAD_BYTES, Limits
from .patience import Patience

P = ParamSpec("P")
T = TypeVar("T")

HELD_BYTES: web.RequestKey[int] = web.RequestKey("held_bytes", int)
"""Bytes that a request makes the node hold."""

WRITE: web.RequestKey[asyncio.Task[Any]] = web.RequestKey("write", asyncio.Task)
"""What a request makes the broker do with them, perhaps for longer than its client stays."""


DECISION_TIMEOUT_S = 30.0
"""Beyond what the broker itself waits for the quorum."""


def wall_ms() -> int:
    """The time that records without one are given: milliseconds since 1970."""
    return time.time_ns() // 1_000_000


class CodecThreads:
    """A few threads for what would hold the loop: parsing, encoding, (de)compressing and reading larger bodies."""

    def __init__(self, threads: int, queue: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="http-codec")
        self._most = threads + queue
        self._under_way = 0

    async def run(self, size: int, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """`work(...)`: here if it is about at most `OFFLOAD_BYTES`, else in a thread.

        Raises what `work` raises, and `RetriableError("overloaded")` when too much waits already.
        """
        if size <= OFFLOAD_BYTES:
            return work(*args, **kwargs)
        if self._under_way >= self._most:
            raise RetriableError("overloaded", "too many large bodies wait to be parsed or encoded")
        future = self._pool.submit(work, *args, **kwargs)  # raises where no thread can be started
        self._under_way += 1
        loop = asyncio.get_running_loop()
        # Counted until the thread is done with it, not until the request is: a cancelled request frees no thread.
        future.add_done_callback(lambda _: _call_soon(loop, self._done))
        return await asyncio.wrap_future(future)

    def _done(self) -> None:
        self._under_way -= 1

    def close(self) -> None:
        """Drop what waits; what runs is awaited (it is bounded)."""
        self._pool.shutdown(wait=True, cancel_futures=True)


def _call_soon(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(callback)


class ApiContext:
    """One running API."""

    def __init__(
        self, service: BrokerService, policy: HostPolicy, limits: Limits, clock_ms: Callable[[], int] = wall_ms
    ) -> None:
        self.service = service
        self.policy = policy
        self.limits = limits
        self.clock_ms = clock_ms
        self.threads = CodecThreads(limits.codec_threads, limits.codec_queue)
        self.decisions = Patience(DECISION_TIMEOUT_S)
        """What the broker was asked to bring to the quorum, and has begun to."""
        self.log = structlog.get_logger(__name__).bind()
        """Bound once: a line below the log's level then costs next to nothing."""
        self.requests_under_way = 0
        self.closing = False
        self.polls: set[asyncio.Timeout] = set()
        """Deadlines of the long polls under way."""
        self._held_bytes = 0
        self._turn = 0
        self._writes: set[asyncio.Task[Any]] = set()

    # --- Memory ------------------------------------------------------------------------------------------------------

    @property
    def held_bytes(self) -> int:
        """Bytes of bodies in memory."""
        return self._held_bytes

    def hold(self, request: web.Request, count: int) -> None:
        """Note that `request` holds `count` bytes more, until it is answered. Raises `RetriableError("overloaded")`."""
        if self._held_bytes + count > self.limits.max_held_bytes:
            raise RetriableError("overloaded", "bodies of other requests fill the memory set aside for them")
        self._held_bytes += count
        request[HELD_BYTES] = request.get(HELD_BYTES, 0) + count

    def release(self, request: web.Request) -> None:
        """The request is answered, or its client left: what it held is free once its write has ended."""
        held = request.get(HELD_BYTES, 0)
        if not held:
            return
        write = request.get(WRITE)
        if write is not None and not write.done():
            write.add_done_callback(lambda _: self.release(request))
            return
        self._held_bytes -= held
        request[HELD_BYTES] = 0

    # --- Topics and partitions ---------------------------------------------------------------------------------------

    async def catch_up(self, what: str, *, code: str = "quorum_unavailable") -> None:
        """Bring the view up to date before somebody is told that `what` does not exist: another node may just have
        made it (S7). Raises `RetriableError` with this code where the quorum does not answer."""
        if not await self.service.catch_up():
            raise RetriableError(code, f"{what} is not known here, and the quorum is silent")

    def next_turn(self) -> int:
        """A number that rises with every request that needs one: where records without a key go in turn."""
        self._turn += 1
        return self._turn

    # --- Writes ------------------------------------------------------------------------------------------------------

    async def finish(self, write: Coroutine[Any, Any, T], within_s: float, *, holder: web.Request | None = None) -> T:
        """Await something that changes the cluster; it goes on to its end although the client may leave meanwhile.
        `holder`: the request whose bytes it needs until then.

        Raises what it raises, and `RetriableError("request_timed_out")` after `within_s` seconds: a bound for a broker
        that has lost the request, far beyond the deadline that the broker itself keeps.
        """
        most = self.limits.max_concurrent_requests
        if len(self._writes) >= most:  # More than requests: some have lost their clients.
            write.close()
            raise RetriableError("overloaded", f"{most} requests are under way, although some clients have left")
        task = asyncio.get_running_loop().create_task(write)
        self._writes.add(task)
        if holder is not None:
            holder[WRITE] = task
        task.add_done_callback(self._write_done)
        try:
            async with asyncio.timeout(within_s):
                return await asyncio.shield(task)
        except TimeoutError:
            if task.done():
                return task.result()  # Both came in one turn of the loop.
            task.cancel()
            raise RetriableError("request_timed_out", f"no outcome was known after {within_s:.0f} s") from None

    def _write_done(self, task: asyncio.Task[Any]) -> None:
        self._writes.discard(task)
        error = None if task.cancelled() else task.exception()
        # Retrieved: when the client has left there is nobody to tell. But for a bug there is the node itself.
        if error is not None and not isinstance(error, RaftlogError):
            task.get_loop().call_exception_handler({"message": "a write broke", "exception": error, "task": task})

    def stop_taking_requests(self) -> None:
        """Further requests are told to go elsewhere, long polls end; the others have a little time."""
        self.closing = True
        now = asyncio.get_running_loop().time()
        for deadline in self.polls:
            if not deadline.expired():
                deadline.reschedule(now)

    async def close(self) -> None:
        """After the last request."""
        for task in list(self._writes):
            task.cancel()
        await asyncio.gather(*self._writes, return_exceptions=True)
        self.decisions.close()
        self.threads.close()


CONTEXT: web.AppKey[ApiContext] = web.AppKey("context", ApiContext)


def context_of(request: web.Request) -> ApiContext:
    """The API that this request came to."""
    return request.app[CONTEXT]
