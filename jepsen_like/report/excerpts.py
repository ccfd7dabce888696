"""Excerpts of a history: the operations that prove an anomaly, with their surroundings. Pure.

A checker names operations by their `index` in the history, under `proof`, and only that is read: other numbers in an
anomaly, such as Jepsen's `index` of a record, are not operations. The excerpt shows both ends of each operation, with a
few lines before and after, of all processes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from jepsen_like.histories.history import Operation

AROUND = 3
"""Lines before and after an operation."""
OPERATIONS_MAX = 12
"""Limit of proving operations for one anomaly."""
TOLD_MAX = 10
"""Limit of anomalies of one kind."""
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
    """The checker's description, as JSON."""
    lines: Sequence[Sequence[Line]]
    """Sections of the history."""
    proving: frozenset[int] = frozenset()
    """Indexes of the marked lines: both ends of every proving operation."""


def excerpts(found: Sequence[Mapping[str, Any]], history: Sequence[Operation]) -> list[Excerpt]:
    """Return excerpts for the first anomalies of one kind."""
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
    """Return the indexes of the operations that prove an anomaly; empty if there are none."""
    return list(told.get("proof", ()))


def _other_end(history: Sequence[Operation], position: int) -> int | None:
    """Return the completion of an invocation, or the invocation of a completion."""
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
    """Return these lines with their surroundings; overlapping sections are joined."""
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
