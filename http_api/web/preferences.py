"""Preferences of a client (RFC 7240): `Prefer: wait=N`, the seconds for which it is willing to wait for an answer."""

from __future__ import annotations

import re

from aiohttp import web

APPLIED = "Preference-Applied"
_WAIT = re.compile(r"\s*wait\s*=\s*\"?([0-9]{1,6})\"?\s*(?:;.*)?", re.IGNORECASE)


def wait_ms(request: web.Request, most_ms: int) -> int | None:
    """Return the preferred wait, at most `most_ms`; None if the client names none that can be read, because a
    preference is never an error."""
    for one in ",".join(request.headers.getall("Prefer", [])).split(","):
        match = _WAIT.fullmatch(one)
        if match is not None:
            return min(int(match[1]) * 1000, most_ms)
    return None


def applied(waited_ms: int | None) -> dict[str, str]:
    """Return the header that tells which wait was applied; none for None."""
    return {} if waited_ms is None else {APPLIED: f"wait={waited_ms // 1000}"}
