"""Whether a run was one at all, and whether clients were well again after it.

| name | what |
|---|---|
| `never-ok` | a kind of operation that never succeeded: a run in which nothing happened has passed nothing |
| `client-exception` | a client ended in an exception that no error of raftlog is |
| `client-stuck` | a client did not say in time what became of an operation, or its process ended by itself |
| `not-recovered` | what was not written to again, in all the time that clients had after the last heal (S10) |

Jepsen's statistics and, from its reports, that clients which hang are a verdict and no footnote.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from jepsen_like.histories.history import Operation

from .verdict import Verdict

HEALED = "healed"
TOLD_MAX = 20
"""Of an anomaly."""


def check(history: Sequence[Operation], *, wanted: Iterable[str] = ()) -> Verdict:
    """`wanted`: what has to have succeeded at least once; nothing named: whatever was invoked, but for `crash`."""
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
    """How long it took from the last heal until every part was written to again. `parts`: those of an operation.

    Without a heal in the history nothing can be said: unknown.
    """
    kinds = set(writes)
    healed = max((one.time for one in history if one.f == HEALED), default=None)
    if healed is None:
        return Verdict(None, {}, {"reason": "the history does not tell when the cluster was healed"})
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
