"""The accepting side: one port for peers and native clients, with streams distinguished by path."""

from __future__ import annotations

import asyncio
import contextlib
import ssl as ssl_module
from collections.abc import Callable, Collection, Mapping
from functools import partial

from raftlog.errors import RetriableError
from raftlog.system.paced_server import PacedServer

from .address_rates import AddressRates
from .admission import Admission
from .connection import TLS_REFUSED, ExchangeAcceptor, Http2Connection, StreamAcceptor
from .limits import Http2Limits
from .messages import PartialPool
from .tls import ContextSource, source_of
from .tls_accept import TlsAcceptor
from .turns import Turns
from .unread import UnreadPool

BACKLOG = 512


class Http2Shared:
    """The budgets of one loop's connections, for a user that accepts their sockets itself and has no messages."""

    def __init__(self, loop: asyncio.AbstractEventLoop, limits: Http2Limits) -> None:
        self._loop = loop
        self._limits = limits
        self._pools = {loop: PartialPool(limits.max_listener_partial_bytes)}
        self._unread_pools = {loop: UnreadPool(limits.max_listener_unread_bytes)}
        self._turns = {loop: Turns()}
        self._rates = {loop: AddressRates(limits)}

    def connection(self, exchanges: ExchangeAcceptor) -> Http2Connection:
        """Return a connection without a transport, whose `protocol` gets one."""
        made = Http2Connection(
            self._loop,
            self._limits,
            acceptors={},
            pools=self._pools,
            unread_pools=self._unread_pools,
            turns=self._turns,
            rates=self._rates,
        )
        made.exchanges = lambda: exchanges
        return made


