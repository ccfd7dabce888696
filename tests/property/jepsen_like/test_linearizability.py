"""The search compared with a naive one, which tries every order of every choice of crashed calls."""

from __future__ import annotations

from itertools import combinations, permutations
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from jepsen_like.checkers.linearizability import check
from jepsen_like.checkers.models import Impossible, Model, Step, model
from jepsen_like.histories.history import Call, Operation, calls


def dumb(history: list[Operation], of: Model) -> bool:
    parts: dict[Any, list[tuple[Call, Step]]] = {}
    for call in calls(history):
        if call.kind != "fail":
            part, step = of.read_call(call)
            parts.setdefault(part, []).append((call, step))
    return all(has_an_order(found, of) for found in parts.values())


def has_an_order(found: list[tuple[Call, Step]], of: Model) -> bool:
    sure = [one for one in found if one[0].kind == "ok"]
    crashed = [one for one in found if one[0].kind != "ok"]
    for count in range(len(crashed) + 1):
        for chosen in combinations(crashed, count):
            if any(explains(order, of) for order in permutations([*sure, *chosen])):
                return True
    return False


def explains(order: tuple[tuple[Call, Step], ...], of: Model) -> bool:
    state, latest_call = of.initial, -1
    for call, step in order:
        if call.returned < latest_call:
            return False  # it had returned before the invocation of another one that comes earlier in this order
        latest_call = max(latest_call, call.called)
        after = of.step(state, step)
        if isinstance(after, Impossible):
            return False
        state = after
    return True


VALUES = st.integers(0, 2)
REGISTER = st.one_of(
    st.tuples(st.just("read"), st.none(), VALUES),
    st.tuples(st.just("write"), VALUES, st.none()),
    st.tuples(st.just("cas"), st.tuples(VALUES, VALUES), st.none()),
)
TEXTS = st.sampled_from(["", "a", "b", "ab", "ba", "aa"])
KEYS = st.sampled_from(["k", "l"])
KV = st.one_of(
    st.tuples(st.just("get"), KEYS, TEXTS),
    st.tuples(st.just("append"), KEYS, st.sampled_from("ab")),
    st.tuples(st.just("put"), KEYS, TEXTS),
)
LOCK = st.tuples(st.sampled_from(["acquire", "release"]), st.none(), st.none())


@st.composite
def histories(draw: st.DrawFn, asked: st.SearchStrategy[tuple[Any, Any, Any]], kv: bool) -> list[Operation]:
    """Up to six calls that overlap at random."""
    running: dict[int, tuple[str, Any, Any]] = {}
    lines: list[Operation] = []
    left = draw(st.integers(1, 6))
    coin = st.booleans()
    while left or (len(running) > 0 and draw(coin)):
        if left and (len(running) == 0 or draw(coin)):
            left -= 1
            f, one, other = draw(asked)
            value, answer = ((one, None if f == "get" else other), (one, other)) if kv else (one, other)
            running[left] = (f, value, answer)
            lines.append(Operation(len(lines), left, "invoke", f, value))
        else:
            process = draw(st.sampled_from(sorted(running)))
            f, value, answer = running.pop(process)
            kind: Any = draw(st.sampled_from(["ok", "ok", "ok", "info", "fail"]))
            lines.append(Operation(len(lines), process, kind, f, answer if kind == "ok" else value))
    return lines


@settings(max_examples=150)
@given(histories(REGISTER, kv=False))
def test_a_register(history: list[Operation]) -> None:
    assert check(history, model("cas-register")).valid == dumb(history, model("cas-register"))


@settings(max_examples=150)
@given(histories(KV, kv=True))
def test_text_by_key(history: list[Operation]) -> None:
    assert check(history, model("kv")).valid == dumb(history, model("kv"))


@settings(max_examples=60)
@given(histories(LOCK, kv=False))
def test_a_lock(history: list[Operation]) -> None:
    assert check(history, model("mutex")).valid == dumb(history, model("mutex"))
