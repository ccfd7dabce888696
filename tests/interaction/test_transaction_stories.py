"""Schedules of decisions and logs together: whole brokers, one image, and the records that readers see in the end (S13,
S8).

Each schedule breaks exactly-once if a rule is removed, which its docstring names. The rules of decisions alone are
played without them in `tests/unit/metadata/image/test_transaction_stories.py`.
"""

from __future__ import annotations

import pytest

from metadata.commands.cluster import DeleteTopic
from metadata.commands.transactions import Abort, Expire, ExpiredBlock
from raftlog.model import Offset
from raftlog.transactions import TransactionKey
from raftlog.wire import GroupMoves, OffsetMove, PositionMove
from tests.support.metadata.groups import NOW_MS
from tests.support.metadata.transaction_world import TOPIC, TransactionWorld, tp


@pytest.fixture
def world() -> TransactionWorld:
    return TransactionWorld()


def moves(start: int, end: int) -> tuple[GroupMoves, ...]:
    return (GroupMoves("readers", "", 0, 0, (OffsetMove(TOPIC, 0, start, Offset(end)),)),)


def test_outputs_of_two_partitions_and_consumed_offsets_become_visible_together(world: TransactionWorld) -> None:
    first = world.initialize()
    assert world.write(first, 0, b"a0") == world.write(first, 1, b"a1") == ""
    assert world.reads((0, 1)) == [[], []]
    assert world.commit((first, {0: 1, 1: 1}), groups=moves(-1, 7)) == ""
    world.wait()
    assert world.reads((0, 1)) == [[b"a0"], [b"a1"]]
    assert world.waits_for(first) == 0, "both leaders reported their markers"
    assert world.image.groups.offsets_of("readers")[tp(0)].offset == 7


def test_an_abort_leaves_nothing_and_the_next_transaction_is_visible(world: TransactionWorld) -> None:
    first = world.initialize()
    assert world.write(first, 0, b"a0") == ""
    code, (second,) = world.ask(Abort((first,), NOW_MS))
    assert code == ""
    world.wait()
    assert world.write(second, 0, b"b0") == ""
    assert world.commit((second, {0: 3})) == ""
    world.wait()
    assert world.read(0) == [b"b0"]
    assert world.write(first, 0, b"late", sequence=1) == "producer_fenced"


def test_a_late_batch_does_not_become_part_of_the_commit(world: TransactionWorld) -> None:
    """Offsets in the commit: b0 is acknowledged, the late b1 is appended at a leader whose view lags, and then the
    marker arrives."""
    first, *_ = world.open_block()
    assert world.write(first, 0, b"b0") == ""
    world.deaf = {0, 1, 2}
    assert world.commit((first, {0: 1})) == ""
    assert world.write(first, 0, b"b1", sequence=1) == ""
    assert world.write(first, 1, b"stray") == ""
    world.hear(0, 1, 2)
    assert world.reads((0, 1)) == [[b"b0"], []]
    assert world.waits_for(first) == 0


def test_a_stray_batch_of_an_expired_commit_does_not_hang_its_partition(world: TransactionWorld) -> None:
    """V1: P1's leader lags and appends a stray batch; P0 is marked and the offsets are removed; then P1's leader
    asks."""
    first, *_ = world.open_block()
    assert world.write(first, 0, b"a0") == ""
    world.deaf = {1}
    assert world.commit((first, {0: 1})) == ""
    world.wait()
    assert world.waits_for(first) == 0
    assert world.write(first, 1, b"stray") == ""
    world.hear(1)
    other, *_ = world.open_block()
    assert world.write(other, 1, b"next") == ""
    assert world.commit((other, {1: 3})) == ""
    world.wait()
    assert world.reads((0, 1)) == [[b"a0"], [b"next"]]
    assert world.commit((first, {0: 1})) == "", "and the retry gets its first answer"


def test_a_marker_is_of_one_epoch_and_shows_nothing_of_the_next(world: TransactionWorld) -> None:
    """V3: epoch 0 is committed and the leader does not know; a batch of epoch 1 arrives; then the marker of epoch 0."""
    first = world.initialize()
    assert world.write(first, 0, b"e0") == ""
    world.deaf = {0}
    assert world.commit((first, {0: 1})) == ""
    second = TransactionKey(first.producer_id, type(first.producer_epoch)(1))
    assert world.write(second, 0, b"e1") == ""
    world.hear(0)
    assert world.read(0) == [b"e0"], "an undecided record shows"
    assert world.ask(Abort((second,), NOW_MS))[0] == ""
    world.wait()
    assert world.read(0) == [b"e0"]


