"""Decisions about transactions: every rule and every refusal of the image, and the events that a view gets (S13)."""

from __future__ import annotations

import pytest

from metadata.commands.cluster import SetFeatureLevel
from metadata.commands.transactions import (
    Abort,
    AbortOverdue,
    Expire,
    ExpiredBlock,
    ExpiredProducer,
    Initialize,
    Marked,
    RetireBlock,
)
from metadata.image import invariants as image_invariants
from metadata.image import transaction_ends
from metadata.records.transactions import NamedProducer
from raftlog.model import NO_PRODUCER_ID, LeaderEpoch, ProducerEpoch, ProducerId
from raftlog.transactions import Outcome
from raftlog.version import FEATURE_LEVEL
from tests.support.metadata.cluster import TOPIC
from tests.support.metadata.groups import NOW_MS, join
from tests.support.metadata.transactions import (
    ABORTED,
    UNDECIDED,
    TransactionCluster,
    commit,
    committed,
    key,
    moves,
    output,
    tp,
)

# --- Named producers -------------------------------------------------------------------------------------------------


def test_each_initialization_and_each_end_raises_the_epoch() -> None:
    cluster = TransactionCluster()
    first = cluster.initialize()
    assert cluster.initialize("other").producer_id != first.producer_id
    assert cluster.do_change(commit(output(first, {0: 5}))) == (key(first.producer_id, 1),)
    assert cluster.abort(key(first.producer_id, 1)) == (key(first.producer_id, 2),)
    assert cluster.initialize() == key(first.producer_id, 3)


def test_a_retried_end_gets_its_first_answer() -> None:
    cluster = TransactionCluster()
    first = cluster.initialize()
    asked = commit(output(first, {0: 5}), positions={"here": (-1, 0)})
    assert cluster.do_change(asked) == cluster.do_change(asked) == (key(first.producer_id, 1),)
    cluster.refuse(Abort((first,), NOW_MS), "transaction_committed", changes_nothing=True)
    second = key(first.producer_id, 1)
    assert cluster.abort(second) == cluster.abort(second) == (key(first.producer_id, 2),)
    cluster.refuse(commit(output(second, {0: 9})), "transaction_aborted", changes_nothing=True)


def test_an_older_epoch_is_fenced_and_gets_no_outcome() -> None:
    cluster = TransactionCluster()
    first = cluster.initialize()
    cluster.do_change(commit(output(first, {0: 5})))
    successor = cluster.initialize()
    for zombie in (first, key(first.producer_id, 1)):
        cluster.refuse(commit(output(zombie, {0: 5})), "producer_fenced", changes_nothing=True)
        cluster.refuse(Abort((zombie,), NOW_MS), "producer_fenced", changes_nothing=True)
        assert cluster.view.transactions.refusal(zombie) == "producer_fenced"
    assert cluster.verdict(first, 0) == committed(5)
    assert cluster.verdict(key(first.producer_id, 1), 0) == ABORTED
    assert cluster.verdict(successor, 0) == UNDECIDED
    assert cluster.view.transactions.refusal(successor) == ""


def test_a_zombie_does_not_get_its_successors_epoch_by_aborting() -> None:
    """The answer to its last end would give it the next epoch; but that was the initialization's."""
    cluster = TransactionCluster()
    zombie = cluster.initialize()
    cluster.initialize()
    cluster.refuse(Abort((zombie,), NOW_MS), "producer_fenced", changes_nothing=True)


@pytest.fixture
def few_epochs(monkeypatch: pytest.MonkeyPatch) -> int:
    """A small number of epochs, so that their end comes soon."""
    for module in (transaction_ends, image_invariants):
        monkeypatch.setattr(module, "MAX_PRODUCER_EPOCH", 3)
    return 3


def test_at_the_end_of_its_epochs_a_producer_continues_with_another_id(few_epochs: int) -> None:
    cluster = TransactionCluster()
    first = cluster.initialize()
    for epoch in range(few_epochs):
        cluster.abort(key(first.producer_id, epoch))
    last = key(first.producer_id, few_epochs)
    asked = commit(output(last, {0: 5}))
    (second,) = cluster.do_change(asked)
    assert second.producer_id != first.producer_id and second.producer_epoch == 0
    assert cluster.do_change(asked) == (second,)
    assert cluster.verdict(last, 0) == committed(5)
    assert cluster.view.transactions.refusal(last) == "transaction_committed"
    assert cluster.view.transactions.timeout_ms(last) == 60_000
    (third,) = cluster.do_change(commit(output(second, {0: 7})))
    assert third == key(second.producer_id, 1)
    cluster.refuse(asked, "producer_fenced", changes_nothing=True)
    assert cluster.open_block()[0].producer_id > second.producer_id


