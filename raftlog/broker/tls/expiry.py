"""When certificates end, and when to say so. A pure core: dates in, lines out.

Warnings come 30, 7 and 1 days before the end. One counts only for a certificate that lives more than three times as
long: one that is made anew every day would be "about to expire" all its life.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

DAY_SECONDS = 86_400.0
WARNING_DAYS = (30, 7, 1)


@dataclass(frozen=True, slots=True)
class Lifetime:
    """Of one certificate, in seconds since 1970. `what` names it for people."""

    what: str
    begins: float
    ends: float

    @staticmethod
    def of(what: str, certificate: Mapping[str, Any]) -> Lifetime:
        """From what `getpeercert` or `get_ca_certs` gives."""
        begins, ends = (ssl.cert_time_to_seconds(certificate[name]) for name in ("notBefore", "notAfter"))
        return Lifetime(what, begins, ends)

    def warned_days(self, now: float) -> int | None:
        """The smallest warning that is due: 30, 7, 1, or 0 once it has ended; None while all is well."""
        left = self.ends - now
        if left <= 0:
            return 0
        lives = self.ends - self.begins
        due = [days for days in WARNING_DAYS if left <= days * DAY_SECONDS and lives > 3 * days * DAY_SECONDS]
        return min(due, default=None)

    def line(self, now: float) -> str | None:
        """What to tell an operator, or None while all is well."""
        due = self.warned_days(now)
        if due is None:
            return None
        if due == 0:
            return f"{self.what} has expired: no connection between nodes is made any more; put a new one in its place"
        left = self.ends - now
        time = f"{left / DAY_SECONDS:.0f} days" if left > 2 * DAY_SECONDS else f"{left / 3600:.0f} hours"
        return f"{self.what} expires in {time}: put a new one in its place, no restart is needed"


class ExpiryLog:
    """Says each warning once: per certificate and threshold."""

    def __init__(self) -> None:
        self._told: dict[str, tuple[float, int]] = {}

    def due(self, lifetimes: tuple[Lifetime, ...], now: float) -> list[str]:
        """Lines that were not said yet."""
        lines = []
        for lifetime in lifetimes:
            days, line = lifetime.warned_days(now), lifetime.line(now)
            if days is None or line is None or self._told.get(lifetime.what) == (lifetime.ends, days):
                continue
            self._told[lifetime.what] = (lifetime.ends, days)
            lines.append(line)
        return lines
