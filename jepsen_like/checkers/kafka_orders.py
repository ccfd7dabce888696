"""Anomalies of order: `poll-skip`, `nonmonotonic-poll`, `nonmonotonic-send`, and the same within one operation
(`int-…`).

A reader should advance by one position of a key from value to value. *Skip*: it advanced by more. *Nonmonotonic*: it
stayed or went back. Sends within one operation follow the same rule; between two operations other processes may send,
so only going back is an anomaly.

A process continues where its last successful poll ended. Polls that failed or are indeterminate are judged, but do not
move it: an aborted transaction has to rewind. `assign` and `subscribe` keep only the positions of the keys that they
name. Sends count if they succeeded or are indeterminate.

Keys that a group revoked or assigned while the operation ran are not judged within it. If every operation names these
(`rebalances_told`), the process loses its position in them, and all other moves are judged.

Source: Jepsen's checker for Kafka.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, TypeAlias

from .kafka_log import Done, Key, KeyLog, LogHistory, Pair, Value, keys_of, proof

Found: TypeAlias = tuple[str, dict[str, Any]]
"""The anomaly's name and its description."""


def orders(history: LogHistory, *, rebalances_told: bool = False) -> Iterator[Found]:
    """Yield all anomalies, in the order of the history."""
    by_seq = {done.seq: done for done in history.done}
    polled: dict[int | str, dict[Key, tuple[Value, Done]]] = {}
    sent: dict[int | str, dict[Key, tuple[Value, Done]]] = {}
    for seq, operation in enumerate(history.operations):
        if operation.f in {"assign", "subscribe"} and operation.kind in {"ok", "info"}:
            kept = set(keys_of(operation))
            for positions in (polled, sent):
                before = positions.get(operation.process, {})
                positions[operation.process] = {key: at for key, at in before.items() if key in kept}
        done = by_seq.get(seq)
        if rebalances_told:
            for key in operation.rebalanced:
                polled.get(operation.process, {}).pop(key, None)
        if done is None:
            continue
        yield from _within(done, history)
        yield from _polls_since(done, polled.setdefault(operation.process, {}), history)
        if done.kind != "fail":
            yield from _sends_since(done, sent.setdefault(operation.process, {}), history)


def _within(done: Done, history: LogHistory) -> Iterator[Found]:
    rebalanced = {str(key) if isinstance(key, int) else key for key in done.operation.rebalanced}
    for what, parts in (("poll", done.polls), ("send", done.sends)):
        for key, found in parts.items():
            if key in rebalanced:
                continue
            log = history.log(key)
            for (_, one), (_, other) in pairwise(found):
                told = _step(key, log, one, other)
                if told["delta"] > 1:
                    yield f"int-{what}-skip", {**told, "op": done.told, **proof(done)}
                elif told["delta"] < 1:
                    yield f"int-nonmonotonic-{what}", {**told, "op": done.told, **proof(done)}


def _polls_since(done: Done, positions: dict[Key, tuple[Value, Done]], history: LogHistory) -> Iterator[Found]:
    for key, found in done.polls.items():
        if found and key in positions:
            last, before = positions[key]
            told = _between(key, history.log(key), last, before, found, done)
            if told["delta"] > 1:
                yield "poll-skip", told
            elif told["delta"] < 1:
                yield "nonmonotonic-poll", told
        if found and done.kind == "ok":
            positions[key] = (found[-1][1], done)


def _sends_since(done: Done, positions: dict[Key, tuple[Value, Done]], history: LogHistory) -> Iterator[Found]:
    for key, found in done.sends.items():
        if key in positions:
            last, before = positions[key]
            told = _between(key, history.log(key), last, before, found, done)
            if told["delta"] < 1:
                yield "nonmonotonic-send", told
        positions[key] = (found[-1][1], done)


def _step(key: Key, log: KeyLog, one: Value, other: Value) -> dict[str, Any]:
    delta = log.delta(one, other)
    told: dict[str, Any] = {"key": key, "values": [one, other], "delta": delta}
    return {**told, "skipped": log.between(one, other)} if delta > 1 else told


def _between(key: Key, log: KeyLog, last: Value, before: Done, found: list[Pair], done: Done) -> dict[str, Any]:
    told = _step(key, log, last, found[0][1])
    return {**told, "ops": [before.told, done.told], "ops_seq": [before.seq, done.seq], **proof(before, done)}
