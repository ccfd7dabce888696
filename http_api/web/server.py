"""aiohttp's server with the API's bounds and errors: connections, bytes that are not HTTP, `Expect`.

aiohttp answers some failures outside an application's middleware, in plain text: malformed requests, refusals of
`Expect`, escaped exceptions. Here they become problem documents as well. Bodies arrive undecoded: `bodies.py`
decompresses them within bounds.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Iterable
from functools import partial
from typing import Any

import structlog
from aiohttp import hdrs, web
from aiohttp.http import HttpVersion11, RawRequestMessage
from aiohttp.streams import StreamReader
from multidict import CIMultiDict, CIMultiDictProxy

from raftlog.errors import InvalidRequest, RaftlogError, RetriableError
from raftlog.http2 import ExchangeHandler, Http2Connection, Http2Exchange, Http2Limits
from raftlog.http2.frames import PREFACE
from raftlog.http2.limits import DEFAULT_WINDOW
from raftlog.http2.listener import Http2Shared
from raftlog.http2.tls import ALPN
from raftlog.system.paced_server import PacedServer
from raftlog.system.tls_door import PlainRefusal, TlsDoor

from .context import CONTEXT, ApiContext
from .delivery import is_acknowledged, is_all_acknowledged
from .exchanges import Exchanges, ListenerConnection
from .expectations import EXPECTATION
from .limits import COUNTED_BYTES
from .middleware import request_id_of
from .problems import error_of_http, problem

_log = structlog.get_logger(__name__)

BACKLOG = 1024

MOST_WAIT_S = 1.0
"""Longest time between two looks for strangers whose time is over, in seconds."""

RequestFactory = Callable[[RawRequestMessage, Any, Any, Any, Any], web.BaseRequest]
RequestHandler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
_QUOTED = re.compile(r"(?<!Duplicate)(?<!Missing)(?::?\s+b?['\"]|:?\s*bytearray\().*")

_TOO_MANY = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/problem+json\r\nRetry-After: 1\r\n"
    b"Connection: close\r\nContent-Length: %d\r\n\r\n%b"
)
_NO_TLS = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: application/problem+json\r\n"
    b"Connection: close\r\nContent-Length: %d\r\n\r\n%b"
)


def plain_refusal() -> PlainRefusal:
    """Return the protocol of a connection without TLS at an API that requires it."""
    refused = problem(InvalidRequest("invalid_request", "this API speaks TLS only: use https://"), "none").body
    assert isinstance(refused, bytes)
    return PlainRefusal(_NO_TLS % (len(refused), refused))


LAST_ANSWERS_S = 2.0
"""Seconds in which answers that are written already must leave, when the API stops."""


class ApiProtocol(web.RequestHandler):
    """One connection.

    Invariant: `_waiting` has an entry for each request in aiohttp's queue (`_messages`).
    """

    __slots__ = (
        "_counted",
        "_end",
        "_exchanges",
        "_first",
        "_head_bytes",
        "_http2",
        "_last_body",
        "_server",
        "_stranger_bytes",
        "_waiting",
        "acknowledged_at_end",
    )

    def __init__(self, server: ApiServer, *, loop: asyncio.AbstractEventLoop, **options: Any) -> None:
        super().__init__(server, loop=loop, **options)
        self._server = server
        self.acknowledged_at_end = False
        """Whether the client had acknowledged everything when it ended its side of the connection (`delivery.py`)."""
        self._head_bytes = 0
        """Bytes of a head that is not complete."""
        self._waiting: deque[int] = deque()
        """Bytes of the requests that wait for their turn."""
        self._stranger_bytes = 0
        """Bytes of a stranger's body, which nothing reads before the stranger is known."""
        self._last_body: StreamReader | None = None
        """The body of the newest request."""
        self._counted = False
        """Whether the server counts the bytes that wait."""
        self._end: asyncio.TimerHandle | None = None
        self._first: bytes | None = b""
        """The first bytes, while they may be the preface of HTTP/2."""
        self._http2: Http2Connection | None = None
        """The connection that has taken the transport over, because the client speaks HTTP/2."""
        self._exchanges = 0
        """Requests over HTTP/2 in progress."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        assert isinstance(transport, asyncio.Transport)
        if not self._server.take_in(self, transport):
            transport.write(self._server.refusal)
            self.force_close()
            return
        tls = transport.get_extra_info("ssl_object")
        if tls is not None and tls.selected_alpn_protocol() == ALPN:
            self._speak_http2(transport)

    def _speak_http2(self, transport: asyncio.Transport, first: bytes = b"") -> None:
        """Hand the transport over to a connection of HTTP/2, with the bytes that have arrived."""
        connection = self._http2 = self._server.http2_connection(self)
        connection.on_peer_end = self._http2_ends
        connection.on_gone = self._http2_gone
        protocol = connection.protocol
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        while first and not connection.closed:
            room = memoryview(protocol.get_buffer(len(first)))
            count = min(len(room), len(first))
            room[:count] = first[:count]
            protocol.buffer_updated(count)
            first = first[count:]

    def _http2_ends(self, connection: Http2Connection) -> None:
        self.acknowledged_at_end = is_all_acknowledged(connection)

    def _http2_gone(self) -> None:
        self.connection_lost(None)

    def exchange_begins(self) -> None:
        """Count a request over HTTP/2."""
        self._exchanges += 1
        self._server.limited.begin(self)

    def exchange_ended(self) -> None:
        """Count the end of a request over HTTP/2."""
        self._exchanges -= 1
        if not self._exchanges:
            self._server.limited.end(self)

    def recognize(self, path: str) -> None:
        """Note that a request over HTTP/2 was authenticated."""
        self._server.limited.recognize(self)
        if self._http2 is not None:
            self._http2.admit(path)

    def close(self) -> None:
        if self._http2 is not None:
            self._http2.go_away()
        else:
            super().close()

    async def shutdown(self, timeout: float | None = 15.0) -> None:
        if self._http2 is None:
            await super().shutdown(timeout)
            return
        self._http2.close("the node is shutting down")
        await self._http2.wait_closed()

    def eof_received(self) -> None:
        if self.transport is not None:
            self.acknowledged_at_end = is_acknowledged(self.transport)
        super().eof_received()

    def connection_lost(self, exc: BaseException | None) -> None:
        if self._end is not None:
            self._end.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._first is not None and data:
            data = self._first + data
            if PREFACE.startswith(data[: len(PREFACE)]):
                self._first = data
                if len(data) >= len(PREFACE) and isinstance(self.transport, asyncio.Transport):
                    self._first = None
                    self._speak_http2(self.transport, data)
                return
            self._first = None
        before = len(self._messages)
        super().data_received(data)
        arrived = len(self._messages) - before
        body = self._last_body
        if arrived > 0:
            # A read may bring several requests. Its bytes are the last one's: that is served after the others.
            self._waiting.extend([0] * (arrived - 1))
            self._waiting.append(self._head_bytes + len(data))
            self._head_bytes = 0
            self._last_body = self._messages[-1][1]
            self._server.limited.begin(self)
        elif self._upgraded:
            return  # Frames of a WebSocket, which aiohttp bounds.
        elif body is None or body.is_eof():
            self._head_bytes += len(data)
        elif self._waiting:
            self._waiting[-1] += len(data)
        elif self._server.limited.is_stranger(self):
            self._stranger_bytes += len(data)
        else:
            return
        self._count()

    def request_begins(self) -> None:
        """Note that the next request has left the queue."""
        if self._waiting:
            self._waiting.popleft()
            self._count()

    def request_ended(self) -> None:
        """Note that a request has been served."""
        self._stranger_bytes = 0
        if not self._messages:
            self._server.limited.end(self)
        self._count()

    def give_way(self) -> None:
        """Drop the connection: others need its place, or the memory of what waits in it."""
        if self._http2 is not None:
            self._http2.abort("it gave way to others")
        elif self.transport is not None:
            self.transport.abort()

    def _count(self) -> None:
        waiting = self._head_bytes + self._stranger_bytes + sum(self._waiting)
        if self._counted or waiting >= COUNTED_BYTES:
            self._counted = waiting >= COUNTED_BYTES
            self._server.hold(self, waiting if self._counted else 0)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer bytes that are not HTTP (400) and exceptions that escaped the middleware (500). The connection is
        closed."""
        if request.writer.output_size > 0:
            raise ConnectionError("an answer is on its way already; another cannot follow")
        error: RaftlogError
        if status < 500:
            error = InvalidRequest("invalid_request", f"malformed HTTP: {_without_bytes(message or '')}")
            _log.debug("malformed_request", peer=request.remote, detail=error.detail)
        else:
            error = RaftlogError("internal_error", "an unexpected error; the node's log has it under this request id")
            _log.error("request_failed", request_id=request_id_of(request), exc_info=exc)
        response = problem(error, request_id_of(request))
        response.force_close()
        if self._end is None:  # No middleware has a deadline for this answer.
            self._end = self._loop.call_later(self._server.write_timeout_s, self.give_way)
        return response

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        if isinstance(resp, web.HTTPException):
            resp = problem(error_of_http(resp, request.path), request_id_of(request))
        return await super().finish_response(request, resp, start_time)


