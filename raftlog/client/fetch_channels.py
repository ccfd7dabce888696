"""The channels of a fetcher, one a connection: with a session wherever there can be one.

What is *not* here: how a channel asks (`fetch_channel.py`), connections (`transport.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from .fetch_channel import Channel, Owner, PlainChannel, SessionChannel
from .reader import PartitionReader
from .transport import Connection
from .transport_http1 import ApiConnection

SESSION_AGAIN = 30.0
"""Seconds without a session, where a broker had no room for one."""


@dataclass(frozen=True, slots=True)
class FetcherSettings:
    """A consumer's settings. Times in seconds."""

    prefetch_bytes: int
    max_wait: float
    min_bytes: int
    on_out_of_range: str
    """`"error"`, `"earliest"` or `"latest"`."""
    isolation: int
    """1: only what is committed."""


class Channels:
    """See the module. Belongs to one loop."""

    def __init__(self, settings: FetcherSettings, owner: Owner, now: Callable[[], float]) -> None:
        """`now`: the loop's time."""
        self._settings = settings
        self._owner = owner
        self._now = now
        self._channels: dict[Connection, Channel] = {}
        self._no_session_before: dict[Connection, float] = {}

    def __len__(self) -> int:
        return len(self._channels)

    def all(self) -> list[Channel]:
        """Those that are used."""
        return list(self._channels.values())

    def to(self, connection: Connection) -> Channel:
        """How this connection is asked now. What was asked before, in another way, is still answered."""
        channel, now = self._channels.get(connection), self._now()
        if channel is not None and channel.refused:
            self._no_session_before[connection] = now + SESSION_AGAIN
            channel = None
        elif isinstance(channel, PlainChannel) and self._no_session_before.get(connection, math.inf) <= now:
            channel = None
        if channel is None:
            plain = isinstance(connection, ApiConnection) or self._no_session_before.get(connection, -math.inf) > now
            kind = PlainChannel if plain else SessionChannel
            channel = self._channels[connection] = kind(connection, self._settings, self._owner)
        return channel

    def leave_lost(self) -> list[PartitionReader]:
        """Forget connections that take nothing new; returns the readers that are to be asked for elsewhere."""
        readers = []
        for connection in [connection for connection in self._channels if not connection.usable]:
            readers += self._channels.pop(connection).give_up()
            self._no_session_before.pop(connection, None)
        return readers
