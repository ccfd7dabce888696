"""One HTTP/2 connection as its user sees it: streams, their handlers, and HTTP's answers to requests.

A handler is never called from within its own call to `send`, `end` or `reset`: events wait for the next iteration of
the loop. A handler's exception that is not a `RaftlogError` is a bug: it ends the connection and reaches the loop's
exception handler.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from raftlog.errors import InvalidRequest, InvariantViolation, RaftlogError, RemoteProtocolError, error_from_code
from raftlog.ports import Part
from raftlog.security.secrets import Secret

from .address_rates import AddressRates
from .core import MAX_PROBES, ConnectionCore
from .events import (
    ConnectionFailed,
    ContentReceived,
    ContentSent,
    Event,
    GoAwayReceived,
    MessageReceived,
    NotHttp2,
    PeerReady,
    ProbeAnswered,
    RequestReceived,
    ResponseReceived,
    StreamClosed,
    StreamEnded,
)
from .exchange import ExchangeHandler, Http2Exchange
from .frames import AUTHORIZATION_HEADER, CONTENT_TYPE, DETAIL_HEADER, ERROR_HEADER, ErrorCode
from .limits import Http2Limits
from .messages import UNBOUNDED, PartialPool
from .stream_table import StreamState
from .transport import ConnectionShell
from .turns import Turns
from .unread import HeldInput, UnreadPool

TLS_REFUSED = "the peer speaks TLS and this listener does not: give this node the [tls] settings that its peers have"
_HANDSHAKE_RECORD = 22
"""The first byte of a TLS handshake (RFC 8446 section 5.1)."""
_NOT_HTTP2_TEXT = b'This port speaks HTTP/2 only: with prior knowledge, or under TLS with ALPN "h2".\n'
NOT_HTTP2_ANSWER = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n"
    b"Content-Length: %d\r\n\r\n%b" % (len(_NOT_HTTP2_TEXT), _NOT_HTTP2_TEXT)
)


def _has_messages(event: RequestReceived) -> bool:
    """Return whether the content of a request for a path of messages is made of them, by its media type."""
    return event.method == "POST" and event.headers.get("content-type", CONTENT_TYPE) == CONTENT_TYPE


def _may_be_http1(first_bytes: bytes) -> bool:
    """Return whether these may be the first bytes of a request in HTTP/1.x (RFC 9112 section 3)."""
    line, ended, _ = first_bytes.partition(b"\n")
    return first_bytes[:1].isalpha() and (not ended or b" HTTP/1." in line)


class StreamHandler(Protocol):
    """Receives a stream's events on the connection's loop. No call may block."""

    def on_message(self, stream: Http2Stream, message: memoryview) -> None:
        """Handle one whole message, without its prefix; the handler may keep the bytes.

        A `RaftlogError` raised here resets the stream; a `RemoteProtocolError` closes the connection.
        """
        ...

    def on_ended(self, stream: Http2Stream) -> None:
        """Handle the end of the peer's side. This side stays open until `end` or `reset`."""
        ...

    def on_closed(self, stream: Http2Stream, reason: str) -> None:
        """Handle the end of both sides. Called once, and last.

        `reason` is "ended" if both sides ended on purpose.
        """
        ...


