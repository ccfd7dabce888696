"""The checker of a log: each anomaly in its place, none elsewhere, and the permitted histories."""

from __future__ import annotations

import time
from typing import Any

import pytest

from jepsen_like.checkers.kafka import check
from jepsen_like.checkers.kafka_log import LogHistory
from jepsen_like.checkers.kafka_records import unseen_over_time
from jepsen_like.checkers.verdict import Verdict
from jepsen_like.histories.history import Kind, Operation
from raftlog.errors import InvalidRequest

KEY = "p0"


def done(process: int, kind: Kind, f: str, *micro: Any) -> list[Operation]:
    """An operation that is invoked and completes at once."""
    asked = [[*one[:2], one[2][1]] if one[0] == "send" else ["poll"] for one in micro] if f != "assign" else micro
    value = list(micro)
    return [
        Operation(0, process, "invoke", f, value if f in {"assign", "subscribe"} else asked),
        Operation(0, process, kind, f, value),
    ]


def sent(process: int, *pairs: tuple[int | None, Any], kind: Kind = "ok", key: str = KEY) -> list[Operation]:
    return done(process, kind, "send", *(["send", key, list(pair)] for pair in pairs))


def polled(process: int, *pairs: tuple[int, Any], kind: Kind = "ok", key: str = KEY) -> list[Operation]:
    return done(process, kind, "poll", ["poll", {key: [list(pair) for pair in pairs]}])


ABC = sent(0, (0, "a"), (1, "b"), (2, "c"))


def numbered(*parts: list[Operation]) -> list[Operation]:
    flat = [one for part in parts for one in part]
    return [
        Operation(index, one.process, one.kind, one.f, one.value, index, one.node, one.error, one.rebalanced)
        for index, one in enumerate(flat)
    ]


def names(*parts: list[Operation], **options: Any) -> set[str]:
    return set(check(numbered(*parts), **options).anomalies)


def test_records_are_read_in_the_order_of_the_sends() -> None:
    history = numbered(
        sent(0, (0, "a"), (1, "b")), polled(1, (0, "a")), sent(0, (2, "c")), polled(1, (1, "b"), (2, "c"))
    )
    verdict = check(history)
    assert verdict.valid and not verdict.anomalies
    assert [count for _, count in unseen_over_time(LogHistory(history))] == [{KEY: 2}, {KEY: 1}, {KEY: 2}, {}]


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("inconsistent-offsets", [sent(0, (0, "a")), polled(1, (0, "a")), polled(2, (0, "b")), sent(3, (None, "b"))]),
        ("duplicate", [sent(0, (0, "a")), polled(1, (0, "a"), (1, "a"))]),
        ("G1a", [sent(0, (0, "a"), kind="fail"), polled(1, (0, "a"))]),
        ("precommitted-read", [done(0, "info", "txn", ["send", KEY, [0, "a"]], ["poll", {KEY: [[0, "a"]]}])]),
        ("lost-write", [sent(0, (0, "a")), sent(0, (1, "b")), polled(1, (1, "b"))]),
        ("unseen", [sent(0, (0, "a"), (1, "b")), polled(1, (0, "a"))]),
        ("unexpected", [sent(0, (0, "a")), polled(1, (0, "a"), (1, "x"))]),
        ("int-poll-skip", [sent(0, (0, "a"), (1, "b"), (2, "c")), polled(1, (0, "a"), (2, "c")), polled(2, (1, "b"))]),
        ("int-nonmonotonic-poll", [sent(0, (0, "a"), (1, "b")), polled(1, (1, "b"), (0, "a"))]),
        ("int-send-skip", [sent(0, (0, "a"), (2, "c")), sent(1, (1, "b")), polled(2, (0, "a"), (1, "b"), (2, "c"))]),
        ("int-nonmonotonic-send", [sent(0, (1, "a"), (0, "b")), polled(1, (0, "b"), (1, "a"))]),
        ("poll-skip", [sent(0, (0, "a"), (1, "b"), (2, "c")), polled(1, (0, "a")), polled(1, (2, "c"))]),
        ("nonmonotonic-poll", [sent(0, (0, "a"), (1, "b")), polled(1, (0, "a"), (1, "b")), polled(1, (0, "a"))]),
        ("nonmonotonic-send", [sent(0, (1, "b")), sent(0, (0, "a")), polled(1, (0, "a"), (1, "b"))]),
        ("realtime-send-inversion", [sent(0, (1, "b")), sent(2, (0, "a")), polled(1, (0, "a"), (1, "b"))]),
        ("offset-hole", [sent(0, (0, "a")), sent(0, (5, "b")), polled(1, (0, "a"), (5, "b"))]),
        ("empty-transaction-graph", [done(0, "ok", "assign", KEY)]),
    ],
)
def test_each_anomaly_is_found(name: str, parts: list[list[Operation]]) -> None:
    verdict = check(numbered(*parts))
    assert name in verdict.anomalies
    assert verdict.valid is False


