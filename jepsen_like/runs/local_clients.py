"""Clients in the suite's own process, where starting one costs nothing.

A round of a few seconds cannot wait for processes to start, and tests of the workloads need none. They are the same
clients with the same messages. Faults of processes are not possible: to be killed (they are abandoned, like those of a
program that ended) and to be stopped (`client_processes.py` can).
"""

from __future__ import annotations

import sys

from jepsen_like.clients.messages import Ask, Open, Told
from jepsen_like.clients.process import ClientHost, made

from .client_processes import ClientGone


class LocalClient:
    """A client in this process. Implements `client_processes.ClientPort`."""

    def __init__(self, opened: Open) -> None:
        self._stuck = False
        self._host = ClientHost(opened, made(opened), stuck=self._is_stuck)

    @classmethod
    async def start(cls, opened: Open) -> LocalClient:
        return cls(opened)

    async def ask(self, asked: Ask) -> Told:
        if self._stuck:
            raise ClientGone("an abandoned client did not close")
        return await self._host.do(asked)

    async def stall(self, seconds: float) -> None:
        raise ValueError("only a client in a process of its own can be stalled: set stall_every to 0")

    async def kill(self) -> None:
        await self._host.close()

    async def stop(self) -> None:
        await self._host.close()

    def _is_stuck(self) -> None:
        """Report a stuck client with the next operation, like the end of a process."""
        self._stuck = True
        sys.stderr.write("a client did not close\n")
