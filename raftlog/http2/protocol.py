"""One HTTP/2 connection as its user sees it: streams, their handlers, and what HTTP says to requests.

A handler is never called from within its own call to `send`, `end` or `reset`: events wait for the next turn of the
loop. An exception of a handler that is not a peer's or caller's fault is a bug of ours: it ends the connection and
reaches the loop's exception handler.

What is *not* here: rules of HTTP/2 (`connection.py`), sockets (`shell.py`), accepting (`listener.py`), dialing
(`dialer.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence

from ..errors import InvalidRequest, InvariantViolation, RaftlogError, RemoteProtocolError
from ..ports import Part
from .connection import ConnectionCore
from .events import (
    ConnectionFailed,
    Event,
    GoAwayReceived,
    MessageReceived,
    NotHttp2,
    PeerReady,
    RequestReceived,
    ResponseReceived,
    StreamClosed,
    StreamEnded,
)
from .frames import DETAIL_HEADER, ERROR_HEADER, ErrorCode
from .limits import Http2Limits
from .output import Phase
from .shell import TURN_S, ConnectionShell
from .stream import Http2Stream, StreamAcceptor, StreamHandler
from .streams import StreamState

TLS_REFUSED = "the peer speaks TLS and this listener does not: give this node the [tls] settings that its peers have"
_HANDSHAKE_RECORD = 22
"""RFC 8446 section 5.1: the first byte of who speaks TLS."""
_NOT_HTTP2_TEXT = b'This port speaks HTTP/2 only: with prior knowledge, or under TLS with ALPN "h2".\n'
NOT_HTTP2_ANSWER = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n"
    b"Content-Length: %d\r\n\r\n%b" % (len(_NOT_HTTP2_TEXT), _NOT_HTTP2_TEXT)
)


class Http2Connection(ConnectionShell):
    """A connection, of either side. All calls belong to the thread of its loop; none blocks."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        limits: Http2Limits,
        *,
        authority: str = "",
        acceptors: Mapping[str, StreamAcceptor] | None = None,
        loop_for_path: Mapping[str, asyncio.AbstractEventLoop] | None = None,
        listener_loop: asyncio.AbstractEventLoop | None = None,
        on_connected: Callable[[Http2Connection], None] | None = None,
        on_closed: Callable[[Http2Connection, str], None] | None = None,
    ) -> None:
        """A listener's connection has acceptors, a dialer's an authority. `on_connected` is called when there is a
        transport, once. `listener_loop`: to which the acceptors belong, apart from those of `loop_for_path`."""
        core = ConnectionCore(client=acceptors is None, limits=limits, now=loop.time())
        super().__init__(loop, core, limits)
        self.on_closed = on_closed
        """Called once, after every stream's `on_closed`."""
        self.on_ready: Callable[[], None] | None = None
        """Called when the peer has shown that it speaks HTTP/2."""
        self.on_goaway: Callable[[Http2Connection, str], None] | None = None
        """Called when the peer wants no more new streams."""
        self._on_connected = on_connected
        self._authority = authority
        self._acceptors = acceptors or {}
        self._loop_for_path = loop_for_path or {}
        self._listener_loop = listener_loop or loop
        self._first_request = True
        self._muted = False
        """We closed it: messages that had arrived before are not handed on."""
        self._gone = asyncio.Event()

    # --- For users ---------------------------------------------------------------------------------------------------

    @property
    def stream_count(self) -> int:
        """Streams that are open at least one way."""
        return len(self._core.streams)

    def open_stream(
        self,
        path: str,
        headers: Mapping[str, str] | Iterable[tuple[str, str]],
        handler: StreamHandler,
        on_accepted: Callable[[Http2Stream], None] | None = None,
    ) -> Http2Stream:
        """Send a request; messages may be sent at once. `on_accepted` is called when the peer has answered 200; a
        refusal is an `on_closed` whose reason names status, code and detail.

        Raises `RetriableError` (`connection_lost`, `overloaded`), `InvalidRequest` for headers that HTTP/2 forbids.
        """
        fields = dict(headers)
        scheme = "https" if self.get_extra_info("sslcontext") is not None else "http"
        try:
            state = self._core.open_stream(path, self._authority, scheme, fields.items())
        except InvalidRequest:  # HPACK's state is lost with it, and so the connection
            self._flush()
            raise
        stream = Http2Stream(self, state, path, fields)
        stream.handler, stream.on_accepted = handler, on_accepted
        state.owner = stream
        self._flush()
        return stream

    def go_away(self, reason: str = "shutting down") -> None:
        """Take no new streams; the connection closes when the last one is over and sent."""
        unsent = self._core.peer_ready and (self._core.outbox.output or self.queued_bytes)
        if self._core.streams or unsent:
            self._core.go_away(ErrorCode.NO_ERROR, reason)
        else:
            self._core.fail(ErrorCode.NO_ERROR, reason)
        self._flush()

    def close(self, reason: str = "closed by us") -> None:
        """Say GOAWAY and close; what is queued is given up. Every stream's `on_closed` follows, then the connection's.
        Closing twice does nothing."""
        self._muted = True
        self._core.fail(ErrorCode.NO_ERROR, reason)
        self._flush()

    async def wait_closed(self) -> None:
        """Until the sockets are closed and everybody was told; after `close` at most `linger_s` and a little."""
        await self._gone.wait()

    async def give_up(self, reason: str) -> None:
        """Drop the connection, or what there is of it, and wait until that is done."""
        self.abort(reason)
        if self._transport is not None:
            await self._gone.wait()

    def send(self, state: StreamState, parts: Sequence[Part]) -> None:
        """See `Http2Stream.send`."""
        self._core.send(state, parts)
        self._flush()

    def end_stream(self, state: StreamState) -> None:
        """See `Http2Stream.end`."""
        self._core.end(state)
        self._flush()

    def reset_stream(self, state: StreamState, code: ErrorCode) -> None:
        """See `Http2Stream.reset`."""
        self._core.reset(state, code, "reset by us")
        self._flush()

    def __str__(self) -> str:
        direction = "to" if self._core.client else "from"
        return f"http2 {direction} {self.peer_address or self._authority} streams={self.stream_count}"

    # --- Events ------------------------------------------------------------------------------------------------------

    def _dispatch(self) -> None:
        events, clock = self._core.events, self._loop.time
        if self._dispatching or (self._transport is None and self._phase is not Phase.CLOSED):
            return  # or: it is between two loops
        if not events:
            self._close_if_finished()
        self._dispatching = True
        turn_ends = 0.0
        try:
            while events and self._move_to is None:
                event = events.popleft()
                if type(event) is MessageReceived:
                    self._on_message(event)
                else:
                    self._on_event(event)
                if events:
                    now = clock()
                    turn_ends = turn_ends or now + TURN_S
                    if now > turn_ends and self._phase is not Phase.CLOSED:
                        return  # `_handled` sees that there is more
        except BaseException as error:
            self.abort(f"a handler failed: {error!r}")
            raise
        finally:
            self._dispatching = False
            if events and self._phase is Phase.CLOSED:
                self._wake()  # a handler raised; the others are told all the same

    def _connected(self) -> None:
        told, self._on_connected = self._on_connected, None
        if told is not None:
            told(self)

    def _lost(self, reason: str) -> None:
        self._gone.set()
        if self.on_closed is not None:
            self.on_closed(self, reason)

    def _on_message(self, event: MessageReceived) -> None:
        stream = event.stream.owner
        if not isinstance(stream, Http2Stream) or stream.handler is None or stream.muted or self._muted:
            return  # refused, or given up by us meanwhile
        try:
            stream.handler.on_message(stream, event.message)
        except RemoteProtocolError as error:
            self._core.fail(ErrorCode.PROTOCOL_ERROR, error.detail)
        except InvariantViolation:
            raise
        except RaftlogError as error:
            self._core.reset(event.stream, ErrorCode.INTERNAL_ERROR, str(error))

    def _on_event(self, event: Event) -> None:
        if isinstance(event, RequestReceived):
            self._on_request(event)
        elif isinstance(event, (StreamEnded, StreamClosed, ResponseReceived)):
            self._on_stream_event(event)
        elif isinstance(event, PeerReady):
            if self.on_ready is not None:
                self.on_ready()
        elif isinstance(event, GoAwayReceived):
            self.peer_said = event.reason
            if self.on_goaway is not None:
                self.on_goaway(self, event.reason)
            self._close_if_finished()
        elif isinstance(event, NotHttp2):
            tls = event.first_bytes[0] == _HANDSHAKE_RECORD
            # To TLS this is a wrong version number: the usual sign that the other end speaks in the clear.
            if (tls or event.first_bytes[:1].isalpha()) and self._writer is not None:
                self._writer.extend([NOT_HTTP2_ANSWER])
                self._writer.flush()
            self._close_gently(TLS_REFUSED if tls else "the peer does not speak HTTP/2")
        elif isinstance(event, ConnectionFailed):
            self._close_gently(event.reason)

    def _on_stream_event(self, event: StreamEnded | StreamClosed | ResponseReceived) -> None:
        stream = event.stream.owner
        if isinstance(event, StreamClosed):
            self._close_if_finished()
        if not isinstance(stream, Http2Stream) or stream.handler is None:
            return
        if isinstance(event, StreamEnded):
            stream.handler.on_ended(stream)
        elif isinstance(event, StreamClosed):
            handler, stream.handler = stream.handler, None
            handler.on_closed(stream, event.reason)
        else:
            stream.status = event.status
            if event.status == 200 and stream.on_accepted is not None:
                stream.on_accepted(stream)

    def _close_if_finished(self) -> None:
        """After a GOAWAY of either side, the connection goes with its last stream, once all of that is sent."""
        core = self._core
        if core.closing and not (core.streams or core.failed or core.outbox.output or self.queued_bytes):
            if self.peer_said:
                self._reason = self._reason or f"the peer went away: {self.peer_said}"
            core.fail(ErrorCode.NO_ERROR, "the last stream ended")

    # --- Requests ----------------------------------------------------------------------------------------------------

    def _on_request(self, event: RequestReceived) -> None:
        path = event.path.partition("?")[0]
        first, self._first_request = self._first_request, False
        home = self._loop_for_path.get(path)
        if first and home not in (None, self._loop) and self.can_move:
            self._core.events.appendleft(event)
            self._move_to = home
            return
        acceptor = self._acceptors.get(path)
        if self._loop is not self._listener_loop and home is not self._loop:
            # Its acceptor belongs to another thread.
            detail = f"{path[:200]} is not served on a connection that began with another path"
            self._core.refuse(event.stream, 421, detail, _told("not_found", detail))
        elif acceptor is None:
            detail = f"nothing is served at {path[:200]!r}"
            self._core.refuse(event.stream, 404, detail, _told("not_found", detail))
        elif event.method != "POST":
            headers = [("allow", "POST"), *_told("method_not_allowed")]
            self._core.refuse(event.stream, 405, f"{path} takes POST only, with messages as its content", headers)
        elif not event.stream.closed:
            self._accept(event, acceptor)

    def _accept(self, event: RequestReceived, acceptor: StreamAcceptor) -> None:
        stream = Http2Stream(self, event.stream, event.path, event.headers)
        try:
            stream.handler = acceptor(stream)
        except InvariantViolation:
            raise
        except RaftlogError as error:
            self._core.refuse(event.stream, error.status, str(error), _told(error.code, error.detail))
            return
        event.stream.owner = stream
        self._core.respond(event.stream)


def _told(code: str, detail: str = "") -> list[tuple[str, str]]:
    """A refusal's code and text as header fields; what a header field cannot hold becomes `?`."""
    text = "".join(character if " " <= character <= "~" else "?" for character in detail[:300]).strip()
    return [(ERROR_HEADER, code), *([(DETAIL_HEADER, text)] if text else [])]
