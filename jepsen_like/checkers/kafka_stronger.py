"""Stronger demands on a log than those of Jepsen's Kafka checker: real-time order, dense offsets, a complete beginning.

| name | what |
|---|---|
| `realtime-send-inversion` | a send that completed before another of its partition was invoked has the higher offset |
| `offset-hole` | no send and no poll reports an offset below the last one seen, in a log without holes |
| `lost-beginning` | a reader that started a key from its beginning after the heal began above what must exist |

What must exist is what cannot have been deleted: everything if the topic retains all, otherwise the records that are
younger than the retention by a true clock, measured from before the send until after the read.

A partition is one log with one leader at a time, so its appends are linearizable, and its offsets are dense (S2).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

from .kafka_log import Done, Key, LogHistory, keys_of, pairs, proof

HOLES_TOLD_MAX = 20
"""Limit for one key."""
HEALED = "healed"
"""The note after which final readers begin: each assigns nothing, and then assigns keys to itself."""


def real_time_inversions(history: LogHistory) -> Iterator[dict[str, Any]]:
    """Find inversions in one pass: track each key's highest acknowledged offset, and its value at each invocation."""
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
    """Nothing below the lowest offset that was seen is judged: the log's beginning belongs to `lost_beginnings`."""
    for key, log in history.logs.items():
        offsets = list(log.offsets)
        holes = [(one, other) for one, other in pairwise(offsets) if other != one + 1]
        for one, other in holes[:HOLES_TOLD_MAX]:
            beside = (next(iter(log.told[offset].values())) for offset in (one, other))
            yield {"key": key, "from": one + 1, "to": other - 1, **proof(*beside)}


def lost_beginnings(history: LogHistory, keeps_s: float, *, dense: bool) -> Iterator[dict[str, Any]]:
    """Find readers that began too late.

    `keeps_s`: the topics' retention in seconds by a true clock; infinite if they retain all. `dense`: every offset from
    0 on is a record that polls return, never a marker or a remnant of a transaction.
    """
    appended = _appended(history)
    for reader, first in _first_reads(history):
        since = reader.operation.time - keeps_s * 1e9
        for key, offset in first.items():
            all_of_it = dense and keeps_s == math.inf
            kept = 0 if all_of_it else _young(appended.get(key, {}), since)
            if kept is not None and offset > kept:
                yield {"key": key, "offset": offset, "expected": kept, "reader": reader.told, **proof(reader)}


def young_since(history: LogHistory, second: float) -> dict[Key, int]:
    """Return key → the lowest offset that was certainly appended after this second of the run, if there is one."""
    found = {key: _young(appended, second * 1e9) for key, appended in _appended(history).items()}
    return {key: offset for key, offset in found.items() if offset is not None}


def _young(appended: Mapping[int, float], since: float) -> int | None:
    return min((offset for offset, began in appended.items() if began >= since), default=None)


def _appended(history: LogHistory) -> dict[Key, dict[int, float]]:
    """Return key → offset → the earliest time of its append; minus infinity for a value that was only polled."""
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
    """Yield each poll of a reader from the beginning that was its first of some keys, with their first offsets."""
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
