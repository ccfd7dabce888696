"""What a log may be held to that is not asked of Kafka.

| name | what |
|---|---|
| `realtime-send-inversion` | a send that was acknowledged before another of its partition began has the higher offset |
| `offset-hole` | an offset below the last one seen that no send and no poll tells of, where nothing leaves holes |
| `lost-beginning` | one who read a key again from its beginning, when all was healed, began above what must be there |

What must be there is what nothing may have deleted: all of it where the topic keeps all, else what is younger than the
topic keeps by a true clock, from before it was sent until after it was to be read.

A partition is one log with one leader at a time, so its appends are linearizable, and offsets are dense (S2).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

from .kafka_log import Done, Key, LogHistory, keys_of, pairs, proof

HOLES_TOLD_MAX = 20
"""Of one key."""
HEALED = "healed"
"""The note behind which last readers begin: each lets go of everything, then assigns keys to itself."""


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
                told = {"key": key, "offsets": [offset, min(offsets)], "ops": [earlier.told, done.told]}
                yield told | proof(earlier, done)
            if offsets and done.kind == "ok" and (key not in highest or highest[key][0] < max(offsets)):
                highest[key] = (max(offsets), done)


def offset_holes(history: LogHistory) -> Iterator[dict[str, Any]]:
    """Below the lowest offset that anybody saw nothing is judged: where the log begins is `lost_beginnings`' matter."""
    for key, log in history.logs.items():
        offsets = list(log.offsets)
        holes = [(one, other) for one, other in pairwise(offsets) if other != one + 1]
        for one, other in holes[:HOLES_TOLD_MAX]:
            beside = (next(iter(log.told[offset].values())) for offset in (one, other))
            yield {"key": key, "from": one + 1, "to": other - 1, **proof(*beside)}


def lost_beginnings(history: LogHistory, keeps_s: float, *, dense: bool) -> Iterator[dict[str, Any]]:
    """`keeps_s`: of the topics, in seconds by a true clock; infinite where they keep all. `dense`: every offset from 0
    on is a record that is read, not the mark or the leftover of a transaction."""
    appended = _appended(history)
    for reader, first in _first_reads(history):
        since = reader.operation.time - keeps_s * 1e9
        for key, offset in first.items():
            all_of_it = dense and keeps_s == math.inf
            kept = 0 if all_of_it else _young(appended.get(key, {}), since)
            if kept is not None and offset > kept:
                yield {"key": key, "offset": offset, "expected": kept, "reader": reader.told, **proof(reader)}


def young_since(history: LogHistory, second: float) -> dict[Key, int]:
    """Key → the lowest offset that was certainly not there before this second of the run, where there is one."""
    found = {key: _young(appended, second * 1e9) for key, appended in _appended(history).items()}
    return {key: offset for key, offset in found.items() if offset is not None}


def _young(appended: Mapping[int, float], since: float) -> int | None:
    return min((offset for offset, began in appended.items() if began >= since), default=None)


def _appended(history: LogHistory) -> dict[Key, dict[int, float]]:
    """Key → offset → the earliest that it can have been appended; of what was only polled that is minus infinity."""
    began: dict[int, int] = {}
    running: dict[int | str, int] = {}
    for seq, operation in enumerate(history.operations):
        if operation.kind == "invoke":
            running[operation.process] = operation.time
        else:
            began[seq] = running.pop(operation.process, operation.time)
    found: dict[Key, dict[int, float]] = {
        key: dict.fromkeys(log.offsets, -math.inf) for key, log in history.logs.items()
    }
    for done in history.done:
        if history.proven(done):
            for key, offset, _ in pairs(done.sends):
                if offset is not None:
                    found[key][offset] = began[done.seq]
    return found


def _first_reads(history: LogHistory) -> Iterator[tuple[Done, dict[Key, int]]]:
    """Of everybody who reads from the beginning: each poll that was the first of a key, and the first offset of it."""
    by_seq = {done.seq: done for done in history.done}
    healed = False
    let_go: set[int | str] = set()
    unread: dict[int | str, set[Key]] = {}
    for seq, operation in enumerate(history.operations):
        process = operation.process
        healed = healed or operation.f == HEALED
        if operation.f in {"assign", "subscribe"} and operation.kind in {"ok", "info", "fail"}:
            keys = set(keys_of(operation)) if operation.f == "assign" and operation.kind == "ok" else None
            unread[process] = keys if keys and process in let_go else set()
            (let_go.add if healed and keys is not None and not keys else let_go.discard)(process)
        elif seq in by_seq:
            done = by_seq[seq]
            offsets = {
                key: found[0][0] for key, found in done.polls.items() if found and key in unread.get(process, ())
            }
            unread.get(process, set()).difference_update(offsets)
            yield done, {key: offset for key, offset in offsets.items() if offset is not None}
