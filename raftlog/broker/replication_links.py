"""Replication links on HTTP/2 streams: one connection for each pair of follower and leader, dialed by the follower.

`StreamLink` is the `Link` port on a stream. `ReplicationDialer` keeps a connection to each broker that this one
follows, and reconnects after every loss; `replication_acceptor` accepts the connections of others. The messages are
defined by the partition manager.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from raftlog.http2 import Http2Stream, ReconnectingDialer, StreamAcceptor
from raftlog.http2.tls import DialTls
from raftlog.model import BrokerId, Endpoint
from raftlog.ports import Link, LinkHandler, Random

REPLICATION_PATH = "/raftlog.replication"


class StreamLink:
    """A `Link` on one stream."""

    def __init__(self, stream: Http2Stream, peer: int) -> None:
        self._stream = stream
        self._peer = peer
        self.send = stream.send
        """See the port. It is an attribute for speed: it is called for every record that arrives alone."""

    @property
    def peer(self) -> int:
        return self._peer

    def close(self) -> None:
        self._stream.connection.close("the link is closed")


class LinkStream:
    """A `StreamHandler` that passes a stream's events to a `LinkHandler` as those of one link."""

    def __init__(self, handler: LinkHandler, peer: int) -> None:
        self._handler = handler
        self._peer = peer
        self._link: Link | None = None

    def open(self, stream: Http2Stream) -> Link:
        """Open the link: the peer accepted the stream, or its first message arrived."""
        if self._link is None:
            self._link = StreamLink(stream, self._peer)
            self._handler.on_opened(self._link)
        return self._link

    def on_message(self, stream: Http2Stream, message: memoryview) -> None:
        self._handler.on_message(self._link or self.open(stream), message)

    def on_ended(self, stream: Http2Stream) -> None:
        stream.connection.close("the peer ended the link")

    def on_closed(self, stream: Http2Stream, reason: str) -> None:
        link, self._link = self._link, None
        if link is not None:
            self._handler.on_closed(link)


def _opened(link_stream: LinkStream, stream: Http2Stream) -> None:
    link_stream.open(stream)


def replication_acceptor(handler: LinkHandler) -> StreamAcceptor:
    """Return an acceptor for the links that followers dial.

    The hello names the follower, and under TLS so does `stream.peer_node`.
    """

    def accept(stream: Http2Stream) -> LinkStream:
        accepted = LinkStream(handler, stream.peer_node)

        def open_soon() -> None:
            if not stream.closed:
                accepted.open(stream)

        # The stream can be written to only after the acceptor has returned.
        asyncio.get_running_loop().call_soon(open_soon)
        return accepted

    return accept


class ReplicationDialer:
    """The partition manager's `Dialer` on asyncio. `dial` returns the address of a broker's data listener."""

    def __init__(
        self,
        dial: Callable[[BrokerId], Endpoint | None],
        random: Random,
        tls: Callable[[BrokerId], DialTls] | None = None,
    ) -> None:
        """`tls`: the TLS settings for a broker; None: plain text."""
        self._dial = dial
        self._tls = tls
        self._random = random
        self._handler: LinkHandler | None = None
        self._dialers: dict[BrokerId, tuple[Endpoint, ReconnectingDialer]] = {}
        self._wanted: set[BrokerId] = set()
        self._closing: set[asyncio.Task[None]] = set()

    def attach(self, handler: LinkHandler) -> None:
        """Set the handler of links, before the first `connect`."""
        self._handler = handler

    def connect(self, peer: BrokerId) -> None:
        self._wanted.add(peer)
        endpoint = self._dial(peer)
        known = self._dialers.get(peer)
        if endpoint is None or (known is not None and known[0] == endpoint):
            return  # An unknown broker is dialed when the view knows its address.
        if known is not None:
            self._close(peer)
        assert self._handler is not None, "attach comes first"
        link_stream = LinkStream(self._handler, peer)
        self._dialers[peer] = (
            endpoint,
            ReconnectingDialer(
                endpoint.host,
                endpoint.port,
                REPLICATION_PATH,
                link_stream,
                random=self._random,
                ssl=self._tls(peer) if self._tls else None,
                on_opened=lambda stream: _opened(link_stream, stream),
            ),
        )

    def disconnect(self, peer: BrokerId) -> None:
        self._wanted.discard(peer)
        self._close(peer)

    def addresses_changed(self) -> None:
        """Redial: a broker registered, so its address is known at last, or has changed."""
        for peer in sorted(self._wanted):
            self.connect(peer)

    async def close(self) -> None:
        """Close every link permanently."""
        self._wanted.clear()
        for peer in sorted(self._dialers):
            self._close(peer)
        if self._closing:
            await asyncio.wait(self._closing)

    def _close(self, peer: BrokerId) -> None:
        known = self._dialers.pop(peer, None)
        if known is not None:
            task = asyncio.get_running_loop().create_task(known[1].close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
