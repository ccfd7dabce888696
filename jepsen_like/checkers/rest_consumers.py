"""Consumers of the REST Proxy API, which any node serves: at least once, whatever happens to nodes and answers (S8).

A *delivery* is a read whose whole answer arrived; an answer that was cut, or of which nothing came, delivered nothing.
A record that the group's committed offset has passed must have been delivered before, to whichever program.

| name | what |
|---|---|
| `lost-record` | lost write: acknowledged at an offset where the partition has another record, or none |
| `duplicate` | a value is twice in a partition, although every value is sent once |
| `unexpected-record` | a record that was never sent to its partition, or whose send certainly failed |
| `conflicting-records` | delivered at an offset where the partition has another record |
| `answer-gap` | an answer leaves out a record between two of a partition |
| `skipped` | the committed offset is beyond a record that no read invoked before had delivered |
| `commit-went-back` | a committed offset is lower than one that was committed or read before |
| `commit-without-delivery` | an empty commit succeeded, and nothing had been delivered since the take-over |
| `not-found` | 404 for a consumer that was created, and not deleted since, or for a topic |
| `refused` | another error that says that the client was wrong |
| `not-read` | above the committed offset, and never delivered in all final reads (S10) |

A read of unknown outcome (its program was killed) may have delivered anything: records that only such a read can have
delivered are counted (`unclear`), not judged. Whether producers recover: `stats.py`.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from jepsen_like.histories.history import Call, Operation, calls

from .verdict import Verdict

TOLD_MAX = 20
"""Limit for each anomaly."""
LATE_NS = 120_000_000_000
"""Time for which a deletion of unknown outcome may still take effect."""
NOT_FOUND = 404
CONFLICT = 409
"""The consumer has got nothing, or lost what it commits."""
LATER = frozenset({408, 429})
"""The node had no room or time: nothing says that the client was wrong."""

Found: TypeAlias = Iterator[tuple[str, dict[str, Any]]]


@dataclass(slots=True)
class _Facts:
    """The facts of a history."""

    sends: dict[int, Call] = field(default_factory=dict)
    """Value → the send."""
    dumps: dict[str, Call] = field(default_factory=dict)
    logs: dict[str, dict[int, int]] = field(default_factory=dict)
    """Key → offset → value, as it was dumped."""
    reads: list[Call] = field(default_factory=list)
    """Deliveries."""
    unclear: list[Call] = field(default_factory=list)
    """Reads of unknown outcome."""
    first: dict[str, dict[int, Call]] = field(default_factory=dict)
    """Key → offset → the delivery that was invoked first."""
    commits: list[Call] = field(default_factory=list)
    offsets: list[Call] = field(default_factory=list)
    opens: list[Call] = field(default_factory=list)
    deletes: list[Call] = field(default_factory=list)


def check(history: Sequence[Operation]) -> Verdict:
    """Judge a history; unknown if some partition that was written to was not dumped. Raises `InvalidRequest`."""
    done = calls(history)
    facts = _facts(done)
    found: dict[str, list[dict[str, Any]]] = {}
    unclear = 0
    for part in (_records, _deliveries, _skipped, _went_back, _fenced, _unread):
        for name, told in part(facts):
            if name == "unclear":
                unclear += 1
            else:
                found.setdefault(name, []).append(told)
    for name, told in _refusals(done, facts):
        found.setdefault(name, []).append(told)
    measured = {
        "acknowledged": sum(call.kind == "ok" for call in facts.sends.values()),
        "delivered": sum(map(len, facts.first.values())),
        "deliveries": len(facts.reads),
        "redelivered": sum(len(pairs) for call in facts.reads for pairs in _pairs(call).values())
        - sum(map(len, facts.first.values())),
        "cut": sum(
            call.kind == "fail" and "cut by" in str(call.completion.error if call.completion else "")
            for call in done
            if call.invocation.f == "read"
        ),
        "empty_commits": sum(call.invocation.value[1] is None for call in facts.commits),
        "commits": len(facts.commits),
        "take_overs": len(facts.opens),
        "unclear": unclear,
    }
    if found:
        return Verdict(False, {name: told[:TOLD_MAX] for name, told in found.items()}, measured)
    missing = sorted({call.invocation.value[0] for call in facts.sends.values()} - facts.logs.keys())
    if missing or not facts.sends or not facts.reads:
        why = f"not dumped: {', '.join(missing)}" if missing else "nothing was sent, or nothing was delivered"
        return Verdict(None, {}, {**measured, "reason": why})
    return Verdict(True, {}, measured)


def _facts(done: Sequence[Call]) -> _Facts:
    facts = _Facts()
    for call in done:
        match call.invocation.f:
            case "send":
                facts.sends.update(dict.fromkeys(call.invocation.value[1], call))
            case "delete":
                facts.deletes.append(call)
            case "read" if call.kind == "info":
                facts.unclear.append(call)
        if call.kind == "ok":
            _learn(facts, call)
    return facts


def _learn(facts: _Facts, call: Call) -> None:
    match call.invocation.f:
        case "read" if _pairs(call):
            facts.reads.append(call)
            for key, pairs in _pairs(call).items():
                first = facts.first.setdefault(key, {})
                for offset, _ in pairs:
                    first.setdefault(offset, call)
        case "dump":
            key, pairs = _value(call)
            facts.dumps[key] = call
            facts.logs[key] = dict(pairs)
        case "commit":
            facts.commits.append(call)
        case "offsets":
            facts.offsets.append(call)
        case "open":
            facts.opens.append(call)


def _value(call: Call) -> Any:
    assert call.completion is not None
    return call.completion.value


def _pairs(call: Call) -> Mapping[str, list[list[int]]]:
    """Return the records that a read delivered, by key."""
    found: Mapping[str, list[list[int]]] = _value(call)[1]
    return found


def _proof(*proving: Call) -> list[int]:
    """Return the last line of each call."""
    return [(call.completion or call.invocation).index for call in proving]


# --- Records ----------------------------------------------------------------------------------------------------------


def _records(facts: _Facts) -> Found:
    """Judge the dumped partitions: what was acknowledged is there, and nothing else but what may have been written."""
    for send in {id(call): call for call in facts.sends.values()}.values():
        if send.kind != "ok":
            continue
        key, pairs = _value(send)
        if key not in facts.logs:
            continue
        for offset, value in pairs:
            there = facts.logs[key].get(offset)
            if there != value:
                told = {"key": key, "offset": offset, "value": value, "there": there}
                yield "lost-record", {**told, "proof": _proof(send, facts.dumps[key])}
    for key, log in facts.logs.items():
        at: dict[int, int] = {}
        for offset, value in sorted(log.items()):
            told = {"key": key, "offset": offset, "value": value, "proof": _proof(facts.dumps[key])}
            if value in at:
                yield "duplicate", {**told, "first": at[value]}
            at.setdefault(value, offset)
            if not _may_be_there(facts, key, value):
                yield "unexpected-record", told


def _may_be_there(facts: _Facts, key: str, value: int) -> bool:
    send = facts.sends.get(value)
    return send is not None and send.invocation.value[0] == key and send.kind != "fail"


def _deliveries(facts: _Facts) -> Found:
    """Judge what was delivered: the partition's records, and in each answer all of them from its first to its last."""
    for read in facts.reads:
        for key, pairs in _pairs(read).items():
            log = facts.logs.get(key, {})
            before = None
            for offset, value in pairs:
                told = {"key": key, "offset": offset, "value": value, "proof": _proof(read)}
                if log.get(offset, value) != value:
                    yield "conflicting-records", {**told, "there": log[offset]}
                elif not _may_be_there(facts, key, value):
                    yield "unexpected-record", told
                if before is not None and offset != before + 1:
                    yield "answer-gap", {**told, "before": before}
                before = offset


