"""Fencing of a group's commits: no process commits a partition that was reassigned to another (S8).

| name | what |
|---|---|
| `fenced-commit` | a commit succeeded although the partition had been assigned to another process after the committer |

Operations are `poll`, whose completion names the keys assigned to the process (`{"assigned": [...]}`), and `commit`:
`[key, offset]`. A poll takes time, and the assignment happens at some moment of it. So one assignment is later than
another only if its poll was invoked after the other's had completed, and a commit is later than an assignment if it was
invoked after the poll had completed; whatever may have been concurrent is not judged. Neither is a commit of an offset
that was committed before: it changes nothing, and a member that knows so does not even send it.

Lost offsets and offsets that went back: `keyed.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jepsen_like.histories.history import Operation, calls

from .verdict import Verdict


@dataclass(frozen=True, slots=True)
class _Assignment:
    process: int | str
    began: int
    ended: int


def check(history: Sequence[Operation]) -> Verdict:
    """Judge a history; unknown if no key was ever assigned, or nothing was committed."""
    assignments: dict[Any, list[_Assignment]] = {}
    commits = []
    for call in calls([one for one in history if one.f in {"poll", "commit"}]):
        completion = call.completion
        if completion is None:
            continue
        if call.invocation.f == "commit" and completion.kind == "ok":
            commits.append(call)
        elif call.invocation.f == "poll" and isinstance(completion.value, Mapping):
            # Take the value of any completion: even a failed poll may have been assigned something.
            one = _Assignment(completion.process, call.invocation.index, completion.index)
            for key in completion.value.get("assigned", ()):
                assignments.setdefault(key, []).append(one)
    found = []
    first = _first_commits(history)
    for call in commits:
        key, offset = call.invocation.value[:2]
        if first[key, offset] < call.invocation.index:
            continue
        taken = _taken_since(assignments.get(key, []), call.invocation)
        if taken is not None:
            told = {"index": call.invocation.index, "process": call.invocation.process}
            found.append({"key": key, "offset": offset, "commit": told, "assigned_to": taken.process})
            found[-1]["proof"] = [call.invocation.index, taken.ended]
    if not assignments or not commits:
        return Verdict(None, {}, {"reason": "the history has no assignment, or no commit"})
    measured = {"commits": len(commits), "assignments": sum(map(len, assignments.values()))}
    return Verdict(not found, {"fenced-commit": found} if found else {}, measured)


def _first_commits(history: Sequence[Operation]) -> dict[tuple[Any, Any], int]:
    """Return (key, offset) → index of the first invocation of its commit, whatever its outcome."""
    found: dict[tuple[Any, Any], int] = {}
    for one in history:
        if one.f == "commit" and one.kind == "invoke":
            key, offset = one.value[:2]
            found.setdefault((key, offset), one.index)
    return found


def _taken_since(assignments: list[_Assignment], commit: Operation) -> _Assignment | None:
    own = max(
        (one.ended for one in assignments if one.process == commit.process and one.ended < commit.index), default=-1
    )
    return next(
        (one for one in assignments if one.process != commit.process and own < one.began and one.ended < commit.index),
        None,
    )
