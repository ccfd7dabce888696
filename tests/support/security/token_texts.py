"""The secret part of a token's text."""

from __future__ import annotations

import re

_SECRET = re.compile(r"rlt_[a-z2-7]{12}_([A-Za-z0-9_-]{43})")


def secret_part(token: str) -> str:
    """Return the random part of a token. It may hold underscores of its own, so the form decides where it begins."""
    match = _SECRET.fullmatch(token)
    assert match is not None, "this is no token"
    return match[1]
