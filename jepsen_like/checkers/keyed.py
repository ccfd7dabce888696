"""Linearizability of many objects that are identified by a key: operations' values and answers are `[key, value]`.

A history is linearizable if it is so for each key (Horn and Kroening 2015), so each key is searched separately. Beside
the registers of `models.py` there are two objects of raftlog: a committed offset, which only a reset lowers, never a
commit (S8), and a topic, which exists or does not (S7).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import msgspec

from jepsen_like.histories.history import Call, Operation
from raftlog.errors import InvalidRequest

from . import linearizability
from .models import IMPOSSIBLE, Impossible, Model, State, Step, model
from .verdict import Verdict


def keyed(inner: Model) -> Model:
    """Return the model that applies `inner` to each key."""

    def read_call(call: Call) -> tuple[Hashable, Step]:
        key, asked = _split(call, call.invocation)
        completion = call.completion
        if completion is not None and completion.value is not None:
            completion = msgspec.structs.replace(completion, value=_split(call, completion)[1])
        stripped = Call(msgspec.structs.replace(call.invocation, value=asked), completion, call.called, call.returned)
        return key, inner.read_call(stripped)[1]

    return Model(inner.initial, inner.step, read_call)


def check(history: Sequence[Operation], kind: str, *, steps: int = linearizability.STEPS_MAX) -> Verdict:
    """Judge the operations that belong to `kind`, a key of `KINDS`, and ignore all others. Raises `InvalidRequest`."""
    inner, names = KINDS[kind]
    return linearizability.check([one for one in history if one.f in names], keyed(inner), steps=steps)


def _split(call: Call, operation: Operation) -> tuple[Hashable, Any]:
    value = operation.value
    if (
        not isinstance(value, Sequence)
        or isinstance(value, str)
        or len(value) < 2
        or not isinstance(value[0], Hashable)
    ):
        raise InvalidRequest("invalid_request", f"operation {call.called}: {value!r:.60} is not a key with a value")
    return value[0], value[1]


# --- A committed offset -----------------------------------------------------------------------------------------------


def _offset(state: State, step: Step) -> State | Impossible:
    if step.f == "read":
        return state if not step.is_answered or step.answer == state else IMPOSSIBLE
    if step.f == "cas":
        assert isinstance(step.argument, tuple)
        old, new = step.argument
        return new if state == old else IMPOSSIBLE
    assert isinstance(step.argument, int)
    if step.f == "reset":
        return step.argument
    # An ordinary commit of a lower offset changes nothing, and is no error.
    return step.argument if not isinstance(state, int) or step.argument > state else state


def _offset_call(call: Call) -> tuple[Hashable, Step]:
    asked, answered = call.invocation.value, call.kind == "ok"
    if call.invocation.f == "read":
        return None, Step("read", None, call.completion.value if call.completion and answered else None, answered)
    if call.invocation.f == "cas" and isinstance(asked, Sequence) and not isinstance(asked, str) and len(asked) == 2:
        return None, Step("cas", tuple(asked), None, answered)
    if not isinstance(asked, int):
        raise InvalidRequest("invalid_request", f"operation {call.called}: {asked!r:.60} is not an offset")
    return None, Step(call.invocation.f, asked, None, answered)


# --- A topic ----------------------------------------------------------------------------------------------------------


def _topic(state: State, step: Step) -> State | Impossible:
    match step.f:
        case "read":
            return state if not step.is_answered or step.answer == state else IMPOSSIBLE
        case "create":
            return IMPOSSIBLE if state else True
        case _:
            # Two concurrent deletions may both succeed, if the first answer to one of them was lost: the topic is gone.
            return False


def _topic_call(call: Call) -> tuple[Hashable, Step]:
    answered = call.kind == "ok"
    there = bool(call.completion.value) if call.completion and answered else None
    return None, Step(call.invocation.f, None, there if call.invocation.f == "read" else None, answered)


KINDS: dict[str, tuple[Model, frozenset[str]]] = {
    "register": (model("cas-register"), frozenset({"read", "write", "cas"})),
    "position": (model("cas-register", etcd=True), frozenset({"read", "cas"})),
    "offset": (Model(None, _offset, _offset_call), frozenset({"read", "commit", "reset", "cas"})),
    "topic": (Model(False, _topic, _topic_call), frozenset({"read", "create", "delete"})),
}
"""Kind → the model and its operations. Initial states: 0, nil, nil, absent."""
