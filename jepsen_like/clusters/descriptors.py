"""File descriptors of a running process: a limit that leaves hardly any free, and idle connections that use them up.

The limit bounds the numbers of descriptors, not how many are open: a process gets the lowest free number, and EMFILE if
that number is not below its soft limit. Descriptors above a lowered limit stay open. So the limit is computed from the
free numbers below it.

The kernel provides the proof: `/proc/<pid>/fd` has every number below the limit, while connections wait for more.

Sources: getrlimit(2), prlimit(2), prlimit(1).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import resource
import socket
from collections.abc import Collection, Sequence

from raftlog.model import Endpoint

PAUSE_SECONDS = 0.5
"""Interval between checks of the connections; those that the peer closed are dialed again."""
READ_BYTES = 64 * 1024


def open_numbers(pid: int) -> frozenset[int]:
    """Return the numbers of the descriptors that a process has open. Raises `OSError` if the process does not exist."""
    return frozenset(map(int, os.listdir(f"/proc/{pid}/fd")))


def free_below(limit: int, taken: Collection[int]) -> int:
    """Return how many more descriptors a process can open."""
    return limit - sum(number < limit for number in taken)


def limit_leaving(spare: int, taken: Collection[int]) -> int:
    """Return the lowest limit that leaves `spare` numbers free below it, and that is itself not a number in use."""
    limit = free = 0
    while free < spare or limit in taken:
        free += limit not in taken
        limit += 1
    return limit


def soft_limit(pid: int) -> int:
    """Return a process's soft limit of descriptors.

    Raises `OSError` if the process does not exist or belongs to another user.
    """
    return resource.prlimit(pid, resource.RLIMIT_NOFILE)[0]


def set_soft_limit(pid: int, limit: int) -> None:
    """Set a running process's soft limit of descriptors; its hard limit stays. Raises `OSError`, as `soft_limit`."""
    hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)[1]
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (limit, hard))


class IdleConnections:
    """Connections, `each` to every endpoint, that send nothing and are dialed again when the peer closes them.

    Belongs to one event loop.
    """

    def __init__(self, endpoints: Sequence[Endpoint], each: int) -> None:
        self._each = each
        self._open: dict[Endpoint, list[socket.socket]] = {endpoint: [] for endpoint in endpoints}
        self._again: asyncio.Task[None] | None = None
        self.ended = dict.fromkeys(endpoints, 0)
        """How many connections the peer has closed."""

    async def begin(self) -> None:
        """Dial all connections. Raises `OSError` if this process has too few descriptors for them."""
        self.look()
        self._again = asyncio.create_task(self._go_on())

    async def end(self) -> None:
        """Close all connections. Idempotent. Raises any error of the background task."""
        again, self._again = self._again, None
        try:
            if again is not None:
                again.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await again
        finally:
            for listed in self._open.values():
                while listed:
                    listed.pop().close()

    def look(self) -> None:
        """Count the connections that were closed, and dial them again. Raises `OSError`, as `begin`."""
        for endpoint, listed in self._open.items():
            for one in [one for one in listed if self._is_over(endpoint, one)]:
                listed.remove(one)
                one.close()
            while len(listed) < self._each:
                one = socket.socket(socket.AF_INET6 if ":" in endpoint.host else socket.AF_INET)
                listed.append(one)
                one.setblocking(False)
                one.connect_ex((endpoint.host, endpoint.port))

    async def _go_on(self) -> None:
        while True:
            await asyncio.sleep(PAUSE_SECONDS)
            self.look()

    def _is_over(self, endpoint: Endpoint, one: socket.socket) -> bool:
        """Return whether the connection is gone: closed by the peer, which is counted, or never established."""
        try:
            while one.recv(READ_BYTES):  # The answer to a connection for which there is no room.
                pass
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.ENOTCONN):  # Idle, or still connecting.
                return False
            if error.errno != errno.ECONNRESET:
                return True
        self.ended[endpoint] += 1
        return True
