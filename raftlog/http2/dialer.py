"""The connecting side: one connection (`connect`), or one kept open until it is closed (`ReconnectingDialer`)."""

from __future__ import annotations

import asyncio
import ssl as ssl_module
from collections.abc import Callable, Mapping

import structlog

from ..errors import RaftlogError, RetriableError, is_shortage
from ..ports import Random
from .connection import Http2Connection, Http2Stream, StreamHandler
from .limits import Http2Limits
from .tls import CUT_SHORT, DialTls, explain, speaks_no_tls

SHORTEST_DELAY_S = 0.1
LONGEST_DELAY_S = 2.0
TELL_AGAIN_S = 60.0
"""Seconds between log lines about a peer that stays unreachable for the same reason."""
TOLD_CHARACTERS = 500
"""Limit of a reason in the log, which may be the peer's own text, in characters."""


async def connect(
    host: str,
    port: int,
    *,
    limits: Http2Limits | None = None,
    ssl: ssl_module.SSLContext | DialTls | None = None,
    on_closed: Callable[[Http2Connection, str], None] | None = None,
) -> Http2Connection:
    """Connect on the running loop, and return a connection whose peer has shown that it speaks HTTP/2.

    Raises `RetriableError` (`connection_lost`) with the reason: no listener there, the peer does not speak HTTP/2, its
    certificate is not trusted or belongs to another, `host` cannot be resolved, this process has no thread to resolve
    it with, or `connect_timeout_s` passed.
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
            if connection.peer_said:  # with its first bytes: nothing can be requested
                raise RetriableError("connection_lost", f"the peer sent GOAWAY: {connection.peer_said}")
    except BaseException as error:
        connection.on_closed = None
        ready.cancel()
        await connection.give_up("connecting failed")
        if tls is not None and tls.or_plain and speaks_no_tls(error):
            return await connect(host, port, limits=limits, on_closed=on_closed)
        if not (isinstance(error, (OSError, TimeoutError, RaftlogError, UnicodeError)) or is_shortage(error)):
            raise
        raise RetriableError("connection_lost", f"{where}: {_why(error, tls)}") from None
    return connection


def _why(error: BaseException, tls: DialTls | None) -> str:
    if isinstance(error, RaftlogError):
        # TLS 1.3: this end finishes the handshake before the peer has checked its certificate.
        unsaid = tls is not None and error.detail.startswith(("connection lost", "the peer closed the connection"))
        return f"{CUT_SHORT} ({error.detail})" if unsaid else error.detail
    if isinstance(error, TimeoutError):
        return str(error) or "no answer in time"
    refused = isinstance(error, ConnectionRefusedError)
    return (str(error) or type(error).__name__) if tls is None or refused else explain(error)


class ReconnectingDialer:
    """Keeps one connection with one long-lived stream to a peer, until `close`.

    If either is lost or refused, both are dropped, and a new attempt follows after a random delay: at first up to 0.2
    s, doubled after each further failure, never below 0.1 s or above 2 s. The random delays keep brokers that lost the
    same peer from reconnecting all at once.
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
        """Start at once, on the running loop.

        `on_opened` is called when the peer has accepted a stream; `handler` gets that stream's messages and its
        `on_closed`. `on_closed` is called with the reason after each lost stream and after each failed attempt.
        """
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
        """The stream, while it is open and accepted by the peer."""
        return self._stream

    async def close(self) -> None:
        """Close the connection and stop reconnecting. On return, the handler's `on_closed` has been called."""
        self._closing = True
        task, self._task = self._task, None
        if task is None:
            return
        task.cancel()
        await asyncio.wait([task])

    def delay_s(self) -> float:
        """Return the delay before the next attempt, in seconds."""
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
        """Serve one connection, and return the reason of its end."""
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
            connection.on_goaway = lambda _, reason: end(f"the peer sent GOAWAY: {reason}")
            connection.open_stream(self._path, self._headers, _Watched(self._handler, end), opened)
            return await over
        except RetriableError as error:
            return error.detail
        finally:
            patience.cancel()
            connection.close("the stream is over")
            await connection.wait_closed()

    def _tell(self, reason: str) -> None:
        """Log one line per reason, not per attempt: a peer may be down for days."""
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
    """Report an exception of the user's callback: it is a bug and must not vanish with the task."""
    error = None if task.cancelled() else task.exception()
    if error is not None:
        message = "a callback of ReconnectingDialer failed; it no longer reconnects"
        task.get_loop().call_exception_handler({"message": message, "exception": error, "task": task})


class _Watched:
    """The user's handler, plus the notification of the stream's end."""

    def __init__(self, handler: StreamHandler, end: Callable[[str], None]) -> None:
        self._handler = handler
        self._end = end
        self.on_message = handler.on_message
        self.on_ended = handler.on_ended

    def on_closed(self, stream: Http2Stream, reason: str) -> None:
        self._end(reason)
        self._handler.on_closed(stream, reason)
