"""File descriptors of a running process: a limit that leaves it hardly any, and connections that only take them.

A limit bounds numbers and not how many are open: a process is given the lowest number that is free, and none (EMFILE)
where that is not below its soft limit. What it has open beyond a limit that was lowered stays open. So a limit is
chosen by the numbers that are free below it.

The proof is the kernel's: `/proc/<pid>/fd` has every number below the limit, while connections wait for more.

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
"""Between two looks at what became of connections: those that were ended are dialled again."""
READ_BYTES = 64 * 1024
OVERLOADED = b"overloaded"
"""In what the API answers to a connection that is one too many."""


def open_numbers(pid: int) -> frozenset[int]:
    """Of the descriptors that it has open. Raises `OSError` where there is no such process."""
    return frozenset(map(int, os.listdir(f"/proc/{pid}/fd")))


def free_below(limit: int, taken: Collection[int]) -> int:
    """How many more descriptors a process can be given."""
    return limit - sum(number < limit for number in taken)


def limit_leaving(spare: int, taken: Collection[int]) -> int:
    """The lowest limit that leaves so many numbers free; no number that is taken is the first one beyond it."""
    limit = free = 0
    while free < spare or limit in taken:
        free += limit not in taken
        limit += 1
    return limit


def soft_limit(pid: int) -> int:
    """Of the descriptors' numbers. Raises `OSError` where there is no such process, or it is somebody else's."""
    return resource.prlimit(pid, resource.RLIMIT_NOFILE)[0]


def set_soft_limit(pid: int, limit: int) -> None:
    """While it runs; its hard limit stays. Raises `OSError`, as `soft_limit`."""
    hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)[1]
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (limit, hard))


class IdleConnections:
    """To some endpoints, so many to each: they say nothing, and are dialled again when they are ended. Belongs to one
    event loop."""

    def __init__(self, endpoints: Sequence[Endpoint], each: int) -> None:
        self._each = each
        self._open: dict[Endpoint, list[socket.socket]] = {endpoint: [] for endpoint in endpoints}
        self._again: asyncio.Task[None] | None = None
        self.ended = dict.fromkeys(endpoints, 0)
        """How many were, by the other side."""
        self.overloaded = dict.fromkeys(endpoints, 0)
        """How many were told so before."""

    async def begin(self) -> None:
        """Dial all. Raises `OSError` where this process has no descriptor for them."""
        self.look()
        self._again = asyncio.create_task(self._go_on())

    async def end(self) -> None:
        """None is left. Safe to call again. Raises what went wrong meanwhile."""
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
        """What was ended is counted, and dialled again. Raises `OSError`, as `begin`."""
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
        """Ended by the other side, which is counted, or never come about."""
        told = b""
        try:
            while read := one.recv(READ_BYTES):
                told += read
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.ENOTCONN):  # Nothing was said yet, or it is being dialled.
                return False
            if error.errno != errno.ECONNRESET:
                return True
        self.ended[endpoint] += 1
        self.overloaded[endpoint] += OVERLOADED in told
        return True
