"""A history of a log, indexed: which operations sent and read which values, and at which offsets.

Operations are `send`, `poll` and `txn`: lists of `["send", key, value]`, completed as `["send", key, [offset, value]]`
(the offset is nil if the answer was lost), and `["poll"]`, completed as `["poll", {key: [[offset, value], ...]}]`.
Beside them there are `assign` and `subscribe` (lists of keys) and `crash`. A key is a partition; each value is sent to
a key once.

An operation is *proven* if it happened: it was acknowledged, or it is indeterminate but one of its values was seen by a
successful poll. The log of a key combines the offsets in proven sends and in all polls, including failed ones: a set of
values per offset, which should have one member. Offsets may have gaps; positions in the order without gaps are *dense*.

Source: Jepsen's workload for Kafka (jepsen.tests.kafka).
"""

from __future__ import annotations

import reprlib
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from jepsen_like.histories.history import Operation
from raftlog.errors import InvalidRequest

Key: TypeAlias = Hashable
Value: TypeAlias = Hashable
Pair: TypeAlias = tuple[int | None, Value]
"""The offset, if it is known, and the value."""

WORK = ("send", "poll", "txn")


@dataclass(slots=True)
class Done:
    """A completion of `send`, `poll` or `txn`. `seq` is its position in the history."""

    seq: int
    operation: Operation
    sends: dict[Key, list[Pair]] = field(default_factory=dict)
    polls: dict[Key, list[Pair]] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        return self.operation.kind

    @property
    def told(self) -> dict[str, Any]:
        """A short description for people."""
        one = self.operation
        return {"index": one.index, "process": one.process, "type": one.kind, "f": one.f}


def proof(*proving: Done) -> dict[str, list[int]]:
    """Return the part of an anomaly that names the operations which prove it, each once."""
    return {"proof": list(dict.fromkeys(done.operation.index for done in proving))}


class KeyLog:
    """The order of one key."""

    def __init__(self, offsets: Mapping[int, dict[Value, Done]]) -> None:
        self.offsets = {offset: list(offsets[offset]) for offset in sorted(offsets)}
        """Every value seen at an offset, in the order in which they were first seen."""
        self.told = offsets
        """Offset → value → the first operation that reported it there."""
        self.dense = [values[0] for values in self.offsets.values()]
        """One value per offset. If there are several, it is an arbitrary one: code that must be exact uses `first` and
        `last`.
        """
        self.index: dict[Value, int] = {}
        self.first: dict[Value, int] = {}
        last: dict[Value, int] = {}
        for position, values in enumerate(self.offsets.values()):
            self.index[values[0]] = position
            for value in values:
                self.first.setdefault(value, position)
                last[value] = position
        self.last: list[list[Value]] = [[] for _ in self.dense]
        """The values whose last appearance is at this position."""
        for value, position in last.items():
            self.last[position].append(value)

    def delta(self, one: Value, other: Value) -> int:
        """Return the distance from the first value to the second; 1, the normal distance, if one of them is unknown."""
        a, b = self.index.get(one), self.index.get(other)
        return 1 if a is None or b is None else b - a

    def between(self, one: Value, other: Value) -> list[Value]:
        """Return the values that a reader skipped who went from the first to the second."""
        a, b = self.index.get(one), self.index.get(other)
        return [] if a is None or b is None else self.dense[a + 1 : b]


class LogHistory:
    """The index of a history; the module's docstring defines its terms. Raises `InvalidRequest` for any other
    history.
    """

    def __init__(self, history: Sequence[Operation]) -> None:
        self.operations = history
        self.done = [_done(seq, one) for seq, one in enumerate(history) if _is_work(one) and one.kind != "invoke"]
        self.tried = _tried(history)
        """Key → every value that a send attempted."""
        self.writer: dict[Key, dict[Value, Done]] = {}
        self.read_ok: dict[Key, dict[Value, Done]] = {}
        """Key → value → the first successful poll that returned it."""
        for done in self.done:
            for key, _, value in pairs(done.sends):
                self.writer.setdefault(key, {})[value] = done
            if done.kind == "ok":
                for key, _, value in pairs(done.polls):
                    self.read_ok.setdefault(key, {}).setdefault(value, done)
        self.logs = {key: KeyLog(offsets) for key, offsets in self._offsets().items()}

    def proven(self, done: Done) -> bool:
        if done.kind != "info":
            return done.kind == "ok"
        return any(value in self.read_ok.get(key, ()) for key, _, value in pairs(done.sends))

    def log(self, key: Key) -> KeyLog:
        return self.logs.get(key) or KeyLog({})

    def _offsets(self) -> dict[Key, dict[int, dict[Value, Done]]]:
        found: dict[Key, dict[int, dict[Value, Done]]] = {}
        for done in self.done:
            heard = [done.polls, done.sends] if self.proven(done) else [done.polls]
            for part in heard:
                for key, offset, value in pairs(part):
                    if offset is not None:
                        found.setdefault(key, {}).setdefault(offset, {}).setdefault(value, done)
        return found


