"""The number of acknowledged records that were not read yet, over the time of a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jepsen_like.histories.history import Kind, Operation
from jepsen_like.report import unseen as module
from jepsen_like.report.unseen import unseen

SECOND = 1_000_000_000
Line = tuple[int, Kind, str, Any]


def history(lines: Sequence[Line]) -> list[Operation]:
    """One second per line."""
    return [Operation(at, process, kind, f, value, at * SECOND) for at, (process, kind, f, value) in enumerate(lines)]


def sent(key: str, value: int, process: int = 0, kind: Kind = "ok") -> list[Line]:
    return [
        (process, "invoke", "send", [["send", key, value]]),
        (process, kind, "send", [["send", key, [value, value]]]),
    ]


def polled(process: int, key: str, *values: int, kind: Kind = "ok") -> list[Line]:
    found = {key: [[value, value] for value in values]}
    return [(process, "invoke", "poll", [["poll"]]), (process, kind, "poll", [["poll", found]])]


def txn(process: int, *micro: list[Any], kind: Kind = "ok") -> list[Line]:
    asked = [["poll"] if one[0] == "poll" else ["send", one[1], one[2][1]] for one in micro]
    return [(process, "invoke", "txn", asked), (process, kind, "txn", list(micro))]


def total(lines: Sequence[Line]) -> list[tuple[float, float]]:
    return list(unseen(history(lines))["all"])


def test_records_that_are_read_finally_count_as_seen() -> None:
    lines = sent("a", 1) + sent("b", 2) + polled(1, "a", 1) + polled(1, "b", 2)
    found = unseen(history(lines))
    assert list(found) == ["all", "a", "b"]
    assert found["all"] == [(1.0, 0.0), (1.0, 1.0), (3.0, 2.0), (5.0, 1.0), (7.0, 0.0), (7.0, 0.0)]
    assert [number for _, number in found["a"]] == [0, 1, 1, 0, 0, 0] and found["b"][-1] == (7.0, 0.0)


def test_lost_records_stay_unseen() -> None:
    assert total(sent("a", 1) + sent("a", 2) + polled(1, "a", 2) + polled(2, "a", 2))[-1] == (7.0, 1.0)
    # A poll without an outcome has read nothing, but there are readers.
    assert total([*sent("a", 1), (1, "invoke", "poll", [["poll"]])])[-1] == (2.0, 1.0)


def test_only_acknowledged_records_wait_and_only_successful_polls_read() -> None:
    lines = sent("a", 1) + sent("a", 2, kind="info") + sent("a", 3, process=6, kind="fail")
    assert total(lines + polled(1, "a"))[-1] == (7.0, 1.0)
    assert total(sent("a", 1) + polled(1, "a", 1, kind="info"))[-1] == (3.0, 1.0)
    # Read before it was acknowledged.
    before = sent("a", 1)
    assert {number for _, number in total([before[0], *polled(1, "a", 1), before[1]])} == {0.0}


def test_a_transaction_counts_completely_or_not_at_all() -> None:
    two = txn(0, ["send", "a", [0, 1]], ["poll", {}], ["send", "b", [0, 1]], ["send", "a", [1, 2]])
    assert total(two)[-1] == (1.0, 3.0)
    reads = ["poll", {"a": [[0, 1]], "b": [[0, 1]]}], ["send", "a", [2, 3]], ["poll", {"a": [[1, 2]]}]
    assert total(two + txn(1, *reads))[-1] == (3.0, 1.0), "it has read three, and sent one"
    # An aborted one has read nothing and sent nothing.
    assert total(two + txn(1, *reads, kind="fail"))[-1] == (3.0, 3.0)


def test_reading_again_changes_nothing() -> None:
    lines = sent("a", 1) + polled(1, "a", 1)
    again: list[Line] = [(1, "invoke", "crash", None), (1, "info", "crash", None)]
    again += [(7, "invoke", "assign", ["a"]), (7, "ok", "assign", ["a"])]
    assert total(lines + again + polled(7, "a", 1) + polled(7, "a"))[-1] == (11.0, 0.0)


def test_of_many_keys_the_worst_have_lines_and_the_others_share_one() -> None:
    lines = [line for number in range(12) for line in sent(f"k{number:02}", number)]
    lines += [line for number in range(12) if number != 3 for line in polled(1, f"k{number:02}", number)]
    found = unseen(history(lines))
    assert len(found) == 1 + module.KEYS_MAX + 1 and "k03" in found and "4 others" in found
    for number, (_, all_of_them) in enumerate(found["all"]):
        assert all_of_them == sum(points[number][1] for name, points in found.items() if name != "all")


def test_a_long_run_has_a_bounded_number_of_points_and_each_is_correct() -> None:
    lines = [line for number in range(1_500) for line in sent("a", number)]
    lines += polled(1, "a", *range(1_490))
    points = total(lines)
    assert len(points) == module.SAMPLES_MAX and points[-1] == (3001.0, 10.0)
    assert all(number == (at + 1) // 2 for at, number in points[:-1])


def test_a_history_of_no_log_has_none() -> None:
    assert unseen([]) == {} and unseen(history(sent("a", 1))) == {} and unseen(history(polled(1, "a"))) == {}
    assert unseen(history([(0, "invoke", "poll", None), (0, "ok", "poll", {"t/0": 5})])) == {}
    assert unseen(history([(0, "invoke", "write", 3), (0, "ok", "write", 3)])) == {}
