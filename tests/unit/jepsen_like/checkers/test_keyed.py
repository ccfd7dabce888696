"""Registers, committed offsets and topics by key: linearizable histories, and others (S7, S8)."""

from __future__ import annotations

from itertools import permutations
from random import Random
from typing import Any

import pytest

from jepsen_like.checkers import keyed
from jepsen_like.histories.history import Kind, Operation, calls
from raftlog.errors import InvalidRequest


def done(f: str, key: str, value: Any, kind: Kind = "ok", process: int = 0, answer: Any = ...) -> list[Operation]:
    told = value if answer is ... else answer
    asked = None if f == "read" else value
    return [
        Operation(0, process, "invoke", f, [key, asked]),
        Operation(0, process, kind, f, [key, told] if kind == "ok" else None),
    ]


def numbered(*parts: list[Operation]) -> list[Operation]:
    flat = [one for part in parts for one in part]
    return [Operation(at, one.process, one.kind, one.f, one.value, at) for at, one in enumerate(flat)]


def overlapping(*parts: list[Operation]) -> list[Operation]:
    """All are invoked, then all complete."""
    return [part[0] for part in parts] + [part[1] for part in parts]


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (
            "register",
            [done("read", "a", 0), done("write", "a", 1), done("read", "b", 0), done("read", "a", 1)],
            [done("write", "a", 1), done("write", "b", 2), done("read", "a", 0)],
        ),
        (
            "position",
            [done("read", "p", None), done("cas", "p", [None, 0]), done("cas", "p", [0, 1]), done("read", "p", 1)],
            [done("cas", "p", [None, 0]), done("cas", "p", [None, 0], process=1)],
        ),
        (
            "offset",
            [done("read", "o", None), done("commit", "o", 5), done("commit", "o", 3), done("read", "o", 5)],
            [done("commit", "o", 5), done("commit", "o", 3), done("read", "o", 3)],
        ),
        (
            "offset",
            [done("commit", "o", 5), done("commit", "o", 9, "info"), done("read", "o", 5), done("read", "o", 9)],
            [done("commit", "o", 5), done("commit", "o", 9, "info"), done("read", "o", 9), done("read", "o", 5)],
        ),
        (
            "offset",
            [done("commit", "o", 5), done("commit", "o", 9, "fail"), done("read", "o", 5)],
            [done("commit", "o", 5), done("read", "o", None)],
        ),
        (
            "offset",
            [done("reset", "o", 9), done("cas", "o", [9, 4]), done("cas", "o", [9, 1], "fail"), done("read", "o", 4)],
            [done("reset", "o", 9), done("cas", "o", [9, 4]), done("cas", "o", [9, 1])],
        ),
        (
            "offset",
            [done("cas", "o", [None, 7]), done("reset", "o", 2, "info"), done("read", "o", 7), done("read", "o", 2)],
            [done("cas", "o", [None, 7]), done("reset", "o", 2), done("read", "o", 7)],
        ),
        (
            "topic",
            [done("read", "t", False), done("create", "t", None), done("read", "t", True), done("delete", "t", None)],
            [done("create", "t", None), done("create", "t", None, process=1)],
        ),
        (
            "topic",
            [
                done("create", "t", None),
                done("delete", "t", None, "info"),
                done("create", "t", None, process=1),
                done("delete", "t", None),
                done("delete", "t", None, process=2),
                done("read", "t", False),
            ],
            [done("create", "t", None), done("delete", "t", None, "fail"), done("read", "t", False)],
        ),
    ],
)
def test_each_object_keeps_its_guarantee_or_violates_it(
    kind: str, good: list[list[Operation]], bad: list[list[Operation]]
) -> None:
    assert keyed.check(numbered(*good), kind).valid is True
    verdict = keyed.check(numbered(*bad), kind)
    assert verdict.valid is False
    assert verdict.anomalies["nonlinearizable"][0]["key"] == bad[-1][0].value[0]


def test_other_operations_are_skipped() -> None:
    other = [
        Operation(0, 3, "invoke", "poll"),
        Operation(0, 3, "info", "poll"),
        Operation(0, "suite", "info", "healed"),
    ]
    assert keyed.check(numbered(done("write", "a", 1), other, done("read", "a", 1)), "register").valid


@pytest.mark.parametrize("value", [None, "text", [], ["a"], [["no key"], 1]])
def test_a_value_without_a_key_is_refused(value: Any) -> None:
    with pytest.raises(InvalidRequest):
        keyed.check([Operation(0, 0, "invoke", "read", value), Operation(1, 0, "ok", "read", value)], "register")


def test_an_exhausted_budget_is_no_pass() -> None:
    parts = [done("commit", "o", number, process=number) for number in range(12)]
    history = numbered(overlapping(*parts), done("read", "o", 3, process=20))
    assert keyed.check(history, "offset", steps=5).valid is None


def explained(history: list[Operation]) -> bool:
    """Every order of all calls is tried, with any subset of those with an unknown outcome."""
    found = [call for call in calls(history) if call.kind != "fail"]
    for order in permutations(found):
        if any(one.returned < other.called for at, other in enumerate(order) for one in order[at + 1 :]):
            continue
        state: int | None = None
        for call in order:
            if call.invocation.f == "commit":
                # Committing nothing is the same as a commit that changes nothing: it may come last.
                state = max(call.invocation.value[1], -1 if state is None else state)
            elif call.kind == "ok" and call.completion is not None and call.completion.value[1] != state:
                break
        else:
            return True
    return False


def test_committed_offsets_agree_with_trying_every_order() -> None:
    refuted = 0
    for seed in range(600):
        chance = Random(seed)
        waiting: dict[int, Operation] = {}
        history: list[Operation] = []
        while len(history) < 9:
            process = chance.randrange(3)
            begun = waiting.pop(process, None)
            if begun is None:
                is_commit = chance.random() < 0.5
                f, value = ("commit", chance.randrange(3)) if is_commit else ("read", None)
                waiting[process] = Operation(len(history), process, "invoke", f, ["k", value])
                history.append(waiting[process])
                continue
            value = begun.value[1] if begun.f == "commit" else chance.choice((None, 0, 1, 2))
            kind: Kind = "info" if begun.f == "commit" and chance.random() < 0.2 else "ok"
            history.append(Operation(len(history), process, kind, begun.f, ["k", value]))
        expected = explained(history)
        assert keyed.check(history, "offset").valid is expected, seed
        refuted += not expected
    assert 100 < refuted < 500
