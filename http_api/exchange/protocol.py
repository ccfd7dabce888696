"""The connection of a request over HTTP/2, for aiohttp's requests and the middleware."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Protocol

from aiohttp import web

from raftlog.http2 import Http2Connection, Http2Exchange

from .transport import ExchangeTransport


class ExchangeConnection(Hashable, Protocol):
    """A connection with exchanges, as its listener counts it."""

    acknowledged_at_end: bool
    """Whether the client had acknowledged everything when it ended its side of the connection (`delivery.py`)."""

    def exchange_begins(self) -> None:
        """Count an exchange."""
        ...

    def exchange_ended(self) -> None:
        """Count the end of an exchange."""
        ...

    def recognize(self, path: str) -> None:
        """Note that a request of the connection was authenticated. Raises `RetriableError` (`overloaded`) if it may not
        be served nevertheless."""
        ...


class ExchangeProtocol:
    """The part of aiohttp's protocol that its requests use, for one exchange."""

    def __init__(self, connection: Http2Connection, exchange: Http2Exchange, counted: ExchangeConnection) -> None:
        self.transport = ExchangeTransport(connection, exchange)
        self.counted = counted
        self.ssl_context = connection.get_extra_info("sslcontext")
        self.peername = connection.get_extra_info("peername")
        self.sockname = connection.get_extra_info("sockname")
        self._path = exchange.path

    @property
    def connected(self) -> bool:
        """Whether content may still arrive."""
        return not self.transport.is_closing()

    @property
    def acknowledged_at_end(self) -> bool:
        """Whether the client had acknowledged everything when it ended its side of the connection."""
        return self.counted.acknowledged_at_end

    def recognize(self) -> None:
        """Note that the request was authenticated. Raises `RetriableError` (`overloaded`)."""
        self.counted.recognize(self._path.partition("?")[0])

    def pause_reading(self) -> None:
        """Do nothing: content is read when it is wanted."""

    def resume_reading(self, resume_parser: bool = True) -> None:
        """Do nothing: content is read when it is wanted."""


def connection_of(request: web.Request) -> Hashable:
    """Return the connection of a request, by which connections are counted."""
    protocol: Any = request.protocol
    return protocol.counted if isinstance(protocol, ExchangeProtocol) else protocol