class ApiServer(web.Server):
    """Creates a protocol for each connection, and lets connections give way to others (`connections.py`)."""

    def __init__(self, inner: web.Server, context: ApiContext, **options: Any) -> None:
        """`inner` is the server that aiohttp built from the application."""
        super().__init__(
            _noted(inner.request_handler),
            request_factory=_undecided(inner.request_factory),
            handler_cancellation=True,
            loop=asyncio.get_running_loop(),
        )
        self._options = options
        self._context = context
        self.limited = context.connections
        self._exchanges = Exchanges(self.request_factory, self.request_handler, context)
        limits = context.limits
        self._http2_limits = Http2Limits(
            unaccepted_window_bytes=DEFAULT_WINDOW,
            idle_timeout_s=limits.keepalive_timeout_s,
            stranger_timeout_s=limits.stranger_timeout_s,
            stall_timeout_s=limits.write_timeout_s,
        )
        self._shared = Http2Shared(self._loop, self._http2_limits)
        self._elsewhere: dict[Http2Connection, ListenerConnection] = {}
        """Connections of other listeners that have brought requests."""
        self._look: asyncio.TimerHandle | None = None
        """The next look for strangers whose time is over."""

    @property
    def refusal(self) -> bytes:
        """Return the answer to a connection beyond the limit."""
        detail = f"all {self.limited.most} connections, or those of one address, are at work"
        refused = problem(RetriableError("overloaded", detail), "none").body
        assert isinstance(refused, bytes)
        return _TOO_MANY % (len(refused), refused)

    @property
    def write_timeout_s(self) -> float:
        """Return the seconds in which a client must read a short answer."""
        return self._context.limits.write_timeout_s

    def http2_connection(self, counted: ApiProtocol) -> Http2Connection:
        """Return a connection of HTTP/2 for the transport of a connection."""

        def accept(connection: Http2Connection, exchange: Http2Exchange) -> ExchangeHandler | None:
            return self._exchanges.serve(connection, exchange, counted)

        return self._shared.connection(accept)

    def accept_exchange(self, connection: Http2Connection, exchange: Http2Exchange) -> ExchangeHandler | None:
        """Serve a request of another listener's connection."""
        counted = self._elsewhere.get(connection)
        if counted is None:
            counted = self._elsewhere[connection] = ListenerConnection(connection, is_all_acknowledged)
            connection.on_gone = partial(self._left, connection)
        return self._exchanges.serve(connection, exchange, counted)

    def _left(self, connection: Http2Connection) -> None:
        self._context.service.access.leave(self._elsewhere.pop(connection))

    def take_in(self, arrived: ApiProtocol, transport: asyncio.Transport) -> bool:
        """Register a connection; return whether there is room for it. Others may give way to it."""
        name = transport.get_extra_info("peername")
        address = str(name[0]) if isinstance(name, tuple) and name else ""
        is_known = not self._context.service.access.needs_credentials
        leaving = self.limited.arrive(arrived, address, self._loop.time(), is_known=is_known)
        self._let_go(one for one in leaving if one is not arrived)
        self._look_later()
        return arrived not in leaving

    def hold(self, connection: ApiProtocol, count: int) -> None:
        """Note how many bytes of a connection wait; connections may give way because of them."""
        self._let_go(self.limited.hold(connection, count))

    def connection_lost(self, handler: web.RequestHandler, exc: BaseException | None = None) -> None:
        self.limited.leave(handler)
        self._context.service.access.leave(handler)
        super().connection_lost(handler, exc)

    async def shutdown(self, timeout: float | None = None) -> None:
        if self._look is not None:
            self._look.cancel()
        await super().shutdown(timeout)

    def _look_later(self) -> None:
        if self._look is None and self.limited.strangers:
            wait = min(MOST_WAIT_S, self._context.limits.stranger_timeout_s / 4)
            self._look = self._loop.call_later(wait, self._end_overdue)

    def _end_overdue(self) -> None:
        self._look = None
        self._let_go(self.limited.overdue(self._loop.time()))
        self._look_later()

    def _let_go(self, leaving: Iterable[Hashable]) -> None:
        for one in leaving:
            assert isinstance(one, ApiProtocol)
            one.give_way()

    def __call__(self) -> web.RequestHandler:
        return ApiProtocol(self, loop=asyncio.get_running_loop(), **self._options)