def test_an_initialization_at_the_end_of_the_epochs_fences_the_former_id(few_epochs: int) -> None:
    cluster = TransactionCluster()
    first = cluster.initialize()
    for _ in range(few_epochs):
        cluster.initialize()
    last = key(first.producer_id, few_epochs)
    fresh = cluster.initialize()
    assert fresh.producer_id != first.producer_id and fresh.producer_epoch == 0
    cluster.refuse(Abort((last,), NOW_MS), "producer_fenced")
    assert cluster.verdict(last, 0) == ABORTED


def test_a_timeout_ends_a_transaction_and_its_producer_continues() -> None:
    cluster = TransactionCluster()
    first = cluster.initialize(timeout_ms=1_000)
    assert cluster.view.transactions.timeout_ms(first) == 1_000
    cluster.overdue(first)
    assert cluster.verdict(first, 0) == ABORTED
    assert cluster.view.transactions.refusal(first) == "transaction_aborted"
    cluster.refuse(commit(output(first, {0: 5})), "transaction_aborted", changes_nothing=True)
    assert cluster.abort(first) == (key(first.producer_id, 1),)


# --- Ids without a name ----------------------------------------------------------------------------------------------


def test_a_block_is_granted_once_for_its_name_and_ids_never_twice() -> None:
    cluster = TransactionCluster()
    named = cluster.initialize()
    block = cluster.open_block("batch", 3)
    assert [one.producer_id for one in block] == [named.producer_id + number for number in (1, 2, 3)]
    assert cluster.open_block("batch", 100) == block
    assert cluster.open_block("", 1)[0].producer_id == block[-1].producer_id + 1
    assert cluster.open_block("", 1)[0].producer_id == block[-1].producer_id + 2
    cluster.do_change(RetireBlock("batch"))
    assert cluster.open_block("batch", 3)[0] not in block


def test_an_id_is_good_for_one_transaction() -> None:
    cluster = TransactionCluster()
    one, other, third, *_ = cluster.open_block()
    asked = commit(output(one, {0: 5}), output(other, {0: 6, 1: 2}))
    assert cluster.do_change(asked) == ()
    assert cluster.verdict(one, 0) == committed(5)
    assert cluster.verdict(one, 1) == ABORTED, "it does not name this partition"
    assert cluster.verdict(other, 1) == committed(2)
    assert cluster.verdict(third, 0) == UNDECIDED
    assert cluster.view.transactions.refusal(one) == "transaction_committed"
    assert cluster.view.transactions.refusal(third) == ""
    assert cluster.do_change(asked) == ()
    cluster.refuse(commit(output(one, {0: 5}), output(third, {})), "transaction_committed")
    assert cluster.verdict(third, 0) == ABORTED, "a refused commit aborts what it names"
    assert cluster.verdict(key(one.producer_id, 1), 0) == ABORTED
    assert cluster.view.transactions.refusal(key(one.producer_id, 1)) == "producer_fenced"


def test_a_commit_retires_its_block_and_all_other_attempts_are_aborted_at_once() -> None:
    cluster = TransactionCluster()
    winner, loser, *_ = cluster.open_block("batch")
    cluster.do_change(commit(output(winner, {0: 5}), block="batch"))
    assert cluster.verdict(winner, 0) == committed(5)
    assert cluster.verdict(loser, 0) == ABORTED
    assert cluster.view.transactions.refusal(loser) == "transaction_aborted"
    cluster.refuse(commit(output(loser, {0: 9})), "transaction_aborted")
    assert cluster.view.transactions.open_block("batch") is None


def test_a_refused_commit_retires_its_block_too() -> None:
    cluster = TransactionCluster()
    cluster.do_change(commit(positions={"batch": (-1, 3)}))
    loser, other, *_ = cluster.open_block("batch")
    cluster.refuse(commit(output(loser, {0: 5}), positions={"batch": (2, 3)}, block="batch"), "position_taken")
    assert cluster.verdict(loser, 0) == cluster.verdict(other, 0) == ABORTED


