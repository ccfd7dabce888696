"""The controller's part of the cluster's time: the voters' wall clocks, and the next step.

Everything that expires does so by this time and no other, so it must not run ahead of the truth because some wall clock
does. It follows the wall clocks of the voters as far as a **majority of them** agree to within `TOLERANCE_MS`: two
majorities share a voter, so as long as most clocks are right it is at most that far ahead. The middle clock of an
agreeing majority counts. If none agrees, the time advances by this node's monotonic clock, which has no date but runs
at the right speed.

It never goes back: if it turns out to be ahead it stands still, so nothing expires until the clocks have caught up. It
falls behind when the whole cluster was down, and perhaps when most clocks leap at once (a bad time server, a host that
was resumed): then it follows only when they have agreed for `PATIENCE_SECONDS`, which gives a person time to look, and
in steps of `MAX_STEP_MS`. Meanwhile everything is kept for longer.

A **lone voter** has nothing to compare its clock with. Its wall clock is used once, when there is no time yet. From
then on the time advances by the monotonic clock while the node runs, and not past the wall clock: time during which a
lone node slept does not count, which keeps data for longer and loses none.

Below `TIME_FEATURE_LEVEL` the cluster has no time, until an operator ends the upgrade (`raftlog cluster finalize`).
There is one keeper a term; seconds are monotonic, from outside.

Sources: fault-tolerant clock agreement by majority intervals (Marzullo, 1984; NTP's selection, RFC 5905, 11.2.1).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from metadata.commands.cluster import MAX_STEP_MS, TIME_FEATURE_LEVEL, AdvanceTime
from metadata.commands.envelope import Command
from metadata.image.image import ClusterImage
from raftlog.model import BrokerId, ClusterTime

STEP_SECONDS = 10.0
"""The interval between two steps: nodes extrapolate from one to the next."""

TOLERANCE_MS = 60_000
"""The largest difference of agreeing clocks. Retention periods are minutes to years."""

READING_SECONDS = 15.0
"""The age after which a reading of a wall clock is ignored."""

HEARING_SECONDS = 2.0
"""The time that a new controller, which has no readings yet, waits for a majority."""

PATIENCE_SECONDS = 3_600.0
"""The time for which a majority must agree on a time far ahead before it is followed."""


class _Reading(msgspec.Struct, frozen=True):
    offset_ms: float
    """The wall clock minus this node's monotonic clock, as of the reading's arrival."""
    at: float


class _Ahead(msgspec.Struct, frozen=True):
    """A time that a majority agrees on and that is not followed yet."""

    offset_ms: float
    since: float


class TimeKeeper:
    """The time keeper of one term."""

    def __init__(self, term: int) -> None:
        self._term = term
        self._readings: dict[BrokerId, _Reading] = {}
        self._ahead: _Ahead | None = None
        self._next_at = float("-inf")
        self._first_at: float | None = None
        """The time of the first call of `decide`."""
        self._proposed: Command | None = None

    def heard(self, node: BrokerId, wall_ms: int, now: float) -> None:
        """Record a node's wall clock, read a moment ago."""
        self._readings[node] = _Reading(wall_ms - now * 1000, now)

    def decide(self, now: float, image: ClusterImage, voters: Sequence[BrokerId], known_at: float) -> Command | None:
        """Return the command to propose, if any; it must be passed to `settled`.

        `known_at`: since when this node has known the current time of the image.
        """
        if self._first_at is None:
            self._first_at = now
        if self._proposed is not None or now < self._next_at:
            return None
        self._readings = {node: one for node, one in self._readings.items() if now - one.at <= READING_SECONDS}
        if image.feature_level < TIME_FEATURE_LEVEL:
            return None
        self._proposed = self._step(now, image.time, voters, known_at)
        if self._proposed is not None:
            self._next_at = now + STEP_SECONDS
        return self._proposed

    def settled(self, command: Command) -> None:
        """Record that the command was applied, refused or lost."""
        if self._proposed is command:
            self._proposed = None

    # --- Inside ------------------------------------------------------------------------------------------------------

    def _step(self, now: float, time: ClusterTime, voters: Sequence[BrokerId], known_at: float) -> AdvanceTime | None:
        offset_ms = agreed_offset([self._readings[v].offset_ms for v in voters if v in self._readings], len(voters))
        wall_ms = None if offset_ms is None else int(offset_ms + now * 1000)
        if not time:
            return None if wall_ms is None or wall_ms <= 0 else AdvanceTime(self._term, 0, wall_ms, wall_ms)
        elapsed_ms = min(max(0, int((now - known_at) * 1000)), MAX_STEP_MS)
        by_elapsed = time.now_ms + elapsed_ms
        if wall_ms is None or offset_ms is None:
            if self._first_at is None or now < self._first_at + HEARING_SECONDS:
                return None
            self._ahead = None
            return AdvanceTime(self._term, time.now_ms, by_elapsed, 0)
        if len(voters) == 1:
            to_ms = max(time.now_ms, min(by_elapsed, wall_ms))
            return AdvanceTime(self._term, time.now_ms, to_ms, 0)
        if wall_ms <= by_elapsed + TOLERANCE_MS:
            self._ahead = None
            # At most at twice the speed: a time that is a little behind catches up within a minute or two.
            to_ms = max(time.now_ms, min(wall_ms, by_elapsed + elapsed_ms))
        elif self._is_patient(offset_ms, now):
            to_ms = min(wall_ms, time.now_ms + MAX_STEP_MS)
        else:
            to_ms = by_elapsed
        return AdvanceTime(self._term, time.now_ms, min(to_ms, time.now_ms + MAX_STEP_MS), max(0, wall_ms))

    def _is_patient(self, offset_ms: float, now: float) -> bool:
        """Return whether the majority has agreed on it for long enough."""
        ahead = self._ahead
        if ahead is None or abs(offset_ms - ahead.offset_ms) > TOLERANCE_MS:
            self._ahead = _Ahead(offset_ms, now)
            return False
        return now - ahead.since >= PATIENCE_SECONDS


def agreed_offset(offsets_ms: Sequence[float], voters: int) -> float | None:
    """Return the middle of the earliest agreeing majority of `voters`; None if none agrees."""
    known = sorted(offsets_ms)
    majority = voters // 2 + 1
    for first in range(len(known) - majority + 1):
        if known[first + majority - 1] - known[first] <= TOLERANCE_MS:
            return known[first + (majority - 1) // 2]
    return None
