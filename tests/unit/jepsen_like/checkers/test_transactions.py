"""Transactions: torn ones, records consumed twice or never; positions and their records; fenced members."""

from __future__ import annotations

from typing import Any

import pytest

from jepsen_like.checkers import group_fencing, kafka, positions, transactions
from jepsen_like.histories.history import Kind, Operation

A, B = "a/0", "b/0"


def numbered(*parts: list[Operation]) -> list[Operation]:
    flat = [one for part in parts for one in part]
    return [
        Operation(at, one.process, one.kind, one.f, one.value, at, rebalanced=one.rebalanced)
        for at, one in enumerate(flat)
    ]


def txn(process: int, *micro: list[Any], kind: Kind = "ok", f: str = "txn") -> list[Operation]:
    asked = [["poll"] if one[0] == "poll" else ["send", one[1], one[2][1]] for one in micro]
    return [Operation(0, process, "invoke", f, asked), Operation(0, process, kind, f, list(micro))]


def send(key: str, offset: int | None, value: int) -> list[Any]:
    return ["send", key, [offset, value]]


def poll(**pairs: list[list[int]]) -> list[Any]:
    """`a=...` is key a/0."""
    return ["poll", {f"{name}/0": found for name, found in pairs.items()}]


def subscribed(process: int) -> list[Operation]:
    return [Operation(0, process, "invoke", "subscribe", [A, B]), Operation(0, process, "ok", "subscribe", [A, B])]


# --- Atomicity --------------------------------------------------------------------------------------------------------


def test_a_transaction_that_was_read_completely_or_not_at_all_is_correct_s13() -> None:
    whole = txn(0, send(A, 0, 1), send(B, 0, 1), kind="info")
    nothing = txn(1, send(A, 2, 2), send(B, 2, 2), kind="info")
    later = txn(2, send(A, 4, 9), send(B, 4, 9))
    reads = txn(3, poll(a=[[0, 1], [4, 9]], b=[[0, 1], [4, 9]]), f="poll")
    verdict = transactions.check(numbered(whole, nothing, later, reads))
    assert verdict.valid and verdict.measured["transactions"] == 3


@pytest.mark.parametrize("kind", ["ok", "info"])
def test_a_partly_read_transaction_is_torn_s13(kind: Kind) -> None:
    torn = txn(0, send(A, None, 1), send(B, None, 1), kind=kind)
    later = txn(2, send(B, 4, 9))
    history = numbered(torn, later, txn(3, poll(a=[[0, 1]], b=[[4, 9]]), f="poll"))
    verdict = transactions.check(history)
    assert verdict.valid is False
    assert verdict.anomalies["torn-transaction"][0]["missing"] == [(B, 1)]
    not_there_yet = numbered(torn, later, txn(3, poll(a=[[0, 1]], b=[]), f="poll"))
    assert transactions.check(not_there_yet).valid, "nobody has come past the place"
    meanwhile = [torn[0], *later, torn[1], *txn(3, poll(a=[[0, 1]], b=[[4, 9]]), f="poll")]
    assert transactions.check(numbered(meanwhile)).valid, "it may lie behind what was sent while it ran"


def test_a_committed_record_is_consumed_once_s13() -> None:
    sends = txn(9, send(A, 0, 1), send(A, 1, 2), send(A, 2, 3))
    first = txn(0, poll(a=[[0, 1], [1, 2]]))
    again = txn(1, poll(a=[[1, 2], [2, 3]]))
    members = subscribed(0) + subscribed(1)
    twice = transactions.check(numbered(sends, members, first, again), consumes=True)
    assert twice.valid is False and twice.anomalies["consumed-twice"][0]["value"] == 2
    aborted = txn(1, poll(a=[[1, 2], [2, 3]]), kind="fail")
    rest = txn(1, poll(a=[[2, 3]]))
    assert transactions.check(numbered(sends, members, first, aborted, rest), consumes=True).valid
    by_itself = numbered(sends, members, first, txn(3, poll(a=[[0, 1]])))
    assert transactions.check(by_itself, consumes=True).valid, "who assigns keys to itself commits no offsets"


def test_records_that_the_group_skipped_were_moved_over_without_being_consumed_s13() -> None:
    sends = txn(9, send(A, 0, 1), send(A, 1, 2), send(A, 2, 3))
    members = subscribed(0)
    history = numbered(sends, members, txn(0, poll(a=[[0, 1]])), txn(0, poll(a=[[2, 3]])))
    verdict = transactions.check(history, consumes=True)
    assert verdict.valid is False and verdict.anomalies["consumed-by-none"] == [{"key": A, "value": 2, "proof": [1, 7]}]
    asked = [["poll"], ["send", B, 7]]
    killed = [Operation(0, 1, "invoke", "txn", asked), Operation(0, 1, "info", "txn", asked)]
    told = transactions.check(numbered(history, subscribed(1), killed), consumes=True)
    assert told.valid and told.measured["untold"] == 1, "nobody knows what it had polled"
    perhaps = txn(1, poll(a=[[1, 2]]), kind="info")
    assert transactions.check(numbered(history, subscribed(1), perhaps), consumes=True).valid
    another = txn(1, poll(a=[[0, 1]]), kind="info")
    assert transactions.check(numbered(history, subscribed(1), another), consumes=True).valid is False


# --- Positions and their records --------------------------------------------------------------------------------------


def cas(number: int, came_from: int | None, to: int, kind: Kind = "ok", name: str = "p") -> list[Operation]:
    value = [name, [came_from, to], number]
    return [Operation(0, number, "invoke", "cas", value), Operation(0, number, kind, "cas", value)]


def records(*numbers: int) -> list[Operation]:
    return [Operation(0, 90, "invoke", "records"), Operation(0, 90, "ok", "records", list(numbers))]


