"""State shared by the handlers of one API: the broker, the limits, the codec threads, and the requests in progress.

Everything that grows with the number or size of requests is counted here and refused as `overloaded` beyond its bound.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Hashable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, ParamSpec, Protocol, TypeVar

import structlog
from aiohttp import web

from http_api.metrics.exposition import Exposition
from http_api.metrics.http_counts import HttpCounts
from http_api.service.service import BrokerService
from raftlog.errors import RaftlogError, RetriableError
from raftlog.metrics.measure import Family
from raftlog.ports import Answer
from raftlog.security.principals import ANONYMOUS, Caller
from raftlog.system.futures import future_of
from raftlog.system.runtime import call_on

from .connections import Connections
from .gathering import Gathering
from .hosts import HostPolicy
from .limits import GATHERED_REQUESTS, OFFLOAD_BYTES, Limits
from .patience import Patience

P = ParamSpec("P")
T = TypeVar("T")

HELD_BYTES: web.RequestKey[int] = web.RequestKey("held_bytes", int)
"""The bytes that a request makes the node hold."""

STREAM: web.RequestKey[bool] = web.RequestKey("stream", bool)
"""Whether a request counts as a stream, and no longer among the requests in progress."""

HOLDER: web.RequestKey[Any] = web.RequestKey("holder", object)
"""The user of a request, or its address if it has no name."""

WRITE: web.RequestKey[asyncio.Task[Any]] = web.RequestKey("write", asyncio.Task)
"""The broker's write of these bytes, which may outlast the client's connection."""


DECISION_TIMEOUT_S = 30.0
"""Seconds beyond the time that the broker itself waits for the quorum."""


def wall_ms() -> int:
    """Return the timestamp for records without one: milliseconds since 1970."""
    return time.time_ns() // 1_000_000


Refuse = Callable[[web.BaseRequest, RaftlogError, str], web.Response | None]


def outcome_unknown(after_s: float) -> RetriableError:
    """Return the error of a change that the broker has not decided in time."""
    return RetriableError("request_timed_out", f"the outcome is unknown after {after_s:.0f} s")


class CodecThreads:
    """Threads for work that would block the event loop: parsing, encoding, (de)compressing and reading larger
    bodies."""

    def __init__(self, threads: int, queue: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="http-codec")
        self._most = threads + queue
        self._under_way = 0

    async def run(self, size: int, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `work(...)`: here if it concerns at most `OFFLOAD_BYTES`, otherwise in a thread.

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
        future.add_done_callback(lambda _: call_on(loop, self._done))
        return await asyncio.wrap_future(future)

    def _done(self) -> None:
        self._under_way -= 1

    def close(self) -> None:
        """Drop the waiting work and await the running work, which is bounded."""
        self._pool.shutdown(wait=True, cancel_futures=True)


class Forgetful(Protocol):
    """Something that holds memory only to be faster."""

    def forget(self) -> None: ...


class Remembering:
    """The few that may hold such memory: those that were used last."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._used: dict[Forgetful, None] = {}

    def use(self, one: Forgetful) -> None:
        """Let it remember; the one that was used longest ago forgets, if there are too many."""
        self._used.pop(one, None)
        self._used[one] = None
        if len(self._used) > self._most:
            self.end(next(iter(self._used)))

    def end(self, one: Forgetful) -> None:
        """Let it forget."""
        self._used.pop(one, None)
        one.forget()


