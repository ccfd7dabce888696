"""Compilation of patterns from users, on a linear-time engine (google-re2). No other module compiles such a pattern.

A pattern of Python's `re` can take exponential time on a short text. RE2's time is bounded by pattern times text, and
its memory by `MAX_MEMORY`. The syntax is RE2's (https://github.com/google/re2/wiki/Syntax): no backreferences, no
lookaround.
"""

from __future__ import annotations

from collections.abc import Callable

import re2

from .errors import InvalidRequest

MAX_PATTERN_LENGTH = 1_000
MAX_MEMORY = 1 << 20
"""Maximum memory of one compiled pattern, in bytes."""


def full_matcher(pattern: str) -> Callable[[str], bool]:
    """Return a function that checks whether a whole text matches `pattern`.

    Raises `InvalidRequest` if the pattern is malformed or too large.
    """
    if len(pattern) > MAX_PATTERN_LENGTH:
        raise InvalidRequest("invalid_request", f"a pattern has at most {MAX_PATTERN_LENGTH} characters")
    options = re2.Options()
    options.log_errors = False
    options.max_mem = MAX_MEMORY
    try:
        compiled = re2.compile(pattern, options=options)
    except re2.error as error:
        raise InvalidRequest("invalid_request", f"{pattern[:64]!r} is not a valid RE2 pattern: {error}") from None
    return lambda text: compiled.fullmatch(text) is not None
