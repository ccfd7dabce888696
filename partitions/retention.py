"""Which records are old enough, or too many, to go; and whether the wall clock may be believed about «old».

Retention is the one thing that deletes data because of a clock. So before each pass the wall clock is compared with
the monotonic one: when the two moved apart by over a minute since the last pass somebody or something set the wall
clock, and `retention.ms` pauses, loudly, until it has run evenly for an hour (or has jumped back). The size rule goes
on: it needs no clock.

What is *not* here: the log's own bound (high watermark), and the deletion (`PartitionLog.advance_log_start`).
"""

from __future__ import annotations

from collections.abc import Sequence

from raftlog.config import TopicConfig
from raftlog.model import Offset
from raftlog.ports import Clock

from .segment import Segment

CLOCKS_APART_MAX_MS = 60_000
"""Between two passes; slewing moves 0.05 % at most, which is 15 ms in 30 s."""

CLOCK_TRUST_MS = 3_600_000
"""Even running for this long makes a wall clock that jumped believable again: time for a person to look."""

SEGMENTS_PER_PASS_MAX = 16
"""Of one log: a wrong setting that is noticed soon has not deleted everything."""


class RetentionClock:
    """The wall clock, as far as retention may believe it. One for a node; asked once a pass.

    Invariant: `_paused_at` is set while the clock is not believed.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._difference_ms = self._read()
        """Wall minus monotonic, when they were last believed to agree."""
        self._seen_ms = self._difference_ms
        self._paused_at: float | None = None

    def now_ms(self) -> tuple[int | None, str]:
        """(the time, "") or (None, why it is not believed): to be logged, at each pass."""
        difference, now = self._read(), self._clock.monotonic()
        jumped = abs(difference - self._seen_ms) > CLOCKS_APART_MAX_MS
        self._seen_ms = difference
        if abs(difference - self._difference_ms) <= CLOCKS_APART_MAX_MS:
            self._paused_at = None
        elif jumped or self._paused_at is None:
            self._paused_at = now
        elif (now - self._paused_at) * 1000 >= CLOCK_TRUST_MS:
            self._paused_at = None
        if self._paused_at is None:
            self._difference_ms = difference
            return self._clock.wall_ms(), ""
        apart = (difference - self._difference_ms) / 1000
        left = CLOCK_TRUST_MS / 60_000 - (now - self._paused_at) / 60
        return None, (
            f"retention by time is paused: the wall clock moved by {apart:+.0f} s against the monotonic clock; "
            f"it is believed again after {left:.0f} more minutes without a jump"
        )

    def _read(self) -> float:
        return self._clock.wall_ms() - self._clock.monotonic() * 1000


def retained_start(
    config: TopicConfig, segments: Sequence[Segment], log_start: Offset, end_bound: Offset, now_ms: int | None
) -> Offset:
    """Where a log should begin by its topic's settings: at a segment's end, or where it begins now.

    The oldest segments go while they are wholly below `end_bound` and either every record is older than `retention.ms`
    or the rest still has `retention.bytes`. `now_ms` None: only size counts.
    """
    start = log_start
    if not config.deletes:
        return start
    size = sum(segment.size for segment in segments)
    for segment in segments[:SEGMENTS_PER_PASS_MAX]:
        if not segment.size or segment.end_offset > end_bound:
            break
        too_old = (
            now_ms is not None
            and config.retention_ms >= 0
            and segment.max_timestamp >= 0
            and segment.max_timestamp < now_ms - config.retention_ms
        )
        size -= segment.size
        too_many = 0 <= config.retention_bytes <= size
        if not too_old and not too_many:
            break
        start = max(start, segment.end_offset)
    return start
