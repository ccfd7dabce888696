"""The cluster's time on one node: the last time from the quorum, plus this node's monotonic clock since then.

Expiry and stamps use different times. `expiry_ms` decides whether something is old. It never runs ahead of what the
quorum vouched for by more than this node's monotonic clock can be wrong in `EXTRAPOLATED_SECONDS`; a node without news
for longer does not know the time, and expires nothing. `stamp_ms` gives the time for a stamp and always has an answer:
this node's wall clock if a majority of the voters agrees with it, otherwise the voters' time, and never a time before
the cluster's, since such a stamp would expire too early. If no majority agrees, or it is unknown whether one still
does, the later of the two is used: a stamp that is too late keeps data for too long, which does no other harm.
"""

from __future__ import annotations

from raftlog.model import NO_TIME, ClusterTime
from raftlog.ports import Clock

EXTRAPOLATED_SECONDS = 60.0
"""Maximum age of the quorum's time in seconds. The quorum announces the time every ten seconds."""

TOLERANCE_MS = 60_000
"""Difference of a wall clock that still counts as correct, in milliseconds."""

STEADY_MS = 1_000
"""Minimum interval between two announcements that prove, by differing as much, that the later one is current, in
milliseconds."""


class ClusterClock:
    """The clock of one node. Thread-safe: what the quorum announced is replaced as a whole."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._told: tuple[ClusterTime, float, bool] = (NO_TIME, 0.0, False)
        """The time, the moment of its arrival, and whether it was current then: an entry that is replayed has an old
        one."""

    def learn(self, time: ClusterTime) -> None:
        """Take over the time that the quorum announced."""
        before, told_at, _ = self._told
        now = self._clock.monotonic()
        passed_ms, agreed_ms = (now - told_at) * 1000, time.agreed_ms - before.agreed_ms
        both = bool(before.agreed_ms and time.agreed_ms)
        self._told = (time, now, both and passed_ms >= STEADY_MS and abs(agreed_ms - passed_ms) <= TOLERANCE_MS)

    def expiry_ms(self) -> int | None:
        """Return the time by which data expires; None if it is unknown, so that nothing expires."""
        time, told_at, _ = self._told
        elapsed = max(0.0, self._clock.monotonic() - told_at)
        if not time or elapsed > EXTRAPOLATED_SECONDS:
            return None
        return time.now_ms + int(elapsed * 1000)

    def stamp_ms(self) -> int:
        """Return the time for a stamp, in milliseconds since 1970."""
        time, told_at, steady = self._told
        wall_ms = self._clock.wall_ms()
        if not time:
            return wall_ms
        elapsed_ms = int(max(0.0, self._clock.monotonic() - told_at) * 1000)
        if steady and abs(wall_ms - time.agreed_ms - elapsed_ms) > TOLERANCE_MS:
            wall_ms = time.agreed_ms + elapsed_ms
        return max(wall_ms, time.now_ms + elapsed_ms)

    def doubt(self) -> str:
        """Return why nothing expires on this node at present; empty if it does."""
        time, told_at, _ = self._told
        if not time:
            return "the cluster has no time yet: a majority of its voters must agree on it"
        elapsed = self._clock.monotonic() - told_at
        if elapsed > EXTRAPOLATED_SECONDS:
            return f"the quorum has not announced the time for {elapsed:.0f} s"
        return ""

    def problem(self) -> str:
        """Return a problem of this node's wall clock or the cluster's time, and what to do; empty if all is well."""
        time, told_at, steady = self._told
        elapsed = max(0.0, self._clock.monotonic() - told_at)
        if not time or elapsed > EXTRAPOLATED_SECONDS:
            return ""  # The quorum has a worse problem, which is reported elsewhere.
        right_ms = (time.agreed_ms if steady else time.now_ms) + int(elapsed * 1000)
        apart_s = (self._clock.wall_ms() - right_ms) / 1000
        # If no majority agrees on the time, only a clock that is behind is certainly wrong: the cluster's time stands
        # still while its only voter is down.
        if apart_s < -TOLERANCE_MS / 1000 or (steady and apart_s > TOLERANCE_MS / 1000):
            return (
                f"its wall clock is {abs(apart_s):.0f} s {'ahead of' if apart_s > 0 else 'behind'} the cluster's time, "
                "by which everything expires: set it and synchronise it (NTP)"
            )
        return ""
