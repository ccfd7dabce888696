"""What nodes said in their logs: a broken invariant or an exception is a finding, whatever clients saw.

| name | what |
|---|---|
| `invariant` | a line that begins with `INVARIANT`: a node has caught a bug of ours in the act |
| `exception` | a line with an exception, or with the traceback of something that died without a line of its own |

A line that is no JSON is what a crash in native code, or a node that was killed while it wrote, has left: it is
counted, and judged where it speaks of a traceback or a fatal error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from .verdict import Verdict

TOLD_MAX = 20
"""Of an anomaly."""
SHOWN_BYTES = 400
_FATAL = (b"Traceback (most recent call last)", b"Fatal Python error", b"Segmentation fault", b"INVARIANT")


def check(logs: Mapping[str, Iterable[bytes]]) -> Verdict:
    """Node → the lines of its log. Unknown where nobody has said anything."""
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
    """The anomaly's name, or nothing; and whether the line is as a node writes it."""
    try:
        told = msgspec.json.decode(line, type=dict[str, Any])
    except (msgspec.MsgspecError, ValueError):
        if _FATAL[-1] in line:
            return "invariant", False
        return ("exception" if any(word in line for word in _FATAL) else ""), False
    if str(told.get("event", "")).startswith("INVARIANT"):
        return "invariant", True
    return ("exception" if "exception" in told or b"Traceback" in line else ""), True