def test_a_new_leader_writes_the_marker_that_was_only_appended(world: TransactionWorld) -> None:
    """The new leader completes the transaction, whose ends are kept until its marker is below the high watermark: the
    old leader's marker reaches no follower."""
    first, *_ = world.open_block()
    assert world.write(first, 0, b"a0") == world.write(first, 1, b"a1") == ""
    world.cut(0)
    assert world.commit((first, {0: 1, 1: 1})) == ""
    world.wait(0.5)
    assert world.waits_for(first) == 1, "P0's marker is appended, and not below the high watermark"
    world.elect(0, 1)
    world.wait()
    assert world.reads((0, 1)) == [[b"a0"], [b"a1"]]
    assert world.waits_for(first) == 0


def test_a_report_that_was_lost_with_its_leader_is_repeated_by_the_next(world: TransactionWorld) -> None:
    first, *_ = world.open_block()
    assert world.write(first, 0, b"a0") == ""
    world.mute = {0}
    assert world.commit((first, {0: 1})) == ""
    world.wait()
    assert world.read(0) == [b"a0"] and world.waits_for(first) == 1
    world.elect(0, 2)
    world.wait()
    assert world.waits_for(first) == 0 and world.read(0) == [b"a0"]


def test_a_lost_report_is_repeated(world: TransactionWorld) -> None:
    first, *_ = world.open_block()
    assert world.write(first, 0, b"a0") == ""
    world.mute = {0}
    assert world.commit((first, {0: 1})) == ""
    world.wait(2.0)
    assert world.waits_for(first) == 1
    world.mute = set()
    world.wait(10.0)
    assert world.waits_for(first) == 0


def test_a_zombies_open_transaction_is_aborted_when_its_successor_begins(world: TransactionWorld) -> None:
    """R2, R5: the zombie's commit, which is in flight, is refused; the successor begins at the group's offsets."""
    zombie = world.initialize()
    assert world.write(zombie, 0, b"zombie") == ""
    successor = world.initialize()
    world.wait()
    assert world.commit((zombie, {0: 1}), groups=moves(-1, 5)) == "producer_fenced"
    assert world.write(zombie, 0, b"more", sequence=1) == "producer_fenced"
    assert world.write(successor, 0, b"mine") == ""
    assert world.commit((successor, {0: 3}), groups=moves(-1, 5)) == ""
    world.wait()
    assert world.read(0) == [b"mine"]
    again = world.initialize()
    assert world.write(again, 0, b"redone") == ""
    assert world.commit((again, {0: 5}), groups=moves(-1, 5)) == "offset_moved"
    world.wait()
    assert world.read(0) == [b"mine"]


def test_an_overdue_transaction_is_aborted_and_holds_up_no_reader(world: TransactionWorld) -> None:
    """Presumed abort: the leader reports it, the quorum decides, and a late writer is refused."""
    gone = world.initialize(timeout_ms=2_000)
    assert world.write(gone, 0, b"gone") == ""
    other, *_ = world.open_block()
    assert world.write(other, 0, b"other") == ""
    assert world.commit((other, {0: 2})) == ""
    world.wait()
    assert world.read(0) == [], "behind what is open"
    world.wait(3.0)
    assert world.read(0) == [b"other"]
    assert world.commit((gone, {0: 1})) == "transaction_aborted"


def test_expiry_spares_a_commit_whose_marker_is_not_written(world: TransactionWorld) -> None:
    """The commit expires before its marker is written; transactions that were only written are aborted."""
    one, other, *_ = world.open_block()
    assert world.write(one, 0, b"one") == world.write(other, 1, b"other") == ""
    world.deaf = {0, 1}
    assert world.commit((one, {0: 1})) == ""
    (block,) = world.image.transactions.blocks()
    assert world.ask(Expire(1, (ExpiredBlock(block.first, block.changed),), (), ()))[0] == ""
    world.hear(0, 1)
    assert world.reads((0, 1)) == [[b"one"], []]
    assert world.waits_for(one) == 0
    assert world.commit((other, {1: 1})) == "outcome_unknown"
    assert world.write(other, 1, b"late", sequence=1) == "producer_ids_expired"


def test_of_two_drivers_that_wrote_everything_only_one_publishes(world: TransactionWorld) -> None:
    one, other, *_ = world.open_block()
    for of, value in ((one, b"one"), (other, b"other")):
        assert world.write(of, 0, value) == world.write(of, 1, value) == ""
    published = (PositionMove("query", -1, 0),)
    assert world.commit((one, {0: 1, 1: 1}), positions=published) == ""
    assert world.commit((other, {0: 2, 1: 2}), positions=published) == "position_taken"
    world.wait()
    assert world.reads((0, 1)) == [[b"one"], [b"one"]]


def test_a_deleted_topic_leaves_no_commit_waiting(world: TransactionWorld) -> None:
    first, *_ = world.open_block()
    assert world.write(first, 0, b"a0") == ""
    world.deaf = {0, 1, 2}
    assert world.commit((first, {0: 1})) == ""
    world.apply(DeleteTopic(TOPIC))
    world.hear(0, 1, 2)
    assert world.waits_for(first) == 0
    assert all(tp(0) not in node.broker.manager.drivers for node in world.nodes.values())
