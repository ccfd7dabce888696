"""The transport of a request over HTTP/2, for its handler: its stream. An abort leaves the connection's other requests
alone."""

from __future__ import annotations

import asyncio
from typing import Any

from raftlog.http2 import Http2Connection, Http2Exchange

_HIDDEN = frozenset({"socket"})
"""A write to the socket itself would come between frames."""


class ExchangeTransport(asyncio.Transport):
    """The transport of one exchange. Bytes are written by `ExchangeWriter`."""

    def __init__(self, connection: Http2Connection, exchange: Http2Exchange) -> None:
        super().__init__()
        self.connection = connection
        self.is_probed = False
        """Whether the peer has answered a PING that was sent after the last byte."""
        self._exchange = exchange
        self._is_probing = False

    @property
    def is_sent(self) -> bool:
        """Whether the socket has taken the whole answer, and everything else of the connection."""
        return not self._exchange.queued_bytes and self.connection.is_sent

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        found = None if name in _HIDDEN else self.connection.get_extra_info(name)
        return default if found is None else found

    def is_closing(self) -> bool:
        """Return whether the client has gone, or has reset the stream."""
        return self._exchange.is_broken or self.connection.closed

    def get_write_buffer_size(self) -> int:
        return self._exchange.queued_bytes or (0 if self.connection.is_sent else self.connection.queued_bytes)

    def close(self) -> None:
        self.abort()

    def abort(self) -> None:
        """Reset the stream: an answer that ends early does not look like a whole one."""
        self._exchange.reset()

    def probe(self) -> None:
        """Ask the peer whether it has received everything, once all of it is on its way."""
        if not (self._is_probing or self._exchange.queued_bytes or self.connection.closed):
            self._is_probing = True
            self.connection.probe(self._probed)

    def _probed(self) -> None:
        self.is_probed = True
