"""The side that connects: once (`connect`), or for as long as a peer should be reached (`ReconnectingDialer`)."""

from __future__ import annotations

import asyncio
import ssl as ssl_module
from collections.abc import Callable, Mapping

import structlog

from ..errors import RaftlogError, RetriableError, is_shortage
from ..ports import Random
from .connection import Http2Connection, Http2Stream, StreamHandler
from .limits import Http2Limits
from .tls import CUT_SHORT, DialTls, explain

SHORTEST_DELAY_S = 0.1
LONGEST_DELAY_S = 2.0
TELL_AGAIN_S = 60.0
"""A peer that stays away for the same reason is told of this often."""
TOLD_CHARACTERS = 500
"""Of a reason, which may be the peer's own words."""


async def connect(
    host: str,
    port: int,
    *,
    limits: Http2Limits | None = None,
    ssl: ssl_module.SSLContext | DialTls | None = None,
    on_closed: Callable[[Http2Connection, str], None] | None = None,
) -> Http2Connection:
    """A connection whose peer has shown that it speaks HTTP/2, on the running loop.

    Raises `RetriableError` (`connection_lost`) with what went wrong: nobody listens there, it does not speak HTTP/2,
    its certificate is not trusted or another's, `host` is no name, this end has no thread to resolve it with, or
    `connect_timeout_s` passed.
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
    tls = None if ssl is None else DialTls.of(ssl)
    timeouts = (limits.connect_timeout_s, limits.linger_s) if tls else (None, None)
    try:
        async with asyncio.timeout(limits.connect_timeout_s):
            await loop.create_connection(
                lambda: connection.protocol,
                host,
                port,
                ssl=tls.context() if tls else None,
                server_hostname=(tls.server_name or host) if tls else None,
                ssl_handshake_timeout=timeouts[0],
                ssl_shutdown_timeout=timeouts[1],
            )
            if tls is not None:
                tls.check(connection.get_extra_info("peercert"))
            await ready
            if connection.peer_said:  # with its first bytes: nothing can be asked of it
                raise RetriableError("connection_lost", f"the peer goes away: {connection.peer_said}")
    except BaseException as error:
        connection.on_closed = None
        ready.cancel()
        await connection.give_up("connecting failed")
        if not (isinstance(error, (OSError, TimeoutError, RaftlogError, UnicodeError)) or is_shortage(error)):
            raise
        raise RetriableError("connection_lost", f"{where}: {_why(error, tls)}") from None
    return connection


def _why(error: BaseException, tls: DialTls | None) -> str:
    if isinstance(error, RaftlogError):
        # TLS 1.3: this end is done with the handshake before the other has looked at its certificate.
        unsaid = tls is not None and error.detail.startswith(("connection lost", "the peer closed the connection"))
        return f"{CUT_SHORT} ({error.detail})" if unsaid else error.detail
    if isinstance(error, TimeoutError):
        return str(error) or "no answer in time"
    refused = isinstance(error, ConnectionRefusedError)
    return (str(error) or type(error).__name__) if tls is None or refused else explain(error)


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
        ssl: ssl_module.SSLContext | DialTls | None = None,
        on_opened: Callable[[Http2Stream], None] | None = None,
        on_closed: Callable[[str], None] | None = None,
    ) -> None:
        """Starts at once, on the running loop. `on_opened` is called when the peer has accepted a stream; `handler`
        is told of that stream's messages and its `on_closed`. `on_closed` is called with the reason after each lost
        stream and after each failed attempt."""
        self._host = host
        self._port = port
        self._path = path
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
        self._told = ("", 0.0)
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
            self._tell(reason)
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

    def _tell(self, reason: str) -> None:
        """One line for each reason, not for each attempt: a peer may be down for days."""
        now = asyncio.get_running_loop().time()
        told, told_at = self._told
        if reason == told and now - told_at < TELL_AGAIN_S:
            return
        self._told = (reason, now)
        where = f"{self._host}:{self._port}"
        structlog.get_logger().warning("link_lost", path=self._path, address=where, reason=reason[:TOLD_CHARACTERS])

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
