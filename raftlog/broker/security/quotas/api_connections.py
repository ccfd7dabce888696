"""The connections of callers to the HTTP API, counted against their quota (S11). A pure core.

HTTP/1.1 has one request on a connection at a time, so a connection counts for the caller of its latest request, until
it is closed or carries a request of another caller. One without a request counts for no caller: the API closes it after
a while, and bounds the number of all.
"""

from __future__ import annotations

from collections.abc import Hashable

from raftlog.errors import RetriableError
from raftlog.security.principals import Caller

from .quotas import Held, Quotas


class ApiConnections:
    """The connections with requests of authenticated callers. All calls are made on the broker's loop."""

    def __init__(self, quotas: Quotas) -> None:
        self._quotas = quotas
        self._callers: dict[Hashable, Caller] = {}

    def enter(self, connection: Hashable, caller: Caller) -> None:
        """Count a connection for the caller of a request on it.

        Raises `RetriableError` (`throttled`), and counts it for no caller, if that would be a connection over the
        quota.
        """
        if self._callers.get(connection) == caller:
            return
        self.leave(connection)
        if not self._quotas.hold(caller, Held.CONNECTIONS):
            raise RetriableError(
                "throttled", f"{caller} or its address has as many connections as its quota permits: close some"
            )
        self._callers[connection] = caller

    def leave(self, connection: Hashable) -> None:
        """Count a connection for no caller any more; one that was not counted changes nothing."""
        caller = self._callers.pop(connection, None)
        if caller is not None:
            self._quotas.release(caller, Held.CONNECTIONS)