def pairs(of: Mapping[Key, list[Pair]]) -> Iterator[tuple[Key, int | None, Value]]:
    """Yield key, offset and value of each pair."""
    for key, found in of.items():
        for offset, value in found:
            yield key, offset, value


def keys_of(operation: Operation) -> list[Key]:
    """Return the keys of an `assign` or `subscribe`."""
    if not isinstance(operation.value, Sequence) or isinstance(operation.value, str):
        raise _wrong(operation, "has no list of keys")
    return [_key(key, operation) for key in operation.value]


def _key(key: Any, operation: Operation) -> Key:
    """Keys of a JSON object are text, even if they are numbers elsewhere in the same history."""
    if not _is_hashable(key):
        raise _wrong(operation, f"has {reprlib.repr(key)} as a key")
    return str(key) if isinstance(key, int) else key


def _is_hashable(value: Any) -> bool:
    """Return whether a value can be hashed: a tuple's type does not tell, since it may contain a map."""
    try:
        hash(value)
    except TypeError:
        return False
    return True


def _is_work(operation: Operation) -> bool:
    return operation.f in WORK and isinstance(operation.process, int)


def _done(seq: int, operation: Operation) -> Done:
    done = Done(seq, operation)
    for micro in _micro_operations(operation):
        if micro[0] == "send" and len(micro) == 3:
            done.sends.setdefault(_key(micro[1], operation), []).append(_pair(micro[2], operation))
        elif micro[0] == "poll" and len(micro) == 2 and isinstance(micro[1], Mapping):
            for key, found in micro[1].items():
                if not isinstance(found, Sequence) or isinstance(found, str):
                    raise _wrong(operation, f"has {reprlib.repr(found)} instead of a list of offsets and values")
                polled = done.polls.setdefault(_key(key, operation), [])
                polled += [_pair(one, operation) for one in found]
        elif tuple(micro) != ("poll",):
            raise _wrong(operation, f"has {reprlib.repr(micro)}")
    return done


def _micro_operations(operation: Operation) -> Sequence[Any]:
    value = operation.value
    if value is None:
        return ()
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise _wrong(operation, "is not a list of sends and polls")
    for micro in value:
        if not isinstance(micro, Sequence) or isinstance(micro, str) or not micro:
            raise _wrong(operation, f"has {reprlib.repr(micro)}")
    return value


def _pair(value: Any, operation: Operation) -> Pair:
    if not isinstance(value, Sequence) or isinstance(value, str):
        pair: Any = (None, value)
    else:
        pair = tuple(value)
    if len(pair) != 2 or not isinstance(pair[0], int | None) or not _is_hashable(pair[1]):
        raise _wrong(operation, f"has {reprlib.repr(value)} instead of an offset and a value")
    return pair[0], pair[1]


def _tried(history: Sequence[Operation]) -> dict[Key, set[Value]]:
    """Collect the values from invocations and completions: a value that only a completion names was attempted, too."""
    tried: dict[Key, set[Value]] = {}
    for operation in history:
        if _is_work(operation):
            for micro in _micro_operations(operation):
                if micro[0] == "send" and len(micro) == 3:
                    tried.setdefault(_key(micro[1], operation), set()).add(_pair(micro[2], operation)[1])
    return tried


def _wrong(operation: Operation, what: str) -> InvalidRequest:
    return InvalidRequest("invalid_request", f"operation {operation.index}, a {operation.f}, {what}")
