"""The cluster's time on one node: what the quorum told last, and this node's monotonic clock since then.

Two questions have two answers. *Is this old?* asks `expiry_ms`: it never runs ahead of what the quorum vouched for by
more than this node's monotonic clock can be wrong in `EXTRAPOLATED_SECONDS`; a node that has heard nothing for longer
does not know, and calls nothing old. *What time is it?*, for a stamp, asks `stamp_ms`, which always has an answer: this
node's wall clock where a majority of the voters agrees with it, what they say where not, and nothing that is before the
cluster's time, since what is stamped so would be old too early. Where none agrees, or it is not known whether they
still do, the later of the two counts: what has too late a stamp is kept for too long, and no less.
"""

from __future__ import annotations

from raftlog.model import NO_TIME, ClusterTime
from raftlog.ports import Clock

EXTRAPOLATED_SECONDS = 60.0
"""The quorum tells the time every ten seconds."""

TOLERANCE_MS = 60_000
"""A wall clock that differs by no more is right."""

STEADY_MS = 1_000
"""Times that are told so far apart, and say so, are of now."""


class ClusterClock:
    """One node's. Its methods may be called on any thread: what was told is replaced as a whole."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._told: tuple[ClusterTime, float, bool] = (NO_TIME, 0.0, False)
        """The time, when it was told, and whether that was of then: an entry that is read again tells an old one."""

    def learn(self, time: ClusterTime) -> None:
        """The quorum tells the time."""
        before, told_at, _ = self._told
        now = self._clock.monotonic()
        passed_ms, agreed_ms = (now - told_at) * 1000, time.agreed_ms - before.agreed_ms
        both = bool(before.agreed_ms and time.agreed_ms)
        self._told = (time, now, both and passed_ms >= STEADY_MS and abs(agreed_ms - passed_ms) <= TOLERANCE_MS)

    def expiry_ms(self) -> int | None:
        """The time by which data expires; None where it is not known, so that nothing does."""
        time, told_at, _ = self._told
        elapsed = max(0.0, self._clock.monotonic() - told_at)
        if not time or elapsed > EXTRAPOLATED_SECONDS:
            return None
        return time.now_ms + int(elapsed * 1000)

    def stamp_ms(self) -> int:
        """The time for a stamp: milliseconds since 1970."""
        time, told_at, steady = self._told
        wall_ms = self._clock.wall_ms()
        if not time:
            return wall_ms
        elapsed_ms = int(max(0.0, self._clock.monotonic() - told_at) * 1000)
        if steady and abs(wall_ms - time.agreed_ms - elapsed_ms) > TOLERANCE_MS:
            wall_ms = time.agreed_ms + elapsed_ms
        return max(wall_ms, time.now_ms + elapsed_ms)

    def doubt(self) -> str:
        """Why nothing expires on this node at present; empty where it does."""
        time, told_at, _ = self._told
        if not time:
            return "the cluster has no time yet: a majority of its voters must agree on it"
        elapsed = self._clock.monotonic() - told_at
        if elapsed > EXTRAPOLATED_SECONDS:
            return f"the quorum has not told the time for {elapsed:.0f} s"
        return ""

    def problem(self) -> str:
        """What is wrong with this node's wall clock or the cluster's time, and what to do; empty where nothing is."""
        time, told_at, steady = self._told
        elapsed = max(0.0, self._clock.monotonic() - told_at)
        if not time or elapsed > EXTRAPOLATED_SECONDS:
            return ""  # the quorum has a worse problem, which is told
        right_ms = (time.agreed_ms if steady else time.now_ms) + int(elapsed * 1000)
        apart_s = (self._clock.wall_ms() - right_ms) / 1000
        # Of a clock that nobody agrees with only what is behind is certainly wrong: the time stands still while a
        # lone voter is down.
        if apart_s < -TOLERANCE_MS / 1000 or (steady and apart_s > TOLERANCE_MS / 1000):
            return (
                f"its wall clock is {abs(apart_s):.0f} s {'ahead of' if apart_s > 0 else 'behind'} the cluster's time, "
                "by which everything expires: set it, and have it synchronised (NTP)"
            )
        return ""
