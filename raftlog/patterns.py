"""Patterns from users, on a linear-time engine (google-re2): the one place where such a pattern is compiled.

A pattern of Python's `re` can be made to run for ever on a short text; RE2's time is bounded by pattern times text, and
its memory by `MAX_MEMORY`. The syntax is RE2's (https://github.com/google/re2/wiki/Syntax): no backreferences, no
lookaround.
"""

from __future__ import annotations

from collections.abc import Callable

import re2

from .errors import InvalidRequest

MAX_PATTERN_LENGTH = 1_000
MAX_MEMORY = 1 << 20
"""Bytes that one compiled pattern may use."""


def full_matcher(pattern: str) -> Callable[[str], bool]:
    """Whether a whole text fits `pattern`. Raises `InvalidRequest` for what is no pattern, or too large a one."""
    if len(pattern) > MAX_PATTERN_LENGTH:
        raise InvalidRequest("invalid_request", f"a pattern has at most {MAX_PATTERN_LENGTH} characters")
    options = re2.Options()
    options.log_errors = False
    options.max_mem = MAX_MEMORY
    try:
        compiled = re2.compile(pattern, options=options)
    except re2.error as error:
        raise InvalidRequest("invalid_request", f"{pattern[:64]!r} is no RE2 pattern: {error}") from None
    return lambda text: compiled.fullmatch(text) is not None
