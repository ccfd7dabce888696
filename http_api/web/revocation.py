"""The loss of a caller's credential or right while its request waits, is being read or is being answered (S12)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from raftlog.errors import RaftlogError

from .call import Call


class Revocation:
    """Ends a wait when the caller loses its credential or its right: the callback of `Call.watch`."""

    def __init__(self, wait: asyncio.Timeout) -> None:
        self.error: RaftlogError | None = None
        """The error with which to answer; None: the caller may go on."""
        self._wait = wait

    def __call__(self, error: RaftlogError) -> None:
        self.error = error
        if not self._wait.expired():
            self._wait.reschedule(asyncio.get_running_loop().time())


@contextmanager
def cut_when_revoked(call: Call, still_allowed: Callable[[], None] | None = None) -> Iterator[None]:
    """Abort the connection if the caller loses its credential or its right (`Call.watch`) while its answer is being
    sent, which a slow client can make last for minutes. Raises as `Call.watch` if that has happened already."""
    transport = call.request.transport
    if transport is None:
        yield
        return
    unwatch = call.watch(lambda error: transport.abort(), still_allowed)
    try:
        yield
    finally:
        unwatch()
