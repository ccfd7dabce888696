"""Sequential models of objects, the measure of linearizability.

A model takes a call and a state (any hashable value) and returns the next state, or that the answer is impossible. For
an object composed of independent parts, the model says which part a call belongs to, so that each is checked separately
(P-compositionality; Horn and Kroening 2015).

| model | operations (`f`: value) | initial state |
|---|---|---|
| `cas-register` | `read`: v, `write`: v, `cas`: (from, to) | 0; `etcd-log`: absent |
| `multi-register` | `txn`: ((`read`, key, v), (`write`, key, v), …) at once; `read`, `write`: {key: v} | x 0, y 0 |
| `mutex` | `acquire`, `release` | free |
| `kv` | `get`, `put`, `append`: (key, text) | every key the empty text |
| `set` | `add`: v, `read`: all of them | empty |

A call without a completion has no answer, so its `read` does not constrain the state. In `cas-register` and
`multi-register` a read of nil is one whose answer was not recorded; in `etcd-log` it found no value.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Hashable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, TypeAlias

from jepsen_like.histories.history import Call
from raftlog.errors import InvalidRequest

State: TypeAlias = Hashable


class Impossible:
    """The result of a step whose answer is impossible."""


IMPOSSIBLE = Impossible()


@dataclass(frozen=True, slots=True)
class Step:
    """A call as a model sees it: the request (hashable), and the answer if it counts."""

    f: str
    argument: Hashable
    answer: Hashable = None
    is_answered: bool = False

    @property
    def changes_nothing(self) -> bool:
        """Whether it only reads, whatever its answer."""
        return self.f in {"read", "get", "cas-failed"}


@dataclass(frozen=True, slots=True)
class Model:
    """A sequential model of an object."""

    initial: State
    step: Callable[[State, Step], State | Impossible]
    read_call: Callable[[Call], tuple[Hashable, Step]]
    """Returns the call's part of the object, and the step on it. Raises `InvalidRequest` for unknown operations."""
    leads_to: Callable[[State, Step], bool] | None = None
    """Returns whether the object may come from this state to the answer of the step, unless a step in between
    `restarts` it. Only a model whose states contain much of their past has this.
    """
    restarts: Callable[[Step, Step], bool] | None = None
    """Returns whether the first step leads from any state to one that `leads_to` the answer of the second."""


def model(name: str, *, etcd: bool = False) -> Model:
    """Return the model of this name. `etcd`: a register that is absent at first, so that a read of nil is an answer."""
    match name:
        case "cas-register":
            return Model(None if etcd else 0, _register, _register_call_etcd if etcd else _register_call)
        case "multi-register":
            return Model(frozenset({("x", 0), ("y", 0)}), _multi_register, _multi_register_call)
        case "mutex":
            return Model(False, _mutex, _mutex_call)
        case "kv":
            return Model("", _text, _kv_call, _leads_to, _restarts)
        case "set":
            return Model(frozenset(), _set, _set_call)
    raise InvalidRequest("invalid_request", f"unknown model {name!r}; models: {', '.join(MODELS)}")


MODELS = ("cas-register", "multi-register", "mutex", "kv", "set")


def _not_of(name: str, call: Call) -> InvalidRequest:
    shown = f"{call.invocation.f} {reprlib.repr(call.invocation.value)}"  # bounded, however deep and long it is
    return InvalidRequest("invalid_request", f"operation {call.called}: a {name} does not support {shown:.80}")


NESTING_MAX = 100


def _compared(value: Any, call: Call, depth: int = 0) -> Hashable:
    """Return the value in a form that states can hold and compare: a list becomes a tuple, in any format.

    Raises `InvalidRequest` for a map, and for values that are nested too deeply.
    """
    if value is None or isinstance(value, str | int | float):
        return value
    if depth == NESTING_MAX:
        raise _not_compared(call, f"something that is nested deeper than {NESTING_MAX}")
    if isinstance(value, Sequence):
        return tuple(_compared(one, call, depth + 1) for one in value)
    if isinstance(value, AbstractSet):
        return frozenset(_compared(one, call, depth + 1) for one in value)
    raise _not_compared(call, "a map")


def _not_compared(call: Call, what: str) -> InvalidRequest:
    return InvalidRequest(
        "invalid_request",
        f"operation {call.called}, a {call.invocation.f:.40}, or its completion: it contains {what}, but a value must "
        "be: text, a number, nil, or a list of these",
    )


def _is_list(value: Any) -> bool:
    """Return whether a value is a list; text is a sequence, but not a list."""
    return isinstance(value, Sequence) and not isinstance(value, str)


def _answer_of(call: Call) -> tuple[Any, bool]:
    completion = call.completion
    if completion is None or completion.kind != "ok":
        return None, False
    return completion.value, True


# --- One register -----------------------------------------------------------------------------------------------------


def _register(state: State, step: Step) -> State | Impossible:
    match step.f:
        case "read":
            return state if not step.is_answered or step.answer == state else IMPOSSIBLE
        case "write":
            return step.argument
        case "cas":
            assert isinstance(step.argument, tuple)
            return step.argument[1] if state == step.argument[0] else IMPOSSIBLE
        case _:  # a compare-and-set that found another value
            assert isinstance(step.argument, tuple)
            return IMPOSSIBLE if state == step.argument[0] else state


def _register_call(call: Call) -> tuple[Hashable, Step]:
    part, step = _register_call_etcd(call)
    if step.f == "read" and step.answer is None:
        return part, Step("read", None)
    return part, step


