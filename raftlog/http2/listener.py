"""Where peers and native clients connect: one port, streams told apart by path."""

from __future__ import annotations

import asyncio
import contextlib
import ssl as ssl_module
from collections.abc import Callable, Mapping

from .limits import Http2Limits
from .protocol import Http2Connection
from .stream import StreamAcceptor
from .tls import prepare

BACKLOG = 512


class Http2Listener:
    """Accepts connections and gives each stream to the acceptor of its path.

    `loop_for_path`: a plain connection whose first request names such a path is handed to that other thread's running
    loop, with all its state, and served there from then on; its acceptor is called there. A connection under TLS stays
    on the listener's loop, because its encryption is bound to the transport.
    """

    def __init__(
        self,
        acceptors: Mapping[str, StreamAcceptor],
        *,
        limits: Http2Limits | None = None,
        ssl: ssl_module.SSLContext | None = None,
        loop_for_path: Mapping[str, asyncio.AbstractEventLoop] | None = None,
    ) -> None:
        self._acceptors = acceptors
        self._limits = limits or Http2Limits()
        self._ssl = prepare(ssl)
        self._loop_for_path = loop_for_path or {}
        self._connections: dict[Http2Connection, None] = {}
        """In order of arrival; those that moved to other loops included."""
        self._server: asyncio.Server | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._emptied = asyncio.Event()

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the port, which is a free one where `port` is 0. Raises `OSError`."""
        assert self._loop is None, "started twice"
        loop = self._loop = asyncio.get_running_loop()
        timeouts = (self._limits.handshake_timeout_s, self._limits.linger_s) if self._ssl else (None, None)
        self._server = await loop.create_server(
            self._new_connection,
            host,
            port,
            ssl=self._ssl,
            backlog=BACKLOG,
            reuse_address=True,
            ssl_handshake_timeout=timeouts[0],
            ssl_shutdown_timeout=timeouts[1],
        )
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self, grace: float = 1.0) -> None:
        """Stop listening and say GOAWAY: connections without streams close now, others when their streams have ended,
        the rest after `grace` seconds. Returns when all are closed."""
        server, self._server = self._server, None
        if server is None:
            return
        server.close()
        steps: list[tuple[Callable[[Http2Connection], None], float]] = [
            (Http2Connection.go_away, grace),
            (Http2Connection.close, 2 * self._limits.linger_s),
            (_abort, self._limits.linger_s),
        ]
        for step, patience in steps:
            for connection in list(self._connections):
                self._tell(connection, step)
            self._emptied = asyncio.Event()
            if self._connections:
                with contextlib.suppress(TimeoutError):  # then the next step is less polite
                    await asyncio.wait_for(self._emptied.wait(), patience)

    def _new_connection(self) -> Http2Connection:
        assert self._loop is not None
        return Http2Connection(
            self._loop,
            self._limits,
            acceptors=self._acceptors,
            loop_for_path=self._loop_for_path,
            on_connected=self._connected,
            on_closed=self._closed,
        )

    def _connected(self, connection: Http2Connection) -> None:
        if len(self._connections) >= self._limits.max_connections or self._server is None:
            connection.abort("the listener takes no more connections")
        self._connections[connection] = None

    def _tell(self, connection: Http2Connection, step: Callable[[Http2Connection], None]) -> None:
        """On the connection's own thread."""
        if connection.loop is self._loop:
            step(connection)
            return
        try:
            connection.loop.call_soon_threadsafe(step, connection)
        except RuntimeError:  # that loop is closed, and its connections with it
            self._forget(connection)

    def _closed(self, connection: Http2Connection, reason: str) -> None:
        if connection.loop is self._loop:
            self._forget(connection)
            return
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # our loop is closed: nobody counts any more
            self._loop.call_soon_threadsafe(self._forget, connection)

    def _forget(self, connection: Http2Connection) -> None:
        self._connections.pop(connection, None)
        if not self._connections:
            self._emptied.set()


def _abort(connection: Http2Connection) -> None:
    connection.abort("the listener was closed")
