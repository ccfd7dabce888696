"""One HTTP/1.1 request on a connection of its own, and how much of its answer has arrived.

The client of a proxied API must know of each answer whether the whole of it has arrived: the server counts what the
kernel of this machine has acknowledged, and that may be more than the program has read. So nothing is received but by
this loop, a connection that is given up is drained before that is decided, and a *cut* answer is longer than what the
kernel takes for a program that does not read (`CUT_FROM_BYTES`).
"""

from __future__ import annotations

import asyncio
import socket
import struct
from dataclasses import dataclass
from typing import Literal, TypeAlias

from raftlog.client.cluster.api import parse_endpoint
from raftlog.system.futures import resolve

CONNECT_SECONDS = 1.0
PIECE_BYTES = 256 * 1024
SMALL_PIECE_BYTES = 1_024
SMALL_BUFFER_BYTES = 2_048
"""The receive buffer of an answer that is to be cut. The kernel doubles it."""
CUT_FROM_BYTES = 16 * 1024
"""The shortest answer that is cut: several times what that buffer takes."""
END_SECONDS = 0.1
"""Time between the end of stream and the reset of a cut by `end`."""
LINGER = struct.pack("ii", 1, 0)
"""The socket option by which closing resets the connection."""

CutKind: TypeAlias = Literal["", "reset", "end"]
"""How an answer is cut: not at all, by a reset, or by the end of this side's stream and a reset a little later."""


class NotSent(Exception):
    """The connection was not made, and so nothing was sent."""


class Broken(Exception):
    """The answer did not arrive as a whole. The request may have been carried out."""


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """A whole answer."""

    status: int
    body: bytes


class _Arriving:
    """An answer, as far as it has arrived."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._body_at = -1
        self.length = -1
        """Length of the body in bytes; -1 while the head is not complete."""
        self.status = 0

    def feed(self, piece: bytes) -> None:
        """Add bytes. Raises `ValueError` for an answer that has no length."""
        self._data += piece
        if self._body_at < 0 and b"\r\n\r\n" in self._data:
            head, _, _ = bytes(self._data).partition(b"\r\n\r\n")
            self._body_at = len(head) + 4
            self.status = int(head.split(None, 2)[1])
            fields = dict(line.lower().split(b":", 1) for line in head.split(b"\r\n")[1:])
            if b"transfer-encoding" in fields:
                raise ValueError("an answer of unknown length")
            self.length = int(fields.get(b"content-length", b"0"))

    @property
    def received(self) -> int:
        """The number of bytes of the body that have arrived."""
        return max(0, len(self._data) - self._body_at) if self._body_at >= 0 else 0

    @property
    def is_whole(self) -> bool:
        return self.length >= 0 and self.received >= self.length

    @property
    def answer(self) -> HttpAnswer:
        return HttpAnswer(self.status, bytes(self._data[self._body_at : self._body_at + self.length]))

    def __str__(self) -> str:
        return f"{self.received} of {self.length} bytes" if self.length >= 0 else "nothing"


async def exchange(
    address: str,
    method: str,
    target: str,
    headers: dict[str, str],
    body: bytes = b"",
    *,
    seconds: float,
    cut: CutKind = "",
) -> HttpAnswer:
    """Send a request and return its answer. Raises `NotSent` or `Broken`.

    `seconds`: for the whole answer, after the connection was made. `cut`: break off a long answer, as `Broken`; a short
    one is returned.
    """
    raw = socket.socket(socket.AF_INET6 if "[" in address else socket.AF_INET)
    try:
        raw.setblocking(False)
        if cut:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER_BYTES)
        await _connect(raw, address)
        fields = {"Host": address, **headers, **({"Content-Length": str(len(body))} if body or method != "GET" else {})}
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        request = f"{method} {target} HTTP/1.1\r\n{head}\r\n".encode() + body
        return await _answer(raw, request, seconds, cut)
    finally:
        raw.close()


async def _connect(raw: socket.socket, address: str) -> None:
    endpoint = parse_endpoint(address)
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            await asyncio.get_running_loop().sock_connect(raw, (endpoint.host, endpoint.port))
    except (OSError, TimeoutError) as error:
        raise NotSent(f"{address}: {error!r}") from None


async def _answer(raw: socket.socket, request: bytes, seconds: float, cut: CutKind) -> HttpAnswer:
    arriving = _Arriving()
    try:
        async with asyncio.timeout(seconds):
            await asyncio.get_running_loop().sock_sendall(raw, request)
            while not arriving.is_whole:
                await _readable(raw)
                piece = raw.recv(SMALL_PIECE_BYTES if cut and arriving.length < 0 else PIECE_BYTES)
                if not piece:
                    raise Broken(f"the node ended the connection after {arriving}")
                arriving.feed(piece)
                if cut and arriving.length >= CUT_FROM_BYTES and not arriving.is_whole:
                    await _cut(raw, cut)
                    raise Broken(f"cut by {cut} after {arriving}")
    except TimeoutError:
        _drain(raw, arriving)
        if not arriving.is_whole:
            _reset(raw)
            raise Broken(f"no answer within {seconds:g} s: {arriving}") from None
    except OSError as error:
        raise Broken(f"{error!r} after {arriving}") from None
    return arriving.answer


async def _readable(raw: socket.socket) -> None:
    """Wait for bytes. Nothing is received here, so a cancellation loses none."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_reader(raw, resolve, ready, None)
    try:
        await ready
    finally:
        loop.remove_reader(raw)


async def _cut(raw: socket.socket, cut: CutKind) -> None:
    if cut == "end":
        raw.shutdown(socket.SHUT_WR)
        await asyncio.sleep(END_SECONDS)
    _reset(raw)


def _drain(raw: socket.socket, arriving: _Arriving) -> None:
    """Receive what has arrived already."""
    try:
        while not arriving.is_whole and (piece := raw.recv(PIECE_BYTES)):
            arriving.feed(piece)
    except OSError:
        return  # there is no more


def _reset(raw: socket.socket) -> None:
    """Make closing reset the connection, so that nothing that arrives later is acknowledged."""
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER)
