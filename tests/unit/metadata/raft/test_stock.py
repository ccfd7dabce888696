"""The behaviour of unmodified pysyncobj 0.3.17: each test shows one hole, and names the test that shows it closed here.

If one of these tests fails after an upgrade of pysyncobj, a hole was closed there, and the override that closes it here
may be removed. No part of this runs in the product.
"""

from __future__ import annotations

import os
import pickle
import random
from typing import Any

import pysyncobj.syncobj
import pytest
from pysyncobj import SyncObj, SyncObjConf, replicated
from pysyncobj.node import Node
from pysyncobj.transport import Transport


class Said(Transport):  # type: ignore[misc]
    """A transport that records the sent messages."""

    def __init__(self) -> None:
        super().__init__(None, None, [])
        self.messages: list[tuple[str, dict[str, Any]]] = []

    def send(self, node: Node, message: dict[str, Any]) -> bool:
        self.messages.append((node.id, message))
        return True


class Stock(SyncObj):  # type: ignore[misc]
    """A stock node `a` of a cluster."""

    def __init__(self, others: str = "bc") -> None:
        self.said = Said()
        super().__init__(Node("a"), [Node(other) for other in others], SyncObjConf(autoTick=False), transport=self.said)
        self.values: list[object] = []

    def hear(self, sender: str, **message: Any) -> None:
        self.said._onMessageReceived(Node(sender), message)

    def connect(self, *others: str) -> None:
        for other in others:
            self.said._onNodeConnected(Node(other))

    @replicated
    def add(self, value: object) -> None:
        if value == "poison":
            self.values.append(value)
            raise ValueError(value)
        self.values.append(value)


class Clock:
    now = 0.0


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(pysyncobj.syncobj, "monotonicTime", lambda: clock.now)
    monkeypatch.setattr(pysyncobj.syncobj, "random", random.Random(1))
    return clock


def entries(first: int, *terms: int) -> list[tuple[bytes, int, int]]:
    return [(b"\1", first + number, term) for number, term in enumerate(terms)]


def log_of(node: Stock) -> list[tuple[int, int]]:
    return [(index, term) for _, index, term in node._SyncObj__raftLog[:]]


def test_stock_votes_twice_after_a_restart() -> None:
    """Ours: `test_no_second_vote_after_a_restart`."""
    for candidate in "bc":
        node = Stock()
        node.hear(candidate, type="request_vote", term=7, last_log_index=1, last_log_term=0)
        assert node.said.messages == [(candidate, {"type": "response_vote", "term": 7})]


def test_stock_counts_one_voters_vote_twice(clock: Clock) -> None:
    """Ours: `test_one_voters_vote_counts_once`."""
    node = Stock("bcde")
    node.connect("b")
    clock.now = 10.0
    node.doTick()
    for _ in range(2):
        node.hear("b", type="response_vote", term=1)
    assert node._isLeader()


def test_stock_truncates_what_it_acknowledged_when_an_append_comes_again() -> None:
    """Ours: `test_a_late_resend_truncates_nothing`."""
    node = Stock()
    append = {"type": "append_entries", "term": 5, "commit_index": 5, "prevLogIdx": 1, "prevLogTerm": 0}
    node.hear("b", entries=entries(2, 5, 5, 5, 5), **append)
    assert node.said.messages[-1][1]["next_node_idx"] == 6
    node.hear("b", entries=entries(2, 5, 5), **append)
    assert log_of(node) == [(1, 0), (2, 5), (3, 5)], "two acknowledged entries are gone"


def test_stock_commits_a_divergent_log_on_a_snapshots_chunk() -> None:
    """Ours: `test_only_a_complete_snapshot_commits`."""
    node = Stock()
    append = {"type": "append_entries", "commit_index": 1, "prevLogIdx": 1, "prevLogTerm": 0}
    node.hear("b", term=5, entries=entries(2, 5, 5, 5), **append)
    node.hear("c", type="append_entries", term=6, commit_index=4, serialized=None)
    assert node.raftCommitIndex == 4, "three entries of a deposed leader are committed"


def test_stock_believes_an_answer_of_any_term(clock: Clock) -> None:
    """Ours: `test_answers_of_another_term_prove_nothing`."""
    node = Stock()
    node.connect("b")
    clock.now = 10.0
    node.doTick()
    node.hear("b", type="response_vote", term=1)
    node.hear("b", type="next_node_idx", next_node_idx=3, reset=False, success=True)
    node.doTick()
    assert node.raftCommitIndex == 2, "an answer without a term committed an entry"


def test_stock_applies_a_command_that_raises_repeatedly(clock: Clock) -> None:
    """Ours: `test_a_command_that_raises_stops_the_node_and_is_not_retried`,
    `test_each_committed_entry_is_handed_out_once_and_in_order`.
    """
    node = Stock("")
    clock.now = 10.0
    node.doTick()
    node.add("poison")
    for _ in range(5):
        try:
            node.doTick()
        except ValueError:
            continue
    assert node.values.count("poison") > 1


def test_stock_never_answers_proposals_of_a_leader_that_was_deposed(clock: Clock) -> None:
    """Ours: `test_a_later_term_in_an_answer_ends_the_leadership`."""
    node = Stock()
    node.connect("b")
    clock.now = 10.0
    node.doTick()
    node.hear("b", type="response_vote", term=1)
    answers: list[object] = []
    node.add(1, callback=lambda *answer: answers.append(answer))
    node.doTick()
    node.hear("c", type="append_entries", term=2, commit_index=1, entries=[], prevLogIdx=1, prevLogTerm=0)
    for _ in range(10):
        clock.now += 0.1
        node.doTick()
    assert answers == []


def test_stock_runs_what_a_peer_sends(tmp_path: Any) -> None:
    """Ours: `tests/unit/metadata/quorum/test_attack.py`."""

    class Bomb:
        def __reduce__(self) -> tuple[Any, tuple[str]]:
            return os.mkdir, (str(tmp_path / "owned"),)

    node = Stock()
    append = {"type": "append_entries", "term": 5, "commit_index": 1, "prevLogIdx": 1, "prevLogTerm": 0}
    node.hear("b", transmission="start", data=b"", **append)
    try:
        node.hear("b", transmission="finish", data=pickle.dumps(Bomb()), **append)
    except TypeError:
        assert (tmp_path / "owned").exists()
        return
    raise AssertionError("the pickle was not loaded")