def test_an_abort_ends_undecided_transactions_and_refuses_committed_ones() -> None:
    cluster = TransactionCluster()
    one, other, *_ = cluster.open_block()
    named = cluster.initialize()
    cluster.do_change(commit(output(one, {0: 5})))
    cluster.refuse(
        Abort(
            (
                other,
                one,
                named,
            ),
            NOW_MS,
        ),
        "transaction_committed",
    )
    assert cluster.verdict(one, 0) == committed(5)
    assert cluster.verdict(other, 0) == cluster.verdict(named, 0) == ABORTED


def test_an_id_that_was_never_granted_is_unknown_and_not_expired() -> None:
    cluster = TransactionCluster()
    next_id = cluster.image.next_producer_id
    unknown = key(next_id)
    assert cluster.verdict(unknown, 0) == UNDECIDED
    assert cluster.view.transactions.refusal(unknown) == ""
    assert cluster.view.transactions.timeout_ms(unknown) is None
    cluster.refuse(commit(output(unknown, {0: 5})), "unknown_transaction", changes_nothing=True)
    cluster.refuse(Abort((unknown,), NOW_MS), "unknown_transaction", changes_nothing=True)
    far = key(next_id + 2**40)
    assert cluster.view.transactions.refusal(far) == "unknown_transaction"


def test_an_operator_aborts_transactions_of_ids_that_were_never_granted_s13() -> None:
    cluster = TransactionCluster()
    cluster.do(SetFeatureLevel(FEATURE_LEVEL))
    named = cluster.initialize()
    next_id = cluster.image.next_producer_id
    strangers = (key(next_id + 7), key(next_id + 3), key(named.producer_id, 9))
    assert cluster.do_change(Abort(strangers, NOW_MS)) == (key(named.producer_id, 10),)
    producer = cluster.image.transactions.producer_of(named.producer_id)
    assert producer is not None and producer.key == key(named.producer_id, 10)
    assert [cluster.verdict(one, 0) for one in strangers] == [ABORTED] * 3
    assert cluster.open_block()[0].producer_id > strangers[0].producer_id, "nobody gets these ids later"
    far = key(cluster.image.next_producer_id + 2**40)
    cluster.refuse(Abort((far,), NOW_MS), "unknown_transaction", changes_nothing=True)
    # One that was committed stays so, whatever else the request names.
    committed_one = cluster.initialize()
    cluster.do_change(commit(output(committed_one, {0: 5})))
    cluster.refuse(Abort((committed_one, key(cluster.image.next_producer_id)), NOW_MS), "transaction_committed")
    assert cluster.verdict(committed_one, 0) == committed(5)


def test_a_transaction_with_an_id_that_was_never_granted_does_not_stay_open() -> None:
    cluster = TransactionCluster()
    stranger = key(cluster.image.next_producer_id + 7)
    cluster.overdue(stranger)
    assert cluster.verdict(stranger, 0) == ABORTED
    assert cluster.open_block()[0].producer_id > stranger.producer_id
    named = cluster.initialize()
    cluster.overdue(key(named.producer_id, 9))
    assert cluster.verdict(key(named.producer_id, 9), 0) == ABORTED
    assert cluster.initialize().producer_epoch > 10
    far = key(cluster.image.next_producer_id + 2**40)
    before = cluster.state()
    cluster.overdue(far)
    assert cluster.state() == before


# --- Expiry ----------------------------------------------------------------------------------------------------------


def expire_block(cluster: TransactionCluster, name: str) -> None:
    block = cluster.image.transactions.open_block(name)
    assert block is not None
    cluster.do_change(Expire(cluster.term, (ExpiredBlock(block.first, block.changed),), (), ()))


def test_after_its_block_expired_an_id_is_not_reported_as_aborted() -> None:
    cluster = TransactionCluster()
    one, other, third, *_ = cluster.open_block("batch")
    cluster.do_change(commit(output(one, {0: 5})))
    cluster.mark(0, one)
    expire_block(cluster, "batch")
    cluster.refuse(commit(output(one, {0: 5})), "outcome_unknown", changes_nothing=True)
    cluster.refuse(Abort((other,), NOW_MS), "outcome_unknown", changes_nothing=True)
    asked = commit(output(third, {0: 5}), positions={"batch": (-1, 0)})
    cluster.refuse(asked, "producer_ids_expired", changes_nothing=True)
    assert cluster.view.transactions.refusal(other) == "producer_ids_expired"
    assert cluster.verdict(other, 0) == ABORTED


