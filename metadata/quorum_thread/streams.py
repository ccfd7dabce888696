"""HTTP/2 streams as the links that `QuorumLinks` expects, on the quorum's loop.

A dialed stream and an accepted one differ only in which end opened them. An accepted stream may live on another loop
(under TLS a connection cannot change its loop): then its received messages are passed to the quorum's loop, and sent
ones are passed back, in order. A stream whose peer sends nothing for `HELLO_SECONDS` is dropped, whichever end opened
it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from raftlog.errors import InvalidRequest, RemoteProtocolError
from raftlog.http2.connection import Http2Stream, StreamHandler
from raftlog.model import BrokerId
from raftlog.ports import LinkHandler, Part
from raftlog.system.runtime import call_on

HELLO_SECONDS = 10.0
"""Seconds within which the first message of a link, the hello, must arrive; otherwise the link is dropped."""

Guard = Callable[[Callable[[], None]], None]
"""Runs an input of the node and schedules the node's tick after it."""


class StreamLink:
    """A `Link` on one stream. `peer` is the dialed node, or on an accepted stream the node that its certificate
    names, or -1."""

    def __init__(self, peer: BrokerId, stream: Http2Stream, loop: asyncio.AbstractEventLoop) -> None:
        self._peer = peer
        self._stream = stream
        self._stream_loop = stream.connection.loop
        self._local = self._stream_loop is loop

    @property
    def peer(self) -> int:
        return self._peer

    @property
    def source(self) -> str:
        """The host from which the connection was made; empty if it is unknown."""
        name = self._stream.connection.get_extra_info("peername")
        return str(name[0]) if isinstance(name, tuple) and name else ""

    @property
    def is_local(self) -> bool:
        """Whether its stream lives on the quorum's loop."""
        return self._local

    def send(self, parts: Sequence[Part]) -> None:
        """Queue one message. If the peer declares that it accepts no message this long, it is not a voter, and the link
        is dropped."""
        self._on_stream_loop(lambda: self._send(parts))

    def close(self) -> None:
        """Close the connection: it has no other stream."""
        self._on_stream_loop(self._close)

    def abort(self) -> None:
        """Drop the connection at once."""
        self._on_stream_loop(lambda: self._stream.connection.abort("the quorum of this node stops"))

    def _send(self, parts: Sequence[Part]) -> None:
        try:
            self._stream.send(parts)
        except InvalidRequest:
            self._close()

    def _close(self) -> None:
        self._stream.connection.close("the quorum drops this link")

    def _on_stream_loop(self, call: Callable[[], None]) -> None:
        if self._local:
            call()
        else:
            call_on(self._stream_loop, call)  # If that loop is closed, its connections are closed with it.


class DialedStream:
    """The streams that a `ReconnectingDialer` opens to one peer, one after the other."""

    def __init__(self, peer: BrokerId, handler: LinkHandler, guard: Guard) -> None:
        self._peer = peer
        self._handler = handler
        self._guard = guard
        self._links: dict[Http2Stream, tuple[StreamLink, asyncio.TimerHandle]] = {}
        """The link of each stream, with the timer that ends it if its hello is not answered."""

    def on_opened(self, stream: Http2Stream) -> None:
        """Process a stream that the peer accepted."""
        loop = stream.connection.loop
        link = StreamLink(self._peer, stream, loop)
        self._links[stream] = link, loop.call_later(HELLO_SECONDS, link.close)
        self._guard(lambda: self._handler.on_opened(link))

    def on_message(self, stream: Http2Stream, message: memoryview) -> None:
        known = self._links.get(stream)
        if known is not None:
            link, silent = known
            silent.cancel()
            self._guard(lambda: self._handler.on_message(link, message))

    def on_ended(self, stream: Http2Stream) -> None:
        """Close the link: the peer ended its side."""
        stream.connection.close("the peer ended the quorum's stream")

    def on_closed(self, stream: Http2Stream, reason: str) -> None:
        known = self._links.pop(stream, None)
        if known is not None:
            link, silent = known
            silent.cancel()
            self._guard(lambda: self._handler.on_closed(link))


class AcceptedStreams:
    """The streams that peers opened to this node."""

    def __init__(self, handler: LinkHandler, loop: asyncio.AbstractEventLoop, guard: Guard) -> None:
        self._handler = handler
        self._loop = loop
        self._guard = guard
        self._links: dict[StreamLink, asyncio.TimerHandle] = {}
        """Each link with the timer that ends it if no message arrives."""

    def accept(self, stream: Http2Stream) -> StreamHandler:
        """Accept a stream for the listener: on the quorum's loop, or on that of a connection that could not be
        moved."""
        link = StreamLink(BrokerId(stream.peer_node), stream, self._loop)
        self._run(lambda: self._opened(link))
        return _AcceptedStream(link, on_message=partial(self._message, link), on_closed=partial(self._closed, link))

    def _opened(self, link: StreamLink) -> None:
        self._links[link] = self._loop.call_later(HELLO_SECONDS, link.close)
        self._guard(lambda: self._handler.on_opened(link))

    def _message(self, link: StreamLink, message: memoryview) -> None:
        """Process a frame."""
        if link in self._links or asyncio.get_running_loop() is not self._loop:
            self._run(lambda: self._guarded(link, lambda: self._handler.on_message(link, message)))

    def _guarded(self, link: StreamLink, call: Callable[[], None]) -> None:
        if link in self._links:
            self._links[link].cancel()
            try:
                self._guard(call)
            except RemoteProtocolError:
                if link.is_local:
                    raise  # The connection closes itself.
                link.abort()

    def _closed(self, link: StreamLink) -> None:
        """Process the end of the stream."""

        def forget() -> None:
            silent = self._links.pop(link, None)
            if silent is not None:
                silent.cancel()
                self._guard(lambda: self._handler.on_closed(link))

        self._run(forget)

    def _run(self, call: Callable[[], None]) -> None:
        if asyncio.get_running_loop() is self._loop:
            call()
        else:
            call_on(self._loop, call)

    async def close(self) -> None:
        """Drop all streams; those of this loop are gone on return."""
        for link in list(self._links):
            link.abort()
        for _ in range(3):
            await asyncio.sleep(0)


class _AcceptedStream:
    """The handler of one accepted stream."""

    def __init__(
        self, link: StreamLink, *, on_message: Callable[[memoryview], None], on_closed: Callable[[], None]
    ) -> None:
        self._link = link
        self._on_message = on_message
        self._on_closed = on_closed

    def on_message(self, stream: Http2Stream, message: memoryview) -> None:
        self._on_message(message)

    def on_ended(self, stream: Http2Stream) -> None:
        """Close the link: the peer ended its side."""
        self._link.close()

    def on_closed(self, stream: Http2Stream, reason: str) -> None:
        self._on_closed()
