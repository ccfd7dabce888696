"""The answer to a request over HTTP/2, as aiohttp's responses write it."""

from __future__ import annotations

import asyncio

from aiohttp.abc import AbstractStreamWriter
from multidict import CIMultiDict

from raftlog.http2 import Http2Exchange

_NOT_IN_HTTP2 = frozenset({"connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade"})
"""Header fields about one connection of HTTP/1.1 (RFC 9113 section 8.2.2)."""


class ExchangeWriter(AbstractStreamWriter):
    """Writes the answer of one exchange. A write waits while much is queued."""

    def __init__(self, exchange: Http2Exchange, loop: asyncio.AbstractEventLoop) -> None:
        self._exchange = exchange
        self._loop = loop
        self._room: asyncio.Future[None] | None = None
        self._takes_rest = True
        """Whether a client may send the rest of a body that is not wanted: some see the answer only afterwards."""
        self.length: int | None = None

    def send_interim(self, status: int) -> None:
        """Send an interim answer (1xx)."""
        self._exchange.answer(status, ())

    async def write_headers(self, status_line: str, headers: CIMultiDict[str]) -> None:
        """Raises `ConnectionResetError` if the client has gone."""
        self._check_open()
        status = int(status_line.split(" ", 2)[1])
        self._takes_rest = status != 401
        fields = [(name.lower(), value.strip()) for name, value in headers.items()]
        self._exchange.answer(status, [one for one in fields if one[0] not in _NOT_IN_HTTP2])
        self.output_size += 1

    async def write(self, chunk: bytes | bytearray | memoryview) -> None:
        """Queue content, and wait while much is queued. Raises `ConnectionResetError` if the client has gone."""
        self._check_open()
        view = memoryview(chunk).cast("B")
        if self.length is not None:
            view = view[: self.length]
            self.length -= view.nbytes
        if view.nbytes:
            self.output_size += view.nbytes
            self._exchange.send(view if view.readonly else bytes(view))
            await self.drain()

    async def write_eof(self, chunk: bytes = b"") -> None:
        if chunk:
            await self.write(chunk)
        self._check_open()
        self._exchange.end(takes_rest=self._takes_rest)

    async def drain(self) -> None:
        """Wait until little is queued. Raises `ConnectionResetError` if the client goes meanwhile."""
        while self._exchange.wants_room():
            self._room = self._loop.create_future()
            await self._room
        self._check_open()

    def wake(self) -> None:
        """Let a write go on: there is room, or the stream has ended."""
        room, self._room = self._room, None
        if room is not None and not room.done():
            room.set_result(None)

    def enable_chunking(self) -> None:
        """Do nothing: HTTP/2 has frames."""

    def enable_compression(self, encoding: str = "deflate", strategy: int | None = None) -> None:
        raise NotImplementedError("answers are compressed before they are written")

    def _check_open(self) -> None:
        if self._exchange.closed:
            raise ConnectionResetError("the client has reset the stream, or left")