@pytest.mark.parametrize(
    ("absent", "parts"),
    [
        ("duplicate", [sent(0, (0, "a")), polled(1, (0, "a")), polled(1, (0, "a"))]),
        # A send that failed, or has an unknown outcome and was never read, may not have been written.
        ("lost-write", [sent(0, (None, "a"), kind="info"), sent(1, (1, "b")), polled(2, (1, "b"))]),
        ("duplicate", [sent(0, (0, "a"), kind="fail"), polled(1, (3, "a"), kind="fail")]),
        ("lost-write", [sent(0, (0, "a")), polled(2, (0, "a")), sent(1, (1, "b"))]),
        # An aborted read rewinds.
        (
            "poll-skip",
            [sent(0, (0, "a"), (1, "b")), polled(1, (0, "a")), polled(1, (1, "b"), kind="fail"), polled(1, (1, "b"))],
        ),
        # Positions belong to assignments.
        ("poll-skip", [ABC, polled(1, (0, "a")), done(1, "ok", "assign", "p9"), polled(1, (2, "c"))]),
        ("nonmonotonic-poll", [ABC, polled(1, (0, "a")), done(1, "info", "assign", "p9"), polled(1, (0, "a"))]),
        ("int-send-skip", [sent(0, (0, "a"), (None, "c"), kind="info"), polled(1, (0, "a"))]),
    ],
)  # fmt: skip
def test_permitted_histories_have_no_anomaly(absent: str, parts: list[list[Operation]]) -> None:
    assert absent not in names(*parts)


def test_one_send_that_was_read_proves_the_others_of_its_operation() -> None:
    """A transaction with an unknown outcome; without the poll nothing is lost."""
    both = done(0, "info", "txn", ["send", "p0", [0, "a"]], ["send", "p1", [None, "b"]])
    later = sent(1, (1, "c"))
    assert "lost-write" not in names(both, later, polled(2, (1, "c")))
    assert "lost-write" in names(both, done(3, "ok", "send", ["send", "p1", [0, "d"]]), later,
                                 polled(2, (1, "c")), polled(4, (0, "d"), (1, "b"), key="p1"))  # fmt: skip


def test_keys_that_a_group_moved_are_not_checked_within_the_operation() -> None:
    skip = polled(1, (0, "a"), (2, "c"))
    moved = [skip[0], Operation(0, 1, "ok", "poll", skip[1].value, rebalanced=(KEY,))]
    rest = [sent(0, (0, "a"), (1, "b"), (2, "c")), polled(2, (1, "b"))]
    assert "int-poll-skip" in names(*rest, skip)
    assert "int-poll-skip" not in names(*rest, moved)


def test_numbers_and_text_are_the_same_key() -> None:
    """In JSON, polled records have text for keys."""
    send = [Operation(0, 0, "invoke", "send", [["send", 3, 7]]), Operation(0, 0, "ok", "send", [["send", 3, [0, 7]]])]
    assert names(send, polled(1, (0, 7), key="3")) == set()


# --- Cycles -----------------------------------------------------------------------------------------------------------

CROSSED = [
    [Operation(0, 0, "invoke", "txn", [["send", "x", 1], ["send", "y", 1]]),
     Operation(0, 1, "invoke", "txn", [["send", "x", 2], ["send", "y", 2]])],
    [Operation(0, 0, "ok", "txn", [["send", "x", [0, 1]], ["send", "y", [1, 1]]]),
     Operation(0, 1, "ok", "txn", [["send", "x", [1, 2]], ["send", "y", [0, 2]]])],
    polled(2, (0, 1), (1, 2), key="x"), polled(2, (0, 2), (1, 1), key="y"),
]  # fmt: skip


def test_crossing_writes_are_a_cycle_if_requested() -> None:
    verdict = check(numbered(*CROSSED), ww_deps=True, strict=False)
    (cycle,) = verdict.anomalies["G0"]
    assert cycle["cycle_indices"] == [3, 2, 3]
    assert [step["type"] for step in cycle["steps"]] == ["ww", "ww"]
    assert verdict.valid  # Jepsen's measure permits it
    assert check(numbered(*CROSSED), ww_deps=True).valid is False
    assert "G0" not in names(*CROSSED)