def position(at: int | None, name: str = "p") -> list[Operation]:
    return [Operation(0, 91, "invoke", "read", [name, None]), Operation(0, 91, "ok", "read", [name, at])]


def test_a_position_and_its_record_move_together_s13() -> None:
    history = numbered(
        cas(1, None, 0), cas(2, 0, 1, "fail"), cas(3, 0, 1, "info"), cas(4, 1, 2, "info"), position(1), records(1, 3)
    )
    assert positions.check(history).valid


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("position-without-record", [cas(1, None, 0), cas(2, 0, 1), records(1)]),
        ("record-without-position", [cas(1, None, 0), cas(2, 0, 1, "fail"), records(1, 2)]),
        ("record-twice", [cas(1, None, 0), records(1, 1)]),
        ("unexpected-record", [cas(1, None, 0), records(1, 7)]),
        ("broken-chain", [cas(1, None, 0), cas(2, 0, 1, "info"), cas(3, 1, 2), records(1, 3)]),
        ("broken-chain", [cas(1, None, 0), cas(2, None, 0, "info"), records(1, 2)]),
        ("broken-chain", [cas(1, None, 0), cas(2, 0, 1, "info"), position(1), records(1)]),
        ("broken-chain", [cas(1, None, 0), cas(2, 0, 1, "info"), position(0), records(1, 2)]),
    ],
)
def test_a_move_without_its_counterpart_is_found_s13(name: str, parts: list[list[Operation]]) -> None:
    verdict = positions.check(numbered(*parts))
    assert verdict.valid is False and set(verdict.anomalies) == {name}


def test_without_a_read_after_the_last_move_nothing_is_known() -> None:
    assert positions.check(numbered(records(), cas(1, None, 0))).valid is None
    assert positions.check(numbered(records())).valid is None


# --- Members ----------------------------------------------------------------------------------------------------------


def given(process: int, *keys: str, kind: Kind = "ok") -> list[Operation]:
    value = {"owned": list(keys), "assigned": list(keys), "gone": []}
    return [Operation(0, process, "invoke", "poll"), Operation(0, process, kind, "poll", value)]


def commit(process: int, key: str, offset: int, kind: Kind = "ok") -> list[Operation]:
    asked = Operation(0, process, "invoke", "commit", [key, offset])
    return [asked, Operation(0, process, kind, "commit", [key, offset])]


def test_the_owner_commits_and_the_former_owner_does_not_s8() -> None:
    good = numbered(given(0, A), commit(0, A, 1), given(1, A), commit(1, A, 2), commit(0, A, 3, "info"))
    assert group_fencing.check(good).valid
    zombie = numbered(given(0, A), given(1, A, kind="fail"), commit(0, A, 3))
    verdict = group_fencing.check(zombie)
    assert verdict.valid is False and verdict.anomalies["fenced-commit"][0]["assigned_to"] == 1
    assert group_fencing.check(numbered(given(0, A), given(1, B), commit(0, A, 3))).valid
    assert group_fencing.check(numbered(given(0, A), given(1, A), given(0, A), commit(0, A, 3))).valid


def test_a_repeated_commit_changes_nothing() -> None:
    """The client knows it, and sends nothing: it is answered while all nodes are stopped."""
    again = numbered(given(0, A), commit(0, A, 3), given(1, A), commit(0, A, 3))
    assert group_fencing.check(again).valid
    lower = numbered(given(0, A), commit(0, A, 3), given(1, A), commit(0, A, 2))
    assert group_fencing.check(lower).valid is False


def test_ambiguous_orders_are_not_checked() -> None:
    mine, others, begun = given(0, A), given(1, A), commit(0, A, 3)
    overlapping = numbered([others[0]], mine, [others[1]], begun)
    assert group_fencing.check(overlapping).valid, "the other's may have been before this one's"
    meanwhile = numbered(mine, [begun[0]], others, [begun[1]])
    assert group_fencing.check(meanwhile).valid, "the commit may have been before that"
    assert group_fencing.check(numbered(mine)).valid is None
    assert group_fencing.check([]).valid is None


# --- Rebalances, if every operation contains them ---------------------------------------------------------------------


def test_a_poll_goes_back_only_if_the_group_took_the_partition() -> None:
    sends = txn(9, send(A, 0, 1), send(A, 1, 2), f="send")
    first, again = txn(0, poll(a=[[0, 1], [1, 2]]), f="poll"), txn(0, poll(a=[[0, 1], [1, 2]]), f="poll")
    parts = (sends, subscribed(0), first, again)
    silent = kafka.check(numbered(*parts), rebalances_told=True)
    assert silent.valid is False and set(silent.anomalies) == {"nonmonotonic-poll"}
    assert kafka.check(numbered(*parts)).valid, "who is not told what moved allows it everywhere"
    moved = Operation(0, 0, "ok", "poll", again[1].value, rebalanced=(A,))
    assert kafka.check(numbered(sends, subscribed(0), first, [again[0], moved]), rebalances_told=True).valid
    other = Operation(0, 0, "ok", "poll", again[1].value, rebalanced=(B,))
    assert not kafka.check(numbered(sends, subscribed(0), first, [again[0], other]), rebalances_told=True).valid


def test_other_writers_records_between_two_of_a_transaction_are_no_skip() -> None:
    between = txn(1, send(A, 1, 5))
    torn = txn(0, send(A, 0, 1), send(A, 2, 2))
    reads = txn(3, poll(a=[[0, 1], [1, 5], [2, 2]]), f="poll")
    history = numbered([torn[0]], between, [torn[1]], reads)
    assert kafka.check(history, transactional=True).valid is False
    assert kafka.check(history, transactional=True, allow=frozenset({"int-send-skip"})).valid
