"""The result of an authentication: the caller, and what it rests on."""

from __future__ import annotations

import msgspec

from raftlog.security.principals import Caller

NEVER = 0


class Authentication(msgspec.Struct, frozen=True):
    """A caller whose credentials were valid, and the conditions under which they remain so."""

    caller: Caller
    user: str = ""
    """The user of the quorum on whose record it rests; empty: on none."""
    user_version: int = 0
    """The version of that record."""
    token_id: str = ""
    """The token that was presented; empty: none."""
    ends_ms: int = NEVER
    """The time at which it ends, in milliseconds since 1970; 0: never."""
