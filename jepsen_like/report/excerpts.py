"""The operations that prove an anomaly, with what happened around them. Pure.

A checker names operations by their `index` in the history, under `proof`, and nothing else that it tells is read: other
numbers, Jepsen's `index` of a record among them, are none of operations. Around each of them
a few lines before and after are shown, those of other processes too, and both ends of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from jepsen_like.histories.history import Operation

AROUND = 3
"""Lines before and after."""
OPERATIONS_MAX = 12
"""That one anomaly is shown with."""
TOLD_MAX = 10
"""Of one kind of anomaly."""
VALUE_CHARACTERS = 400


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a history, as it is shown."""

    index: int
    seconds: float
    process: str
    node: str
    kind: str
    f: str
    value: str
    error: str
    proves: bool


@dataclass(frozen=True, slots=True)
class Excerpt:
    """One anomaly."""

    told: str
    """What the checker says of it, as JSON."""
    lines: Sequence[Sequence[Line]]
    """Stretches of the history."""
    proving: frozenset[int] = frozenset()
    """Indexes of the operations that are marked, from both ends."""


def excerpts(found: Sequence[Mapping[str, Any]], history: Sequence[Operation]) -> list[Excerpt]:
    """Of one kind of anomaly, the first ones."""
    at = {operation.index: position for position, operation in enumerate(history)}
    return [_excerpt(one, history, at) for one in found[:TOLD_MAX]]


def _excerpt(one: Mapping[str, Any], history: Sequence[Operation], at: Mapping[int, int]) -> Excerpt:
    named = sorted({at[index] for index in indexes(one) if index in at})[:OPERATIONS_MAX]
    proving = set(named)
    for position in named:
        other = _other_end(history, position)
        if other is not None:
            proving.add(other)
    stretches = [
        [_line(history[place], place in proving) for place in stretch] for stretch in _stretches(proving, history)
    ]
    marked = frozenset(history[place].index for place in proving)
    return Excerpt(msgspec.json.format(msgspec.json.encode(one, enc_hook=repr)).decode(), stretches, marked)


def indexes(told: Mapping[str, Any]) -> list[int]:
    """Numbers of the operations that prove an anomaly; empty where none does."""
    return list(told.get("proof", ()))


def _other_end(history: Sequence[Operation], position: int) -> int | None:
    """Of a completion its invocation, of an invocation its completion."""
    one = history[position]
    if not isinstance(one.process, int):
        return None
    step = 1 if one.kind == "invoke" else -1
    place = position + step
    while 0 <= place < len(history):
        if history[place].process == one.process:
            return place
        place += step
    return None


def _stretches(proving: Iterable[int], history: Sequence[Operation]) -> list[range]:
    """Those lines and their neighbours; what overlaps is one."""
    found: list[range] = []
    for position in sorted(proving):
        first, behind = max(0, position - AROUND), min(len(history), position + AROUND + 1)
        if found and first <= found[-1].stop:
            found[-1] = range(found[-1].start, behind)
        else:
            found.append(range(first, behind))
    return found


def _line(operation: Operation, proves: bool) -> Line:
    return Line(
        operation.index,
        operation.time / 1e9,
        str(operation.process),
        operation.node,
        operation.kind,
        operation.f,
        _short(operation.value),
        _short(operation.error) if operation.error is not None else "",
        proves,
    )


def _short(value: Any) -> str:
    text = msgspec.json.encode(value, enc_hook=repr).decode()
    return text if len(text) <= VALUE_CHARACTERS else f"{text[:VALUE_CHARACTERS]}… ({len(text):,} characters)"
