"""The content of a valid access token, as far as raftlog uses it."""

from __future__ import annotations

import msgspec

from raftlog.security.principals import Principal


class AccessClaims(msgspec.Struct, frozen=True):
    """The user of a valid access token, and its end."""

    principal: Principal
    ends_ms: int
    """The time at which the token stops being accepted, in milliseconds since 1970."""
