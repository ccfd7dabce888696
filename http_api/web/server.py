"""aiohttp's server with the API's bounds and errors: connections, bytes that are not HTTP, `Expect`.

aiohttp answers some failures outside an application's middleware, in plain text: malformed requests, refusals of
`Expect`, escaped exceptions. Here they become problem documents as well. Bodies arrive undecoded: `bodies.py`
decompresses them within bounds.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any

import structlog
from aiohttp import hdrs, web
from aiohttp.http import HttpVersion11, RawRequestMessage
from multidict import CIMultiDict, CIMultiDictProxy

from raftlog.errors import InvalidRequest, RaftlogError, RetriableError
from raftlog.system.paced_server import PacedServer
from raftlog.system.tls_door import PlainRefusal, TlsDoor

from .context import CONTEXT
from .expectations import EXPECTATION
from .limits import Limits
from .middleware import request_id_of
from .problems import error_of_http, problem

_log = structlog.get_logger(__name__)

BACKLOG = 1024

RequestFactory = Callable[[RawRequestMessage, Any, Any, Any, Any], web.BaseRequest]
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


class ApiProtocol(web.RequestHandler):
    """One connection."""

    __slots__ = ("_server",)

    def __init__(self, server: ApiServer, *, loop: asyncio.AbstractEventLoop, **options: Any) -> None:
        super().__init__(server, loop=loop, **options)
        self._server = server

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self._server.has_too_many():
            assert isinstance(transport, asyncio.WriteTransport)
            transport.write(self._server.refusal)
            self.force_close()

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
        return response

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        if isinstance(resp, web.HTTPException):
            resp = problem(error_of_http(resp, request.path), request_id_of(request))
        return await super().finish_response(request, resp, start_time)


class ApiServer(web.Server):
    """Creates a protocol for each connection, and counts them."""

    def __init__(
        self,
        inner: web.Server,
        limits: Limits,
        most_connections: Callable[[], int | None],
        on_closed: Callable[[web.RequestHandler], None],
        **options: Any,
    ) -> None:
        """`inner` is the server that aiohttp built from the application. `most_connections`: the number of connections
        allowed at present, if that is less than the limit. `on_closed` is called for each connection that closed."""
        super().__init__(
            inner.request_handler,
            request_factory=_undecided(inner.request_factory),
            handler_cancellation=True,
            loop=asyncio.get_running_loop(),
        )
        self._options = options
        self._limits = limits
        self._most_connections = most_connections
        self._on_closed = on_closed
        self._open = 0

    @property
    def refusal(self) -> bytes:
        """Return the answer to a connection beyond the limit."""
        refused = problem(RetriableError("overloaded", f"{self._most} connections are open"), "none").body
        assert isinstance(refused, bytes)
        return _TOO_MANY % (len(refused), refused)

    @property
    def _most(self) -> int:
        most, bound = self._limits.max_connections, self._most_connections()
        return most if bound is None else min(most, bound)

    def has_too_many(self) -> bool:
        """Return whether the connection that was just made is beyond the limit."""
        return self._open > self._most

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        self._open += 1
        super().connection_made(handler, transport)

    def connection_lost(self, handler: web.RequestHandler, exc: BaseException | None = None) -> None:
        self._open -= 1
        self._on_closed(handler)
        super().connection_lost(handler, exc)

    def __call__(self) -> web.RequestHandler:
        return ApiProtocol(self, loop=asyncio.get_running_loop(), **self._options)


class ApiRunner(web.AppRunner):
    """Runs an application on an `ApiServer`."""

    def __init__(self, app: web.Application, most_connections: Callable[[], int | None]) -> None:
        self._context = app[CONTEXT]
        self._limits = self._context.limits
        self._most_connections = most_connections
        super().__init__(app, access_log=None, shutdown_timeout=self._limits.shutdown_timeout_s)

    async def _make_server(self) -> web.Server:
        limits = self._limits
        return ApiServer(
            await super()._make_server(),
            limits,
            self._most_connections,
            self._context.service.access.leave,
            access_log=None,
            auto_decompress=False,
            keepalive_timeout=limits.keepalive_timeout_s,
            lingering_time=limits.linger_s,
            max_line_size=limits.max_line_bytes,
            max_field_size=limits.max_line_bytes,
            max_headers=limits.max_header_fields,
        )


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


def _undecided(factory: RequestFactory) -> RequestFactory:
    """Return a factory of requests whose `Expect` header aiohttp does not see: `expectations.py` handles it."""

    def make(message: RawRequestMessage, payload: Any, protocol: Any, writer: Any, task: Any) -> web.BaseRequest:
        given = message.headers.get(hdrs.EXPECT)
        if given is None:
            return factory(message, payload, protocol, writer, task)
        headers = CIMultiDict(message.headers)
        headers.popall(hdrs.EXPECT)
        request = factory(message._replace(headers=CIMultiDictProxy(headers)), payload, protocol, writer, task)
        if message.version == HttpVersion11:  # HTTP/1.0 has no expectations, and must not get an answer to one.
            request[EXPECTATION] = given
        return request

    return make
