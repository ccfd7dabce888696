"""Checks a history of a log: sends, polls and transactions over partitions, with the anomalies of Jepsen's Kafka
checker.

There are two measures. **Jepsen's**, for its own test cases, allows `int-send-skip` and `G0` (transactions of a log
interleave), `poll-skip` and `nonmonotonic-poll` if processes subscribe (a rebalance moved a partition), and `G1c` if
write dependencies are used. **Ours** allows only the third, also searches for cycles with process order and real-time
order, and demands more (`kafka_stronger.py`). Our own workload is judged without write dependencies: since nothing is
locked, the writes of two transactions may have one order in one key and the opposite order in another, so `G0` is no
anomaly of a log. With such edges a `G1c` may be none either; without them each is one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeAlias

from jepsen_like.histories.history import Operation

from .kafka_cycles import STEPS_MAX, Budget, TooManySteps, cycles
from .kafka_log import LogHistory
from .kafka_orders import orders
from .kafka_records import (
    aborted_reads,
    duplicates,
    inconsistent_offsets,
    lost_writes,
    precommitted_reads,
    unexpected,
    unseen,
    unseen_over_time,
)
from .kafka_stronger import lost_beginnings, offset_holes, real_time_inversions
from .verdict import Verdict

_Check: TypeAlias = Callable[[LogHistory], Iterator[dict[str, Any]]]

_OF_RECORDS: dict[str, _Check] = {
    "inconsistent-offsets": inconsistent_offsets,
    "duplicate": duplicates,
    "G1a": aborted_reads,
    "precommitted-read": precommitted_reads,
    "lost-write": lost_writes,
    "unseen": unseen,
    "unexpected": unexpected,
}
_STRONGER: dict[str, _Check] = {"realtime-send-inversion": real_time_inversions, "offset-hole": offset_holes}

_MOVED = frozenset({"poll-skip", "nonmonotonic-poll"})
_G0 = frozenset({"G0", "G0-process", "G0-realtime"})
_G1C = frozenset({"G1c", "G1c-process", "G1c-realtime"})


def check(
    history: Sequence[Operation],
    *,
    ww_deps: bool = False,
    strict: bool = True,
    transactional: bool = False,
    rebalances_told: bool = False,
    keeps_s: float | None = None,
    allow: frozenset[str] = frozenset(),
    steps: int = STEPS_MAX,
) -> Verdict:
    """Judge a history of a log.

    `strict`: use our measure instead of Jepsen's. `transactional`: control batches leave holes in the offsets, at
    unknown places. `rebalances_told`: every operation names the keys that a group assigned or revoked while it ran, so
    a poll may skip or go back there and nowhere else. `keeps_s`: the history is our workload's, with final readers, and
    its topics retain records for this many seconds (infinite: forever). `allow`: further anomalies that do not make the
    history invalid. `steps`: budget of the search for cycles; if it is exhausted, a history without other anomalies is
    unknown, and `measured` has the reason.

    Raises `InvalidRequest` if the history is not one of a log.
    """
    prepared = LogHistory(history)
    if not any(done.sends or done.polls for done in prepared.done):
        return Verdict(False, {"empty-transaction-graph": [{"detail": "the history has no send and no poll"}]})
    found: dict[str, list[dict[str, Any]]] = {}
    checks = _OF_RECORDS | (_STRONGER if strict else {})
    if transactional:
        checks.pop("offset-hole", None)
    if keeps_s is not None:
        checks["lost-beginning"] = partial(lost_beginnings, keeps_s=keeps_s, dense=not transactional)
    for name, one in checks.items():
        found.setdefault(name, []).extend(one(prepared))
    for name, told in orders(prepared, rebalances_told=rebalances_told):
        found.setdefault(name, []).append(told)
    reason = ""
    try:
        for name, told in cycles(prepared, ww_deps=ww_deps, timed=strict, budget=Budget(steps)):
            found.setdefault(name, []).append(told)
    except TooManySteps as error:
        reason = str(error)
    anomalies = {name: listed for name, listed in found.items() if listed}
    allowed = allow | allowed_anomalies(history, ww_deps=ww_deps, strict=strict)
    if rebalances_told:
        allowed -= _MOVED
    measured: dict[str, Any] = {"unseen": unseen_over_time(prepared)}
    if not reason:
        return Verdict(not anomalies.keys() - allowed, anomalies, measured)
    return Verdict(False if anomalies.keys() - allowed else None, anomalies, {**measured, "reason": reason})


def allowed_anomalies(history: Sequence[Operation], *, ww_deps: bool, strict: bool) -> frozenset[str]:
    """Return the anomalies that do not make a history invalid."""
    allowed = _MOVED if any(one.f == "subscribe" for one in history) else frozenset[str]()
    if strict:
        return allowed
    return allowed | _G0 | {"int-send-skip"} | (_G1C if ww_deps else frozenset())
