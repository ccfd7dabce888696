"""Before a TLS connection exists: accepting, looking at the first bytes, the handshake.

asyncio's own TLS server reports neither handshakes in progress nor failed ones. Here each is counted, has a deadline,
and ends in a connection or in a reason. If too many are in progress, one of the address with the most gives way
(`raftlog/system/newcomers.py`).

The first bytes are examined and left in the socket (`MSG_PEEK`). They choose the loop
(`raftlog/http2/client_hello.py`), and the handshake happens there. A plain connection is served only to report that
this listener requires TLS, unless the listener accepts both.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from raftlog.system.newcomers import Newcomers
from raftlog.system.zero_copy import duplicate_socket

from .client_hello import MAX_FIRST_BYTES, FirstBytes, first_bytes
from .connection import Http2Connection
from .limits import Http2Limits, RateLimit
from .tls import ContextSource, explain
from .transport import peer_address

PEEK_AGAIN_S = 0.01
"""Seconds before an incomplete hello is examined again.

The socket stays readable meanwhile, so readiness cannot be waited for.
"""

PLAIN_REFUSED = "this listener speaks TLS only, and the peer does not: give the peer its [tls] settings"


class TlsAcceptor:
    """Turns accepted sockets into connections. Belongs to the listener's loop.

    Invariant: every accepted socket is closed, or belongs to a connection, or has a task in `_arrivals`.
    """

    def __init__(
        self,
        context: ContextSource,
        limits: Http2Limits,
        *,
        new_connection: Callable[[asyncio.AbstractEventLoop], Http2Connection],
        loop_for_name: Mapping[str, asyncio.AbstractEventLoop],
        has_room: Callable[[int], bool],
        accepts_plain: bool,
        on_refused: Callable[[str, str], None],
    ) -> None:
        """Configure the callbacks.

        `context` is called for each handshake. `has_room` returns whether the listener may have one more connection
        beside this number of handshakes. `accepts_plain`: whether connections without TLS are served, too.
        `on_refused(address, reason)` reports each socket that did not become a connection.
        """
        self._context = context
        self._limits = limits
        self._new_connection = new_connection
        self._loop_for_name = loop_for_name
        self._on_refused = on_refused
        self._has_room = has_room
        self._accepts_plain = accepts_plain
        self._moved = RateLimit(limits.moved_handshakes_per_second, limits.moved_handshakes_burst, 0.0)
        self._arrivals: dict[asyncio.Task[None], str] = {}
        """Handshakes in progress with their addresses (`host:port`), oldest first."""
        self._newcomers: Newcomers[asyncio.Task[None]] = Newcomers(
            lambda: limits.max_handshakes, limits.max_handshakes_per_address
        )
        """The same by host: those that the bounds apply to."""

    @property
    def under_way(self) -> int:
        """Number of sockets that are neither served nor refused yet."""
        return len(self._arrivals)

    def protocol(self) -> asyncio.Protocol:
        """Return a protocol for `loop.create_server`: it takes an accepted connection before anything is read."""
        return _Accepted(self._arrived)

    async def close(self) -> None:
        """Cancel all handshakes in progress."""
        arrivals = list(self._arrivals)
        for task in arrivals:
            task.cancel()
        if arrivals:
            await asyncio.wait(arrivals)

    def _arrived(self, transport: asyncio.Transport) -> None:
        address = peer_address(transport)
        host = address.rpartition(":")[0]
        if not self._make_room(host):
            transport.abort()
            self._on_refused(address, "the listener accepts no more connections")
            return
        try:
            sock = duplicate_socket(transport)
        except OSError as error:  # no file descriptor is left
            self._on_refused(address, f"it cannot be served: {error}")
            return
        finally:
            transport.abort()  # the duplicate keeps the connection
        task = asyncio.get_running_loop().create_task(self._admit(sock, address))
        self._arrivals[task] = address
        for leaving in self._newcomers.arrive(task, host):
            self._give_way(leaving)
        task.add_done_callback(self._admitted)

    def _make_room(self, host: str) -> bool:
        """Return whether the listener has room for one more handshake; others give way to it."""
        while not self._has_room(len(self._newcomers)):
            if not self._newcomers:
                return False
            self._give_way(self._newcomers.give_way(host))
        return True

    def _give_way(self, task: asyncio.Task[None]) -> None:
        self._on_refused(self._arrivals[task], "its handshake gave way to newer ones: too many are in progress")
        self._forget(task)
        task.cancel()

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._arrivals.pop(task, None)
        self._newcomers.leave(task)

    def _admitted(self, task: asyncio.Task[None]) -> None:
        self._forget(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            message = "a connection could not be accepted"
            task.get_loop().call_exception_handler({"message": message, "exception": error, "task": task})

    async def _admit(self, sock: socket.socket, address: str) -> None:
        loop = asyncio.get_running_loop()
        owned = True
        try:
            async with asyncio.timeout(self._limits.handshake_timeout_s):
                found = await _peek(loop, sock)
            owned = False
            if not found.is_tls and self._accepts_plain:
                connection = self._new_connection(loop)
                await loop.connect_accepted_socket(lambda: connection.protocol, sock)
                return
            if not found.is_tls:
                self._on_refused(address, PLAIN_REFUSED)
                await self._tell_plain_peer(loop, sock)
                return
            target = self._loop_for_name.get(found.server_name, loop)
            if target is not loop and not self._moved.allow(loop.time()):
                target = loop
            if target.is_closed():
                owned = True
                raise ConnectionAbortedError("the loop that serves this has stopped")
            await _on(target, self._handshake(sock, target))
        except (OSError, TimeoutError) as error:
            self._on_refused(address, explain(error))
        finally:
            if owned:
                sock.close()

    async def _handshake(self, sock: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        """Run the handshake on the loop that will serve the connection."""
        connection = self._new_connection(loop)
        await loop.connect_accepted_socket(
            lambda: connection.protocol,
            sock,
            ssl=self._context(),
            ssl_handshake_timeout=self._limits.handshake_timeout_s,
            ssl_shutdown_timeout=self._limits.linger_s,
        )

    async def _tell_plain_peer(self, loop: asyncio.AbstractEventLoop, sock: socket.socket) -> None:
        """Answer with a GOAWAY and its reason for HTTP/2, `connection.py`'s answer for HTTP/1.1, nothing for others."""
        connection = self._new_connection(loop)
        connection.on_ready = lambda: connection.close(PLAIN_REFUSED)
        await loop.connect_accepted_socket(lambda: connection.protocol, sock)


