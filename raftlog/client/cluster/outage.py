"""Log messages of a client that the cluster does not serve: a warning soon, then now and then, and the recovery.

Clients retry by themselves, and a consumer's `poll` returns no records meanwhile. Without these lines, a cluster that
is down, or whose nodes use TLS where the client does not, looks like a topic without new records.
"""

from __future__ import annotations

from raftlog.errors import RaftlogError

FIRST_AFTER = 3.0
"""Seconds of failures after which they are reported."""
AGAIN_AFTER = 30.0
"""Seconds between reports of one outage."""


class Outage:
    """Decides when failures are reported. Times are in seconds of one clock that never goes back."""

    def __init__(self, what: str) -> None:
        """`what`: the subject of the reports, such as `consumer of topic orders`."""
        self._what = what
        self._since: float | None = None
        """Time of the first failure since the last success."""
        self._reported: float | None = None

    def failed(self, error: RaftlogError, now: float) -> str | None:
        """Note a failure that is retried; return the text of a warning if one is due."""
        if self._since is None:
            self._since = now
        due = self._since + FIRST_AFTER if self._reported is None else self._reported + AGAIN_AFTER
        if now < due:
            return None
        self._reported = now
        return f"{self._what}: the cluster has not answered for {now - self._since:.0f} s, and is asked again: {error}"

    def succeeded(self, now: float) -> str | None:
        """Note an answer; return the text of a message if an outage was reported."""
        if self._since is None:
            return None
        text = None if self._reported is None else f"{self._what}: answered again after {now - self._since:.0f} s"
        self._since = self._reported = None
        return text
