"""The nodes' own logs: a broken invariant or an exception is an anomaly, whatever clients saw.

| name | what |
|---|---|
| `invariant` | a line that begins with `INVARIANT`: a node has detected a bug of its own |
| `exception` | a line with an exception, or with the traceback of a crash |

A line that is not JSON comes from a crash in native code, or from a node that was killed while it wrote: it is counted,
and judged if it mentions a traceback or a fatal error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from .verdict import Verdict

TOLD_MAX = 20
"""Limit for each anomaly."""
SHOWN_BYTES = 400
_FATAL = (b"Traceback (most recent call last)", b"Fatal Python error", b"Segmentation fault", b"INVARIANT")


def check(logs: Mapping[str, Iterable[bytes]]) -> Verdict:
    """Judge the log lines by node; unknown if there are none."""
    found: dict[str, list[dict[str, Any]]] = {}
    counts = {"lines": 0, "not_json": 0}
    for node, lines in logs.items():
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            counts["lines"] += 1
            name, is_json = _judged(line)
            counts["not_json"] += not is_json
            if name:
                told = {"node": node, "line": number, "text": line[:SHOWN_BYTES].decode(errors="replace").strip()}
                found.setdefault(name, []).append(told)
    anomalies = {name: listed[:TOLD_MAX] for name, listed in found.items()}
    return Verdict(not anomalies if counts["lines"] else None, anomalies, counts)


def _judged(line: bytes) -> tuple[str, bool]:
    """Return the anomaly's name, or an empty text, and whether the line is valid JSON."""
    try:
        told = msgspec.json.decode(line, type=dict[str, Any])
    except (msgspec.MsgspecError, ValueError):
        if _FATAL[-1] in line:
            return "invariant", False
        return ("exception" if any(word in line for word in _FATAL) else ""), False
    if str(told.get("event", "")).startswith("INVARIANT"):
        return "invariant", True
    return ("exception" if "exception" in told or b"Traceback" in line else ""), True