def _register_call_etcd(call: Call) -> tuple[Hashable, Step]:
    f, asked = call.invocation.f, call.invocation.value
    answer, answered = _answer_of(call)
    if f == "read":
        return None, Step(f, None, _compared(answer, call), answered)
    if f == "write":
        return None, Step(f, _compared(asked, call), None, answered)
    if f == "cas" and _is_list(asked) and len(asked) == 2:
        failed = isinstance(answer, tuple) and answer[:1] == ("failed",)
        return None, Step("cas-failed" if failed else "cas", _compared(asked, call), None, answered)
    raise _not_of("cas-register", call)


# --- Several registers at once ----------------------------------------------------------------------------------------


def _multi_register(state: State, step: Step) -> State | Impossible:
    assert isinstance(state, frozenset) and isinstance(step.argument, tuple)
    registers = dict(state)
    for f, key, value in step.argument:
        if f == "write":
            registers[key] = value
        elif value is not None and registers.get(key) != value:
            return IMPOSSIBLE
    return frozenset(registers.items())


def _multi_register_call(call: Call) -> tuple[Hashable, Step]:
    if call.invocation.f not in {"txn", *_READ_OR_WRITE}:
        raise _not_of("multi-register", call)
    answer, answered = _answer_of(call)
    asked = _micro_operations(call.invocation.f, call.invocation.value, call)
    if not answered:  # The values that a read without a completion saw are unknown.
        return None, Step("txn", tuple(one for one in asked if one[0] == "write"))
    # The answer repeats the request, with the values that were read.
    done = asked if answer is None else _micro_operations(call.invocation.f, answer, call)
    return None, Step("read" if all(one[0] == "read" for one in done) else "txn", done, None, True)


_READ_OR_WRITE = {"read": "read", "r": "read", "write": "write", "w": "write"}


def _micro_operations(f: str, value: Any, call: Call) -> tuple[tuple[str, Hashable, Hashable], ...]:
    if isinstance(value, Mapping) and f in _READ_OR_WRITE:
        return tuple((_READ_OR_WRITE[f], key, _compared(one, call)) for key, one in value.items())
    if value is None:
        return ()
    found = []
    if not _is_list(value):
        raise _not_of("multi-register", call)
    for one in value:
        if _is_list(one) and len(one) == 3 and isinstance(one[0], str) and one[0] in _READ_OR_WRITE:
            found.append((_READ_OR_WRITE[one[0]], _compared(one[1], call), _compared(one[2], call)))
        elif _is_list(one) and len(one) == 2 and f in _READ_OR_WRITE:
            found.append((_READ_OR_WRITE[f], _compared(one[0], call), _compared(one[1], call)))
        else:
            raise _not_of("multi-register", call)
    return tuple(found)


# --- A lock, text by key, a set ---------------------------------------------------------------------------------------


def _mutex(state: State, step: Step) -> State | Impossible:
    wanted = step.f == "acquire"
    return IMPOSSIBLE if state is wanted else wanted


def _mutex_call(call: Call) -> tuple[Hashable, Step]:
    if call.invocation.f not in {"acquire", "release"}:
        raise _not_of("mutex", call)
    return None, Step(call.invocation.f, None, None, _answer_of(call)[1])


def _text(state: State, step: Step) -> State | Impossible:
    if step.f == "get":
        return state if not step.is_answered or step.answer == state else IMPOSSIBLE
    assert isinstance(state, str) and isinstance(step.argument, str)
    return step.argument if step.f == "put" else state + step.argument


def _leads_to(state: State, look: Step) -> bool:
    assert isinstance(state, str) and isinstance(look.answer, str)
    return look.answer.startswith(state)


def _restarts(step: Step, look: Step) -> bool:
    return step.f == "put" and _leads_to(step.argument, look)


def _kv_call(call: Call) -> tuple[Hashable, Step]:
    asked = call.invocation.value
    if call.invocation.f not in {"get", "put", "append"} or not _is_list(asked) or len(asked) != 2:
        raise _not_of("kv", call)
    key, text = _compared(asked[0], call), asked[1]
    answer, answered = _answer_of(call)
    if call.invocation.f != "get":
        if not isinstance(text, str):
            raise _not_of("kv", call)
        return key, Step(call.invocation.f, text, None, answered)
    if answer is not None and not (_is_list(answer) and len(answer) == 2 and isinstance(answer[1], str | None)):
        raise InvalidRequest(
            "invalid_request",
            f"operation {call.called}: a get returned {reprlib.repr(answer)}, which is not a key with a text or nil",
        )
    found = None if answer is None else answer[1]
    return key, Step("get", None, "" if found is None else found, answered)


def _set(state: State, step: Step) -> State | Impossible:
    assert isinstance(state, frozenset)
    if step.f == "add":
        return state | {step.argument}
    return state if not step.is_answered or step.answer == state else IMPOSSIBLE


def _set_call(call: Call) -> tuple[Hashable, Step]:
    f = call.invocation.f
    answer, answered = _answer_of(call)
    if f == "add":
        return None, Step(f, _compared(call.invocation.value, call), None, answered)
    if f == "read" and (not answered or _is_list(answer) or isinstance(answer, AbstractSet)):
        return None, Step(f, None, frozenset(_compared(one, call) for one in answer or ()), answered)
    raise _not_of("set", call)
