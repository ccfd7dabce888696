"""The number of acknowledged records not yet read, over the time of a run, as in Jepsen's Kafka plots. Pure.

A record waits from the completion of its acknowledged `send` or transaction until a successful `poll` or transaction of
any process has it for the first time. The reads of an aborted transaction do not count, and a client that dies or reads
again after a new assignment changes nothing. A record that was read before its send was acknowledged never waits, and
neither do the records of an indeterminate send.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jepsen_like.histories.history import Operation
from raftlog.errors import InvalidRequest

from ..checkers.kafka_log import LogHistory
from ..checkers.kafka_records import unseen_over_time

KEYS_MAX = 8
"""Keys with a separate line: those with most unread records at the end, and then at any time."""
SAMPLES_MAX = 600
TOTAL = "all"

Points = Sequence[tuple[float, float]]


def unseen(history: Sequence[Operation]) -> dict[str, Points]:
    """Return line → (seconds, records that wait from then on): all keys first, then each key, then all others as one.

    Empty if nothing was acknowledged, no process polled, or the history is not one of a log.
    """
    try:
        log = LogHistory(history)
    except InvalidRequest:
        return {}
    sent = [done.operation.time / 1e9 for done in log.done if done.kind == "ok" and done.sends]
    if not sent or not any(_polls(one) for one in history):
        return {}
    # Nothing waits before the first acknowledgement.
    counted = [(sent[0], {}), *((time / 1e9, of) for time, of in unseen_over_time(log))]
    counted.append((max(one.time for one in history) / 1e9, counted[-1][1]))
    sampled = _sampled(counted)
    keys = _shown(counted)
    found: dict[str, Points] = {TOTAL: [(at, float(sum(of.values()))) for at, of in sampled]}
    if len(counted_keys := {key for _, of in counted for key in of}) > 1:
        found |= {str(key): [(at, float(of.get(key, 0))) for at, of in sampled] for key in keys}
        rest = counted_keys - set(keys)
        if rest:
            name = f"{len(rest)} others"
            found[name] = [(at, float(sum(number for key, number in of.items() if key in rest))) for at, of in sampled]
    return found


def _polls(operation: Operation) -> bool:
    """Return whether it polls; without an answer too, since a reader that got nothing leaves records unread."""
    if operation.f == "poll":
        return True
    return operation.f == "txn" and any(micro[0] == "poll" for micro in operation.value or ())


def _sampled(counted: Sequence[tuple[float, Mapping[Any, int]]]) -> list[tuple[float, Mapping[Any, int]]]:
    """Return the points; of many, the values at evenly spaced moments, including the last."""
    if len(counted) <= SAMPLES_MAX:
        return list(counted)
    began, ended = counted[0][0], counted[-1][0]
    found, place = [], 0
    for number in range(SAMPLES_MAX):
        at = ended if number == SAMPLES_MAX - 1 else began + (ended - began) * number / (SAMPLES_MAX - 1)
        while place + 1 < len(counted) and counted[place + 1][0] <= at:
            place += 1
        found.append((at, counted[place][1]))
    return found


def _shown(counted: Sequence[tuple[float, Mapping[Any, int]]]) -> list[Any]:
    """Return the keys with separate lines, in the order of their names."""
    most: dict[Any, int] = {}
    for _, of in counted:
        for key, number in of.items():
            most[key] = max(number, most.get(key, 0))
    last = counted[-1][1]
    by_weight = sorted(most, key=lambda key: (-last.get(key, 0), -most[key], str(key)))
    return sorted(by_weight[:KEYS_MAX], key=str)
