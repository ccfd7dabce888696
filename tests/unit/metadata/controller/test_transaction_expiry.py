"""Unused state of transactions expires after its time; nothing else does, whatever the clocks do."""

from __future__ import annotations

import pytest

from metadata.commands.transactions import Abort, Expire, RetireBlock, StagePart
from metadata.controller.transaction_expiry import PARTS_SECONDS, TransactionExpiry
from metadata.image.transaction_ends import ANSWERED_BY_POSITION_MS
from raftlog.model import NO_TIME
from tests.support.metadata.groups import NOW_MS
from tests.support.metadata.transactions import ABORTED, TransactionCluster, commit, output

DAY_MS = 24 * 3_600_000


class Controller:
    """A controller of one term; the test advances the time."""

    def __init__(self, *, unused_ms: int = DAY_MS) -> None:
        self.cluster = TransactionCluster()
        self.expiry = TransactionExpiry(self.cluster.view.transactions, self.cluster.term, unused_ms=unused_ms)
        self.now = 100.0
        self.cluster.tell_time(NOW_MS)

    def look(self, seconds: float = 0.0) -> Expire | None:
        self.now += seconds
        self.cluster.tell_time(self.cluster.image.time.now_ms + int(1000 * seconds))
        return self.expiry.decide(self.now, self.cluster.view.time)

    def apply(self, expire: Expire | None) -> None:
        assert expire is not None
        self.cluster.do_change(expire)


def test_a_block_expires_when_none_of_it_was_decided_for_twice_its_timeout() -> None:
    controller = Controller()
    one, *_ = controller.cluster.open_block("batch", timeout_ms=10_000)
    assert controller.look() is None
    assert controller.look(19.0) is None
    controller.cluster.abort(one)
    assert controller.look(2.0) is None, "it was used"
    assert controller.look(19.0) is None
    controller.apply(controller.look(1.5))
    assert controller.cluster.view.transactions.blocks() == []
    assert controller.look(1.0) is None


def test_a_retired_block_is_kept_as_long_for_retries() -> None:
    controller = Controller()
    one, *_ = controller.cluster.open_block("batch", timeout_ms=10_000)
    controller.look(15.0)
    asked = commit(output(one, {0: 5}), block="batch")
    controller.cluster.do_change(asked)
    assert controller.look() is None
    assert controller.look(15.0) is None
    controller.cluster.do_change(asked)
    controller.apply(controller.look(6.0))
    controller.cluster.refuse(asked, "outcome_unknown")


def test_a_block_whose_outcomes_a_position_records_is_not_kept_for_long() -> None:
    """One micro-batch per second, for a minute: a retry of any of them finds the position taken."""
    controller = Controller()
    cluster = controller.cluster
    asked = []
    for number in range(60):
        one, _ = cluster.open_block(f"spark/q/sink/{number}/0", 2, timeout_ms=300_000)
        positions = {"spark/q/sink": (number - 1, number)}
        asked.append(commit(output(one, {0: 5}), positions=positions, block=f"spark/q/sink/{number}/0"))
        cluster.do_change(asked[-1])
        cluster.mark(0, one)
        expired = controller.look(1.0)
        if expired is not None:
            controller.apply(expired)
    kept = cluster.view.transactions.block_count
    assert kept <= 2 * ANSWERED_BY_POSITION_MS // 1_000 + 1, "not twice 300 seconds"
    cluster.do_change(asked[-1])
    cluster.refuse(asked[0], "position_taken")
    assert cluster.verdict(asked[0].outputs[0].key, 0) == ABORTED, "all of it that showed is marked"


def test_outcomes_without_a_position_are_kept_with_their_block() -> None:
    controller = Controller()
    first, second, *_ = controller.cluster.open_block("batch", timeout_ms=300_000)
    alone = commit(output(first, {0: 5}))
    controller.cluster.do_change(alone)
    controller.cluster.do_change(commit(output(second, {0: 9}), positions={"done": (-1, 1)}, block="batch"))
    assert controller.look() is None
    assert controller.look(599.0) is None
    controller.cluster.do_change(alone)
    assert controller.look(2.0) is not None


def test_a_lost_or_late_expiry_is_repeated() -> None:
    controller = Controller()
    controller.cluster.open_block("batch", timeout_ms=1_000)
    controller.look()
    late = controller.look(2.0)
    assert late is not None and controller.look(1.0) == late
    controller.cluster.do_change(RetireBlock("batch"))
    controller.apply(late)
    assert len(controller.cluster.view.transactions.blocks()) == 1, "it had changed"


def test_abandoned_parts_expire() -> None:
    controller = Controller()
    controller.cluster.do_change(StagePart(b"commit-number-01", 0, b"\x92\x90\x90"))
    assert controller.look() is None
    assert controller.look(PARTS_SECONDS - 1) is None
    controller.cluster.do_change(StagePart(b"commit-number-01", 1, b"\x92\x90\x90"))
    assert controller.look(2.0) is None
    controller.apply(controller.look(PARTS_SECONDS))
    assert controller.cluster.view.transactions.staged() == []


def test_a_name_expires_when_it_was_not_used_for_long_and_positions_never_do() -> None:
    controller = Controller()
    controller.cluster.initialize("old")
    controller.cluster.do_change(commit(positions={"query": (-1, 5)}))
    assert controller.look(DAY_MS / 1000) is None, "a stamp may lag by a step"
    controller.cluster.initialize("young")
    controller.apply(controller.look(61.0))
    assert [p.transactional_id for p in controller.cluster.view.transactions.producers()] == ["young"]
    assert controller.cluster.position("query") == 5


@pytest.mark.parametrize("wrong_ms", [-8 * DAY_MS, 8 * DAY_MS])
def test_no_wall_clock_makes_a_name_expire(wrong_ms: int) -> None:
    """The node that proposes has this clock; the cluster's time stamps its requests (S13)."""
    controller = Controller()
    key = controller.cluster.initialize("app", now_ms=NOW_MS + wrong_ms)
    assert controller.look(61.0) is None
    controller.cluster.do_change(Abort((key,), NOW_MS + wrong_ms))
    assert controller.look(DAY_MS / 1000) is None
    controller.apply(controller.look(61.0))


def test_without_the_clusters_time_no_name_expires() -> None:
    controller = Controller()
    controller.cluster.initialize("app")
    assert controller.expiry.decide(controller.now + 1e9, NO_TIME) is None


def test_without_expired_state_nothing_is_proposed() -> None:
    controller = Controller()
    assert controller.expiry.next_call(controller.now) is None
    controller.cluster.initialize()
    controller.look()
    due = controller.expiry.next_call(controller.now)
    assert due is not None and due > controller.now + 30
    controller.cluster.open_block()
    due = controller.expiry.next_call(controller.now)
    assert due is not None and due <= controller.now + 1