class ApiContext:
    """The shared state of one running API."""

    def __init__(
        self,
        service: BrokerService,
        policy: HostPolicy,
        limits: Limits,
        clock_ms: Callable[[], int] = wall_ms,
        refuse: Refuse | None = None,
        rest_compat: str = "confluent",
    ) -> None:
        """`refuse` returns the answer to a failed request in the form of its own API, or None for a problem
        document. `rest_compat`: the convention of commits over the REST Proxy API."""
        self.service = service
        self.policy = policy
        self.limits = limits
        self.clock_ms = clock_ms
        self.rest_compat = rest_compat
        self.refuse: Refuse = refuse or (lambda request, error, request_id: None)
        self.connections: Connections[Hashable] = Connections(limits)
        self.counts = HttpCounts()
        self.exposition = Exposition(self._numbers)
        """The text of this node's metrics."""
        self.threads = CodecThreads(limits.codec_threads, limits.codec_queue)
        self.appends: Gathering[Any, Any] = Gathering(GATHERED_REQUESTS, self._begin)
        """Small appends, which share a batch (`routes/produce.py`)."""
        self.decisions = Patience(DECISION_TIMEOUT_S)
        """Changes that the broker has begun to propose to the quorum."""
        self.log = structlog.get_logger(__name__).bind()
        """Bound once, so that a line below the log's level costs almost nothing."""
        self.decoded = Remembering(limits.decoded_pages)
        """The pages of records whose batch stays decoded until their next slice."""
        self.requests_under_way = 0
        self._none_under_way = asyncio.Event()
        """Set when a request has ended, while the API stops, and none is in progress."""
        self._requests_of: Counter[object] = Counter()
        self._streams_of: Counter[object] = Counter()
        self.closing = False
        self.polls: set[asyncio.Timeout] = set()
        """The deadlines of the long polls in progress."""
        self._held_bytes = 0
        self._held_of: Counter[object] = Counter()
        """Held bytes by caller, as requests are counted."""
        self._turn = 0
        self._writes: set[asyncio.Task[Any]] = set()

    def _numbers(self) -> Iterator[Family | None]:
        yield from self.counts.collect(len(self.connections), self.requests_under_way, self.streams)
        yield from self.service.metrics.collect()

    @contextmanager
    def request_of(self, caller: Caller, request: web.Request) -> Iterator[None]:
        """Count a request of a caller while it is in progress. Raises `RetriableError("overloaded")`."""
        key = request[HOLDER] = caller.host if caller.principal == ANONYMOUS else caller.principal
        if self._requests_of[key] >= self.limits.max_requests_of_caller:
            most = self.limits.max_requests_of_caller
            raise RetriableError("overloaded", f"{most} requests of {caller} are in progress, the maximum")
        self._requests_of[key] += 1
        try:
            yield
        finally:
            if STREAM in request:
                _uncount(self._streams_of, key)
            else:
                _uncount(self._requests_of, key)

    def begin_stream(self, request: web.Request) -> None:
        """Count an endless answer among the streams from now on, and no longer among the requests in progress. Raises
        `RetriableError("overloaded")`."""
        key, limits = request[HOLDER], self.limits
        if self.streams >= limits.max_streams:
            raise RetriableError("overloaded", f"{limits.max_streams} streams are open, the maximum")
        if self._streams_of[key] >= limits.max_streams_of_caller:
            most = limits.max_streams_of_caller
            raise RetriableError("overloaded", f"{most} streams of {key} are open, the maximum")
        self._streams_of[key] += 1
        request[STREAM] = True
        _uncount(self._requests_of, key)
        self.requests_under_way -= 1

    @property
    def streams(self) -> int:
        """Return the number of streams."""
        return self._streams_of.total()

    # --- Memory ------------------------------------------------------------------------------------------------------

    @property
    def held_bytes(self) -> int:
        """Return the bytes of bodies in memory."""
        return self._held_bytes

    def hold(self, request: web.Request, count: int) -> None:
        """Count `count` more bytes for `request` until it is answered. Raises `RetriableError("overloaded")`."""
        if self._held_bytes + count > self.limits.max_held_bytes:
            raise RetriableError("overloaded", "the bodies of other requests have used up the memory for bodies")
        if self._held_of[request.get(HOLDER)] + count > self.limits.max_held_bytes_of_caller:
            raise RetriableError(
                "overloaded", "the caller's other requests have used up its part of the memory for bodies"
            )
        self._add(request, count)

    def hold_answer(self, request: web.Request, size: int, *, refusable: bool) -> None:
        """Count the bytes of an answer until it is sent, as far as the request does not hold as many already: what it
        held before is not needed any more. Raises `RetriableError("overloaded")` if it is `refusable`; the outcome of a
        change is not."""
        more = size - request.get(HELD_BYTES, 0)
        if more <= 0:
            return
        if refusable:
            self.hold(request, more)
        else:
            self._add(request, more)

    def drop(self, request: web.Request, count: int) -> None:
        """Release `count` of the request's bytes: a stream has sent them."""
        self._add(request, -count)

    def release(self, request: web.Request) -> None:
        """Release the request's bytes: it is answered, or its client has left. They are freed once its write has
        ended."""
        held = request.get(HELD_BYTES, 0)
        if not held:
            return
        write = request.get(WRITE)
        if write is not None and not write.done():
            write.add_done_callback(lambda _: self.release(request))
            return
        self._add(request, -held)

    def _add(self, request: web.Request, count: int) -> None:
        holder = request.get(HOLDER)
        self._held_bytes += count
        self._held_of[holder] += count
        if not self._held_of[holder]:
            del self._held_of[holder]
        request[HELD_BYTES] = request.get(HELD_BYTES, 0) + count

    # --- Topics and partitions ---------------------------------------------------------------------------------------

    async def catch_up(self, what: str, *, code: str = "quorum_unavailable") -> None:
        """Bring the view up to date before `what` is reported as unknown: another node may just have created it (S7).
        Raises `RetriableError` with this code if the quorum does not answer."""
        if not await self.service.catch_up():
            raise RetriableError(code, f"{what} is not known here, and the quorum does not answer")

    def next_turn(self) -> int:
        """Return a number that rises with each call: it spreads records without a key over the partitions."""
        self._turn += 1
        return self._turn

    # --- Writes ------------------------------------------------------------------------------------------------------

    async def finish(self, write: Coroutine[Any, Any, T], within_s: float, *, holder: web.Request | None = None) -> T:
        """Await a change of the cluster, which completes even if the client disconnects. `holder`: the request whose
        bytes it needs until then.

        Raises the change's own errors, and `RetriableError("request_timed_out")` after `within_s` seconds: a bound for
        a broker that has lost the request, far beyond the broker's own deadline.
        """
        task = self._begin(write)
        if holder is not None:
            holder[WRITE] = task
        try:
            async with asyncio.timeout(within_s):
                return await asyncio.shield(task)
        except TimeoutError:
            if task.done():
                return task.result()  # Both completed in one iteration of the event loop.
            task.cancel()
            raise outcome_unknown(within_s) from None

    def _begin(self, write: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Begin a change that completes whatever becomes of clients. Raises `RetriableError("overloaded")`."""
        most = self.limits.max_concurrent_requests
        if len(self._writes) >= most:  # There may be more than requests: some have lost their clients.
            write.close()
            raise RetriableError("overloaded", f"{most} requests are in progress, some of disconnected clients")
        task = asyncio.get_running_loop().create_task(write)
        self._writes.add(task)
        task.add_done_callback(self._write_done)
        return task

    async def decided(self, ask: Callable[[Answer[T]], None]) -> T:
        """Return what `ask` passes to its callback, or raise it if it is an error. The change completes even if the
        client disconnects.

        Raises `RetriableError("request_timed_out")` like `finish`.
        """
        return await self.decisions.wait(future_of(ask))

    def request_ended(self, request: web.Request) -> None:
        """Count a request, or the stream that it became, as ended."""
        if STREAM not in request:
            self.requests_under_way -= 1
        if self.closing and not self.requests_under_way and not self.streams:
            self._none_under_way.set()

    async def requests_end(self, timeout: float) -> None:
        """Wait until no request or stream is in progress, for at most `timeout` seconds. No further ones may be
        accepted."""
        if self.requests_under_way or self.streams:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await self._none_under_way.wait()

    def _write_done(self, task: asyncio.Task[Any]) -> None:
        self._writes.discard(task)
        error = None if task.cancelled() else task.exception()
        # Retrieve the exception: the client may have left. A bug is still reported by the node.
        if error is not None and not isinstance(error, RaftlogError):
            task.get_loop().call_exception_handler({"message": "a write broke", "exception": error, "task": task})

    def stop_taking_requests(self) -> None:
        """Refuse further requests and end long polls; other requests get a short time to complete."""
        self.closing = True
        now = asyncio.get_running_loop().time()
        for deadline in self.polls:
            if not deadline.expired():
                deadline.reschedule(now)

    async def close(self) -> None:
        """Release all resources after the last request."""
        for task in list(self._writes):
            task.cancel()
        await asyncio.gather(*self._writes, return_exceptions=True)
        self.appends.close()
        await self.exposition.close()
        self.decisions.close()
        self.threads.close()


CONTEXT: web.AppKey[ApiContext] = web.AppKey("context", ApiContext)


def context_of(request: web.Request) -> ApiContext:
    """Return the API that received this request."""
    return request.app[CONTEXT]


def _uncount(counts: Counter[object], key: object) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]
