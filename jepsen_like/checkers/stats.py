"""Sanity of a run: operations succeeded, clients stayed responsive, and the cluster recovered.

| name | what |
|---|---|
| `never-ok` | a kind of operation never succeeded: such a run has tested nothing |
| `client-exception` | a client ended with an exception that is not one of raftlog's errors |
| `client-stuck` | a client did not report an operation's outcome in time, or its process ended by itself |
| `not-recovered` | a part received no write in all the time that clients had after the last heal (S10) |

Source: Jepsen's stats checker and, from its reports, that hanging clients are an anomaly and not a footnote.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from jepsen_like.histories.history import Operation

from .verdict import Verdict

HEALED = "healed"
TOLD_MAX = 20
"""Limit for each anomaly."""


def check(history: Sequence[Operation], *, wanted: Iterable[str] = ()) -> Verdict:
    """Judge a history.

    `wanted`: the operations of which at least one must have succeeded; empty: all that were invoked, except `crash`.
    """
    counts: Counter[tuple[str, str]] = Counter()
    found: dict[str, list[dict[str, Any]]] = {}
    first: dict[str, int] = {}
    for operation in history:
        if not isinstance(operation.process, int):
            continue
        counts[operation.f, operation.kind] += 1
        first.setdefault(operation.f, operation.index)
        for key, name in (("exception", "client-exception"), ("client", "client-stuck")):
            if isinstance(operation.error, dict) and key in operation.error:
                told = {
                    "index": operation.index,
                    "process": operation.process,
                    "f": operation.f,
                    "proof": [operation.index],
                }
                found.setdefault(name, []).append({**told, "error": operation.error[key]})
    judged = set(wanted) or {f for f, _ in counts if f != "crash"}
    never = [
        {"f": f, "invoked": counts[f, "invoke"], **({"proof": [first[f]]} if f in first else {})}
        for f in sorted(judged)
        if not counts[f, "ok"]
    ]
    if never:
        found["never-ok"] = never
    measured = {f: {kind: counts[f, kind] for kind in ("ok", "fail", "info")} for f in sorted({f for f, _ in counts})}
    return Verdict(not found, {name: listed[:TOLD_MAX] for name, listed in found.items()}, measured)


def recovery(
    history: Sequence[Operation], *, parts: Callable[[Operation], Iterable[str]], writes: Iterable[str]
) -> Verdict:
    """Measure the time from the last heal until every part was written again; unknown if the history has no heal.

    `parts`: returns the parts of an operation.
    """
    kinds = set(writes)
    healed = max((one.time for one in history if one.f == HEALED), default=None)
    if healed is None:
        return Verdict(None, {}, {"reason": "the history does not contain the heal of the cluster"})
    tried: dict[str, int] = {}
    first: dict[str, int] = {}
    for operation in history:
        if operation.f in kinds and isinstance(operation.process, int):
            tried.update(dict.fromkeys(parts(operation), operation.index))
            if operation.kind == "ok" and operation.time >= healed:
                for part in parts(operation):
                    first.setdefault(part, operation.time)
    missing = sorted(tried - first.keys())
    seconds = None if missing or not first else round((max(first.values()) - healed) / 1e9, 3)
    anomalies = (
        {"not-recovered": [{"part": part, "proof": [tried[part]]} for part in missing[:TOLD_MAX]]} if missing else {}
    )
    return Verdict(not missing, anomalies, {"recovery_s": seconds})
