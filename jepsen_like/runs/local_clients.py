"""Clients without a process of their own: in that of the suite, where starting one costs nothing.

A round of a few seconds cannot wait for processes to start, and tests of the workloads need none. They are the same
clients, asked in the same way. What they cannot have done to them is what is done to a process: to be killed (they are
let go of, as those of a program that ended) and to stand still. See `client_processes.py` for those that can.
"""

from __future__ import annotations

import sys

from jepsen_like.clients.messages import Ask, Open, Told
from jepsen_like.clients.process import ClientHost, made

from .client_processes import ClientGone


class LocalClient:
    """See `client_processes.ClientPort`."""

    def __init__(self, opened: Open) -> None:
        self._stuck = False
        self._host = ClientHost(opened, made(opened), stuck=self._is_stuck)

    @classmethod
    async def start(cls, opened: Open) -> LocalClient:
        return cls(opened)

    async def ask(self, asked: Ask) -> Told:
        if self._stuck:
            raise ClientGone("a client that was let go of has come to no end")
        return await self._host.do(asked)

    async def stall(self, seconds: float) -> None:
        raise NotImplementedError("a client without a process of its own cannot stand still: set stall_every to 0")

    async def kill(self) -> None:
        await self._host.close()

    async def stop(self) -> None:
        await self._host.close()

    def _is_stuck(self) -> None:
        """It is told with the next operation, as the end of a process is."""
        self._stuck = True
        sys.stderr.write("a client did not end\n")
