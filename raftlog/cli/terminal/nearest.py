"""The known name that a mistyped one probably means."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

_QUOTED = re.compile(r"'([^']{1,255})'")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ` Did you mean 'orders'?`, or nothing if no known name is close."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.6)
    close = close or [one for one in names if len(name) > 2 and one.startswith(name)][:3]
    if not close:
        return ""
    return f" Did you mean {' or '.join(repr(one) for one in close)}?"


def quoted_name(detail: str) -> str | None:
    """Return the name that an error about an unknown one quotes: `there is no topic 'orers'`."""
    match = _QUOTED.search(detail)
    return None if match is None else match[1]
