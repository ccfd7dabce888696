"""The schedule of records at a fixed rate, which makes up for missed sends.

Latency is measured from the moment at which a record was due, not from the one at which it was sent. A loop that sends
one record, waits for its answer and sends the next hides every stall: while it waits, the records that should have met
the stall are not sent, and so never measured (Gil Tene's "coordinated omission"). Here missed records are sent at once
when the stall is over, each with the time at which it was due.
"""

from __future__ import annotations

import math


class Pacer:
    """A schedule in which record number `i` is due `i / rate` seconds after the start."""

    def __init__(self, rate: float, start: float) -> None:
        """`rate` is in records a second. `start` is when the first record is due, on the clock of `due`, in seconds.

        Raises `ValueError` for an invalid rate.
        """
        if not (rate > 0 and math.isfinite(rate)):
            raise ValueError(f"a rate of {rate} records a second")
        self._rate = rate
        self._start = start
        self.sent = 0
        """Number of records that were taken."""

    def due(self, now: float, limit: int) -> range:
        """Take the numbers of the records that are due, at most `limit` of them, oldest first."""
        by_now = math.floor((now - self._start) * self._rate) + 1
        # Rounding must not hide the record for which `wait` has just waited.
        if self.time_of(by_now) <= now:
            by_now += 1
        first, self.sent = self.sent, max(min(by_now, self.sent + limit), self.sent)
        return range(first, self.sent)

    def time_of(self, number: int) -> float:
        """Return when a record is due."""
        return self._start + number / self._rate

    def wait(self, now: float) -> float:
        """Return the time until the next record is due, in seconds; 0 if it is due already."""
        return max(self.time_of(self.sent) - now, 0.0)
