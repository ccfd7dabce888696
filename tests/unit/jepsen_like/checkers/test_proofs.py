"""Every anomaly of every checker, in a small history: exactly the operations that prove it are marked on the page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from jepsen_like.checkers import group_fencing, kafka, keyed, positions, set_full, stats, transactions
from jepsen_like.checkers.verdict import Verdict
from jepsen_like.histories.history import Kind, Operation
from jepsen_like.report.excerpts import excerpts

Check = Callable[[Sequence[Operation]], Verdict]
Line = tuple[int, Kind, str, Any]
K = "a/0"


def call(process: int, f: str, value: Any = None, kind: Kind = "ok", asked: Any = None) -> list[Line]:
    return [(process, "invoke", f, asked if asked is not None else value), (process, kind, f, value)]


def send(process: int, *pairs: tuple[int | None, int], kind: Kind = "ok", f: str = "send") -> list[Line]:
    return call(process, f, [["send", K, list(pair)] for pair in pairs], kind, [["send", K, pair[1]] for pair in pairs])


def poll(process: int, *pairs: tuple[int, int], kind: Kind = "ok", f: str = "poll") -> list[Line]:
    return call(process, f, [["poll", {K: [list(pair) for pair in pairs]}]], kind, [["poll"]])


def cycles(history: Sequence[Operation]) -> Verdict:
    return kafka.check(history, ww_deps=True)


def consuming(history: Sequence[Operation]) -> Verdict:
    return transactions.check(history, consumes=True)


def registers(history: Sequence[Operation]) -> Verdict:
    return keyed.check(history, "register")


def recovery(history: Sequence[Operation]) -> Verdict:
    return stats.recovery(history, parts=lambda one: [one.value], writes=["write"])


NOTHING = send(8, (0, 100)) + send(8, (1, 101))
"""Two calls that are always there and prove nothing: positions of records must not be confused with them."""
FIRST: list[Line] = [(9, "invoke", "crash", None), (9, "info", "crash", None)]


def txn(process: int, *micro: list[Any], kind: Kind = "ok") -> list[Line]:
    asked = [["poll"] if one[0] == "poll" else ["send", one[1], one[2][1]] for one in micro]
    return call(process, "txn", list(micro), kind, asked)


def sent(key: str, offset: int, value: int) -> list[Any]:
    return ["send", key, [offset, value]]


def polled(key: str, *pairs: tuple[int, int]) -> list[Any]:
    return ["poll", {key: [list(pair) for pair in pairs]}]


def crossing() -> list[Line]:
    """Two transactions that write two keys in opposite orders."""
    return txn(0, sent("a", 0, 1), sent("b", 1, 3)) + txn(1, sent("a", 1, 2), sent("b", 0, 4))


def moved(process: int, name: str, span: list[int | None], number: int, kind: Kind = "ok") -> list[Line]:
    return call(process, "cas", [name, span, number], kind)


SUBSCRIBED = call(0, "subscribe", [K]) + call(1, "subscribe", [K])

CASES: list[tuple[str, Check, list[Line], list[int]]] = [
    ("inconsistent-offsets", kafka.check, FIRST + send(0, (0, 1)) + send(1, (0, 2)), [2, 3, 4, 5]),
    ("duplicate", kafka.check, FIRST + send(0, (0, 1)) + poll(1, (1, 1)), [2, 3, 4, 5]),
    ("G1a", kafka.check, FIRST + send(0, (None, 1), kind="fail") + poll(1, (0, 1)), [2, 3, 4, 5]),
    ("precommitted-read", kafka.check, FIRST + txn(0, sent(K, 0, 1), polled(K, (0, 1))), [2, 3]),
    ("lost-write", kafka.check, FIRST + send(0, (0, 1)) + send(0, (1, 2)) + poll(1, (1, 2)), [2, 3, 6, 7]),
    ("unseen", kafka.check, FIRST + send(0, (0, 1)) + poll(1), [2, 3]),
    ("unexpected", kafka.check, FIRST + send(0, (0, 1)) + poll(1, (1, 7)), [4, 5]),
    ("realtime-send-inversion", kafka.check, FIRST + send(0, (3, 1)) + send(1, (2, 2)), [2, 3, 4, 5]),
    ("offset-hole", kafka.check, FIRST + send(0, (0, 1)) + send(1, (2, 2)) + poll(2), [2, 3, 4, 5]),
    ("int-poll-skip", kafka.check, NOTHING + send(0, (2, 1)) + poll(1, (0, 100), (2, 1)), [6, 7]),
    ("int-nonmonotonic-poll", kafka.check, NOTHING + poll(1, (1, 101), (0, 100)), [4, 5]),
    ("int-send-skip", kafka.check, NOTHING + send(1, (2, 1), (4, 2)) + send(0, (3, 3)), [4, 5]),
    ("int-nonmonotonic-send", kafka.check, FIRST + send(0, (1, 1), (0, 2)), [2, 3]),
    ("poll-skip", kafka.check, NOTHING + send(0, (2, 1)) + poll(1, (0, 100)) + poll(1, (2, 1)), [6, 7, 8, 9]),
    ("nonmonotonic-poll", kafka.check, NOTHING + poll(1, (1, 101)) + poll(1, (0, 100)), [4, 5, 6, 7]),
    ("nonmonotonic-send", kafka.check, FIRST + send(0, (1, 1)) + send(0, (0, 2)), [2, 3, 4, 5]),
    ("G0", cycles, FIRST + crossing(), [2, 3, 4, 5]),
    (
        "G1c",
        kafka.check,
        FIRST + txn(0, sent("a", 0, 1), polled("b", (0, 2))) + txn(1, sent("b", 0, 2), polled("a", (0, 1))),
        [2, 3, 4, 5],
    ),
    ("empty-transaction-graph", kafka.check, FIRST, []),
    (
        "torn-transaction",
        transactions.check,
        FIRST
        + txn(0, sent("a", 0, 1), sent("b", 0, 2))
        + txn(1, sent("b", 1, 3))
        + txn(2, polled("a", (0, 1)))
        + txn(3, polled("b", (1, 3))),
        [2, 3, 4, 5, 6, 7, 8, 9],
    ),
    (
        "consumed-twice",
        consuming,
        SUBSCRIBED + send(2, (0, 1)) + txn(0, polled(K, (0, 1))) + txn(1, polled(K, (0, 1))),
        [6, 7, 8, 9],
    ),
    (
        "consumed-by-none",
        consuming,
        SUBSCRIBED + send(2, (0, 1)) + send(2, (1, 2)) + txn(0, polled(K, (1, 2))),
        [4, 5, 8, 9],
    ),
    (
        "lost",
        set_full.check,
        FIRST + call(0, "add", 1) + call(1, "read", [1]) + call(1, "read", []),
        [2, 3, 4, 5, 6, 7],
    ),
    (
        "stale",
        set_full.check,
        FIRST + call(0, "add", 1) + call(1, "read", []) + call(1, "read", [1]),
        [2, 3, 4, 5, 6, 7],
    ),
    ("duplicated", set_full.check, FIRST + call(0, "add", 1) + call(1, "read", [1, 1]), [4, 5]),
    ("unexpected", set_full.check, FIRST + call(0, "add", 1, "fail") + call(1, "read", [1]), [2, 3, 4, 5]),
    (
        "position-without-record",
        positions.check,
        FIRST + moved(0, "p", [None, 1], 5) + call(1, "records", []),
        [2, 3, 4, 5],
    ),
    (
        "record-without-position",
        positions.check,
        FIRST + moved(0, "p", [None, 1], 5, "fail") + call(1, "records", [5]),
        [2, 3, 4, 5],
    ),
    ("record-twice", positions.check, FIRST + moved(0, "p", [None, 1], 5) + call(1, "records", [5, 5]), [2, 3, 4, 5]),
    ("unexpected-record", positions.check, FIRST + moved(0, "p", [None, 1], 5) + call(1, "records", [5, 6]), [4, 5]),
    (
        "broken-chain",
        positions.check,
        FIRST + moved(0, "p", [None, 1], 5) + moved(0, "p", [2, 3], 6) + call(1, "records", [5, 6]),
        [2, 3, 4, 5, 6, 7],
    ),
    (
        "fenced-commit",
        group_fencing.check,
        FIRST + call(0, "poll", {"assigned": [K]}) + call(1, "poll", {"assigned": [K]}) + call(0, "commit", [K, 1]),
        [4, 5, 6, 7],
    ),
    ("nonlinearizable", registers, FIRST + call(0, "write", ["r", 1]) + call(1, "read", ["r", 0]), [2, 3, 4, 5]),
    ("never-ok", stats.check, FIRST + call(0, "add", 1, "fail"), [2, 3]),
    ("not-recovered", recovery, [*FIRST, (9, "info", "healed", None), *call(0, "write", "r", "fail")], [3, 4]),
]


@pytest.mark.parametrize(("name", "check", "lines", "proving"), CASES, ids=[case[0] for case in CASES])
def test_exactly_the_proof_of_an_anomaly_is_marked(
    name: str, check: Check, lines: list[Line], proving: list[int]
) -> None:
    history = [
        Operation(at, "suite" if f == "healed" else process, kind, f, value, at)
        for at, (process, kind, f, value) in enumerate(lines)
    ]
    (shown, *_) = excerpts(check(history).anomalies[name], history)
    assert [line.index for stretch in shown.lines for line in stretch if line.proves] == proving


@pytest.mark.parametrize(
    ("key", "name"), [("exception", "client-exception"), ("client", "client-stuck")], ids=["exception", "stuck"]
)
def test_a_client_that_ended_is_marked(key: str, name: str) -> None:
    history = [
        Operation(0, 1, "invoke", "add", 1),
        Operation(1, 0, "invoke", "add", 2),
        Operation(2, 0, "info", "add", 2, error={key: "it ended"}),
    ]
    (shown,) = excerpts(stats.check(history).anomalies[name], history)
    assert [line.index for stretch in shown.lines for line in stretch if line.proves] == [1, 2]
