"""The way from an accepted socket to a connection of a TLS listener: the first byte, then the handshake.

asyncio's own TLS server gives a handshake a minute and has no limit of their number. Here each has `HANDSHAKE_SECONDS`,
and if too many are in progress one of the address with the most gives way (`newcomers.py`).

A TLS client begins with a handshake record, whose first byte is 22 (RFC 8446 section 5.1), which no method of HTTP
begins with. The byte is examined and left in the socket (`MSG_PEEK`), so that one port can serve both, or answer a
plain client in its own language instead of with a TLS alert.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable
from typing import TypeAlias

from .newcomers import Newcomers

HANDSHAKE_SECONDS = 5.0
"""Time for the first byte and again for the handshake, in seconds."""
SHUTDOWN_SECONDS = 2.0
"""Time that a peer has to close its side of TLS, in seconds."""
MAX_HANDSHAKES = 512
"""Maximum number of handshakes in progress."""
MAX_HANDSHAKES_OF_ADDRESS = 384
"""The same of one address."""

_HANDSHAKE_RECORD = b"\x16"

ContextSource: TypeAlias = Callable[[], ssl.SSLContext]
"""Called for each connection, so that new certificates need no restart."""

OnRefused: TypeAlias = Callable[[str, Exception], None]
"""Called with the peer's address and the reason for each socket that did not become a connection."""

ProtocolFactory: TypeAlias = Callable[[], asyncio.BaseProtocol]


class TlsDoor:
    """The admission of one TLS listener's sockets. Belongs to the listener's loop."""

    def __init__(
        self,
        context: ContextSource,
        *,
        plain: ProtocolFactory | None,
        on_refused: OnRefused = lambda peer, error: None,
        most_handshakes: Callable[[], int] = lambda: MAX_HANDSHAKES,
    ) -> None:
        """`plain` creates the protocol of connections without TLS; None: the listener's own, as for those with TLS.
        `most_handshakes`: the number allowed at present."""
        self._context = context
        self._plain = plain
        self._on_refused = on_refused
        self._under_way: Newcomers[asyncio.Task[None]] = Newcomers(most_handshakes, MAX_HANDSHAKES_OF_ADDRESS)
        """Admissions in progress."""

    async def admit(self, protocol: ProtocolFactory, accepted: socket.socket, address: str) -> None:
        """Make a connection of a socket, which belongs to this call from now on. Runs in a task of its own."""
        task = asyncio.current_task()
        assert task is not None
        for one in self._under_way.arrive(task, address):
            one.cancel("its handshake gave way to newer ones: too many are in progress")
        try:
            await self._connect(protocol, accepted)
        except (OSError, TimeoutError) as error:  # an `SSLError` is an `OSError`
            self._on_refused(address, error)
        finally:
            self._under_way.leave(task)

    async def _connect(self, protocol: ProtocolFactory, accepted: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(HANDSHAKE_SECONDS):
                first = await _first_byte(loop, accepted)
        except BaseException:
            accepted.close()
            raise
        if not first:
            accepted.close()  # A load balancer that only looks whether the port is open.
            return
        if first != _HANDSHAKE_RECORD:
            await loop.connect_accepted_socket(self._plain or protocol, accepted)
            return
        await loop.connect_accepted_socket(
            protocol,
            accepted,
            ssl=self._context(),
            ssl_handshake_timeout=HANDSHAKE_SECONDS,
            ssl_shutdown_timeout=SHUTDOWN_SECONDS,
        )


class PlainRefusal(asyncio.Protocol):
    """A connection without TLS at a listener that requires it: an answer, and the end."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer
        self._end: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        transport.write(self._answer)
        try:
            transport.write_eof()
        except OSError:  # the peer has reset the connection meanwhile
            transport.abort()
            return
        # Closing a socket with unread bytes resets it, and the reset can overtake the answer.
        self._end = asyncio.get_running_loop().call_later(SHUTDOWN_SECONDS, transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._end is not None:
            self._end.cancel()


async def _first_byte(loop: asyncio.AbstractEventLoop, accepted: socket.socket) -> bytes:
    """Return the first byte, which stays in the socket; nothing if the peer has closed the connection."""
    while True:
        await _readable(loop, accepted)
        with contextlib.suppress(BlockingIOError, InterruptedError):
            return accepted.recv(1, socket.MSG_PEEK)


async def _readable(loop: asyncio.AbstractEventLoop, accepted: socket.socket) -> None:
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_reader(accepted.fileno(), lambda: None if ready.done() else ready.set_result(None))
    try:
        await ready
    finally:
        loop.remove_reader(accepted.fileno())
