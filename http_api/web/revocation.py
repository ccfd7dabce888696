"""The end of a caller's credential while its request waits, is being read or is being answered (S12)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp import web

from raftlog.errors import RaftlogError

from .authentication import AUTHENTICATED


class Revocation:
    """Ends a wait when the caller's credential is revoked or expires: the callback of `Authenticated.watch`."""

    def __init__(self, wait: asyncio.Timeout) -> None:
        self.error: RaftlogError | None = None
        """The error with which to answer; None: the credential is valid."""
        self._wait = wait

    def __call__(self, error: RaftlogError) -> None:
        self.error = error
        if not self._wait.expired():
            self._wait.reschedule(asyncio.get_running_loop().time())


@contextmanager
def cut_when_revoked(request: web.Request) -> Iterator[None]:
    """Abort the connection if the caller's credential ends while its answer is being sent, which a slow client can make
    last for minutes. Raises `ConnectionResetError` if it has ended already."""
    found, transport = request.get(AUTHENTICATED), request.transport
    if found is None or transport is None:
        yield
        return
    try:
        unwatch = found.watch(lambda error: transport.abort())
    except RaftlogError as error:
        transport.abort()
        raise ConnectionResetError("the caller's credential has ended") from error
    try:
        yield
    finally:
        unwatch()