class Http2Connection:
    """A connection, of either side.

    All calls belong to the thread of its loop; none blocks.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        limits: Http2Limits,
        *,
        authority: str = "",
        acceptors: Mapping[str, StreamAcceptor] | None = None,
        loop_for_path: Mapping[str, asyncio.AbstractEventLoop] | None = None,
        listener_loop: asyncio.AbstractEventLoop | None = None,
        pools: Mapping[asyncio.AbstractEventLoop, PartialPool] | None = None,
        unread_pools: Mapping[asyncio.AbstractEventLoop, UnreadPool] | None = None,
        turns: Mapping[asyncio.AbstractEventLoop, Turns] | None = None,
        rates: Mapping[asyncio.AbstractEventLoop, AddressRates] | None = None,
        on_connected: Callable[[Http2Connection], None] | None = None,
        on_accepting: Callable[[Http2Connection, str], None] | None = None,
        on_closed: Callable[[Http2Connection, str], None] | None = None,
    ) -> None:
        """Prepare a connection; a listener's has acceptors, a dialer's an authority.

        `on_connected` is called once, when there is a transport. `listener_loop`: the loop of the acceptors, except
        those in `loop_for_path`. `on_accepting(connection, path)` is called before a stream is accepted; a
        `RaftlogError` refuses it. `pools`, `unread_pools`: the bytes for unfinished messages and for unread answers
        of a listener's connections, by loop; `turns`, `rates`: their turns, and the rates of their addresses.
        """
        self._turns = turns or {}
        self._rates = rates or {}
        self._pools = pools or {}
        self._unread_pools = unread_pools or {}
        self._held = HeldInput(limits.max_unread_bytes)
        pool = self._pools.get(loop)
        self._core = ConnectionCore(client=acceptors is None, limits=limits, now=loop.time(), pool=pool)
        self._shell = ConnectionShell(
            loop,
            self._core,
            limits,
            on_connected=self._connected,
            on_event=self._on_event,
            on_drained=self._drained,
            on_read=self._read,
            on_peer_end=self._peer_ended,
            on_lost=self._lost,
        )
        self._streams: dict[int, Http2Stream] = {}
        """Streams by id: those with a handler, or about to get one, whose handler was not notified of their end."""
        self.exchanges: Callable[[], ExchangeAcceptor | None] = lambda: None
        """Returns the acceptor of the requests that are not made of messages; None: there is none now."""
        self._exchanges: dict[int, Http2Exchange] = {}
        """Requests in progress that are not made of messages, by stream."""
        self._probes: dict[int, Callable[[], None]] = {}
        self.on_peer_end: Callable[[Http2Connection], None] | None = None
        """Called when the peer has ended its side of the connection, before that is closed."""
        self.on_gone: Callable[[], None] | None = None
        """Called once when the connection is over, for the user of its exchanges."""
        self.on_drained: Callable[[], None] | None = None
        """Called in a later iteration when the kernel has taken most of what was queued."""
        self.on_closed = on_closed
        """Called once, after every stream's `on_closed`."""
        self.on_ready: Callable[[], None] | None = None
        """Called when the peer has shown that it speaks HTTP/2."""
        self.on_goaway: Callable[[Http2Connection, str], None] | None = None
        """Called when the peer accepts no more new streams."""
        self._on_connected = on_connected
        self._on_accepting = on_accepting
        self._authority = authority
        self._acceptors = acceptors or {}
        self._loop_for_path = loop_for_path or {}
        self._listener_loop = listener_loop or loop
        self._first_request, self._muted = True, False
        """`_muted`: whether this side closed it: messages that had arrived before are dropped."""
        self._gone = asyncio.Event()

    # --- For users ---------------------------------------------------------------------------------------------------

    @property
    def protocol(self) -> asyncio.BufferedProtocol:
        """The protocol object that serves this connection in an event loop."""
        return self._shell

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop to whose thread all calls belong."""
        return self._shell.loop

    @property
    def closed(self) -> bool:
        """Whether no stream can be opened and nothing will be received."""
        return self._shell.closed

    @property
    def can_move(self) -> bool:
        """Whether it can move to another loop; a TLS connection cannot, as its state is bound to its transport."""
        return self._shell.can_move

    @property
    def peer_address(self) -> str:
        """`host:port` of the other end, for display; empty until there is a transport."""
        return self._shell.peer_address

    @property
    def peer_host(self) -> str:
        """Address of the other end, without its port; empty if it is not known."""
        name = self.get_extra_info("peername")
        return str(name[0]) if isinstance(name, tuple) and name else ""

    @property
    def peer_said(self) -> str:
        """Text of the peer's GOAWAY."""
        return self._shell.peer_said

    @property
    def queued_bytes(self) -> int:
        """Bytes waiting to be sent, on all streams."""
        return self._shell.queued_bytes

    @property
    def stream_count(self) -> int:
        """Number of streams that are open in at least one direction."""
        return len(self._core.streams)

    @property
    def is_sent(self) -> bool:
        """Whether the socket has taken everything that there is to send."""
        return self._shell.is_sent

    def probe(self, answered: Callable[[], None]) -> None:
        """Ask the peer for a sign that it has received what was sent so far, with a PING. `answered` is called when
        that has come: perhaps never."""
        self._probes[self._core.probe()] = answered
        if len(self._probes) > MAX_PROBES:
            del self._probes[next(iter(self._probes))]
        self._shell.flush()

    def admit(self, path: str) -> None:
        """Note that the sender of a request is known and may use the connection. Raises `RetriableError`
        (`overloaded`)."""
        self._accepting(path)
        self._core.admit()

    def get_extra_info(self, name: str) -> Any:
        """Return the transport's `peername`, `ssl_object` or `peercert`."""
        return self._shell.get_extra_info(name)

    def pause_reading(self) -> None:
        """Stop reading from this peer until `resume_reading`, to hold back a peer that sends too much.

        Keep it short: the peer's PINGs go unanswered meanwhile.
        """
        self._shell.pause_reading()

    def resume_reading(self) -> None:
        """Continue reading after `pause_reading`."""
        self._shell.resume_reading()

    def open_stream(
        self,
        path: str,
        headers: Mapping[str, str] | Iterable[tuple[str, str]],
        handler: StreamHandler,
        on_accepted: Callable[[Http2Stream], None] | None = None,
    ) -> Http2Stream:
        """Send a request and return its stream; messages may be sent at once.

        `on_accepted` is called when the peer has answered 200. After a refusal, `on_closed` is called with a reason
        that contains status, code and detail. Raises `RetriableError` (`connection_lost`, `overloaded`), or
        `InvalidRequest` for headers that HTTP/2 forbids.
        """
        fields = dict(headers)
        scheme = "https" if self.get_extra_info("sslcontext") is not None else "http"
        try:
            state = self._core.open_stream(path, self._authority, scheme, fields.items())
        except InvalidRequest:  # HPACK's state is lost with it, and so is the connection
            self._shell.flush()
            raise
        fields.pop(AUTHORIZATION_HEADER, None)  # it is sent, and kept nowhere
        stream = Http2Stream(self, state, path, fields)
        stream.handler = handler
        stream.on_accepted = on_accepted
        self._streams[state.id] = stream
        self._shell.flush()
        return stream

    def go_away(self, reason: str = "shutting down") -> None:
        """Accept no new streams; the connection closes when the last one has ended and everything is sent."""
        unsent = self._core.peer_ready and (self._core.outbox.output or self.queued_bytes)
        if self._core.streams or unsent:
            self._core.go_away(ErrorCode.NO_ERROR, reason)
        else:
            self._core.fail(ErrorCode.NO_ERROR, reason)
        self._shell.flush()

    def close(self, reason: str = "closed by us") -> None:
        """Send GOAWAY and close; queued messages are dropped. Closing twice does nothing.

        Every stream's `on_closed` follows, then the connection's.
        """
        self._muted = True
        self._core.fail(ErrorCode.NO_ERROR, reason)
        self._shell.flush()

    def abort(self, reason: str) -> None:
        """Drop the connection without a GOAWAY."""
        self._shell.abort(reason)

    async def wait_closed(self) -> None:
        """Wait until the sockets are closed and all handlers notified; after `close`, little more than `linger_s`."""
        await self._gone.wait()

    async def give_up(self, reason: str) -> None:
        """Drop the connection, even one being established, and wait until that is done."""
        self.abort(reason)
        if self._shell.attached:
            await self._gone.wait()

    def __str__(self) -> str:
        direction = "to" if self._core.client else "from"
        return f"http2 {direction} {self.peer_address or self._authority} streams={self.stream_count}"

    # --- Events ------------------------------------------------------------------------------------------------------

    def _connected(self) -> None:
        pool = self._pools.get(self.loop)
        if pool is not None:
            self._core.change_pool(pool)
        self._shell.unread_pool = self._unread_pools.get(self.loop)
        self._shell.turns = self._turns.get(self.loop, self._shell.turns)
        rates = self._rates.get(self.loop)
        self._core.address_rate = None if rates is None else rates.of(self.peer_host, self.loop.time())
        told, self._on_connected = self._on_connected, None
        if told is not None:
            told(self)

    def _accepting(self, path: str) -> None:
        if self._on_accepting is not None:
            self._on_accepting(self, path.partition("?")[0])

    def _lost(self, reason: str) -> None:
        self._held.take()
        self._gone.set()
        if self.on_gone is not None:
            self.on_gone()
        if self.on_closed is not None:
            self.on_closed(self, reason)

    def _peer_ended(self) -> None:
        if self.on_peer_end is not None:
            self.on_peer_end(self)

    def _read(self) -> None:
        events = self._held.take()
        self._shell.held_bytes = 0
        self._shell.handle_again(events)

    def _hold(self, event: MessageReceived | StreamEnded) -> None:
        if not self._held.add(event):
            self._core.reset(event.stream, ErrorCode.ENHANCE_YOUR_CALM, "too many requests behind unread answers")
        self._shell.held_bytes = self._held.nbytes

    def _drained(self) -> None:
        if self.on_drained is not None:
            self.on_drained()

    def _on_event(self, event: Event) -> None:
        waits = self._shell.is_unread or self._held
        if waits and isinstance(event, MessageReceived | StreamEnded) and not event.stream.is_exchange:
            self._hold(event)
        elif isinstance(event, MessageReceived):
            self._on_message(event)
        elif isinstance(event, RequestReceived):
            self._on_request(event)
        elif isinstance(event, ContentReceived | ContentSent):
            exchange = self._exchanges.get(event.stream.id)
            if exchange is not None:
                exchange.on_event(event)
        elif isinstance(event, (StreamEnded, StreamClosed, ResponseReceived)):
            self._on_stream_event(event)
        elif isinstance(event, ProbeAnswered):
            answered = self._probes.pop(event.number, None)
            if answered is not None:
                answered()
        elif isinstance(event, PeerReady):
            if self.on_ready is not None:
                self.on_ready()
        elif isinstance(event, GoAwayReceived):
            self._shell.peer_said = event.reason
            if self.on_goaway is not None:
                self.on_goaway(self, event.reason)
            self._shell.close_if_finished()
        elif isinstance(event, NotHttp2):
            tls = event.first_bytes[0] == _HANDSHAKE_RECORD
            # To TLS, this is a wrong version number: the usual sign of a peer without TLS.
            if tls or _may_be_http1(event.first_bytes):
                self._shell.say_plain(NOT_HTTP2_ANSWER)
            self._shell.close_gently(TLS_REFUSED if tls else "the peer does not speak HTTP/2")
        elif isinstance(event, ConnectionFailed):
            self._shell.close_gently(event.reason)

    def _on_message(self, event: MessageReceived) -> None:
        stream = self._streams.get(event.stream.id)
        if stream is None or stream.handler is None or stream.muted or self._muted:
            return  # refused, or reset by this side meanwhile
        try:
            stream.handler.on_message(stream, event.message)
        except RemoteProtocolError as error:
            self._core.fail(ErrorCode.PROTOCOL_ERROR, error.detail)
        except InvariantViolation:
            raise
        except RaftlogError as error:
            self._core.reset(event.stream, ErrorCode.INTERNAL_ERROR, str(error))

    def _on_stream_event(self, event: StreamEnded | StreamClosed | ResponseReceived) -> None:
        if isinstance(event, StreamClosed):
            self._shell.close_if_finished()
            exchange = self._exchanges.pop(event.stream.id, None)
            stream = self._streams.pop(event.stream.id, None)
        else:
            exchange = self._exchanges.get(event.stream.id)
            stream = self._streams.get(event.stream.id)
        if exchange is not None and not isinstance(event, ResponseReceived):
            exchange.on_event(event)
        if stream is None or stream.handler is None:
            return
        if isinstance(event, StreamEnded):
            stream.handler.on_ended(stream)
        elif isinstance(event, StreamClosed):
            handler, stream.handler = stream.handler, None
            handler.on_closed(stream, event.reason)
        else:
            stream.status = event.status
            if event.status != 200 and ERROR_HEADER in event.headers:
                stream.refusal = error_from_code(event.headers[ERROR_HEADER], event.headers.get(DETAIL_HEADER, ""))
            if event.status == 200 and stream.on_accepted is not None:
                stream.on_accepted(stream)

    # --- Requests ----------------------------------------------------------------------------------------------------

    def _on_request(self, event: RequestReceived) -> None:
        path = event.path.partition("?")[0]
        first, self._first_request = self._first_request, False
        home = self._loop_for_path.get(path)
        if first and home not in (None, self.loop) and self.can_move:
            self._core.events.appendleft(event)
            self._core.change_pool(PartialPool(UNBOUNDED))  # between two loops, whose pools are theirs
            self._shell.move_to(home)
            return
        acceptor = self._acceptors.get(path)
        if self.loop is not self._listener_loop and home is not self.loop:
            # Its acceptor belongs to another thread.
            detail = f"{path[:200]} is not served on a connection that began with another path"
            self._core.refuse(event.stream, 421, detail, _told("not_found", detail))
        elif (accept := self._exchanges_here()) is not None and not (acceptor and _has_messages(event)):
            self._begin_exchange(event, accept)
        elif acceptor is None:
            detail = f"nothing is served at {path[:200]!r}"
            text = "" if event.method == "HEAD" else detail
            self._core.refuse(event.stream, 404, text, _told("not_found", detail))
        elif event.method != "POST":
            headers = [("allow", "POST"), *_told("method_not_allowed")]
            # The answer to HEAD has no content (RFC 9110 section 9.3.2).
            text = "" if event.method == "HEAD" else f"{path} accepts only POST, with messages as its content"
            self._core.refuse(event.stream, 405, text, headers)
        elif not event.stream.closed:
            self._accept(event, acceptor)

    def _exchanges_here(self) -> ExchangeAcceptor | None:
        return self.exchanges() if self.loop is self._listener_loop else None

    def _begin_exchange(self, event: RequestReceived, accept: ExchangeAcceptor) -> None:
        if event.stream.closed:
            return
        exchange = Http2Exchange(self._core, self._shell, event)
        self._core.begin_exchange(event.stream)
        self._exchanges[event.stream.id] = exchange
        exchange.handler = accept(self, exchange)

    def _accept(self, event: RequestReceived, acceptor: StreamAcceptor) -> None:
        stream = Http2Stream(self, event.stream, event.path, event.headers, event.authorization)
        self._streams[event.stream.id] = stream
        try:
            handler = acceptor(stream)
        except InvariantViolation:
            raise
        except RaftlogError as error:
            stream.refuse(error)
            return
        if handler is not None:
            stream.accept(handler)


