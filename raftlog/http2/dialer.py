"""The side that connects: once (`connect`), or for as long as a peer should be reached (`ReconnectingDialer`)."""

from __future__ import annotations

import asyncio
import ssl as ssl_module
from collections.abc import Callable, Mapping

from ..errors import RaftlogError, RetriableError
from ..ports import Random
from .limits import Http2Limits
from .protocol import Http2Connection
from .stream import Http2Stream, StreamHandler
from .tls import prepare

SHORTEST_DELAY_S = 0.1
LONGEST_DELAY_S = 2.0


async def connect(
    host: str,
    port: int,
    *,
    limits: Http2Limits | None = None,
    ssl: ssl_module.SSLContext | None = None,
    on_closed: Callable[[Http2Connection, str], None] | None = None,
) -> Http2Connection:
    """A connection whose peer has shown that it speaks HTTP/2, on the running loop.

    Raises `RetriableError` (`connection_lost`) with what went wrong: nobody listens there, it does not speak HTTP/2,
    its certificate is not trusted, or `connect_timeout_s` passed.
    """
    limits = limits or Http2Limits()
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()

    def lost(connection: Http2Connection, reason: str) -> None:
        if not ready.done():
            ready.set_exception(RetriableError("connection_lost", reason))
        elif on_closed is not None:
            on_closed(connection, reason)

    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    connection = Http2Connection(loop, limits, authority=where, on_closed=lost)
    connection.on_ready = lambda: None if ready.done() else ready.set_result(None)
    timeouts = (limits.connect_timeout_s, limits.linger_s) if ssl else (None, None)
    try:
        async with asyncio.timeout(limits.connect_timeout_s):
            await loop.create_connection(
                lambda: connection,
                host,
                port,
                ssl=prepare(ssl),
                ssl_handshake_timeout=timeouts[0],
                ssl_shutdown_timeout=timeouts[1],
            )
            await ready
    except BaseException as error:
        connection.on_closed = None
        ready.cancel()
        await connection.give_up("connecting failed")
        if not isinstance(error, (OSError, TimeoutError, RetriableError)):
            raise
        detail = error.detail if isinstance(error, RaftlogError) else str(error) or "no answer in time"
        raise RetriableError("connection_lost", f"{where}: {detail}") from None
    return connection


class ReconnectingDialer:
    """Keeps one connection with one long-lived stream to a peer, until `close`.

    When either is lost (or refused), both are given up and a new attempt follows after a random delay: at first up to
    0.2 s, twice that after each further failure, never below 0.1 s or above 2 s. Randomness keeps the brokers that
    lost the same peer from coming back all at once.
    """

    def __init__(
        self,
        host: str,
        port: int,
        path: str,
        handler: StreamHandler,
        *,
        random: Random,
        headers: Mapping[str, str] | None = None,
        limits: Http2Limits | None = None,
        ssl: ssl_module.SSLContext | None = None,
        on_opened: Callable[[Http2Stream], None] | None = None,
        on_closed: Callable[[str], None] | None = None,
    ) -> None:
        """Starts at once, on the running loop. `on_opened` is called when the peer has accepted a stream; `handler`
        is told of that stream's messages and its `on_closed`. `on_closed` is called with the reason after each lost
        stream and after each failed attempt."""
        self._host, self._port, self._path = host, port, path
        self._handler = handler
        self._random = random
        self._headers = dict(headers or {})
        self._limits = limits or Http2Limits()
        self._ssl = ssl
        self._on_opened = on_opened
        self._on_closed = on_closed
        self._connection: Http2Connection | None = None
        self._stream: Http2Stream | None = None
        self._failures = 0
        self._closing = False
        self._task: asyncio.Task[None] | None = asyncio.get_running_loop().create_task(self._keep())
        self._task.add_done_callback(_report)

    @property
    def stream(self) -> Http2Stream | None:
        """The stream, while the peer has accepted it and it is open."""
        return self._stream

    async def close(self) -> None:
        """Close the connection and stay away. The handler's `on_closed` has been called when this returns."""
        self._closing = True
        task, self._task = self._task, None
        if task is None:
            return
        task.cancel()
        await asyncio.wait([task])

    def delay_s(self) -> float:
        """How long to wait before the next attempt."""
        longest = min(LONGEST_DELAY_S, 0.2 * 2.0 ** min(self._failures, 10))
        return self._random.uniform(SHORTEST_DELAY_S, longest)

    async def _keep(self) -> None:
        while not self._closing:
            reason = await self._once()
            if self._on_closed is not None:
                self._on_closed(reason)
            delay = self.delay_s()
            self._failures += 1
            await asyncio.sleep(delay)

    async def _once(self) -> str:
        """One connection's life. Returns why it ended."""
        loop = asyncio.get_running_loop()
        over: asyncio.Future[str] = loop.create_future()

        def end(reason: str) -> None:
            self._stream = None
            if not over.done():
                over.set_result(reason)

        def lost(connection: Http2Connection, reason: str) -> None:
            end(reason)

        try:
            connection = await connect(self._host, self._port, limits=self._limits, ssl=self._ssl, on_closed=lost)
        except RetriableError as error:
            return error.detail
        patience = loop.call_later(self._limits.connect_timeout_s, end, f"{self._path}: no response in time")

        def opened(stream: Http2Stream) -> None:
            patience.cancel()
            self._opened(stream)

        try:
            connection.on_goaway = lambda _, reason: end(f"the peer goes away: {reason}")
            connection.open_stream(self._path, self._headers, _Watched(self._handler, end), opened)
            return await over
        except RetriableError as error:
            return error.detail
        finally:
            patience.cancel()
            connection.close("the stream is over")
            await connection.wait_closed()

    def _opened(self, stream: Http2Stream) -> None:
        self._failures = 0
        self._stream = stream
        if self._on_opened is not None:
            self._on_opened(stream)


def _report(task: asyncio.Task[None]) -> None:
    """A callback of the user's raised: that is a bug, and must not die unseen with the task."""
    error = None if task.cancelled() else task.exception()
    if error is not None:
        message = "a callback of ReconnectingDialer failed; it dials no more"
        task.get_loop().call_exception_handler({"message": message, "exception": error, "task": task})


class _Watched:
    """The user's handler, and the end of its stream."""

    def __init__(self, handler: StreamHandler, end: Callable[[str], None]) -> None:
        self._handler = handler
        self._end = end
        self.on_message = handler.on_message
        self.on_ended = handler.on_ended

    def on_closed(self, stream: Http2Stream, reason: str) -> None:
        self._end(reason)
        self._handler.on_closed(stream, reason)
