"""A server that accepts connections no faster than the process can hold them, unlike asyncio's own.

When no descriptor is left, asyncio tries to accept as often as its backlog is long, each time with a line in the log,
and sets as many timers. This server ignores the listening sockets for `PAUSE_SECONDS`; meanwhile new connections wait
in the kernel's queue. It accepts at most `ACCEPTS_PER_TURN` connections in one turn of the loop.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable, Sequence

from .tls_door import TlsDoor

PAUSE_SECONDS = 0.5
"""Pause after an `accept` that found no descriptor or no memory, in seconds."""
ACCEPTS_PER_TURN = 128

SHORT_OF = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
"""Errors of accept(2) that mean a shortage."""


class PacedServer(asyncio.AbstractServer):
    """A server on a host and port, like that of `loop.create_server`.

    Invariant: every accepted socket belongs to a transport, or has a task in `_arrivals`, or is closed.
    """

    def __init__(
        self,
        protocol: Callable[[], asyncio.BaseProtocol],
        *,
        backlog: int,
        door: TlsDoor | None = None,
        on_short: Callable[[OSError], None] = lambda error: None,
    ) -> None:
        """`protocol` creates the protocol of each connection. `door` admits those of a TLS listener. `on_short` is
        called for each pause, with its reason."""
        self._protocol = protocol
        self._backlog = backlog
        self._door = door
        self._on_short = on_short
        self._loop = asyncio.get_running_loop()
        self._sockets: list[socket.socket] = []
        self._arrivals: set[asyncio.Task[None]] = set()
        self._pause: asyncio.TimerHandle | None = None
        self._closed = asyncio.Event()

    async def listen(self, host: str | None, port: int) -> None:
        """Bind and listen at each address of the host; port 0 picks a free one. Raises `OSError`."""
        bound = await self._loop.create_server(
            asyncio.Protocol, host, port, start_serving=False, reuse_address=True, backlog=self._backlog
        )
        try:
            self._sockets = [one.dup() for one in bound.sockets]
        finally:
            bound.close()
        for one in self._sockets:
            one.setblocking(False)
            one.listen(self._backlog)
        await self.start_serving()

    @property
    def sockets(self) -> Sequence[socket.socket]:
        """The listening sockets; none after `close`."""
        return tuple(self._sockets)

    def close(self) -> None:
        """Accept no more connections. Existing ones stay open."""
        if self._pause is not None:
            self._pause.cancel()
        sockets, self._sockets = self._sockets, []
        for one in sockets:
            self._loop.remove_reader(one.fileno())
            one.close()
        for arrival in self._arrivals:
            arrival.cancel()
        self._closed.set()

    async def wait_closed(self) -> None:
        """Wait until no connection is being set up."""
        if self._arrivals:
            await asyncio.wait(self._arrivals)

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    def is_serving(self) -> bool:
        return bool(self._sockets)

    async def start_serving(self) -> None:
        """Accept now, also during a pause."""
        if self._pause is not None:
            self._pause.cancel()
        self._watch()

    async def serve_forever(self) -> None:
        """Wait until the server is closed."""
        await self.start_serving()
        await self._closed.wait()

    # --- Inside ---

    def _watch(self) -> None:
        self._pause = None
        for one in self._sockets:
            self._loop.add_reader(one.fileno(), self._accept, one)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            try:
                accepted, address = listening.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in SHORT_OF:
                    self._rest(error)
                    return
                continue  # This one connection was aborted before it was accepted (accept(2)).
            accepted.setblocking(False)
            arrival = self._loop.create_task(self._admit(accepted, str(address[0])))
            self._arrivals.add(arrival)
            arrival.add_done_callback(self._admitted)

    def _rest(self, error: OSError) -> None:
        for one in self._sockets:
            self._loop.remove_reader(one.fileno())
        self._pause = self._loop.call_later(PAUSE_SECONDS, self._watch)
        self._on_short(error)

    async def _admit(self, accepted: socket.socket, address: str) -> None:
        if self._door is not None:
            await self._door.admit(self._protocol, accepted, address)
            return
        try:
            await self._loop.connect_accepted_socket(self._protocol, accepted)
        except OSError:
            accepted.close()  # The peer closed the connection.
        except BaseException:
            accepted.close()
            raise

    def _admitted(self, arrival: asyncio.Task[None]) -> None:
        self._arrivals.discard(arrival)
        error = None if arrival.cancelled() else arrival.exception()
        if error is not None:
            message = "a connection could not be accepted"
            self._loop.call_exception_handler({"message": message, "exception": error, "task": arrival})
