"""Atomicity and exactly-once consumption of a log's transactions, beyond what `kafka.py` checks (S13).

| name | what |
|---|---|
| `torn-transaction` | intermediate read (G1b): some records of a transaction were read, a reader passed others |
| `consumed-twice` | lost update: two committed transactions of a group have both consumed a record |
| `consumed-by-none` | no committed transaction of a group consumed a record, although one consumed a later record |

The first also holds for indeterminate transactions. A reader has *passed* a record if it read a value of the same key
that was sent and acknowledged after the transaction had ended. Polls without a known answer, such as those of a killed
client, are an excuse: then `consumed-by-none` is not judged.

Aborted reads (`G1a`) and lost writes: `kafka_records.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from jepsen_like.histories.history import Operation

from .kafka_log import Done, Key, LogHistory, Value, pairs, proof
from .verdict import Verdict


def check(history: Sequence[Operation], *, consumes: bool = False) -> Verdict:
    """Judge a history of a log.

    `consumes`: processes subscribe, and a transaction commits the offsets of what it polled. Raises `InvalidRequest`
    for other histories.
    """
    prepared = LogHistory(history)
    found = {"torn-transaction": list(_torn(prepared, history))}
    measured: dict[str, Any] = {"transactions": sum(done.operation.f == "txn" for done in prepared.done)}
    if consumes:
        members = _members(prepared, history)
        found["consumed-twice"] = list(_twice(members))
        unknown = [done for done in prepared.done if done.operation.f == "txn" and done.kind == "info"]
        measured["untold"] = sum(map(_polls_are_untold, unknown))
        if not measured["untold"]:
            found["consumed-by-none"] = list(_by_none(prepared, members, unknown))
    anomalies = {name: listed for name, listed in found.items() if listed}
    return Verdict(not anomalies, anomalies, measured)


def _torn(prepared: LogHistory, history: Sequence[Operation]) -> Iterator[dict[str, Any]]:
    past = _read_past(prepared, history)
    for done in prepared.done:
        if done.operation.f != "txn" or done.kind == "fail":
            continue
        sent = [(key, value) for key, _, value in pairs(done.sends)]
        seen = [(key, value) for key, value in sent if value in prepared.read_ok.get(key, ())]
        if not seen:
            continue
        missing = [
            (key, value) for key, value in sent
            if value not in prepared.read_ok.get(key, ()) and key in past and past[key][0] > done.seq
        ]  # fmt: skip
        if missing:
            readers = [prepared.read_ok[key][value] for key, value in seen[:10]]
            later = [one for key, _ in missing[:10] for one in past[key][1:]]
            yield {"op": done.told, "seen": seen[:10], "missing": missing[:10], **proof(done, *readers, *later)}


def _read_past(prepared: LogHistory, history: Sequence[Operation]) -> dict[Key, tuple[int, Done, Done]]:
    """Return key → the latest invocation whose value was acknowledged and read, with its completion and its reader."""
    invoked: dict[int | str, int] = {}
    past: dict[Key, tuple[int, Done, Done]] = {}
    by_seq = {done.seq: done for done in prepared.done}
    for seq, operation in enumerate(history):
        if operation.kind == "invoke":
            invoked[operation.process] = seq
        done = by_seq.get(seq)
        if done is not None and done.kind == "ok":
            for key, _, value in pairs(done.sends):
                reader, began = prepared.read_ok.get(key, {}).get(value), invoked.get(operation.process, -1)
                if reader is not None and (key not in past or past[key][0] < began):
                    past[key] = (began, done, reader)
    return past


def _members(prepared: LogHistory, history: Sequence[Operation]) -> list[Done]:
    """Return the committed transactions of processes that read what a group assigned to them, in the order of their
    ends.
    """
    by_seq = {done.seq: done for done in prepared.done}
    subscribed: set[int | str] = set()
    found = []
    for seq, operation in enumerate(history):
        if operation.kind == "ok" and operation.f in {"assign", "subscribe"}:
            (subscribed.add if operation.f == "subscribe" else subscribed.discard)(operation.process)
        done = by_seq.get(seq)
        if done is not None and done.kind == "ok" and operation.f == "txn" and operation.process in subscribed:
            found.append(done)
    return found


def _twice(members: list[Done]) -> Iterator[dict[str, Any]]:
    by_value: dict[tuple[Key, Value], Done] = {}
    for done in members:
        for key, _, value in pairs(done.polls):
            before = by_value.setdefault((key, value), done)
            if before is not done:
                yield {"key": key, "value": value, "ops": [before.told, done.told], **proof(before, done)}


def _polls_are_untold(done: Done) -> bool:
    """Return whether it was to poll and the answer is unknown: its client was killed, or gave up."""
    return any(tuple(micro) == ("poll",) for micro in done.operation.value or ())


def _by_none(prepared: LogHistory, members: list[Done], unknown: list[Done]) -> Iterator[dict[str, Any]]:
    """Find records that no committed transaction consumed; those in `unknown` may have committed what they polled."""
    consumed: dict[Key, dict[Value, Done]] = {}
    for done in members:
        for key, _, value in pairs(done.polls):
            consumed.setdefault(key, {}).setdefault(value, done)
    perhaps = {(key, value) for done in unknown for key, _, value in pairs(done.polls)}
    for key, values in consumed.items():
        dense = prepared.log(key).dense
        last = max((position for position, value in enumerate(dense) if value in values), default=-1)
        for value in dense[:last]:
            if value not in values and (key, value) not in perhaps:
                writer = prepared.writer.get(key, {}).get(value)
                told = {"key": key, "value": value}
                yield told | proof(*([writer] if writer is not None else []), values[dense[last]])
