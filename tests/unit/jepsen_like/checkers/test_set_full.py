"""The checker of growing sets: each anomaly, permitted histories, and a brute-force comparison."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from jepsen_like.checkers import linearizability, set_full
from jepsen_like.checkers.models import model
from jepsen_like.histories.history import Kind, Operation
from raftlog.errors import InvalidRequest


def history(*lines: tuple[int, Kind, str, Any]) -> list[Operation]:
    return [
        Operation(at, process, kind, f, value, at * 1_000_000) for at, (process, kind, f, value) in enumerate(lines)
    ]


def add(value: int, kind: Kind = "ok", process: int = 0) -> list[tuple[int, Kind, str, Any]]:
    return [(process, "invoke", "add", value), (process, kind, "add", value)]


def read(*values: int, process: int = 1) -> list[tuple[int, Kind, str, Any]]:
    return [(process, "invoke", "read", None), (process, "ok", "read", list(values))]


def test_an_added_element_is_there_from_then_on() -> None:
    verdict = set_full.check(history(*read(), *add(1), *read(1), *add(2), *read(1, 2)))
    assert verdict.valid and not verdict.anomalies
    assert verdict.measured["stable"] == 2 and verdict.measured["reads"] == 3


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("lost", [*add(1), *read(1), *read()]),
        ("lost", [*add(1), *add(2), *read(2)]),
        ("lost", [*add(1, "info"), *read(1), *read()]),
        ("stale", [*add(1), *read(), *read(1)]),
        ("stale", [*add(1, "info"), *read(1), *read(process=2), *read(1)]),
        ("duplicated", [*add(1), *read(1, 1)]),
        ("unexpected", [*add(1), *read(1, 7)]),
        ("unexpected", [*add(1), *add(7, "fail"), *read(1, 7)]),
        ("unexpected", [*read(1), *add(1), *read(1)]),
    ],
)
def test_each_anomaly_is_found_where_it_is(name: str, lines: list[tuple[int, Kind, str, Any]]) -> None:
    verdict = set_full.check(history(*lines))
    assert verdict.valid is False and set(verdict.anomalies) == {name}


def test_the_times_when_an_element_was_known_and_when_it_was_absent() -> None:
    lost = set_full.check(history(*add(1), *read(1), *read())).anomalies["lost"]
    assert lost == [
        {"element": 1, "known_at": 1_000_000, "proof": [1, 2, 4], "last_present_at": 2_000_000, "absent_at": 4_000_000}
    ]
    stale = set_full.check(history(*add(1), *read(), *read(1)))
    assert stale.measured["stable_after_ms_max"] == 1


@pytest.mark.parametrize(
    "lines",
    [
        [*add(1), *add(2, "info"), *read(1)],  # unknown outcome
        [*add(1), *add(2, "info"), *read(1), *read(1, 2)],  # it appeared late
        [*add(1), *add(2, "fail"), *read(1)],
        [*add(1), (0, "invoke", "add", 2), *read(1), *read(1, 2), (0, "ok", "add", 2), *read(1, 2)],
        [*add(1), *read(1), *add(2)],  # never read
    ],
)
def test_an_unknowable_element_is_no_anomaly(lines: list[tuple[int, Kind, str, Any]]) -> None:
    verdict = set_full.check(history(*lines))
    assert verdict.valid and not verdict.anomalies


def test_a_set_that_may_lag_is_valid_with_stale_reads_and_nothing_else() -> None:
    assert set_full.check(history(*add(1), *read(), *read(1)), linearizable=False).valid
    assert set_full.check(history(*add(1), *read(1), *read()), linearizable=False).valid is False


def test_without_reads_nothing_is_known() -> None:
    assert set_full.check(history(*add(1))).valid is None
    assert set_full.check([]).valid is None
    with pytest.raises(InvalidRequest):
        set_full.check(history((1, "invoke", "read", None), (1, "ok", "read", "text")))


def drawn(chance: Random) -> list[Operation]:
    """A short history of two elements, in any order, with arbitrary answers."""
    waiting: dict[int, tuple[str, Any]] = {}
    to_add = [0, 1]
    lines: list[tuple[int, Kind, str, Any]] = []
    for _ in range(chance.randrange(4, 14)):
        process = chance.randrange(3)
        if process not in waiting:
            is_add = bool(to_add) and chance.random() < 0.4
            f, value = ("add", to_add.pop()) if is_add else ("read", None)
            waiting[process] = f, value
            lines.append((process, "invoke", f, value))
            continue
        f, value = waiting.pop(process)
        if f == "add":
            lines.append((process, chance.choice(("ok", "info", "fail")), f, value))
        else:
            lines.append((process, "ok", f, [one for one in (0, 1) if chance.random() < 0.5]))
    return history(*lines)


def test_it_agrees_with_the_search_for_an_order_element_by_element() -> None:
    refuted = 0
    for seed in range(1500):
        whole = drawn(Random(seed))
        anomalies = set_full.check(whole).anomalies
        wrong = {told["element"] for name, listed in anomalies.items() if name != "duplicated" for told in listed}
        for element in (0, 1):
            alone = [
                Operation(one.index, one.process, one.kind, one.f, [v for v in one.value if v == element], one.time)
                if one.f == "read" and one.kind == "ok" else one
                for one in whole if one.f == "read" or one.value == element
            ]  # fmt: skip
            explained = linearizability.check(alone, model("set")).valid
            assert explained == (element not in wrong), (seed, element, anomalies)
            refuted += not explained
    assert refuted > 300
