"""Anomalies of single records: lost writes, duplicates, aborted reads (G1a), precommitted reads and others.

| name | what |
|---|---|
| `inconsistent-offsets` | two values were seen at one offset of a key |
| `duplicate` | one value was seen at two offsets of a key; reading one offset twice is no duplicate |
| `G1a` | aborted read: a successful poll returned a value whose send failed |
| `precommitted-read` | an operation read its own send before it committed |
| `lost-write` | no poll returned a proven value, although a later value of its key was read |
| `unseen` | acknowledged values that no poll had returned by the end |
| `unexpected` | a poll returned a value that was never sent |

Source: Jepsen's checker for Kafka; `unexpected` raises an exception there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .kafka_log import Done, LogHistory, pairs, proof


def inconsistent_offsets(history: LogHistory) -> Iterator[dict[str, Any]]:
    for key, log in history.logs.items():
        for index, (offset, values) in enumerate(log.offsets.items()):
            if len(values) > 1:
                told = {"key": key, "offset": offset, "index": index, "values": values}
                yield told | proof(*(log.told[offset][value] for value in values))


def duplicates(history: LogHistory) -> Iterator[dict[str, Any]]:
    for key, log in history.logs.items():
        places: dict[Any, list[int]] = {}
        for offset, values in log.offsets.items():
            for value in values:
                places.setdefault(value, []).append(offset)
        for value, offsets in places.items():
            if len(offsets) > 1:
                told = {"key": key, "value": value, "count": len(offsets), "offsets": offsets}
                yield told | proof(*(log.told[offset][value] for offset in offsets))


def aborted_reads(history: LogHistory) -> Iterator[dict[str, Any]]:
    for done in history.done:
        if done.kind == "ok":
            for key, _, value in pairs(done.polls):
                writer = history.writer.get(key, {}).get(value)
                if writer is not None and writer.kind == "fail":
                    told = {"key": key, "value": value, "writer": writer.told, "reader": done.told}
                    yield told | proof(writer, done)


def precommitted_reads(history: LogHistory) -> Iterator[dict[str, Any]]:
    for done in history.done:
        sent = {(key, value) for key, _, value in pairs(done.sends)}
        for key, _, value in pairs(done.polls):
            if (key, value) in sent:
                yield {"key": key, "value": value, "op": done.told, **proof(done)}


def lost_writes(history: LogHistory) -> Iterator[dict[str, Any]]:
    """Values above the last one read are not judged here: they are only unseen."""
    for key, log in history.logs.items():
        seen = history.read_ok.get(key, {})
        bound = max((log.first[value] for value in seen if value in log.first), default=-1)
        for position in range(bound + 1):
            for value in log.last[position]:
                writer = history.writer.get(key, {}).get(value)
                if value not in seen and writer is not None and history.proven(writer):
                    last = max((v for v in seen if v in log.first), key=lambda v: log.first[v])
                    yield {
                        "key": key, "value": value, "index": position, "max_read_index": bound,
                        "writer": writer.told, "max_read": seen[last].told, **proof(writer, seen[last]),
                    }  # fmt: skip


def unseen(history: LogHistory) -> Iterator[dict[str, Any]]:
    missing: dict[Any, list[tuple[Any, Done]]] = {}
    for done in history.done:
        if done.kind == "ok":
            for key, _, value in pairs(done.sends):
                if value not in history.read_ok.get(key, ()):
                    missing.setdefault(key, []).append((value, done))
    for key, waiting in missing.items():
        told = {"key": key, "count": len(waiting), "values": [value for value, _ in waiting[:10]]}
        yield told | proof(*(done for _, done in waiting[:10]))


def unexpected(history: LogHistory) -> Iterator[dict[str, Any]]:
    for done in history.done:
        for key, offset, value in pairs(done.polls):
            if value not in history.tried.get(key, ()):
                yield {"key": key, "value": value, "offset": offset, "reader": done.told, **proof(done)}


def unseen_over_time(history: LogHistory) -> list[tuple[int, dict[Any, int]]]:
    """Return (time, unseen acknowledged values by key) after each operation that changed the number."""
    waiting: dict[Any, set[Any]] = {}
    seen: dict[Any, set[Any]] = {}
    series: list[tuple[int, dict[Any, int]]] = []
    for done in history.done:
        if done.kind != "ok":
            continue
        for key, _, value in pairs(done.polls):
            seen.setdefault(key, set()).add(value)
            waiting.get(key, set()).discard(value)
        for key, _, value in pairs(done.sends):
            if value not in seen.get(key, ()):
                waiting.setdefault(key, set()).add(value)
        counts = {key: len(values) for key, values in waiting.items() if values}
        if not series or series[-1][1] != counts:
            series.append((done.operation.time, counts))
    return series
