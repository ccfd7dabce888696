"""Expiry of certificates and its warnings. A pure core: dates in, lines out.

Warnings are due 30, 7 and 1 days before the end. A warning applies only to a certificate with more than three times
that lifetime: one that is renewed daily would otherwise be "about to expire" all its life.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any

import msgspec

DAY_SECONDS = 86_400.0
WARNING_DAYS = (30, 7, 1)


class Lifetime(msgspec.Struct, frozen=True):
    """The validity of one certificate, in seconds since 1970. `what` names it for people."""

    what: str
    begins: float
    ends: float

    @staticmethod
    def of(what: str, certificate: Mapping[str, Any]) -> Lifetime:
        """Return the validity of a certificate from `getpeercert` or `get_ca_certs`."""
        begins, ends = (ssl.cert_time_to_seconds(certificate[name]) for name in ("notBefore", "notAfter"))
        return Lifetime(what, begins, ends)

    def warned_days(self, now: float) -> int | None:
        """Return the smallest warning that is due: 30, 7, 1, or 0 after the end; None if none is due."""
        left = self.ends - now
        if left <= 0:
            return 0
        lives = self.ends - self.begins
        due = [days for days in WARNING_DAYS if left <= days * DAY_SECONDS and lives > 3 * days * DAY_SECONDS]
        return min(due, default=None)

    def line(self, now: float) -> str | None:
        """Return the line for an operator; None if none is due."""
        due = self.warned_days(now)
        if due is None:
            return None
        if due == 0:
            return f"{self.what} has expired: no new connections can be made; replace it"
        left = self.ends - now
        time = f"{left / DAY_SECONDS:.0f} days" if left > 2 * DAY_SECONDS else f"{left / 3600:.0f} hours"
        return f"{self.what} expires in {time}: replace it; no restart is needed"


class ExpiryLog:
    """A log of warnings: each is reported once for each certificate and threshold."""

    def __init__(self) -> None:
        self._told: dict[str, tuple[float, int]] = {}

    def due(self, lifetimes: tuple[Lifetime, ...], now: float) -> list[str]:
        """Return the lines that were not reported yet."""
        lines = []
        for lifetime in lifetimes:
            days, line = lifetime.warned_days(now), lifetime.line(now)
            if days is None or line is None or self._told.get(lifetime.what) == (lifetime.ends, days):
                continue
            self._told[lifetime.what] = (lifetime.ends, days)
            lines.append(line)
        return lines
