"""The content of a request over HTTP/2, as aiohttp's requests read it.

It stays where it is, in windows that are counted, until a handler reads it: a request whose sender is unknown cannot
fill memory, and a handler that reads slowly holds back its client alone.
"""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp.streams import StreamReader

from raftlog.http2 import Http2Exchange

_LIMIT = 64 * 1024


class ExchangeReader(StreamReader):
    """Reads the content of one exchange."""

    def __init__(self, exchange: Http2Exchange, protocol: Any, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(protocol, _LIMIT, loop=loop)
        self._exchange = exchange
        self._is_read = False
        """Whether a handler waits for content."""

    def arrived(self) -> None:
        """Note that there is content, or its end."""
        if self._is_read:
            self._pull()

    def is_eof(self) -> bool:
        """Return whether all of the content has arrived."""
        if self._exchange.request_ended:
            self._pull()
        return super().is_eof()

    def at_eof(self) -> bool:
        self._pull()
        return super().at_eof()

    async def readany(self) -> bytes:
        self._is_read = True
        try:
            self._pull()
            return await super().readany()
        finally:
            self._is_read = False

    def read_nowait(self, n: int = -1) -> bytes:
        self._pull()
        return super().read_nowait(n)

    def _pull(self) -> None:
        if self._eof or self._exception is not None:
            return
        exchange = self._exchange
        if exchange.has_content:
            self.feed_data(exchange.read())
        if exchange.request_ended:
            self.feed_eof()