# --- Committed offsets ------------------------------------------------------------------------------------------------


def _known(facts: _Facts) -> Iterator[tuple[Call, str, int]]:
    """Yield what calls tell of committed offsets, in the order of their ends: at least this one, when it ended."""
    numbered = [call for call in facts.commits if call.invocation.value[1] is not None]
    for call in sorted((*facts.offsets, *numbered), key=lambda call: call.returned):
        for key, offset in _value(call)[1].items():
            # A commit names the record that was processed, a look the next one.
            yield call, key, offset + (call.invocation.f == "commit")


def _skipped(facts: _Facts) -> Found:
    """Judge that every record below a committed offset was delivered by a read that was invoked before."""
    judged: dict[str, int] = {}
    for call, key, committed in _known(facts):
        first, log = facts.first.get(key, {}), facts.logs.get(key, {})
        for offset in range(judged.get(key, 0), committed):
            delivery = first.get(offset)
            if delivery is not None and delivery.called < call.returned:
                continue
            if any(read.called < call.returned for read in facts.unclear):
                yield "unclear", {}
                continue
            told = {"key": key, "offset": offset, "value": log.get(offset), "committed": committed}
            sent = facts.sends.get(log.get(offset, -1))
            proving = [call, *([sent] if sent is not None else []), *([delivery] if delivery is not None else [])]
            yield "skipped", {**told, "proof": _proof(*proving)}
        judged[key] = max(judged.get(key, 0), committed)