def test_expiry_spares_commits_that_are_not_marked_and_ends_the_rest() -> None:
    cluster = TransactionCluster()
    one, other, *_ = cluster.open_block("batch")
    named = cluster.initialize()
    cluster.do_change(commit(output(one, {0: 5}), output(named, {1: 6})))
    expire_block(cluster, "batch")
    after = key(named.producer_id, 1)
    cluster.do_change(Expire(cluster.term, (), (ExpiredProducer("app", *after),), ()))
    assert cluster.verdict(one, 0) == committed(5)
    assert cluster.verdict(named, 1) == committed(6)
    assert cluster.verdict(one, 1) == cluster.verdict(other, 0) == cluster.verdict(after, 1) == ABORTED
    assert cluster.initialize().producer_id > named.producer_id
    cluster.mark(0, one)
    assert cluster.verdict(one, 0) == ABORTED, "a late write of it"


def test_a_commit_that_may_have_been_accepted_is_never_reported_as_refused() -> None:
    """In a retry some transactions are known as committed, and the others have expired."""
    cluster = TransactionCluster()
    named = cluster.initialize()
    one, other, *_ = cluster.open_block("batch")
    asked = commit(output(one, {0: 5}), output(named, {0: 6}))
    (after,) = cluster.do_change(asked)
    cluster.abort(after)
    cluster.refuse(asked, "producer_fenced", changes_nothing=True)
    fresh = cluster.initialize("fresh")
    asked = commit(output(other, {0: 7}), output(fresh, {0: 8}))
    cluster.do_change(asked)
    expire_block(cluster, "batch")
    cluster.refuse(asked, "outcome_unknown", changes_nothing=True)
    third = cluster.initialize("third")
    cluster.refuse(commit(output(other, {0: 7}), output(third, {0: 8})), "producer_ids_expired")
    assert cluster.verdict(third, 0) == ABORTED
    again, *_ = cluster.open_block()
    cluster.refuse(commit(output(fresh, {0: 8}), output(again, {0: 9})), "transaction_committed")
    assert cluster.verdict(again, 0) == ABORTED


def test_state_that_has_changed_since_does_not_expire() -> None:
    cluster = TransactionCluster()
    one, *_ = cluster.open_block("batch")
    block = cluster.image.transactions.open_block("batch")
    named = cluster.initialize()
    assert block is not None
    cluster.abort(one, named)
    expired = ExpiredBlock(block.first, block.changed)
    cluster.do_change(Expire(cluster.term, (expired,), (ExpiredProducer("app", *named),), ()))
    assert cluster.image.transactions.producer("app") is not None
    assert cluster.image.transactions.block(block.first) is not None
    cluster.refuse(Expire(cluster.term + 1, (), (), ()), "not_coordinator", changes_nothing=True)


# --- Markers ---------------------------------------------------------------------------------------------------------


def test_ends_are_kept_until_each_partitions_leader_has_its_marker() -> None:
    cluster = TransactionCluster()
    one, *_ = cluster.open_block()
    cluster.do_change(commit(output(one, {0: 5, 1: 6})))
    transactions = cluster.view.transactions
    assert transactions.unmarked(tp(0)) == transactions.unmarked(tp(1)) == [one]
    cluster.mark(0, one)
    assert transactions.unmarked(tp(0)) == [] and transactions.unmarked(tp(1)) == [one]
    assert transactions.unmarked_count(one) == 1
    cluster.mark(1, one)
    assert transactions.unmarked_count(one) == 0
    cluster.mark(1, one, key(999))  # once more, and an unknown one


def test_a_report_of_another_leader_epoch_is_refused() -> None:
    cluster = TransactionCluster()
    one, *_ = cluster.open_block()
    cluster.do_change(commit(output(one, {0: 5})))
    other_epoch = LeaderEpoch(cluster.image.partitions[tp(0)].leader_epoch + 1)
    cluster.refuse(Marked(TOPIC, 0, other_epoch, (one,)), "fenced_leader_epoch", changes_nothing=True)
    cluster.refuse(Marked(TOPIC, 99, other_epoch, (one,)), "unknown_partition", changes_nothing=True)
    assert cluster.verdict(one, 0) == committed(5)


# --- Effects of a commit ---------------------------------------------------------------------------------------------


def test_outputs_offsets_and_positions_move_together_s13() -> None:
    cluster = TransactionCluster()
    named = cluster.initialize()
    asked = commit(
        output(named, {0: 5}),
        groups=(moves("readers", {1: (-1, 10), 2: (-1, 0)}), moves("others", {1: (-1, 1)})),
        positions={"here": (-1, 4), "there": (-1, 0)},
    )
    cluster.do_change(asked)
    assert cluster.committed() == {1: 10, 2: 0} and cluster.committed("others") == {1: 1}
    assert (cluster.position("here"), cluster.position("there")) == (4, 0)
    before = cluster.state()
    cluster.do_change(asked)
    assert cluster.state() == before


