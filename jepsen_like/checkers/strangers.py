"""Strangers at a secured cluster: nothing was disclosed, read, written or changed without a right (S12).

| name | what |
|---|---|
| `stranger-told` | a node did not refuse a request, though its credential never opened anything |
| `right-outlived` | a node did not refuse a request, though the right of its credential had ended |
| `stream-outlived` | a stream whose right had ended was still open when the run ended |
| `stranger-made` | something that only strangers ask for is in the cluster, or a record of theirs was read |
| `stranger-changed` | something that they ask to delete or to change was |

A right ends when the cluster has decided so. A node must act on it one second after it has learnt of it, whatever
happens to it later, and without faults one second after the decision. While a node is cut off, or catches up, it cannot
have learnt: then the first rule alone applies. The decision of a right that expires is its time, which is the
cluster's, so it is judged only where no clock is wrong.

A verdict is unknown if a kind of stranger, or of door, was never refused, if no right was of any use before it ended,
or if none ended: such a run has tested nothing.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jepsen_like.histories.history import Operation

from .verdict import Verdict

ACTOR = "strangers"
ASKED, HELD, OVER, ENDED, LEARNT, FINAL = "asked", "held", "over", "ended", "learnt", "final"
"""The notes: an answer; one on a stream that is held open; its end; the end of a right; a node that knows of it; the
state of the cluster at the end."""
HEALED = "healed"
SECOND = 1_000_000_000
LATE = SECOND
"""Nanoseconds that a node has to act."""
SCHEDULING = SECOND
"""More for answers on open streams: they are timed when the suite, on few cores, gets to read them."""
CATCHING_UP = 15 * SECOND
"""After a fault, the time until a node has learnt what was decided meanwhile."""
GRANTED = frozenset({"told", "nothing"})
TOLD_MAX = 20


@dataclass(slots=True)
class _Known:
    """The rights, and the times at which they ended."""

    decided: dict[str, int] = field(default_factory=dict)
    learnt: dict[tuple[str, str], int] = field(default_factory=dict)
    """(right, node) → the time at which the node was seen to know."""
    troubles: list[tuple[int, int]] = field(default_factory=list)
    """The times of faults, of all nodes together, with those of catching up."""

    def limit(self, right: str, node: str, at: int) -> int | None:
        """Return the time until which the node may still honour the right; None: nothing is known yet."""
        limits = []
        if (right, node) in self.learnt:
            limits.append(self.learnt[right, node] + LATE)
        decided = self.decided.get(right)
        if decided is not None and not any(began <= at and ended >= decided for began, ended in self.troubles):
            limits.append(decided + LATE)
        return min(limits, default=None)


def check(history: Sequence[Operation]) -> Verdict:
    """Judge a history with the notes of strangers."""
    notes = [one for one in history if one.process == ACTOR and isinstance(one.value, Mapping)]
    known = _known(history, notes)
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    useful = 0
    for note in notes:
        if note.f not in (ASKED, HELD):
            continue
        value = note.value
        counts[f"as {value['as']}"][value["outcome"]] += 1
        counts[f"at {value['door']}"][value["outcome"]] += 1
        if value["outcome"] not in GRANTED or value.get("allowed"):
            continue
        told = {"as": value["as"], "door": value["door"], "node": note.node, "told": value["told"],
                "proof": [note.index]}  # fmt: skip
        right = value.get("right", "")
        if not right:
            found["stranger-told"].append(told)
            continue
        at = value["began"] if note.f == ASKED else note.time - SCHEDULING
        limit = known.limit(right, note.node, at)
        if limit is not None and at > limit:
            found["right-outlived"].append({**told, "late_s": round((at - limit) / SECOND + 1, 2)})
        else:
            useful += 1
    found["stream-outlived"] += _open_streams(notes, known)
    for name, each in _made(history, notes):
        found[name].append(each)
    anomalies = {name: each[:TOLD_MAX] for name, each in found.items() if each}
    measured: dict[str, Any] = {name: dict(each) for name, each in sorted(counts.items())} | {
        "rights_ended": len(known.decided),
        "used_before_their_end": useful,
    }
    blind = [name for name, each in counts.items() if not each["refused"] and not _is_open(name, notes)]
    tested = bool(notes) and known.decided and useful and not blind and any(note.f == FINAL for note in notes)
    if blind:
        measured["never_refused"] = sorted(blind)
    return Verdict(False if anomalies else True if tested else None, anomalies, measured)


def _known(history: Sequence[Operation], notes: Sequence[Operation]) -> _Known:
    known = _Known()
    for note in notes:
        if note.f == ENDED:
            known.decided.setdefault(note.value["right"], note.value.get("at", note.time))
        elif note.f == LEARNT:
            known.learnt.setdefault((note.value["right"], note.node), note.time)
    for note in history:
        if note.process == "nemesis" and isinstance(note.value, Mapping) and "began" in note.value:
            known.troubles.append((note.value["began"], note.time + CATCHING_UP))
        elif note.f == HEALED and not isinstance(note.process, int):
            # The heal itself may start nodes again.
            known.troubles.append((note.time, note.time + CATCHING_UP))
    return known


def _open_streams(notes: Sequence[Operation], known: _Known) -> Iterator[dict[str, Any]]:
    """Yield the streams of ended rights that were open at the end."""
    over = {note.value["stream"] for note in notes if note.f == OVER}
    end = max((note.time for note in notes), default=0)
    seen: set[str] = set()
    for note in notes:
        if note.f != HELD or note.value["stream"] in over | seen or note.value["outcome"] not in GRANTED:
            continue
        seen.add(note.value["stream"])
        limit = known.limit(note.value["right"], note.node, end)
        if limit is not None and end - SCHEDULING > limit:
            yield {"as": note.value["as"], "node": note.node, "stream": note.value["stream"], "proof": [note.index]}


def _made(history: Sequence[Operation], notes: Sequence[Operation]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield what strangers made or changed."""
    for note in notes:
        if note.f == FINAL:
            for name in note.value["made"]:
                yield "stranger-made", {"found": name, "proof": [note.index]}
            for name in note.value["changed"]:
                yield "stranger-changed", {"changed": name, "proof": [note.index]}
    values = {note.value["value"] for note in notes if note.f == FINAL}
    for operation in history:
        if isinstance(operation.process, int) and operation.kind == "ok":
            for value in values:
                if _holds(operation.value, value):
                    yield "stranger-made", {"found": f"a record {value}", "proof": [operation.index]}


def _holds(value: Any, wanted: int) -> bool:
    """Return whether a completion's value holds a number, however deep."""
    if isinstance(value, Mapping):
        return any(_holds(one, wanted) for one in value.values())
    if isinstance(value, list | tuple):
        return any(_holds(one, wanted) for one in value)
    return value == wanted and not isinstance(value, bool)


def _is_open(name: str, notes: Sequence[Operation]) -> bool:
    """Return whether every user may use the door: then strangers without a credential alone are refused."""
    return all(
        note.value.get("allowed") or note.value["outcome"] in ("silent", "unavailable")
        for note in notes
        if note.f in (ASKED, HELD) and name in (f"at {note.value['door']}", f"as {note.value['as']}")
    )
