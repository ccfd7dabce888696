"""Commits of a group's members: nobody commits what was given to another one (S8).

| name | what |
|---|---|
| `fenced-commit` | a commit was taken of a partition that another process was given after its own |

Operations are `poll`, whose answer names the keys that the process got (`{"assigned": [...]}`), and `commit`: `[key,
offset]`. A poll takes time, and an assignment takes place somewhere in it. So an assignment is after another only where
its poll began when that of the other had ended, and a commit is after it where it began when the poll had ended: what
may have been otherwise is not judged. Neither is a commit of an offset that was committed before: it changes nothing,
and a member that knows so does not even send it.

Offsets that are lost or go back: `keyed.py`.
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
    """Unknown where nobody was ever given anything, or nothing was committed."""
    assignments: dict[Any, list[_Assignment]] = {}
    commits = []
    for call in calls([one for one in history if one.f in {"poll", "commit"}]):
        completion = call.completion
        if completion is None:
            continue
        if call.invocation.f == "commit" and completion.kind == "ok":
            commits.append(call)
        elif call.invocation.f == "poll" and isinstance(completion.value, Mapping):
            # The end as it was told: also a poll that failed may have been given something.
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
        return Verdict(None, {}, {"reason": "there is no assignment, or no commit"})
    measured = {"commits": len(commits), "assignments": sum(map(len, assignments.values()))}
    return Verdict(not found, {"fenced-commit": found} if found else {}, measured)


def _first_commits(history: Sequence[Operation]) -> dict[tuple[Any, Any], int]:
    """(Key, offset) → where somebody first began to commit it, whatever became of that."""
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