def test_a_taken_position_was_published_and_its_retry_gets_the_first_answer() -> None:
    cluster = TransactionCluster()
    one, other, third, *_ = cluster.open_block()
    asked = commit(output(one, {0: 5}), positions={"query": (-1, 0)})
    cluster.do_change(asked)
    cluster.refuse(commit(output(other, {0: 9}), positions={"query": (-1, 0)}), "position_taken")
    assert cluster.verdict(other, 0) == ABORTED
    cluster.do_change(asked)
    cluster.refuse(commit(output(third, {}), positions={"query": (0, 1), "query2": (7, 8)}), "offset_moved")
    assert (cluster.position("query"), cluster.position("query2")) == (0, -1)
    cluster.refuse(commit(output(one, {0: 5}), positions={"query": (0, 1)}), "transaction_committed")
    assert cluster.position("query") == 0


def test_a_group_moves_from_the_transactions_start_or_nothing_does_s8() -> None:
    cluster = TransactionCluster()
    zombie = cluster.initialize()
    cluster.commit("", {0: 3})
    asked = commit(output(zombie, {1: 5}), groups=(moves("readers", {0: (2, 4)}),), positions={"here": (-1, 1)})
    cluster.refuse(asked, "offset_moved")
    assert cluster.committed() == {0: 3} and cluster.position("here") == -1
    assert cluster.verdict(zombie, 1) == ABORTED


def test_only_the_member_that_owns_a_partition_moves_it_s8() -> None:
    cluster = TransactionCluster()
    one, other, *_ = cluster.open_block()
    cluster.change(join("m"))
    cluster.rebalance()
    cluster.refuse(commit(output(one, {}), groups=(moves("readers", {0: (-1, 4)}),)), "group_not_empty")
    member = cluster.member("m")
    mine = moves("readers", {0: (-1, 4)})
    spoken = type(mine)("readers", "m", member.incarnation, member.generation, mine.moves)
    cluster.do_change(commit(output(other, {}), groups=(spoken,)))
    assert cluster.committed() == {0: 4}
    third = cluster.initialize()
    stale = type(mine)("readers", "m", member.incarnation, 0, moves("readers", {0: (4, 5)}).moves)
    cluster.refuse(commit(output(third, {}), groups=(stale,)), "stale_generation")
    assert cluster.committed() == {0: 4}


def test_a_deleted_partition_ends_the_attempt() -> None:
    cluster = TransactionCluster()
    one, other, *_ = cluster.open_block()
    cluster.refuse(commit(output(one, {0: 5, 77: 1})), "unknown_partition")
    assert cluster.verdict(one, 0) == ABORTED
    cluster.refuse(commit(output(other, {0: 5}), groups=(moves("readers", {77: (-1, 1)}),)), "unknown_partition")


@pytest.mark.parametrize(
    "asked",
    [
        commit(output(key(0), {0: 5}), output(key(0), {0: 6})),
        commit(output(key(0), {0: 5}), output(key(0, 1), {1: 6})),
        commit(output(key(0), {}), groups=(moves("g", {0: (5, 4)}),)),
        commit(output(key(0), {}), positions={"p": (3, 3)}),
        commit(output(key(0), {}), groups=(moves("g", {0: (-1, 4)}), moves("g", {0: (-1, 5)}))),
    ],
)  # fmt: skip
def test_an_invalid_commit_changes_nothing_s11(asked: object) -> None:
    cluster = TransactionCluster()
    assert cluster.open_block("first")[0] == key(0)
    cluster.refuse(asked, "invalid_request", changes_nothing=True)  # type: ignore[arg-type]
    assert cluster.verdict(key(0), 0) == UNDECIDED


def test_a_named_producers_record_has_the_key_with_which_it_continues() -> None:
    producer = NamedProducer("app", ProducerId(3), ProducerEpoch(2), 1_000, 5)
    assert producer.ended is None and producer.outcome is Outcome.UNDECIDED and producer.former_id == NO_PRODUCER_ID
    overdue = AbortOverdue((producer.key,))
    assert overdue.keys[0] == key(3, 2)
    assert Initialize("app", 1_000, 5).transactional_id == producer.transactional_id