class _Accepted(asyncio.Protocol):
    def __init__(self, arrived: Callable[[asyncio.Transport], None]) -> None:
        self._arrived = arrived

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.pause_reading()
        self._arrived(transport)


async def _on(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, None]) -> None:
    """Run `work` on that loop, which may be another thread's."""
    if loop is asyncio.get_running_loop():
        await work
        return
    try:
        elsewhere = asyncio.run_coroutine_threadsafe(work, loop)
    except RuntimeError:  # it was closed just now
        work.close()
        raise ConnectionAbortedError("the loop that serves this has stopped") from None
    await asyncio.wrap_future(elsewhere)


async def _peek(loop: asyncio.AbstractEventLoop, sock: socket.socket) -> FirstBytes:
    while True:
        await _readable(loop, sock)
        data = b""
        with contextlib.suppress(BlockingIOError, InterruptedError):
            data = sock.recv(MAX_FIRST_BYTES, socket.MSG_PEEK)
            if not data:
                raise ConnectionResetError("it closed the connection without sending anything")
        found = first_bytes(data)
        if found is not None:
            return found
        await asyncio.sleep(PEEK_AGAIN_S)


async def _readable(loop: asyncio.AbstractEventLoop, sock: socket.socket) -> None:
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_reader(sock.fileno(), lambda: None if ready.done() else ready.set_result(None))
    try:
        await ready
    finally:
        loop.remove_reader(sock.fileno())
