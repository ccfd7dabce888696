"""When each record should be sent: a fixed rate that owes what it did not send.

Latency is counted from the moment at which a record was due, not from the one at which it was sent. A loop that sends
one record, waits for its answer and sends the next hides every stall: while it waits, the records that should have met
the stall are not sent, and so never measured (Gil Tene's "coordinated omission"). Here what was missed is due at once
when the stall is over, each record with the time at which it was due.
"""

from __future__ import annotations

import math


class Pacer:
    """Record number `i` is due `i / rate` seconds after the start."""

    def __init__(self, rate: float, start: float) -> None:
        """`rate`: records a second. `start`: when the first is due, in seconds of the clock that `due` is asked with.
        Raises `ValueError` for a rate that cannot be."""
        if not (rate > 0 and math.isfinite(rate)):
            raise ValueError(f"a rate of {rate} records a second")
        self._rate = rate
        self._start = start
        self.sent = 0
        """How many were taken."""

    def due(self, now: float, limit: int) -> range:
        """Take the numbers of the records that are due by now, at most `limit` of them, oldest first."""
        by_now = math.floor((now - self._start) * self._rate) + 1
        # Rounding must not hide what `wait` just waited for.
        if self.time_of(by_now) <= now:
            by_now += 1
        first, self.sent = self.sent, max(min(by_now, self.sent + limit), self.sent)
        return range(first, self.sent)

    def time_of(self, number: int) -> float:
        """When that record is due."""
        return self._start + number / self._rate

    def wait(self, now: float) -> float:
        """Seconds until the next is due; 0 where it is already."""
        return max(self.time_of(self.sent) - now, 0.0)
