"""Repeated or late initializations, and deleted positions: their handling by the image (S13)."""

from __future__ import annotations

import pytest

from metadata.commands.transactions import Expire, ExpiredProducer, Initialize, RemovePosition
from metadata.image.diff import transactions_diff
from metadata.records.transactions import ATTEMPT_BYTES, ATTEMPTS_KEPT
from metadata.snapshot.encoder import encode_snapshot
from raftlog.transactions import TransactionKey
from tests.support.metadata.at_once import decode_snapshot
from tests.support.metadata.groups import NOW_MS
from tests.support.metadata.transactions import TransactionCluster, commit, key, output


def attempt(number: int) -> bytes:
    return bytes([number]) * ATTEMPT_BYTES


def initialize(number: int | None, *, name: str = "app") -> Initialize:
    return Initialize(name, 60_000, NOW_MS, None if number is None else attempt(number))


def begin(cluster: TransactionCluster, number: int | None) -> TransactionKey:
    (first,) = cluster.do_change(initialize(number))
    return first


def test_a_repeated_initialization_gets_the_first_answer_and_fences_no_producer_s13() -> None:
    cluster = TransactionCluster()
    first = begin(cluster, 1)
    before = cluster.state()
    assert begin(cluster, 1) == first
    assert cluster.state() == before
    # It arrives late: its producer has continued since, and continues.
    (second,) = cluster.do_change(commit(output(first, {0: 5})))
    assert begin(cluster, 1) == second
    assert cluster.do_change(commit(output(second, {0: 9}))) == (key(first.producer_id, 2),)


def test_an_initialization_after_anothers_fences_no_producer_s13() -> None:
    cluster = TransactionCluster()
    begin(cluster, 1)
    successor = begin(cluster, 2)
    cluster.refuse(initialize(1), "producer_fenced", changes_nothing=True)
    assert cluster.do_change(commit(output(successor, {0: 5}))) == (key(successor.producer_id, successor[1] + 1),)


def test_one_without_a_number_takes_its_turn_as_well() -> None:
    cluster = TransactionCluster()
    first = begin(cluster, 1)
    assert begin(cluster, None) == key(first.producer_id, 1)
    assert begin(cluster, None) == key(first.producer_id, 2), "nobody can tell that it is the same one"
    cluster.refuse(initialize(1), "producer_fenced", changes_nothing=True)
    zeros = Initialize("app", 60_000, NOW_MS, bytes(ATTEMPT_BYTES))
    assert cluster.do_change(zeros) == (key(first.producer_id, 3),), "no number at all, so no answer of another's"


def test_an_initialization_after_its_own_last_transaction_fences_no_other_s13() -> None:
    def anew(number: int, last: TransactionKey) -> Initialize:
        return Initialize("app", 60_000, NOW_MS, attempt(number), last)

    cluster = TransactionCluster()
    first = begin(cluster, 1)
    (second,) = cluster.do_change(anew(2, first))
    assert second == key(first.producer_id, 1), "while it was undecided"
    cluster.do_change(commit(output(second, {0: 5})))
    (fourth,) = cluster.do_change(anew(3, second))
    assert fourth == key(first.producer_id, 3), "and once it was decided"
    # Another producer begins, and even ends a transaction.
    successor = begin(cluster, 4)
    cluster.refuse(anew(5, fourth), "producer_fenced", changes_nothing=True)
    cluster.abort(successor)
    cluster.refuse(anew(5, fourth), "producer_fenced", changes_nothing=True)
    # A name that has expired meanwhile begins with another id.
    producer = cluster.image.transactions.producer("app")
    assert producer is not None
    cluster.do_change(Expire(cluster.term, (), (ExpiredProducer("app", *producer.key),), ()))
    assert cluster.do_change(anew(5, fourth))[0].producer_id > first.producer_id


def test_the_stored_initializations_are_bounded() -> None:
    cluster = TransactionCluster()
    for number in range(1, 20):
        begin(cluster, number)
    producer = cluster.image.transactions.producer("app")
    assert producer is not None and len(producer.attempts) == ATTEMPTS_KEPT * ATTEMPT_BYTES
    assert [producer.turn_of(attempt(number)) for number in (19, 16, 15)] == [0, 3, None]


def test_each_name_keeps_its_own_initializations_and_none_after_expiry() -> None:
    cluster = TransactionCluster()
    first = begin(cluster, 1)
    (other,) = cluster.do_change(initialize(1, name="other"))
    assert other.producer_id != first.producer_id
    cluster.do_change(Expire(cluster.term, (), (ExpiredProducer("app", *first),), ()))
    assert begin(cluster, 1).producer_id > other.producer_id


def test_a_snapshot_keeps_the_stored_initializations() -> None:
    cluster = TransactionCluster()
    first = begin(cluster, 1)
    cluster.image = decode_snapshot(encode_snapshot(cluster.image))
    assert begin(cluster, 1) == first


# --- Positions -------------------------------------------------------------------------------------------------------


@pytest.fixture
def moved() -> TransactionCluster:
    cluster = TransactionCluster()
    cluster.do_change(commit(positions={"report/7": (-1, 3), "report/8": (-1, 0)}))
    return cluster


def test_a_position_is_deleted_if_it_is_at_the_expected_value(moved: TransactionCluster) -> None:
    assert "is at 3" in moved.refuse(RemovePosition("report/7", 2), "offset_moved", changes_nothing=True)
    moved.do_change(RemovePosition("report/7", 3))
    assert (moved.position("report/7"), moved.position("report/8")) == (-1, 0)
    assert moved.image.transactions.positions() == [("report/8", 0)]
    # Repeating it does nothing; and the name may begin again.
    moved.do_change(RemovePosition("report/7", 3))
    moved.do_change(commit(positions={"report/7": (-1, 0)}))
    assert moved.position("report/7") == 0


def test_a_copy_that_catches_up_deletes_it_too(moved: TransactionCluster) -> None:
    before = decode_snapshot(encode_snapshot(moved.image))
    moved.do_change(RemovePosition("report/7", 3))
    steps = transactions_diff(before.transactions, moved.image.transactions)
    with pytest.raises(StopIteration) as done:
        while True:
            next(steps)
    for event in done.value.value:
        before.transactions.change(event)
    assert before.transactions.positions() == [("report/8", 0)]


def test_a_commit_of_more_positions_than_the_first_one_moved_is_another_commit_s13() -> None:
    """Its transactions are committed, and its additional part has not happened: it must not be answered as done."""
    cluster = TransactionCluster()
    (one,) = cluster.open_block(count=1)
    asked = commit(output(one, {0: 5}), positions={"x": (-1, 0)})
    cluster.do_change(asked)
    cluster.do_change(asked)
    more = commit(output(one, {0: 5}), positions={"x": (-1, 0), "y": (-1, 0)})
    cluster.refuse(more, "position_taken", changes_nothing=True)
    cluster.refuse(commit(output(one, {0: 5}), positions={"y": (-1, 0)}), "transaction_committed", changes_nothing=True)
    assert cluster.position("y") == -1
