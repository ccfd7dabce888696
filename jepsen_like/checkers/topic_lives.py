"""Topics that are deleted and recreated under a group: records and offsets of one life stay in it (S1, S8).

A life is one topic id. Producers send to names, and an acknowledgement does not say which life took the record. So the
group's reports, which name lives, are judged for all lives, and records are judged in the lives that remain at the end
and were dumped, offset by offset. A record certainly belongs to the remaining life

* if it was sent when all nodes reported only that life (`settle`), or
* if the same process had a record of that life acknowledged before: no producer goes back to an older life.

| name | what |
|---|---|
| `lost-record` | lost write: acknowledged, certainly in the remaining life, and missing |
| `other-place` | acknowledged at one offset, and at another one in the remaining life |
| `duplicate` | a value is twice in one life, although every value is sent once |
| `reordered` | of two records of a partition, the one that was sent after the other was acknowledged comes first |
| `unexpected-record` | a record that was never sent to that name |
| `foreign-record` | delivered under a life that has another record there, or that began after its acknowledgement |
| `conflicting-records` | two records were delivered at one offset of one life |
| `not-assigned` | delivered from a partition of which no life was assigned to the member |
| `skipped` | poll skip: the group committed beyond a record of the remaining life without delivering it |
| `committed-unread` | a life's committed offset is beyond everything that was delivered from that life |
| `commit-went-back` | a committed offset of a remaining life is lower than one that was acknowledged or read before |
| `not-read` | in the remaining life, above the committed offset, and never delivered in all final reads (S10) |
| `member-stopped` | no poll of a process succeeded after the heal (S10) |

Records that may come from two lives (`unclear`) count as delivered by both, and in no other way. Whether producers
recover: `stats.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from jepsen_like.histories.history import Call, Operation, calls

from .verdict import Verdict

TOLD_MAX = 20
"""Limit for each anomaly."""
POLLS_MIN = 3
"""A process counts as stopped only after this many failed polls."""

Place: TypeAlias = tuple[str, str, int]
"""Name, topic id, partition."""
Found: TypeAlias = Iterator[tuple[str, dict[str, Any]]]


@dataclass(slots=True)
class _Facts:
    """The facts of a history, by place."""

    sends: dict[int, Call] = field(default_factory=dict)
    """Value → the send."""
    settled: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Name → the life on which all nodes agreed, and the index of that report."""
    dumps: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Name → the remaining life, and the index of its dump."""
    dumped: dict[Place, list[tuple[int, int]]] = field(default_factory=dict)
    """Offsets and values, in their order."""
    handed: dict[Place, dict[int, dict[int, int]]] = field(default_factory=dict)
    """Offset → value → index of its first delivery."""
    unclear: dict[Place, set[int]] = field(default_factory=dict)
    read_to: dict[Place, list[tuple[int, int]]] = field(default_factory=dict)
    """(position at which the group had advanced further than before, the offset after the last one delivered)."""
    unknown: list[tuple[int, list[Any]]] = field(default_factory=list)
    began: dict[str, int] = field(default_factory=dict)
    """Topic id → position of the invocation that created it, if that is known."""
    committed: list[tuple[Call, dict[Place, int]]] = field(default_factory=list)
    """Acknowledged commits and reads of committed offsets, in the order of their completions."""


def check(history: Sequence[Operation]) -> Verdict:
    """Judge a history; unknown if some name was not settled and dumped. Raises `InvalidRequest`."""
    done = calls(history)
    facts = _facts(done)
    found: dict[str, list[dict[str, Any]]] = {}
    for part in (_records, _duplicates, _orders, _handed_out, _commits, _unread):
        for name, told in part(facts):
            found.setdefault(name, []).append(told)
    for name, told in _stopped(done, facts):
        found.setdefault(name, []).append(told)
    names = {call.invocation.value[0] for call in facts.sends.values()} | facts.settled.keys()
    measured = {
        "lives": len({place[1] for place in facts.handed} | facts.began.keys()),
        "acknowledged": sum(call.kind == "ok" for call in facts.sends.values()),
        "judged": sum(1 for _ in _certain(facts)),
        "handed_out": sum(map(len, facts.handed.values())),
        "unclear": sum(map(len, facts.unclear.values())),
    }
    listed = {name: told[:TOLD_MAX] for name, told in found.items()}
    if listed:
        return Verdict(False, listed, measured)
    unsettled = sorted(one for one in names if facts.dumps.get(one, ("", 0))[0] != facts.settled.get(one, ("-", 0))[0])
    if unsettled or not names:
        why = f"no remaining life was settled and dumped for {', '.join(unsettled) or 'any name'}"
        return Verdict(None, {}, {**measured, "reason": why})
    return Verdict(True, {}, measured)


def handed_of(poll: Operation, *kinds: str) -> dict[Place, list[list[int]]]:
    """Return the records that a poll delivered: place → offset and value of each."""
    found: dict[Place, list[list[int]]] = {}
    for kind in kinds:
        for name, topic_id, partition, pairs in poll.value.get(kind, ()):
            found.setdefault((name, topic_id, partition), []).extend(pairs)
    return found


def _facts(done: Sequence[Call]) -> _Facts:
    facts = _Facts()
    for call in done:
        if call.invocation.f == "send":
            facts.sends[call.invocation.value[1]] = call
    answered = [call for call in done if call.completion is not None and call.kind == "ok"]
    for call in sorted(answered, key=lambda call: call.returned):
        _learn(facts, call)
    return facts


def _learn(facts: _Facts, call: Call) -> None:
    answer = call.completion
    assert answer is not None
    match call.invocation.f:
        case "settle":
            name, _, topic_id = answer.value
            facts.settled[name] = topic_id, call.returned
        case "create":
            _, _, topic_id, made = answer.value
            if made:
                facts.began[topic_id] = call.called
        case "dump":
            name, topic_id, partitions = answer.value
            facts.dumps[name] = topic_id, answer.index
            for number, pairs in enumerate(partitions):
                facts.dumped[name, topic_id, number] = [(offset, value) for offset, value in pairs]
        case "poll":
            _learn_poll(facts, answer, call.returned)
        case "commit" | "read":
            told = {(name, topic_id, number): offset for name, topic_id, number, offset in answer.value}
            facts.committed.append((call, told))


def _learn_poll(facts: _Facts, answer: Operation, returned: int) -> None:
    for place, pairs in handed_of(answer, "records").items():
        offsets = facts.handed.setdefault(place, {})
        for offset, value in pairs:
            offsets.setdefault(offset, {}).setdefault(value, answer.index)
    for place, pairs in handed_of(answer, "unclear").items():
        facts.unclear.setdefault(place, set()).update(offset for offset, _ in pairs)
    for place, pairs in handed_of(answer, "records", "unclear").items():
        reached = facts.read_to.setdefault(place, [])
        end = max((offset for offset, _ in pairs), default=-1) + 1
        if end > (reached[-1][1] if reached else 0):
            reached.append((returned, end))
    facts.unknown += [(answer.index, one) for one in answer.value.get("unknown", ())]


# --- Records of the lives that stay -----------------------------------------------------------------------------------


def _places(facts: _Facts) -> dict[int, list[Place]]:
    """Return value → its places in the remaining lives."""
    found: dict[int, list[Place]] = {}
    for place in _staying(facts):
        for _, value in facts.dumped[place]:
            found.setdefault(value, []).append(place)
    return found


def _staying(facts: _Facts) -> list[Place]:
    return [place for place in facts.dumped if facts.dumps[place[0]][0] == place[1]]


def _certain(facts: _Facts) -> Iterator[Call]:
    """Yield the sends that the remaining life certainly acknowledged, in order."""
    where = _places(facts)
    arrived: set[tuple[Any, str]] = set()
    for value, call in facts.sends.items():
        if call.kind != "ok":
            continue
        name, process = call.invocation.value[0], call.invocation.process
        if name not in facts.dumps:
            continue
        settled_id, settled_at = facts.settled.get(name, ("", -1))
        after = settled_id == facts.dumps[name][0] and call.called > settled_at
        if after or value in where or (process, name) in arrived:
            arrived.add((process, name))
            yield call


def _records(facts: _Facts) -> Found:
    at = {value: (place[0], place[2], offset) for place in _staying(facts) for offset, value in facts.dumped[place]}
    for call in _certain(facts):
        assert call.completion is not None
        name, value, partition, offset = call.completion.value
        dump_id, dumped = facts.dumps[name]
        told = {"topic": name, "topic_id": dump_id, "value": value, "partition": partition, "offset": offset}
        told["proof"] = [call.invocation.index, dumped]
        if value not in at:
            yield "lost-record", told
        elif at[value] != (name, partition, offset):
            yield "other-place", {**told, "there": list(at[value])}
    for value, (name, partition, offset) in at.items():
        sent = facts.sends.get(value)
        if sent is None or sent.invocation.value[0] != name:
            told = {"topic": name, "value": value, "partition": partition, "offset": offset}
            yield "unexpected-record", {**told, "proof": [facts.dumps[name][1]]}


def _duplicates(facts: _Facts) -> Found:
    """Find duplicates in dumps, and in the records delivered from any life."""
    by_life: dict[tuple[str, str], dict[int, set[tuple[int, int]]]] = {}
    for place, pairs in facts.dumped.items():
        for offset, value in pairs:
            by_life.setdefault(place[:2], {}).setdefault(value, set()).add((place[2], offset))
    for place, offsets in facts.handed.items():
        for offset, values in offsets.items():
            for value in values:
                by_life.setdefault(place[:2], {}).setdefault(value, set()).add((place[2], offset))
    for (name, topic_id), values_at in by_life.items():
        for value, where in values_at.items():
            if len(where) > 1:
                proof = [facts.sends[value].invocation.index] if value in facts.sends else []
                told = {"topic": name, "topic_id": topic_id, "value": value, "places": sorted(map(list, where))}
                yield "duplicate", {**told, "proof": proof}


def _orders(facts: _Facts) -> Found:
    for place in _staying(facts):
        latest: Call | None = None
        for _, value in facts.dumped[place]:
            call = facts.sends.get(value)
            if call is None:
                continue
            if latest is not None and call.returned < latest.called:
                told = {"topic": place[0], "partition": place[2], "value": value, "behind": latest.invocation.value[1]}
                yield "reordered", {**told, "proof": [call.invocation.index, latest.invocation.index]}
            if latest is None or call.called > latest.called:
                latest = call


# --- What the group was handed ----------------------------------------------------------------------------------------


def _handed_out(facts: _Facts) -> Found:
    ends = {place: dict(facts.dumped[place]) for place in _staying(facts)}
    for place, offsets in facts.handed.items():
        name, topic_id, partition = place
        there = ends.get(place)
        last = max(there, default=-1) if there is not None else -1
        for offset, values in offsets.items():
            told = {"topic": name, "topic_id": topic_id, "partition": partition, "offset": offset}
            if len(values) > 1:
                yield "conflicting-records", {**told, "values": sorted(values), "proof": sorted(values.values())}
            for value, index in values.items():
                sent = facts.sends.get(value)
                if sent is None or sent.invocation.value[0] != name:
                    yield "unexpected-record", {**told, "value": value, "proof": [index]}
                elif there is not None and offset <= last and there.get(offset) != value:
                    proof = [index, facts.dumps[name][1]]
                    yield "foreign-record", {**told, "value": value, "there": there.get(offset), "proof": proof}
                elif sent.kind == "ok" and sent.returned < facts.began.get(topic_id, -1):
                    yield "foreign-record", {**told, "value": value, "proof": [sent.invocation.index, index]}
    for index, record in facts.unknown:
        yield "not-assigned", {"record": record, "proof": [index]}


def _commits(facts: _Facts) -> Found:
    staying = set(_staying(facts))
    told_before: dict[Place, list[tuple[int, int, int]]] = {}
    for call, offsets in facts.committed:
        answer = call.completion
        assert answer is not None
        for place, offset in offsets.items():
            had = max((end for at, end in facts.read_to.get(place, ()) if at < call.returned), default=0)
            if offset > had:
                told = _of(place, offset)
                yield "committed-unread", {**told, "handed_out_to": had, "proof": [answer.index]}
        if call.invocation.f == "read":
            for place in staying:
                before = max(
                    (one for one in told_before.get(place, ()) if one[0] < call.called),
                    key=lambda one: one[1],
                    default=None,
                )
                if before is not None and offsets.get(place, -1) < before[1]:
                    told = _of(place, offsets.get(place, -1))
                    yield "commit-went-back", {**told, "before": before[1], "proof": [before[2], answer.index]}
        for place, offset in offsets.items():
            if place in staying:
                known = told_before.setdefault(place, [])
                if not known or offset > known[-1][1]:
                    known.append((call.returned, offset, answer.index))


def _of(place: Place, offset: int) -> dict[str, Any]:
    return {"topic": place[0], "topic_id": place[1], "partition": place[2], "offset": offset}


def _unread(facts: _Facts) -> Found:
    committed: dict[Place, int] = {}
    for _, offsets in facts.committed:
        for place, offset in offsets.items():
            committed[place] = max(committed.get(place, 0), offset)
    for place in _staying(facts):
        had = facts.handed.get(place, {}).keys() | facts.unclear.get(place, set())
        for offset, value in facts.dumped[place]:
            if offset not in had:
                proof = [facts.sends[value].invocation.index] if value in facts.sends else []
                told = {**_of(place, offset), "value": value, "committed": committed.get(place, 0)}
                name = "skipped" if offset < committed.get(place, 0) else "not-read"
                yield name, {**told, "proof": [*proof, facts.dumps[place[0]][1]]}


def _stopped(done: Sequence[Call], facts: _Facts) -> Found:
    """Find processes that were alive when the last name was settled, and whose polls have all failed since."""
    settled = max((at for _, at in facts.settled.values()), default=None)
    if settled is None:
        return
    polls: dict[Any, list[Call]] = {}
    for call in done:
        if call.invocation.f == "poll" and call.called > settled:
            polls.setdefault(call.invocation.process, []).append(call)
    for process, tried in polls.items():
        if len(tried) >= POLLS_MIN and not any(call.kind == "ok" for call in tried):
            error = tried[-1].completion.error if tried[-1].completion is not None else None
            told: Mapping[str, Any] = {"process": process, "polls": len(tried), "error": error}
            yield "member-stopped", {**told, "proof": [tried[-1].invocation.index]}
