"""How many acknowledged records nobody had read yet, over the time of a run, as Jepsen draws it for Kafka. Pure.

A record waits from the end of the `send` or transaction that was acknowledged, until a `poll` or transaction that
succeeded has it for the first time, by whatever process: what an aborted transaction has read is still to be read, and
what a client forgets when it dies, or reads again when it is assigned anew, changes nothing. What was read before its
send was acknowledged never waits. Of a send of which nobody knows what became nobody waits for anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jepsen_like.histories.history import Operation
from raftlog.errors import InvalidRequest

from ..checkers.kafka_log import LogHistory
from ..checkers.kafka_records import unseen_over_time

KEYS_MAX = 8
"""That have a line of their own: those of which most were unseen at the end, then at any time."""
SAMPLES_MAX = 600
TOTAL = "all"

Points = Sequence[tuple[float, float]]


def unseen(history: Sequence[Operation]) -> dict[str, Points]:
    """Line → (seconds, records that waited from then on): all keys together first, then key by key, and those that are
    left over as one. Empty where nothing was sent and acknowledged, nobody polled, or it is no history of a log."""
    try:
        log = LogHistory(history)
    except InvalidRequest:
        return {}
    sent = [done.operation.time / 1e9 for done in log.done if done.kind == "ok" and done.sends]
    if not sent or not any(_polls(one) for one in history):
        return {}
    # Until the first acknowledgement nothing waits.
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
    """Also one that was never answered: whoever read nothing has unseen records, too."""
    if operation.f == "poll":
        return True
    return operation.f == "txn" and any(micro[0] == "poll" for micro in operation.value or ())


def _sampled(counted: Sequence[tuple[float, Mapping[Any, int]]]) -> list[tuple[float, Mapping[Any, int]]]:
    """As they are, if they are few; of many what was true at moments that are evenly apart, the last one included."""
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
    """In the order of their names."""
    most: dict[Any, int] = {}
    for _, of in counted:
        for key, number in of.items():
            most[key] = max(number, most.get(key, 0))
    last = counted[-1][1]
    by_weight = sorted(most, key=lambda key: (-last.get(key, 0), -most[key], str(key)))
    return sorted(by_weight[:KEYS_MAX], key=str)
