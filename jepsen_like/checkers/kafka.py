"""Checks a history of a log: sends, polls and transactions over partitions, as Jepsen does for Kafka.

Two measures. **Jepsen's**, for its own cases: it allows `int-send-skip` and `G0` (transactions of a log interleave), a
poll that skips or goes back where processes subscribe (a group moved a partition), and `G1c` where write dependencies
are on. **Ours** allows only the third, holds cycles to the order of processes and of time, and asks for more
(`kafka_stronger.py`).

What is *not* here: the anomalies (`kafka_records.py`, `kafka_orders.py`, `kafka_cycles.py`, `kafka_stronger.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

from ..history import Operation
from .kafka_cycles import cycles
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
from .kafka_stronger import offset_holes, real_time_inversions
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
    allow: frozenset[str] = frozenset(),
) -> Verdict:
    """`strict` is our measure. `transactional`: control batches leave holes in the offsets, and nothing says where.
    `rebalances_told`: every operation names the keys that a group gave or took while it ran, so that a poll may skip or
    go back there and nowhere else. `allow`: further anomalies that do not make it invalid.

    Raises `InvalidRequest` for what is no such history."""
    prepared = LogHistory(history)
    if not any(done.sends or done.polls for done in prepared.done):
        return Verdict(False, {"empty-transaction-graph": [{"detail": "there is no send and no poll"}]})
    found: dict[str, list[dict[str, Any]]] = {}
    checks = _OF_RECORDS | (_STRONGER if strict else {})
    if transactional:
        checks.pop("offset-hole", None)
    for name, one in checks.items():
        found.setdefault(name, []).extend(one(prepared))
    of_orders = orders(prepared, rebalances_told=rebalances_told)
    for name, told in (*of_orders, *cycles(prepared, ww_deps=ww_deps, timed=strict)):
        found.setdefault(name, []).append(told)
    anomalies = {name: listed for name, listed in found.items() if listed}
    allowed = allow | allowed_anomalies(history, ww_deps=ww_deps, strict=strict)
    if rebalances_told:
        allowed -= _MOVED
    measured = {"unseen": unseen_over_time(prepared)}
    return Verdict(not anomalies.keys() - allowed, anomalies, measured)


def allowed_anomalies(history: Sequence[Operation], *, ww_deps: bool, strict: bool) -> frozenset[str]:
    """Names that do not make a history invalid."""
    allowed = _MOVED if any(one.f == "subscribe" for one in history) else frozenset[str]()
    if strict:
        return allowed
    return allowed | _G0 | {"int-send-skip"} | (_G1C if ww_deps else frozenset())