class ApiRunner(web.AppRunner):
    """Runs an application on an `ApiServer`."""

    def __init__(self, app: web.Application) -> None:
        self._served: ApiServer | None = None
        self._context = app[CONTEXT]
        self._limits = self._context.limits
        super().__init__(app, access_log=None, shutdown_timeout=LAST_ANSWERS_S)

    async def cleanup(self) -> None:
        """Stop listening, answer the requests in progress, and close.

        aiohttp would drop what still arrives of their bodies, so they come first.
        """
        for site in list(self.sites):
            await site.stop()
        self._context.stop_taking_requests()
        await self._context.requests_end(self._limits.shutdown_timeout_s)
        await super().cleanup()

    async def _make_server(self) -> web.Server:
        limits = self._limits
        self._served = ApiServer(
            await super()._make_server(),
            self._context,
            access_log=None,
            auto_decompress=False,
            keepalive_timeout=limits.keepalive_timeout_s,
            lingering_time=limits.linger_s,
            max_line_size=limits.max_line_bytes,
            max_field_size=limits.max_line_bytes,
            max_headers=limits.max_header_fields,
        )
        return self._served

    def accept_exchange(self, connection: Http2Connection, exchange: Http2Exchange) -> ExchangeHandler | None:
        """Serve a request that arrived at a listener of HTTP/2 (`Http2Listener.exchanges`), after `setup`."""
        assert self._served is not None
        return self._served.accept_exchange(connection, exchange)