def _went_back(facts: _Facts) -> Found:
    """Judge that a committed offset is at least every one that was known before the look at it began."""
    ended: dict[str, list[int]] = {}
    highest: dict[str, list[tuple[int, Call]]] = {}
    known = list(_known(facts))
    for call, key, offset in known:
        ended.setdefault(key, []).append(call.returned)
        tops = highest.setdefault(key, [])
        tops.append(max((offset, call), tops[-1], key=lambda one: one[0]) if tops else (offset, call))
    for call, key, offset in known:
        before = bisect.bisect_left(ended[key], call.called)
        if call.invocation.f == "offsets" and before:
            top, by = highest[key][before - 1]
            if offset < top:
                yield "commit-went-back", {"key": key, "offset": offset, "before": top, "proof": _proof(by, call)}


def _fenced(facts: _Facts) -> Found:
    """Judge that an empty commit needs a delivery since the last take-over that had ended when it was invoked."""
    for commit in facts.commits:
        name, processed = commit.invocation.value
        if processed is not None:
            continue
        taken = [open_ for open_ in facts.opens if open_.invocation.value == name and open_.returned < commit.called]
        if not taken:
            continue
        last = max(taken, key=lambda call: call.called)
        if not any(
            read.invocation.value[0] == name and read.called < commit.returned and read.returned > last.called
            for read in (*facts.reads, *facts.unclear)
        ):
            yield "commit-without-delivery", {"name": name, "proof": _proof(last, commit)}


def _unread(facts: _Facts) -> Found:
    """Judge that everything in the dumps was delivered, or was passed by a committed offset, which `skipped` judges."""
    passed: dict[str, int] = {}
    for _, key, committed in _known(facts):
        passed[key] = max(passed.get(key, 0), committed)
    for key, log in facts.logs.items():
        first = facts.first.get(key, {})
        for offset in sorted(log):
            if offset >= passed.get(key, 0) and offset not in first:
                if facts.unclear:
                    yield "unclear", {}
                    continue
                told = {"key": key, "offset": offset, "value": log[offset]}
                yield "not-read", {**told, "proof": _proof(facts.dumps[key])}


# --- Refusals ---------------------------------------------------------------------------------------------------------


def _refusals(done: Sequence[Call], facts: _Facts) -> Found:
    """Judge errors that blame the client: of a consumer that exists there is none but a conflict of a commit."""
    for call in done:
        error = call.completion.error if call.completion is not None else None
        status = error.get("status", 0) if isinstance(error, Mapping) else 0
        if not isinstance(error, Mapping) or not 400 <= status < 500 or status in LATER:
            continue
        told = {"f": call.invocation.f, "error": dict(error)}
        if status == CONFLICT and call.invocation.f == "commit":
            continue
        if status != NOT_FOUND:
            yield "refused", {**told, "proof": _proof(call)}
            continue
        if call.invocation.f == "send":
            yield "not-found", {**told, "proof": _proof(call)}
            continue
        name = call.invocation.value if call.invocation.f in {"open", "delete"} else call.invocation.value[0]
        created = _is_alive(facts, name, call)
        if created is not None:
            yield "not-found", {**told, "name": name, "proof": _proof(created, call)}


def _is_alive(facts: _Facts, name: str, call: Call) -> Call | None:
    """Return the call that created a consumer, if that certainly existed when another call was carried out."""
    created = [one for one in facts.opens if one.invocation.value == name and _end_of(one) < call.invocation.index]
    # Subscribing comes after the creation in the same call.
    last = call if call.invocation.f == "open" else max(created, key=_end_of, default=None)
    if last is None:
        return None
    for one in facts.deletes:
        if one is call or one.invocation.value != name or one.invocation.index > _end_of(call):
            continue
        answered = one.completion is not None and one.completion.kind == "ok"
        if answered and _end_of(one) < last.invocation.index:
            continue
        if not answered and one.invocation.time + LATE_NS < call.invocation.time:
            continue
        return None
    return last


def _end_of(call: Call) -> int:
    """Return the index of a call's last line."""
    return (call.completion or call.invocation).index