def test_crossing_reads_are_a_cycle() -> None:
    parts = [
        [Operation(0, 0, "invoke", "txn", [["send", "x", 1], ["poll"]]),
         Operation(0, 1, "invoke", "txn", [["send", "y", 1], ["poll"]])],
        [Operation(0, 0, "ok", "txn", [["send", "x", [0, 1]], ["poll", {"y": [[0, 1]]}]]),
         Operation(0, 1, "ok", "txn", [["send", "y", [0, 1]], ["poll", {"x": [[0, 1]]}]])],
    ]  # fmt: skip
    assert "G1c" in names(*parts)
    assert check(numbered(*parts), strict=False).valid is False


def test_a_read_from_the_future_is_a_cycle_with_time() -> None:
    parts = [polled(1, (0, "a")), sent(0, (0, "a"))]
    assert "G1c-realtime" in names(*parts)
    assert "G1c-process" in names(polled(0, (0, "a")), sent(0, (0, "a")))
    assert "G1c" not in names(*parts)


def knot(count: int) -> list[list[Operation]]:
    """Each transaction polls the next one's sends, and the last the first one's; and many more of the others'."""
    begun = [Operation(0, one, "invoke", "txn", [["send", KEY, one], ["poll"]]) for one in range(count)]
    ended = [
        Operation(0, one, "ok", "txn", [["send", KEY, [one, one]], ["poll", {KEY: [[(one + 1) % count] * 2]}]])
        for one in range(count)
    ]
    return [begun, ended]


def test_a_large_cycle_takes_seconds_and_shows_one_cycle() -> None:
    began = time.process_time()
    verdict = check(numbered(*knot(5_000)))
    assert time.process_time() - began < 10
    (cycle,) = verdict.anomalies["G1c"]
    assert len(cycle["cycle_indices"]) == 5_001 and verdict.valid is False


def test_a_graph_with_many_short_paths_shows_a_short_cycle() -> None:
    """All transactions read from all others: 5,000 transactions would be 25 million edges; 300 are 90,000."""
    count = 300
    begun, _ = knot(count)
    everything = [[one, one] for one in range(count)]
    ended = [
        Operation(0, one, "ok", "txn", [["send", KEY, [one, one]], ["poll", {KEY: everything}]]) for one in range(count)
    ]
    (cycle,) = check(numbered(begun, ended)).anomalies["G1c"]
    assert len(cycle["cycle_indices"]) == 3


def test_an_abandoned_search_is_no_pass() -> None:
    sound = [sent(0, (0, "a"), (1, "b")), polled(1, (0, "a"), (1, "b"))]
    assert check(numbered(*sound)).valid
    verdict = check(numbered(*sound), steps=1)
    assert verdict.valid is None and "abandoned" in verdict.measured["reason"]
    assert check(numbered(*sound, polled(2, (2, "x"))), steps=1).valid is False


# --- Measures ---------------------------------------------------------------------------------------------------------


def test_a_group_may_move_partitions() -> None:
    skip = [sent(0, (0, "a"), (1, "b"), (2, "c")), polled(1, (0, "a")), polled(1, (2, "c")), polled(2, (1, "b"))]
    subscribed = done(1, "ok", "subscribe", KEY)
    assert check(numbered(*skip)).valid is False
    assert check(numbered(subscribed, *skip)).valid


def test_jepsens_measure_permits_other_sends_in_between() -> None:
    parts = [sent(0, (0, "a"), (2, "c")), sent(1, (1, "b")), polled(2, (0, "a"), (1, "b"), (2, "c"))]
    assert check(numbered(*parts), strict=False).valid
    assert check(numbered(*parts)).valid is False


def test_control_batches_leave_holes() -> None:
    parts = [sent(0, (0, "a")), sent(0, (5, "b")), polled(1, (0, "a"), (5, "b"))]
    assert check(numbered(*parts), transactional=True) == Verdict(True, {}, check(numbered(*parts)).measured)


@pytest.mark.parametrize(
    "value", [7, [7], [["send", KEY]], [["send", {}, 1]], [["send", KEY, [0, 1, 2]]], [["poll", 3]], [["fly"]], [[]]]
)
def test_an_invalid_history_is_refused(value: Any) -> None:
    with pytest.raises(InvalidRequest):
        check(numbered([Operation(0, 0, "invoke", "txn", [["poll"]]), Operation(0, 0, "ok", "txn", value)]))
