"""Atomicity of named positions and their records: each transaction moves both or neither (S13).

Operations are `cas`: `[name, [from, to], number]`, a transaction that moves a position and writes one record with that
number; `records`: all readable numbers, in order; and `read`: `[name, position]`.

| name | what |
|---|---|
| `position-without-record` | a move was acknowledged, but a later read does not have its record |
| `record-without-position` | aborted read: a move failed, but its record was read |
| `record-twice` | a record was read twice |
| `unexpected-record` | a record was read that no operation wrote |
| `broken-chain` | the moves whose records can be read do not lead, one by one, from nothing to the last position |

The last one also covers indeterminate moves: a move that was committed without its record leaves a gap, and a record
without its move does not fit. The positions as registers: `keyed.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from jepsen_like.histories.history import Call, Operation, calls

from .verdict import Verdict


def check(history: Sequence[Operation]) -> Verdict:
    """Judge a history; unknown if the records were never read after the last move. Raises `InvalidRequest`."""
    done = calls([one for one in history if one.f in {"cas", "records", "read"}])
    moves = {call.invocation.value[2]: call for call in done if call.invocation.f == "cas"}
    last = max((call.called for call in moves.values()), default=-1)
    reads = [call for call in done if call.invocation.f == "records" and call.kind == "ok" and call.called > last]
    if not reads or not moves:
        return Verdict(None, {}, {"reason": "the history has no move, or no read of the records after the last move"})
    found: dict[str, list[dict[str, Any]]] = {}
    for read in reads:
        assert read.completion is not None
        seen = Counter(read.completion.value)
        for name, told in (*_records(seen, moves), *_chains(seen, moves, _positions(done, read))):
            found.setdefault(name, []).append({"read": read.completion.index, **told})
            found[name][-1]["proof"] = sorted({read.completion.index, *told["proof"]})
    return Verdict(not found, found, {"moves": len(moves), "reads": len(reads)})


def _records(seen: Counter[Any], moves: dict[Any, Call]) -> list[tuple[str, dict[str, Any]]]:
    found: list[tuple[str, dict[str, Any]]] = []
    for number, call in moves.items():
        told = {"number": number, "cas": call.invocation.index, "proof": [call.invocation.index]}
        if call.kind == "ok" and number not in seen:
            found.append(("position-without-record", told))
        if call.kind == "fail" and number in seen:
            found.append(("record-without-position", told))
    for number, count in seen.items():
        named = [moves[number].invocation.index] if number in moves else []
        if count > 1:
            found.append(("record-twice", {"number": number, "proof": named}))
        if not named:
            found.append(("unexpected-record", {"number": number, "proof": []}))
    return found


def _chains(
    seen: Counter[Any], moves: dict[Any, Call], positions: dict[Any, tuple[Any, int]]
) -> list[tuple[str, dict[str, Any]]]:
    by_name: dict[Any, list[tuple[int, Any, int]]] = {}
    for number in seen:
        if number in moves:
            name, (came_from, to) = moves[number].invocation.value[:2]
            by_name.setdefault(name, []).append((to, came_from, moves[number].invocation.index))
    found: list[tuple[str, dict[str, Any]]] = []
    for name in sorted({*by_name, *positions}):
        at: Any = None
        last: list[int] = []
        for to, came_from, index in sorted(by_name.get(name, ()), key=lambda move: move[0]):
            if came_from != at:
                found.append(
                    ("broken-chain", {"name": name, "at": at, "from": came_from, "to": to, "proof": [*last, index]})
                )
            at, last = to, [index]
        if name in positions and positions[name][0] != at:
            position, index = positions[name]
            found.append(("broken-chain", {"name": name, "at": at, "position": position, "proof": [*last, index]}))
    return found


def _positions(done: list[Call], read: Call) -> dict[Any, tuple[Any, int]]:
    """Return name → the position and the index of its read, from reads after every move, as those of the records."""
    last = max(call.called for call in done if call.invocation.f == "cas")
    found = {}
    for call in done:
        if call.invocation.f == "read" and call.kind == "ok" and call.called > last and call.completion is not None:
            name, position = call.completion.value[:2]
            found[name] = (position, call.completion.index)
    return found
