"""Requests over HTTP/2, served by the handlers of those over HTTP/1.1.

Each exchange becomes one of aiohttp's requests, made of parts of our own: its content (`exchange/reader.py`), its
answer (`exchange/writer.py`) and its connection (`exchange/protocol.py`). Its handler runs in a task of its own, which
is cancelled if the client resets the stream or leaves.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import structlog
from aiohttp import HttpVersion, web
from aiohttp.http import RawRequestMessage
from aiohttp.streams import EMPTY_PAYLOAD, StreamReader
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from http_api.exchange.protocol import ExchangeConnection, ExchangeProtocol
from http_api.exchange.reader import ExchangeReader
from http_api.exchange.writer import ExchangeWriter
from raftlog.errors import InvalidRequest, RaftlogError
from raftlog.http2 import Http2Connection, Http2Exchange
from raftlog.http2.frames import ErrorCode

from .context import ApiContext
from .limits import Limits
from .middleware import request_id_of
from .problems import error_of_http, problem

RequestFactory: TypeAlias = Callable[[RawRequestMessage, Any, Any, Any, Any], web.BaseRequest]
RequestHandler: TypeAlias = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]

HTTP2 = HttpVersion(2, 0)
_METHOD = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,32}")
_PATH = re.compile(r"/[!-~]*")
_LENGTH = re.compile(r"[0-9]{1,18}")

_log = structlog.get_logger(__name__)


class Exchanges:
    """Serves exchanges with the handlers of one API."""

    def __init__(self, make_request: RequestFactory, handle: RequestHandler, context: ApiContext) -> None:
        self._make_request = make_request
        self._handle = handle
        self._context = context

    def serve(
        self, connection: Http2Connection, exchange: Http2Exchange, counted: ExchangeConnection
    ) -> ServedExchange | None:
        """Begin to serve a request; return the handler of its events, or None if it is refused already."""
        try:
            message = request_message(exchange, self._context.limits)
        except InvalidRequest as error:
            _log.debug("malformed_request", peer=connection.peer_address, detail=error.detail)
            _refuse(exchange, error)
            return None
        return ServedExchange(connection, exchange, counted, message, self._make_request, self._handle, self._context)


class ServedExchange:
    """One exchange that is being served: an `ExchangeHandler`.

    Invariant: `counted.exchange_begins` was called once, and `exchange_ended` once after its task.
    """

    def __init__(
        self,
        connection: Http2Connection,
        exchange: Http2Exchange,
        counted: ExchangeConnection,
        message: RawRequestMessage,
        make_request: RequestFactory,
        handle: RequestHandler,
        context: ApiContext,
    ) -> None:
        loop = asyncio.get_running_loop()
        self._connection = connection
        self._exchange = exchange
        self._counted = counted
        self._context = context
        self._handle = handle
        self._loop = loop
        self._protocol = ExchangeProtocol(connection, exchange, counted)
        self._writer = ExchangeWriter(exchange, loop)
        has_body = not exchange.request_ended
        self._reader = ExchangeReader(exchange, self._protocol, loop) if has_body or exchange.has_content else None
        self._lingering: asyncio.TimerHandle | None = None
        counted.exchange_begins()
        self._task = loop.create_task(self._serve(message, make_request))
        self._task.add_done_callback(self._served)

    # --- Events of the exchange --------------------------------------------------------------------------------------

    def on_content(self) -> None:
        if self._reader is not None:
            self._reader.arrived()

    def on_ended(self) -> None:
        if self._reader is not None:
            self._reader.arrived()

    def on_room(self) -> None:
        self._writer.wake()

    def on_closed(self, reason: str) -> None:
        self._writer.wake()
        if self._lingering is not None:
            self._lingering.cancel()
        if self._exchange.is_broken and not self._task.done():
            if self._reader is not None and not self._reader.is_eof():
                self._reader.set_exception(ConnectionResetError(reason))
            self._task.cancel()

    # --- The answer --------------------------------------------------------------------------------------------------

    async def _serve(self, message: RawRequestMessage, make_request: RequestFactory) -> None:
        body: StreamReader = EMPTY_PAYLOAD if self._reader is None else self._reader
        request = make_request(message, body, self._protocol, self._writer, asyncio.current_task())
        response = await self._respond(request)
        await response.prepare(request)
        await response.write_eof()
        if response.headers.get("Connection") == "close":
            self._connection.go_away("the answer says so")

    async def _respond(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            return await self._handle(request)
        except web.HTTPException as error:
            return problem(error_of_http(error, request.path), request_id_of(request))
        except ConnectionError:
            raise
        except Exception as error:
            if self._writer.output_size:
                raise
            _log.error("request_failed", request_id=request_id_of(request), exc_info=error)
            unexpected = RaftlogError(
                "internal_error", "an unexpected error; the node's log has it under this request id"
            )
            return problem(unexpected, request_id_of(request))

    def _served(self, task: asyncio.Task[None]) -> None:
        self._counted.exchange_ended()
        error = None if task.cancelled() else task.exception()
        if task.cancelled() or error is not None:
            # An answer that ends early must not look like a whole one.
            self._exchange.reset(ErrorCode.CANCEL if isinstance(error, ConnectionError) else ErrorCode.INTERNAL_ERROR)
        elif not self._exchange.closed:
            # The rest of the content is discarded for a while, so that clients that send it all see the answer.
            after_s = self._context.limits.linger_s
            self._lingering = self._loop.call_later(after_s, self._exchange.reset, ErrorCode.NO_ERROR)
        if error is not None and not isinstance(error, ConnectionError):
            _log.error("request_failed", exc_info=error)


class ListenerConnection:
    """A connection of the data listener with exchanges."""

    def __init__(self, connection: Http2Connection, is_all_acknowledged: Callable[[Http2Connection], bool]) -> None:
        self.acknowledged_at_end = False
        self._connection = connection
        self._is_all_acknowledged = is_all_acknowledged
        connection.on_peer_end = self._peer_ended

    def exchange_begins(self) -> None:
        """Do nothing: the listener bounds streams itself."""

    def exchange_ended(self) -> None:
        """Do nothing: the listener bounds streams itself."""

    def recognize(self, path: str) -> None:
        """Note that a request was authenticated. Raises `RetriableError` (`overloaded`)."""
        self._connection.admit(path)

    def _peer_ended(self, connection: Http2Connection) -> None:
        self.acknowledged_at_end = self._is_all_acknowledged(connection)


def request_message(exchange: Http2Exchange, limits: Limits) -> RawRequestMessage:
    """Return the request's head as aiohttp has it. Raises `InvalidRequest` for one that HTTP/2 or a limit forbids."""
    headers: CIMultiDict[str] = CIMultiDict()
    raw: list[tuple[bytes, bytes]] = []
    authority: str | None = None
    if len(exchange.fields) > limits.max_header_fields + 4:
        raise InvalidRequest("invalid_request", f"malformed HTTP: more than {limits.max_header_fields} header fields")
    for name_bytes, value_bytes in exchange.fields:
        if len(name_bytes) + len(value_bytes) > limits.max_line_bytes:
            raise InvalidRequest("invalid_request", f"malformed HTTP: a field of over {limits.max_line_bytes} bytes")
        name, value = name_bytes.decode("latin-1"), value_bytes.decode("utf-8", "surrogateescape")
        if name == ":authority":
            authority = value
        if not name.startswith(":"):
            headers.add(name, value)
            raw.append((bytes(name_bytes), bytes(value_bytes)))
    if authority is not None and headers.getall("Host", [authority]) == [authority]:
        headers["Host"] = authority
    elif authority is not None:
        headers.add("Host", authority)  # two that differ: the middleware refuses that
    lengths = set(headers.getall("Content-Length", ["0"]))
    method, path = exchange.method, exchange.path
    if not (_METHOD.fullmatch(method) and _PATH.fullmatch(path)) or len(path) > limits.max_line_bytes:
        raise InvalidRequest("invalid_request", "malformed HTTP: method or path")
    if len(lengths) > 1 or not _LENGTH.fullmatch(next(iter(lengths))):
        raise InvalidRequest("invalid_request", "malformed HTTP: Content-Length")
    plain, _, fragment = path.partition("#")
    plain, _, query = plain.partition("?")
    url = URL.build(path=plain, query_string=query, fragment=fragment, encoded=True)
    return RawRequestMessage(method, path, HTTP2, CIMultiDictProxy(headers), tuple(raw), False, None, False, False, url)


def _refuse(exchange: Http2Exchange, error: RaftlogError) -> None:
    """Answer a request that no handler can get."""
    answer = problem(error, "none")
    body = answer.body
    assert isinstance(body, bytes)
    fields = [("content-type", answer.content_type), ("content-length", str(len(body))), ("server", "raftlog")]
    exchange.answer(answer.status, fields)
    if exchange.method != "HEAD":
        exchange.send(body)
    exchange.end()
    if not exchange.closed and not exchange.request_ended:
        exchange.reset(ErrorCode.NO_ERROR)
