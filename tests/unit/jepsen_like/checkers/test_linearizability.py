"""The search for an order: the histories that every model permits, calls that never ended, and budgets."""

from __future__ import annotations

from typing import Any

import pytest

from jepsen_like.checkers.linearizability import check
from jepsen_like.checkers.models import MODELS, model
from jepsen_like.checkers.verdict import Verdict
from jepsen_like.histories.history import Kind, Operation
from raftlog.errors import InvalidRequest


def history(*lines: tuple[int, Kind, str, Any]) -> list[Operation]:
    return [Operation(index, process, kind, f, value) for index, (process, kind, f, value) in enumerate(lines)]


def one_by_one(*lines: tuple[str, Any, Any]) -> list[Operation]:
    """`f`, request, answer: one process, one after the other."""
    found = []
    for f, asked, answered in lines:
        found += [(0, "invoke", f, asked), (0, "ok", f, answered)]
    return history(*found)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("cas-register", [("read", None, 0), ("cas", (0, 3), (0, 3)), ("read", None, 3)], ("read", None, 0)),
        ("cas-register", [("write", 4, 4), ("read", None, None)], ("cas", (3, 4), (3, 4))),
        (
            "multi-register",
            [
                ("txn", (("read", "x", None), ("write", "y", 2)), (("read", "x", 0), ("write", "y", 2))),
                ("read", {"y": None}, {"y": 2}),
            ],
            ("txn", (("r", "y", None),), (("r", "y", 0),)),
        ),
        ("mutex", [("acquire", None, None), ("release", None, None), ("acquire", None, None)], ("acquire", None, None)),
        ("mutex", [], ("release", None, None)),
        (
            "kv",
            [
                ("append", ("a", "x"), ("a", "x")),
                ("put", ("b", "y"), ("b", "y")),
                ("append", ("a", "z"), ("a", "z")),
                ("get", ("a", None), ("a", "xz")),
            ],
            ("get", ("b", None), ("b", "")),
        ),
        ("set", [("add", 1, 1), ("read", None, [1]), ("add", 2, 2)], ("read", None, [1])),
    ],
)  # fmt: skip
def test_each_model_alone(name: str, good: list[tuple[str, Any, Any]], bad: tuple[str, Any, Any]) -> None:
    assert check(one_by_one(*good), model(name)) == Verdict(True)
    refused = check(one_by_one(*good, bad), model(name))
    assert refused.valid is False
    (told,) = refused.anomalies["nonlinearizable"]
    assert told["position"] == 2 * len(good) + 1
    assert told["placed"] if good and name != "kv" else True


@pytest.mark.parametrize("name", MODELS)
def test_a_model_names_operations_that_it_does_not_have(name: str) -> None:
    with pytest.raises(InvalidRequest, match="fly"):
        check(one_by_one(("fly", None, None)), model(name))


def test_etcd_begins_absent() -> None:
    absent = one_by_one(("read", None, None), ("write", 1, 1))
    assert check(absent, model("cas-register", etcd=True)).valid
    again = one_by_one(("write", 1, 1), ("read", None, None))
    assert check(again, model("cas-register", etcd=True)).valid is False
    assert check(again, model("cas-register")).valid  # where nil means that nothing was written


def test_a_failed_compare_and_set_has_compared() -> None:
    failed = one_by_one(("write", 1, 1), ("cas", (1, 2), ("failed", (1, 2))))
    assert check(failed, model("cas-register", etcd=True)).valid is False


def test_overlapping_calls_may_come_in_any_order() -> None:
    overlapping = history(
        (0, "invoke", "write", 1), (1, "invoke", "write", 2), (0, "ok", "write", 1), (1, "ok", "write", 2),
        (2, "invoke", "read", None), (2, "ok", "read", 1), (2, "invoke", "read", None), (2, "ok", "read", 1),
    )  # fmt: skip
    assert check(overlapping, model("cas-register")).valid
    torn = [*overlapping, *history((2, "invoke", "read", None), (2, "ok", "read", 2))]
    assert check(torn, model("cas-register")).valid is False