class Http2Listener:
    """Accepts connections and passes each stream to the acceptor of its path.

    * `loop_for_path`: a plain connection whose first request names such a path moves to that thread's running loop,
      with all its state, and is served there from then on; its acceptor is called there.
    * `loop_for_name`: a TLS connection cannot move, because its encryption is bound to the transport. TLS handshakes
      whose server name matches run on that loop. A path of `loop_for_path` requested on the listener's loop is then
      served there.
    """

    def __init__(
        self,
        acceptors: Mapping[str, StreamAcceptor],
        *,
        limits: Http2Limits | None = None,
        ssl: ssl_module.SSLContext | ContextSource | None = None,
        accepts_plain: bool = False,
        loop_for_path: Mapping[str, asyncio.AbstractEventLoop] | None = None,
        loop_for_name: Mapping[str, asyncio.AbstractEventLoop] | None = None,
        node_paths: Collection[str] = (),
        on_refused: Callable[[str, str], None] = lambda address, reason: None,
        most_connections: Callable[[], int | None] = lambda: None,
        on_short: Callable[[OSError], None] = lambda error: None,
    ) -> None:
        """Configure the listener.

        `ssl`: a source is called for each connection. `accepts_plain`: with `ssl`, connections without TLS are served,
        too. `node_paths`: the paths of links between nodes, for which some connections are reserved.
        `on_refused(address, reason)` reports connections that failed because of TLS, on the listener's loop.
        `most_connections`: the present limit of connections, if below the one in `limits`. `on_short` is called when
        accepting pauses because no file descriptor is left.
        """
        self._acceptors = acceptors
        self._limits = limits or Http2Limits()
        self._accepts_plain = accepts_plain
        self._loop_for_path = loop_for_path or {}
        self._on_refused = on_refused
        self._most_connections = most_connections
        self._on_short = on_short
        self._node_paths = frozenset(node_paths)
        self._admission: Admission[Http2Connection] = Admission(self._limits, self._most, has_nodes=bool(node_paths))
        self._door = None if ssl is None else self._new_door(source_of(ssl), loop_for_name or {})
        self.exchanges: ExchangeAcceptor | None = None
        """Called with each request that is not made of messages, on the listener's loop; None: they are refused."""
        self.connections: dict[Http2Connection, None] = {}
        """Connections in order of arrival, including those on other loops."""
        self._server: PacedServer | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loops = {*self._loop_for_path.values(), *(loop_for_name or {}).values()}
        self._pools: dict[asyncio.AbstractEventLoop, PartialPool] = {}
        """The bytes for unfinished messages, by loop: each loop's thread uses its own."""
        self._unread_pools: dict[asyncio.AbstractEventLoop, UnreadPool] = {}
        self._turns: dict[asyncio.AbstractEventLoop, Turns] = {}
        self._rates: dict[asyncio.AbstractEventLoop, AddressRates] = {}
        self._emptied = asyncio.Event()

    @property
    def unread_bytes(self) -> int:
        """Bytes that wait for peers that have not read them, of connections on the listener's loop."""
        return self._unread_pools[self._loop].used if self._loop is not None else 0

    @property
    def connection_count(self) -> int:
        """Number of connections, including TLS handshakes in progress."""
        return len(self.connections) + (self._door.under_way if self._door else 0)

    @property
    def partial_bytes(self) -> int:
        """Bytes held for unfinished messages of connections on the listener's loop."""
        return self._pools[self._loop].used if self._loop is not None else 0

    async def start(self, host: str, port: int) -> int:
        """Listen, and return the port (a free one if `port` is 0). Raises `OSError`."""
        assert self._loop is None, "started twice"
        loop = self._loop = asyncio.get_running_loop()
        for one in (loop, *self._loops):
            self._pools[one] = PartialPool(self._limits.max_listener_partial_bytes)
            self._unread_pools[one] = UnreadPool(self._limits.max_listener_unread_bytes)
            self._turns[one] = Turns()
            self._rates[one] = AddressRates(self._limits)
        protocol = self._door.protocol if self._door else lambda: self._new_connection(loop).protocol
        self._server = PacedServer(protocol, backlog=BACKLOG, on_short=self._on_short)
        await self._server.listen(host, port)
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self, grace: float = 1.0) -> None:
        """Stop listening and send GOAWAY; return once all connections are closed.

        Connections without streams close now, others when their streams have ended, the rest after `grace` seconds.
        """
        server, self._server = self._server, None
        if server is None:
            return
        server.close()
        if self._door is not None:
            await self._door.close()
        steps: list[tuple[Callable[[Http2Connection], None], float]] = [
            (Http2Connection.go_away, grace),
            (Http2Connection.close, 2 * self._limits.linger_s),
            (_abort, self._limits.linger_s),
        ]
        for step, patience in steps:
            for connection in list(self.connections):
                self._tell(connection, step)
            self._emptied = asyncio.Event()
            if self.connections:
                with contextlib.suppress(TimeoutError):  # then the next step is less polite
                    await asyncio.wait_for(self._emptied.wait(), patience)

    def _new_door(self, source: ContextSource, loop_for_name: Mapping[str, asyncio.AbstractEventLoop]) -> TlsAcceptor:
        return TlsAcceptor(
            source,
            self._limits,
            new_connection=self._new_connection,
            loop_for_name=loop_for_name,
            has_room=self._has_room,
            accepts_plain=self._accepts_plain,
            on_refused=self._on_refused,
        )

    def _most(self) -> int:
        """Return how many connections there may be now."""
        if self._server is None:
            return 0
        most = self._most_connections()
        return self._limits.max_connections if most is None else min(most, self._limits.max_connections)

    def _has_room(self, handshakes: int) -> bool:
        """Return whether there is room for one more handshake beside these; strangers' connections give way."""
        for connection in self._admission.make_room(handshakes + 1):
            self._tell(connection, _give_way)
        return self._admission.count + handshakes < self._most()

    def _new_connection(self, loop: asyncio.AbstractEventLoop) -> Http2Connection:
        made = Http2Connection(
            loop,
            self._limits,
            acceptors=self._acceptors,
            loop_for_path=self._loop_for_path,
            listener_loop=self._loop,
            pools=self._pools,
            unread_pools=self._unread_pools,
            turns=self._turns,
            rates=self._rates,
            on_connected=self._connected,
            on_accepting=self._accepting,
            on_closed=self._closed,
        )
        made.exchanges = lambda: self.exchanges
        return made

    def _connected(self, connection: Http2Connection) -> None:
        """Register a connection; runs on the connection's own thread."""
        self._count(connection, self._take_in)

    def _take_in(self, connection: Http2Connection) -> None:
        self.connections[connection] = None
        for leaving in self._admission.arrive(connection, connection.peer_host):
            self._tell(leaving, _refuse if leaving is connection else _give_way)

    def _accepting(self, connection: Http2Connection, path: str) -> None:
        """Admit a connection with its first accepted stream. Raises `RetriableError` (`overloaded`) if clients have all
        connections that they may have."""
        is_node = path in self._node_paths
        if connection.loop is not self._loop:
            self._count(connection, partial(self._admission.admit, is_node=is_node))
        elif not self._admission.admit(connection, is_node=is_node):
            most = self._admission.most_clients
            raise RetriableError("overloaded", f"this listener has its {most} connections of clients; retry later")

    def _tell(self, connection: Http2Connection, step: Callable[[Http2Connection], None]) -> None:
        """Run `step` on the connection's own thread."""
        if connection.loop is self._loop:
            step(connection)
            return
        try:
            connection.loop.call_soon_threadsafe(step, connection)
        except RuntimeError:  # that loop is closed, and its connections with it
            self._forget(connection)

    def _closed(self, connection: Http2Connection, reason: str) -> None:
        if connection.loop is self._loop and reason == TLS_REFUSED:
            self._on_refused(connection.peer_address, reason)
        self._count(connection, self._forget)

    def _count(self, connection: Http2Connection, step: Callable[[Http2Connection], object]) -> None:
        """Run `step` on the listener's thread."""
        if connection.loop is self._loop:
            step(connection)
            return
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # the listener's loop is closed: there is nothing to count
            self._loop.call_soon_threadsafe(step, connection)

    def _forget(self, connection: Http2Connection) -> None:
        self.connections.pop(connection, None)
        self._admission.leave(connection)
        if not self.connections:
            self._emptied.set()


def _abort(connection: Http2Connection) -> None:
    connection.abort("the listener was closed")


def _give_way(connection: Http2Connection) -> None:
    connection.abort("it gave way to newer connections: too many had no accepted stream")


def _refuse(connection: Http2Connection) -> None:
    connection.abort("the listener accepts no more connections")
