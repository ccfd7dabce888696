"""A set that only grows: lost and stale elements (Jepsen's set-full).

An element is *known* from the completion of its `add`, or of the first read that has it, whichever came first. Of the
reads that were invoked later, the last ones decide:

| outcome | what |
|---|---|
| stable | the last read has it |
| lost | it was known, and a read that was invoked later, and after every read that has it, does not have it |
| never read | no read saw it, and none was invoked after it was known |

| anomaly | what |
|---|---|
| `lost` | as above |
| `stale` | stale read: the element is stable in the end, but a read invoked after it was known does not have it |
| `duplicated` | a read has it more than once |
| `unexpected` | a read has an element that no operation had tried to add by then |

An element whose `add` is indeterminate may exist or not; one whose `add` failed must not (`unexpected`). Two times are
measured: until an element was stable, and until it was lost.

Source: Jepsen's set-full checker. O(reads x elements seen in them).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from jepsen_like.histories.history import Call, Operation, calls
from raftlog.errors import InvalidRequest

from .verdict import Verdict

TOLD_MAX = 50
"""Limit for each anomaly."""


@dataclass(slots=True)
class _Element:
    value: Any
    tried: int
    """Position of the first attempt to add it."""
    known: int | None = None
    """Position in the history from which it is known."""
    known_time: int = 0
    present: int = -1
    """Position of the latest invocation of a read that has it."""
    absent: int = -1
    """The same for reads that do not have it and were invoked after it was known."""
    present_time: int = 0
    absent_time: int = 0

    @property
    def outcome(self) -> str:
        if self.known is None:
            return "never-read"  # and no read returned it
        if self.absent > self.present:
            return "lost"
        return "stable" if self.present >= 0 else "never-read"


def check(history: Sequence[Operation], *, linearizable: bool = True) -> Verdict:
    """Judge a history of `add`: element, and `read`: list of elements; unknown if no element ever became stable.

    `linearizable`: whether stale reads make the history invalid; they are reported in any case. Raises `InvalidRequest`
    for other histories.
    """
    elements: dict[Any, _Element] = {}
    failed: dict[Any, int] = {}
    reads: list[tuple[Call, Counter[Any]]] = []
    for call in calls(history):
        f, asked = call.invocation.f, call.invocation.value
        if f == "add":
            _added(call, asked, elements, failed)
        elif f == "read" and call.kind == "ok":
            assert call.completion is not None
            reads.append((call, _counted(call, call.completion.value)))
    found: dict[str, list[dict[str, Any]]] = {"unexpected": [], "duplicated": [], "lost": [], "stale": []}
    for call, seen in reads:
        _read_has(call, seen, elements, failed, found)
    reads.sort(key=lambda read: read[0].called)
    for element in elements.values():
        _read_has_not(element, reads)
    outcomes = Counter(element.outcome for element in elements.values())
    for element in elements.values():
        _judged(element, found, history)
    anomalies = {name: listed[:TOLD_MAX] for name, listed in found.items() if listed}
    valid: bool | None = not (anomalies.keys() - (set() if linearizable else {"stale"}))
    if valid and not outcomes["stable"]:
        valid = None
    return Verdict(valid, anomalies, {**outcomes, **_latencies(elements.values()), "reads": len(reads)})


def _added(call: Call, asked: Any, elements: dict[Any, _Element], failed: dict[Any, int]) -> None:
    if call.kind == "fail":
        failed[asked] = call.invocation.index
        return
    element = elements.setdefault(asked, _Element(asked, call.called))
    if call.kind == "ok" and call.completion is not None and (element.known is None or call.returned < element.known):
        element.known, element.known_time = call.returned, call.completion.time


def _counted(call: Call, value: Any) -> Counter[Any]:
    if not isinstance(value, Iterable) or isinstance(value, str):
        raise InvalidRequest("invalid_request", f"operation {call.returned}: the answer of a set's read must be a list")
    return Counter(value)


def _read_has(
    call: Call,
    seen: Counter[Any],
    elements: dict[Any, _Element],
    failed: dict[Any, int],
    found: dict[str, list[dict[str, Any]]],
) -> None:
    assert call.completion is not None
    index = call.completion.index
    for value, count in seen.items():
        element = elements.get(value)
        if element is None or call.returned < element.tried:
            named = [index, failed[value]] if element is None and value in failed else [index]
            why = "its addition failed" if element is None and value in failed else "no operation had added it"
            found["unexpected"].append({"element": value, "read": index, "why": why, "proof": named})
            continue
        if count > 1:
            found["duplicated"].append({"element": value, "read": index, "count": count, "proof": [index]})
        if element.known is None or call.returned < element.known:
            element.known, element.known_time = call.returned, call.completion.time
        if call.called > element.present:
            element.present, element.present_time = call.called, call.invocation.time


def _read_has_not(element: _Element, reads: list[tuple[Call, Counter[Any]]]) -> None:
    """Find, from the end, the last read that was invoked after the element was known and does not have it."""
    if element.known is None:
        return
    for call, seen in reversed(reads):
        if call.called < element.known:
            return
        if element.value not in seen:
            element.absent, element.absent_time = call.called, call.invocation.time
            return


def _judged(element: _Element, found: dict[str, list[dict[str, Any]]], history: Sequence[Operation]) -> None:
    """Record the anomalies of an element.

    The proof is the operation that made it known, the latest read that has it, and the latest that does not.
    """
    places = (element.known, element.present, element.absent)
    named = sorted({history[place].index for place in places if place is not None and place >= 0})
    times = {"element": element.value, "known_at": element.known_time, "proof": named}
    if element.outcome == "lost":
        last = element.present_time if element.present >= 0 else None
        found["lost"].append({**times, "last_present_at": last, "absent_at": element.absent_time})
    elif element.outcome == "stable" and element.absent >= 0:
        found["stale"].append({**times, "absent_at": element.absent_time})


def _latencies(elements: Iterable[_Element]) -> dict[str, Any]:
    """Return the longest time, in milliseconds, from when an element was known until it was stable."""
    stale = [one for one in elements if one.outcome == "stable" and one.absent >= 0]
    return {"stable_after_ms_max": max(((one.absent_time - one.known_time) // 1_000_000 for one in stale), default=0)}
