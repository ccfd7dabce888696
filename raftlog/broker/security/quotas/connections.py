"""The connections of callers to the data listener, counted against their quota (S11). A pure core.

A connection counts for a caller while it has a stream of that caller. A connection may carry streams of several
callers, and counts for each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable

from raftlog.errors import RetriableError
from raftlog.security.principals import Caller

from .quotas import Held, Quotas


class CallerConnections:
    """The connections with streams of authenticated callers. All calls are made on the broker's loop."""

    def __init__(self, quotas: Quotas) -> None:
        self._quotas = quotas
        self._streams: Counter[tuple[Hashable, Caller]] = Counter()

    def enter(self, connection: Hashable, caller: Caller) -> None:
        """Count one more stream of a caller on a connection.

        Raises `RetriableError` (`throttled`), and counts nothing, if that would be a connection over the quota.
        """
        key = (connection, caller)
        if not self._streams[key] and not self._quotas.hold(caller, Held.CONNECTIONS):
            del self._streams[key]
            raise RetriableError(
                "throttled", f"{caller} or its address has as many connections as its quota permits: close some"
            )
        self._streams[key] += 1

    def leave(self, connection: Hashable, caller: Caller) -> None:
        """Count one stream fewer, which `enter` counted."""
        key = (connection, caller)
        self._streams[key] -= 1
        if not self._streams[key]:
            del self._streams[key]
            self._quotas.release(caller, Held.CONNECTIONS)