class ApiSite(web.BaseSite):
    """The listening address, on a `PacedServer`."""

    __slots__ = ("_door", "_host", "_on_short", "_port")

    def __init__(
        self,
        runner: ApiRunner,
        host: str,
        port: int,
        *,
        door: TlsDoor | None,
        on_short: Callable[[OSError], None],
    ) -> None:
        super().__init__(runner, backlog=BACKLOG)
        self._host, self._port, self._door, self._on_short = host, port, door, on_short

    @property
    def name(self) -> str:
        return f"{'https' if self._door else 'http'}://{self._host}:{self._port}"

    async def start(self) -> None:
        """Raises `OSError`."""
        await super().start()
        assert self._runner.server is not None
        server = PacedServer(self._runner.server, backlog=self._backlog, door=self._door, on_short=self._on_short)
        self._server = server
        await server.listen(self._host, self._port)


def _without_bytes(message: str) -> str:
    """Return the first line of aiohttp's complaint without the bytes that it quotes: they may be a credential."""
    lines = message.strip().splitlines() or ["unreadable"]
    return _QUOTED.sub("", lines[0]).rstrip(":")[:200]


def _noted(handler: RequestHandler) -> RequestHandler:
    """Return a handler that tells each connection when a request of it has been served."""

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        try:
            return await handler(request)
        finally:
            if isinstance(request.protocol, ApiProtocol):
                request.protocol.request_ended()

    return handle


def _undecided(factory: RequestFactory) -> RequestFactory:
    """Return a factory of requests whose `Expect` header aiohttp does not see: `expectations.py` handles it."""

    def make(message: RawRequestMessage, payload: Any, protocol: Any, writer: Any, task: Any) -> web.BaseRequest:
        if isinstance(protocol, ApiProtocol):
            protocol.request_begins()
        given = message.headers.get(hdrs.EXPECT)
        if given is None:
            return factory(message, payload, protocol, writer, task)
        headers = CIMultiDict(message.headers)
        headers.popall(hdrs.EXPECT)
        request = factory(message._replace(headers=CIMultiDictProxy(headers)), payload, protocol, writer, task)
        if message.version >= HttpVersion11:  # HTTP/1.0 has no expectations, and must not get an answer to one.
            request[EXPECTATION] = given
        return request

    return make
