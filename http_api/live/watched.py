"""The paths that can be watched, and how often each is looked at."""

from __future__ import annotations

import re

MAX_PATH = 2_000
"""The longest path, with its query."""

_NAME = r"[^/?#]+"
_SECONDS: tuple[tuple[str, float], ...] = (
    (r"/v1/cluster", 2.0),
    (r"/v1/health", 2.0),
    (r"/v1/quorum", 2.0),
    (r"/v1/transactions", 2.0),
    (rf"/v1/topics/{_NAME}", 2.0),
    (rf"/v1/topics/{_NAME}/offsets", 2.0),
    (rf"/v1/groups/{_NAME}", 2.0),
    (r"/v1/timeline", 2.0),
    (r"/v1/topics", 5.0),
    (r"/v1/groups", 5.0),
    (r"/v1/cluster/partitions", 5.0),
    (r"/v1/replicas", 5.0),
    (rf"/v1/groups/{_NAME}/offsets", 5.0),
    (rf"/v1/plots/(?:nodes|topics/{_NAME}|groups/{_NAME})", 10.0),
)
"""Pattern of a path → seconds between two looks. Those that ask other nodes, or look at every partition, are rarer."""
_PATTERNS = tuple((re.compile(pattern), seconds) for pattern, seconds in _SECONDS)


def seconds_of(path: str) -> float | None:
    """Return the seconds between two looks at a path with its query; None: it cannot be watched."""
    if len(path) > MAX_PATH or not path.isascii() or not path.isprintable():
        return None
    bare = path.partition("?")[0]
    return next((seconds for pattern, seconds in _PATTERNS if pattern.fullmatch(bare)), None)
