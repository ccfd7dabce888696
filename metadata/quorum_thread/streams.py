"""HTTP/2 streams as the links that `QuorumLinks` wants, on the quorum's loop.

A dialed stream and an accepted one differ only in who opened them. An accepted stream may live on another loop (under
TLS a connection cannot change its loop): then what it receives is passed to the quorum's loop and what is sent is
passed back, in order. A stream whose peer says nothing for `HELLO_SECONDS` is dropped, whoever opened it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from raftlog.errors import InvalidRequest, RemoteProtocolError
from raftlog.http2.connection import Http2Stream, StreamHandler
from raftlog.model import BrokerId
from raftlog.ports import LinkHandler, Part

HELLO_SECONDS = 10.0
"""The first message of a link is the hello; whoever does not belong is dropped for it."""

Guard = Callable[[Callable[[], None]], None]
"""Runs an input of the node, and has the node ticked after it."""


class StreamLink:
    """A `Link` on one stream. `peer` is whom we dialed, or on an accepted one whom its certificate names, or -1."""

    def __init__(self, peer: BrokerId, stream: Http2Stream, loop: asyncio.AbstractEventLoop) -> None:
        self._peer = peer
        self._stream = stream
        self._stream_loop = stream.connection.loop
        self._local = self._stream_loop is loop

    @property
    def peer(self) -> int:
        return self._peer

    @property
    def is_local(self) -> bool:
        """Its stream lives on the quorum's loop."""
        return self._local

    def send(self, parts: Sequence[Part]) -> None:
        """Queue one message. A peer that says that it takes no message so long is no voter: the link is dropped."""
        self._on_stream_loop(lambda: self._send(parts))

    def close(self) -> None:
        """Drop the connection: it has no other stream."""
        self._on_stream_loop(self._close)

    def abort(self) -> None:
        """Drop the connection now."""
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
            return
        try:
            self._stream_loop.call_soon_threadsafe(call)
        except RuntimeError:
            return  # that loop is closed, and its connections with it


class DialedStream:
    """The streams that a `ReconnectingDialer` opens to one peer, one after the other."""

    def __init__(self, peer: BrokerId, handler: LinkHandler, guard: Guard) -> None:
        self._peer = peer
        self._handler = handler
        self._guard = guard
        self._links: dict[Http2Stream, tuple[StreamLink, asyncio.TimerHandle]] = {}
        """With what ends one whose hello is not answered."""

    def on_opened(self, stream: Http2Stream) -> None:
        """The peer accepted a stream."""
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
        """The peer ends its side of a link: it is over."""
        stream.connection.close("the peer ended the quorum's stream")

    def on_closed(self, stream: Http2Stream, reason: str) -> None:
        known = self._links.pop(stream, None)
        if known is not None:
            link, silent = known
            silent.cancel()
            self._guard(lambda: self._handler.on_closed(link))


class AcceptedStreams:
    """The streams that peers opened here."""

    def __init__(self, handler: LinkHandler, loop: asyncio.AbstractEventLoop, guard: Guard) -> None:
        self._handler = handler
        self._loop = loop
        self._guard = guard
        self._links: dict[StreamLink, asyncio.TimerHandle] = {}
        """With what ends one that says nothing."""

    def accept(self, stream: Http2Stream) -> StreamHandler:
        """The listener's acceptor: on the quorum's loop, or on that of a connection that could not be moved."""
        link = StreamLink(BrokerId(stream.peer_node), stream, self._loop)
        self._run(lambda: self._opened(link))
        return _AcceptedStream(link, on_message=partial(self._message, link), on_closed=partial(self._closed, link))

    def _opened(self, link: StreamLink) -> None:
        self._links[link] = self._loop.call_later(HELLO_SECONDS, link.close)
        self._guard(lambda: self._handler.on_opened(link))

    def _message(self, link: StreamLink, message: memoryview) -> None:
        """One frame came."""
        if link in self._links or asyncio.get_running_loop() is not self._loop:
            self._run(lambda: self._guarded(link, lambda: self._handler.on_message(link, message)))

    def _guarded(self, link: StreamLink, call: Callable[[], None]) -> None:
        if link in self._links:
            self._links[link].cancel()
            try:
                self._guard(call)
            except RemoteProtocolError:
                if link.is_local:
                    raise  # Its connection ends itself.
                link.abort()

    def _closed(self, link: StreamLink) -> None:
        """The stream is over."""

        def forget() -> None:
            silent = self._links.pop(link, None)
            if silent is not None:
                silent.cancel()
                self._guard(lambda: self._handler.on_closed(link))

        self._run(forget)

    def _run(self, call: Callable[[], None]) -> None:
        if asyncio.get_running_loop() is self._loop:
            call()
            return
        try:
            self._loop.call_soon_threadsafe(call)
        except RuntimeError:
            return  # the quorum's loop is closed

    async def close(self) -> None:
        """Drop all of them; those of this loop are gone when this returns."""
        for link in list(self._links):
            link.abort()
        for _ in range(3):
            await asyncio.sleep(0)


class _AcceptedStream:
    """One of them, as its handler."""

    def __init__(
        self, link: StreamLink, *, on_message: Callable[[memoryview], None], on_closed: Callable[[], None]
    ) -> None:
        self._link = link
        self._on_message = on_message
        self._on_closed = on_closed

    def on_message(self, stream: Http2Stream, message: memoryview) -> None:
        self._on_message(message)

    def on_ended(self, stream: Http2Stream) -> None:
        """The peer ends its side of a link: it is over."""
        self._link.close()

    def on_closed(self, stream: Http2Stream, reason: str) -> None:
        self._on_closed()