class Http2Stream:
    """One stream, of either side.

    All calls belong to the thread of the connection's loop; none blocks.
    """

    __slots__ = (
        "_core", "_shell", "_state", "authorization", "connection", "handler", "headers", "muted", "on_accepted",
        "path", "peer_node", "refusal", "status",
    )  # fmt: skip

    def __init__(
        self,
        connection: Http2Connection,
        state: StreamState,
        path: str,
        headers: Mapping[str, str],
        authorization: Secret | None = None,
    ) -> None:
        self._core = connection._core
        self._shell = connection._shell
        self._state = state
        self.connection = connection
        self.path = path
        """Path of the request, including the query."""
        self.headers = headers
        """The request's header fields, with names in lower case, without pseudo fields and `authorization`."""
        self.authorization = authorization
        """The value of the `authorization` header of a request that a peer sent; None: there was none."""
        self.handler: StreamHandler | None = None
        self.muted = False
        """Whether this side reset it: messages that had arrived before are dropped."""
        self.peer_node = -1
        """Node id that the peer's certificate proves; -1 if no certificate was required."""
        self.status: int | None = None
        """Status of the peer's response, on a stream that this side opened; None until it is known."""
        self.refusal: RaftlogError | None = None
        """The error with which the peer refused a stream that this side opened."""
        self.on_accepted: Callable[[Http2Stream], None] | None = None

    @property
    def peer_host(self) -> str:
        """Address of the peer, without its port; empty if it is not known."""
        return self.connection.peer_host

    @property
    def closed(self) -> bool:
        """Whether `on_closed` was called or is about to be: messages sent from now on are dropped."""
        return self._state.closed

    @property
    def queued_bytes(self) -> int:
        """Bytes waiting in this stream's queue for a window or its turn (see also `Http2Connection.queued_bytes`)."""
        return self._state.queued_bytes

    def accept(self, handler: StreamHandler) -> None:
        """Accept a stream that a peer opened: messages may flow, and those that have arrived are handled.

        Nothing happens if the stream has ended meanwhile; the handler is not called then.
        """
        if self._state.closed or self._state.answered:
            return
        try:
            self.connection._accepting(self.path)
        except RaftlogError as error:
            self.refuse(error)
            handler.on_closed(self, str(error))
            return
        self.handler = handler
        self._core.respond(self._state)
        self._shell.flush()

    def refuse(self, error: RaftlogError) -> None:
        """Refuse a stream that a peer opened, with the HTTP status of the error's code."""
        if not (self._state.closed or self._state.answered):
            self.connection._streams.pop(self._state.id, None)
            self._core.refuse(self._state, error.status, str(error), _told(error.code, error.detail))
            self._shell.flush()

    def send(self, parts: Sequence[Part]) -> None:
        """Queue one message made of these parts.

        Buffers must not change until they are sent, and are not copied unless small; file regions are sent with
        `sendfile`. Every region is released exactly once, in any case. A message on a closed or ended stream is
        dropped. Raises `InvalidRequest` (`body_too_large`) for a message longer than the peer accepts.
        """
        self._core.send(self._state, parts)
        self._shell.flush()

    def end(self) -> None:
        """End this side once everything queued is sent."""
        self._core.end(self._state)
        self._shell.flush()

    def reset(self, code: int = ErrorCode.CANCEL) -> None:
        """End both sides at once; queued messages are dropped. `on_closed` follows."""
        self.muted = True
        self._core.reset(self._state, ErrorCode(code), "reset by us")
        self._shell.flush()

    def __str__(self) -> str:
        return f"{self.connection} stream {self._state.id} {self.path}"


StreamAcceptor: TypeAlias = Callable[[Http2Stream], StreamHandler | None]
"""Called with a stream that a peer opened; a `RaftlogError` refuses it, with its code's HTTP status.

Messages may be sent once it has returned a handler: the response's headers go first. None: it calls `accept` or
`refuse` later. Until then the peer's messages wait undecoded, at most `unaccepted_window_bytes` of them, and the
connection's other streams go on.
"""

ExchangeAcceptor: TypeAlias = Callable[[Http2Connection, Http2Exchange], ExchangeHandler | None]
"""Called with a request that a peer sent; returns the handler of its events. None: it is answered already."""

_CHALLENGES = [("www-authenticate", f'{scheme} realm="raftlog"') for scheme in ("Bearer", "Basic")]
"""The header fields of every 401 (RFC 9110 section 11.6.1)."""


def _told(code: str, detail: str = "") -> list[tuple[str, str]]:
    """Return a refusal's code and text as header fields; `?` replaces characters that a field cannot contain."""
    text = "".join(character if " " <= character <= "~" else "?" for character in detail[:300]).strip()
    challenges = _CHALLENGES if code == "unauthenticated" else []
    return [(ERROR_HEADER, code), *([(DETAIL_HEADER, text)] if text else []), *challenges]
