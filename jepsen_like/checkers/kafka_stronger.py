"""What a log may be held to that is not asked of Kafka.

| name | what |
|---|---|
| `realtime-send-inversion` | a send that was acknowledged before another of its partition began has the higher offset |
| `offset-hole` | an offset below the last one seen that no send and no poll tells of, where nothing leaves holes |

A partition is one log with one leader at a time, so its appends are linearizable, and offsets are dense (S2).
What is *not* here: what Jepsen asks for (`kafka_records.py`, `kafka_orders.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from .kafka_log import Done, LogHistory

HOLES_TOLD_MAX = 20
"""Of one key."""


def real_time_inversions(history: LogHistory) -> Iterator[dict[str, Any]]:
    """In one pass: for each key the highest offset that was acknowledged so far, and what it was when each began."""
    by_seq = {done.seq: done for done in history.done}
    highest: dict[Any, tuple[int, Done]] = {}
    before: dict[int | str, dict[Any, tuple[int, Done]]] = {}
    for seq, operation in enumerate(history.operations):
        if operation.kind == "invoke":
            before[operation.process] = dict(highest)
            continue
        done = by_seq.get(seq)
        if done is None or done.kind == "fail":
            continue
        known = before.get(operation.process, {})
        for key, sends in done.sends.items():
            offsets = [offset for offset, _ in sends if offset is not None]
            if offsets and key in known and known[key][0] >= min(offsets):
                offset, earlier = known[key]
                yield {"key": key, "offsets": [offset, min(offsets)], "ops": [earlier.told, done.told]}
            if offsets and done.kind == "ok" and (key not in highest or highest[key][0] < max(offsets)):
                highest[key] = (max(offsets), done)


def offset_holes(history: LogHistory) -> Iterator[dict[str, Any]]:
    """Below the lowest offset that anybody saw nothing is judged: the log may begin there."""
    for key, log in history.logs.items():
        offsets = list(log.offsets)
        holes = [{"key": key, "from": one + 1, "to": other - 1} for one, other in pairwise(offsets) if other != one + 1]
        yield from holes[:HOLES_TOLD_MAX]