def test_real_time_order_is_required() -> None:
    stale = history((0, "invoke", "write", 1), (0, "ok", "write", 1), (1, "invoke", "read", None), (1, "ok", "read", 0))
    verdict = check(stale, model("cas-register"))
    assert verdict.anomalies["nonlinearizable"][0]["op"] == {"index": 3, "process": 1, "f": "read", "value": 0}


@pytest.mark.parametrize("seen", [0, 5])
def test_a_call_that_never_ended_may_have_happened_or_not(seen: int) -> None:
    crashed = history(
        (0, "invoke", "write", 5), (0, "info", "write", 5), (1, "invoke", "read", None), (1, "ok", "read", seen)
    )
    assert check(crashed, model("cas-register")).valid


def test_a_call_that_never_ended_happens_once_and_not_before_its_start() -> None:
    twice = history(
        (0, "invoke", "cas", (0, 1)), (0, "info", "cas", None), (1, "invoke", "write", 0), (1, "ok", "write", 0),
        (2, "invoke", "read", None), (2, "ok", "read", 1), (1, "invoke", "write", 0), (1, "ok", "write", 0),
    )  # fmt: skip
    assert check(twice, model("cas-register")).valid
    again = history((2, "invoke", "read", None), (2, "ok", "read", 1))
    assert check([*twice, *again], model("cas-register")).valid is False
    early = history(
        (1, "invoke", "read", None), (1, "ok", "read", 5), (0, "invoke", "write", 5), (0, "info", "write", 5)
    )
    assert check(early, model("cas-register")).valid is False


def test_a_failed_call_did_not_happen() -> None:
    failed = history(
        (0, "invoke", "write", 5), (0, "fail", "write", 5), (1, "invoke", "read", None), (1, "ok", "read", 5)
    )
    assert check(failed, model("cas-register")).valid is False


def test_hundreds_of_crashes_do_not_explode_the_search() -> None:
    """Identical ones count in the order of their start; without that rule this is a search through all subsets."""
    lines: list[tuple[int, Kind, str, Any]] = []
    for number in range(300):
        lines += [(number, "invoke", "cas", (number % 5, (number + 1) % 5)), (number, "info", "cas", None)]
    lines += [(999, "invoke", "read", None), (999, "ok", "read", 7)]
    verdict = check(history(*lines), model("cas-register"), steps=100_000)
    assert verdict.valid is False


def test_an_endless_search_is_unknown_and_never_a_pass() -> None:
    lines: list[tuple[int, Kind, str, Any]] = []
    for number in range(40):
        lines.append((number, "invoke", "append", ("k", f"{number};")))
    lines += [(number, "ok", "append", ("k", f"{number};")) for number in range(40)]
    lines += [(99, "invoke", "get", ("k", None)), (99, "ok", "get", ("k", "0;"))]
    verdict = check(history(*lines), model("kv"), steps=10)
    assert verdict.valid is None
    assert verdict.shown["valid"] == "unknown"


def test_one_refuted_part_is_enough() -> None:
    """The other part alone would take forever."""
    lines: list[tuple[int, Kind, str, Any]] = []
    for number in range(40):
        lines.append((number, "invoke", "append", ("hard", f"{number % 7}")))
    lines += [(number, "ok", "append", ("hard", f"{number % 7}")) for number in range(40)]
    lines += [(98, "invoke", "get", ("hard", None)), (98, "ok", "get", ("hard", "0" * 41))]
    lines += [(99, "invoke", "get", ("easy", None)), (99, "ok", "get", ("easy", "never put"))]
    verdict = check(history(*lines), model("kv"), steps=1_000_000)
    assert verdict.valid is False
    assert verdict.anomalies["nonlinearizable"][0]["key"] in {"easy", "hard"}
