"""A proxy on every directed link, with which the rootless layout cuts, delays, stalls and resets connections.

Node a dials node b at a special address, where a proxy accepts the connection and dials b. Bytes from a
travel over the link `a>b`, bytes from b over `b>a`; so a cut of `a>b` holds what a sends to b, on connections dialed
by either. Unlike with dropped packets, a connection over a cut link appears to be established and then stalls.

All of it runs on one event loop, that of the cluster's owner; connections and the bytes in transit are bounded.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections import Counter
from collections.abc import Coroutine, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from raftlog.model import Endpoint
from raftlog.ports import Random

from .links import ends, link
from .pipe import Conditions, Pipe

CONNECTIONS_MAX = 64
"""Limit for one link, where nodes hold three or four. A connection above it is refused."""
DIAL_SECONDS = 10.0
CLOSE_SECONDS = 10.0


@dataclass(slots=True, eq=False)
class _Connection:
    """A connection from the dialing node (near) to the dialed node (far)."""

    near: asyncio.StreamWriter
    far: asyncio.StreamWriter
    there: Pipe
    back: Pipe
    task: asyncio.Task[None] | None = None
    broken: bool = False


@dataclass(frozen=True, slots=True)
class LinksFacts:
    """Counts of a proxy."""

    tasks: int
    connections: int
    waiting_bytes: Mapping[str, int]
    """Bytes in transit on open connections, by link; links without any are absent."""


class ProxyLinks:
    """Every link of a cluster. Implements `Links` and the faults that need a proxy."""

    def __init__(self, nodes: Iterable[str], random: Random) -> None:
        self.nodes = tuple(nodes)
        self.conditions: dict[str, Conditions] = {
            link(source, target): Conditions(random)
            for source in self.nodes
            for target in self.nodes
            if source != target
        }
        self._servers: list[asyncio.Server] = []
        self._connections: dict[str, set[_Connection]] = {name: set() for name in self.conditions}
        """Link → the connections that were dialed over it."""
        self._accepted: dict[asyncio.StreamWriter, str] = {}
        """The near side of every accepted connection, including those whose far side is not established yet."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._cut: frozenset[str] = frozenset()
        self._stalled: list[tuple[str, _Connection]] = []
        """Connections that were stalled since the last heal."""

    async def listen(self, dialled: str, at: Endpoint, to: Endpoint) -> None:
        """Accept connections at `at` for the link `dialled`, named from the dialing node. Raises `OSError`."""

        # Not a coroutine: asyncio would own its task, and logs an error if the task is cancelled.
        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if sum(name == dialled for name in self._accepted.values()) >= CONNECTIONS_MAX:
                _reset(writer)
                return
            self._accepted[writer] = dialled
            self._spawn(self._carry(dialled, reader, writer, to))

        self._servers.append(await asyncio.start_server(accept, at.host, at.port))

    def facts(self) -> LinksFacts:
        """Return what the proxy holds now."""
        waiting: Counter[str] = Counter()
        for name, connections in self._connections.items():
            source, target = ends(name)
            for connection in connections:
                waiting[name] += connection.there.waiting_bytes
                waiting[link(target, source)] += connection.back.waiting_bytes
        return LinksFacts(len(self._tasks), len(self._all()), +waiting)

    # --- Links --------------------------------------------------------------------------------------------------------

    async def cut(self, names: Iterable[str]) -> None:
        self._cut = frozenset(names)
        for name, conditions in self.conditions.items():
            conditions.begin_count()
            if name in self._cut:
                conditions.cut()
            else:
                conditions.mend()

    async def stopped(self) -> dict[str, int]:
        """Return the bytes held by each cut link."""
        return {name: self.conditions[name].held_bytes for name in sorted(self._cut)}

    async def heal(self) -> None:
        await self.cut(())
        self._stalled.clear()
        for connection in self._all():
            connection.there.flow()
            connection.back.flow()

    async def close(self) -> None:
        """Stop listening and reset all connections."""
        for server in self._servers:
            server.close()
        for connection in self._all():
            _reset(connection.far)
        for near in list(self._accepted):
            _reset(near)
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        async with asyncio.timeout(CLOSE_SECONDS):
            for server in self._servers:
                await server.wait_closed()

    # --- What only a proxy can do -------------------------------------------------------------------------------------

    def slow(self, names: Iterable[str], delay: float, jitter: float) -> None:
        """Delay every piece over these links by this many seconds."""
        for name in names:
            self.conditions[name].begin_count()
            self.conditions[name].delay, self.conditions[name].jitter = delay, jitter

    def linger(self, names: Iterable[str], delay: float, seconds: float) -> None:
        """Delay every piece over these links by `delay` seconds, and deliver data of broken connections after
        `seconds`.
        """
        for name in names:
            self.conditions[name].begin_count()
            self.conditions[name].delay, self.conditions[name].lingers = delay, seconds

    def stall(self, names: Iterable[str], random: Random, share: float = 0.5) -> None:
        """Silently stall some of the connections that were dialed over these links, until the heal.

        At least one connection of each link is stalled, if it has any.
        """
        for name in sorted(names):
            connections = sorted(self._connections[name], key=lambda one: str(one.near.get_extra_info("peername")))
            chosen = [one for one in connections if random.random() < share] or connections[:1]
            for connection in chosen:
                connection.there.stall()
                connection.back.stall()
            self._stalled += [(name, connection) for connection in chosen]

    def stalled(self) -> dict[str, int]:
        """Return the bytes that arrived on stalled connections, by the link over which they were dialed."""
        came: dict[str, int] = {}
        for name, one in self._stalled:
            came[name] = came.get(name, 0) + one.there.stalled_bytes + one.back.stalled_bytes
        return came

    def reset(self, names: Iterable[str]) -> dict[str, int]:
        """Reset (RST) all connections dialed over these links, as a machine that lost its memory does.

        Returns the number of connections by link.
        """
        ended = {}
        for name in sorted(names):
            connections = [one for one in self._connections[name] if not one.broken]
            for connection in connections:
                self._break(name, connection)
            self.conditions[name].resets += len(connections)
            if connections:
                ended[name] = len(connections)
        return ended

    # --- Inside -------------------------------------------------------------------------------------------------------

    def _all(self) -> list[_Connection]:
        return [connection for connections in self._connections.values() for connection in connections]

    def _break(self, name: str, connection: _Connection) -> None:
        """Reset the near side at once; if the link lingers, the data already sent arrives later."""
        connection.broken = True
        seconds = self.conditions[name].lingers
        _reset(connection.near)
        if connection.task is not None:
            connection.task.cancel()
        if seconds:
            self._spawn(_lingering(connection, seconds))
        else:
            _reset(connection.far)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _carry(
        self, dialled: str, reader: asyncio.StreamReader, near: asyncio.StreamWriter, to: Endpoint
    ) -> None:
        """Carry one connection from its first byte to its last."""
        task = asyncio.current_task()
        assert task is not None
        try:
            async with asyncio.timeout(DIAL_SECONDS):
                far_reader, far = await asyncio.open_connection(to.host, to.port)
        except (OSError, TimeoutError):
            self._forget(near)
            return
        source, target = ends(dialled)
        there = Pipe(reader, far, self.conditions[dialled])
        back = Pipe(far_reader, near, self.conditions[link(target, source)])
        connection = _Connection(near, far, there, back, task)
        self._connections[dialled].add(connection)
        try:
            await _until_one_breaks(there, back)
        finally:
            self._connections[dialled].discard(connection)
            del self._accepted[near]
            if not connection.broken:
                near.close()
                far.close()

    def _forget(self, near: asyncio.StreamWriter) -> None:
        del self._accepted[near]
        _reset(near)


async def _until_one_breaks(there: Pipe, back: Pipe) -> None:
    """Carry both directions to their ends; if one breaks, end the other."""
    tasks = [asyncio.create_task(there.run()), asyncio.create_task(back.run())]
    try:
        for finished in asyncio.as_completed(tasks):
            with contextlib.suppress(OSError):
                await finished
                continue
            return
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _lingering(connection: _Connection, seconds: float) -> None:
    try:
        await connection.there.linger(seconds)
    finally:
        _reset(connection.far)


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close the connection at once with an RST."""
    own = writer.get_extra_info("socket")
    if own is not None:
        with contextlib.suppress(OSError):
            own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
