"""Schedules that break exactly-once if one rule of decisions is removed; with the rule they do no harm (S13, S8).

They were found by model checking. Each is played twice, with the image as it is and with one whose rule is removed; a
schedule that harms neither proves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from metadata.commands.transactions import Abort, Expire, ExpiredBlock, Initialize, TransactionChange
from metadata.image import transaction_commit, transaction_ends
from metadata.image import transactions as transaction_image
from metadata.image.transaction_state import TransactionsState
from metadata.records import transaction_table as transaction_state
from metadata.records.events import BlockRemoved, EndsForgotten, TransactionEvent
from metadata.records.transaction_table import Transactions
from metadata.records.transactions import Block, NamedProducer, Standing
from raftlog.transactions import Outcome, TransactionKey
from tests.support.metadata.groups import NOW_MS
from tests.support.metadata.transactions import (
    ABORTED,
    UNDECIDED,
    TransactionCluster,
    commit,
    committed,
    key,
    moves,
    output,
)


def code_of(cluster: TransactionCluster, change: TransactionChange) -> str:
    """The code of the refusal; empty if it is executed."""
    answers = cluster.ask(change).answers
    return answers[0].code if answers else ""


def expire(cluster: TransactionCluster) -> None:
    blocks = [ExpiredBlock(block.first, block.changed) for block in cluster.image.transactions.blocks()]
    cluster.do_change(Expire(cluster.term, tuple(blocks), (), ()))


# --- Schedules: the final violation, or none -------------------------------------------------------------------------


def an_abort_is_forgotten(cluster: TransactionCluster) -> str:
    """Everything is acknowledged; task 1 is aborted and its leader marks that; then the commit of both arrives."""
    one, other, *_ = cluster.open_block()
    cluster.ask(Abort((one,), NOW_MS))
    if cluster.verdict(one, 0) == UNDECIDED:
        return "what was aborted stays open"
    refused = code_of(cluster, commit(output(one, {0: 5}), output(other, {1: 5})))
    return "" if refused == "transaction_aborted" else "half the output is aborted, half is committed"


def a_commit_is_decided_twice(cluster: TransactionCluster) -> str:
    """V1: a commit is accepted and its answer lost; everything is marked and removed; the retry moves the group
    again."""
    one, *_ = cluster.open_block()
    asked = commit(output(one, {0: 5}), groups=(moves("readers", {1: (-1, 10)}),))
    cluster.do_change(asked)
    cluster.mark(0, one)
    again = code_of(cluster, asked)
    if cluster.verdict(one, 0) == UNDECIDED:
        return "its late writes stay open for ever"
    return "" if again == "" else f"the retry hears {again} and redoes what is published"


def a_stray_of_a_committed_id(cluster: TransactionCluster) -> str:
    """V1, half repaired: a stray write to P1 is not named; P0 is marked; P1's leader lags, asks, and finds nothing."""
    one, *_ = cluster.open_block()
    cluster.do_change(commit(output(one, {0: 5})))
    cluster.mark(0, one)
    return "" if cluster.verdict(one, 1) == ABORTED else "P1 stays open till the block ends"


def a_named_retry(cluster: TransactionCluster) -> str:
    """V2: a commit is accepted and the epoch raised, the answer is lost; the retry must get it."""
    first = cluster.initialize()
    asked = commit(output(first, {0: 5}), groups=(moves("readers", {1: (-1, 10)}),))
    cluster.do_change(asked)
    refused = code_of(cluster, asked)
    return f"the retry hears {refused} and redoes the work" if refused else ""


def a_stale_start(cluster: TransactionCluster) -> str:
    """V4: the successor reads the group's offset while the zombie's commit is in flight, then processes that input
    again."""
    zombie = cluster.initialize()
    seen = -1
    cluster.do_change(commit(output(zombie, {0: 5}), groups=(moves("readers", {1: (seen, 10)}),)))
    successor = cluster.initialize()
    redone = commit(output(successor, {0: 9}), groups=(moves("readers", {1: (seen, 10)}),))
    return "" if code_of(cluster, redone) == "offset_moved" else "one input, two outputs"


def two_drivers(cluster: TransactionCluster) -> str:
    """Two attempts at one micro-batch, everything acknowledged; both commit."""
    one, other, *_ = cluster.open_block()
    cluster.do_change(commit(output(one, {0: 5}), positions={"query": (-1, 0)}))
    second = code_of(cluster, commit(output(other, {0: 9}), positions={"query": (-1, 0)}))
    if cluster.verdict(other, 0) == UNDECIDED:
        return "the loser's output stays open"
    return "" if second == "position_taken" else "the batch is published twice"


def a_commit_after_expiry(cluster: TransactionCluster) -> str:
    """Everything is acknowledged; the block expires; P0's leader marks an abort; the commit arrives."""
    one, *_ = cluster.open_block()
    expire(cluster)
    marked_as_aborted = cluster.verdict(one, 0) == ABORTED
    refused = code_of(cluster, commit(output(one, {0: 5, 1: 5})))
    if not marked_as_aborted:
        return "what nobody can commit any more stays open"
    return "" if refused == "outcome_unknown" else "P0 has aborted what is committed"


def an_initialisation_comes_twice(cluster: TransactionCluster) -> str:
    """Its answer is late, so the request is repeated at another node; the answer arrives, and then the second one is
    decided."""
    asked = Initialize("app", 60_000, NOW_MS, b"the only attempt")
    (first,) = cluster.do_change(asked)
    cluster.ask(asked)
    refused = code_of(cluster, commit(output(first, {0: 5})))
    return f"its own producer hears {refused}" if refused else ""


def an_initialisation_comes_after_its_successors(cluster: TransactionCluster) -> str:
    """A zombie's first attempt is accepted, its answer lost; the successor begins; then the zombie's retry arrives."""
    asked = Initialize("app", 60_000, NOW_MS, b"of the zombie...")
    cluster.do_change(asked)
    (successor,) = cluster.do_change(msgspec.structs.replace(asked, attempt=b"of the successor"))
    cluster.ask(asked)
    refused = code_of(cluster, commit(output(successor, {0: 5})))
    return f"the successor hears {refused}" if refused else ""


def expiry_with_markers_under_way(cluster: TransactionCluster) -> str:
    """Commit, expire; P0's leader has written no marker yet, and asks."""
    one, *_ = cluster.open_block()
    cluster.do_change(commit(output(one, {0: 5})))
    expire(cluster)
    return "" if cluster.verdict(one, 0) == committed(5) else "what is committed is aborted"


def a_leader_without_the_marker(cluster: TransactionCluster) -> str:
    """Decided; the leader appends the marker and dies; the next one has the writes without it."""
    one, *_ = cluster.open_block()
    cluster.do_change(commit(output(one, {0: 5, 1: 7})))
    cluster.mark(1, one)
    for number, wanted in ((0, committed(5)), (1, ABORTED)):
        if cluster.verdict(one, number) != wanted:
            return f"P{number}: {cluster.verdict(one, number)}"
    return ""


def a_late_batch_of_the_transaction_before(cluster: TransactionCluster) -> str:
    """A batch of transaction 1 arrives while its producer is in transaction 2."""
    first = cluster.initialize()
    cluster.do_change(commit(output(first, {0: 5})))
    producer = cluster.view.transactions.producer("app")
    assert producer is not None
    if cluster.view.transactions.refusal(producer.key):
        return "the producer's own next transaction is taken for the one before"
    return "" if cluster.view.transactions.refusal(first) else "the late batch is taken as the next transaction's"


def a_zombie_after_an_initialisation(cluster: TransactionCluster) -> str:
    """The successor initializes; the zombie's commit is in flight."""
    zombie = cluster.initialize()
    successor = cluster.initialize()
    if cluster.verdict(zombie, 0) == UNDECIDED:
        return "what the zombie left stays open"
    refused = code_of(cluster, commit(output(zombie, {0: 5})))
    return "" if refused and zombie != successor else "the zombie commits"


def a_refused_commit(cluster: TransactionCluster) -> str:
    """Otherwise its other ids would stay open until their timeout."""
    one, other, *_ = cluster.open_block()
    cluster.do_change(commit(output(one, {0: 5})))
    code_of(cluster, commit(output(one, {0: 5}), output(other, {0: 7})))
    return "" if cluster.verdict(other, 0) == ABORTED else "it stays open"


def a_committed_id_is_aborted(cluster: TransactionCluster) -> str:
    """An abort in flight, or a leader's late report, finds the id committed."""
    one, *_ = cluster.open_block()
    cluster.do_change(commit(output(one, {0: 5, 1: 7})))
    cluster.mark(0, one)
    refused = code_of(cluster, Abort((one,), NOW_MS))
    cluster.overdue(one)
    if cluster.verdict(one, 1) != committed(7) or code_of(cluster, commit(output(one, {0: 5, 1: 7}))):
        return "half of it is aborted"
    return "" if refused == "transaction_committed" else "its producer hears that it is aborted"


# --- Rules, and their removal ----------------------------------------------------------------------------------------


def forgets_aborts(patch: pytest.MonkeyPatch) -> None:
    def nothing(*_: Any) -> Generator[None, None, None]:
        yield

    patch.setattr(transaction_image, "abort_undecided", nothing)
    patch.setattr(Transactions, "verdict", lambda self, key, topic_partition: ABORTED)


def forgets_outcomes(patch: pytest.MonkeyPatch) -> None:
    def put(self: Transactions, block: Block) -> None:
        _put_block(self, msgspec.structs.replace(block, committed=(), aborted=()))

    _put_block = Transactions._put_block
    patch.setattr(Transactions, "_put_block", put)


def judges_by_epoch(patch: pytest.MonkeyPatch) -> None:
    def standing(self: NamedProducer, of: TransactionKey) -> Standing:
        return Standing.UNDECIDED if of == self.key else Standing.FENCED

    patch.setattr(NamedProducer, "standing", standing)


def takes_any_start(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(transaction_commit, "_group_refusal", lambda state, wanted: None)


def checks_no_position(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(transaction_commit, "_position_refusal", lambda state, wanted: None)


def takes_what_is_expired(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(transaction_commit, "_standing_refusal", lambda standings, wanted: None)


def leaves_open_what_is_expired(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(transaction_state, "_OPEN", (Standing.UNDECIDED, Standing.UNKNOWN, Standing.EXPIRED))


def expires_ends_too(patch: pytest.MonkeyPatch) -> None:
    def change(self: TransactionsState, event: TransactionEvent) -> None:
        _change(self, event)
        if isinstance(event, BlockRemoved):
            for topic_partition in self.partitions_with_ends():
                _change(self, EndsForgotten(topic_partition, self.unmarked(topic_partition)))

    _change = TransactionsState.change
    patch.setattr(TransactionsState, "change", change)


def forgets_ends_at_the_first_marker(patch: pytest.MonkeyPatch) -> None:
    def change(self: TransactionsState, event: TransactionEvent) -> None:
        if isinstance(event, EndsForgotten):
            for topic_partition in self.partitions_with_ends():
                _change(self, EndsForgotten(topic_partition, self.unmarked(topic_partition)))
        else:
            _change(self, event)

    _change = TransactionsState.change
    patch.setattr(TransactionsState, "change", change)


def keeps_the_epoch(patch: pytest.MonkeyPatch) -> None:
    for module in (transaction_ends, transaction_image):
        patch.setattr(module, "in_next_epoch", lambda state, producer, after: producer)
    patch.setattr("tests.support.metadata.cluster.check", lambda image: None)


def leaves_what_a_refused_commit_names(patch: pytest.MonkeyPatch) -> None:
    def nothing(*_: Any) -> Generator[None, None, None]:
        yield

    patch.setattr(transaction_commit, "abort_undecided", nothing)


def aborts_what_is_committed(patch: pytest.MonkeyPatch) -> None:
    def standing(self: Block, of: TransactionKey) -> Standing:
        found = _standing(self, of)
        return Standing.UNDECIDED if found is Standing.COMMITTED else found

    _standing = Block.standing
    patch.setattr(Block, "standing", standing)
    patch.setattr("tests.support.metadata.cluster.check", lambda image: None)


def forgets_attempts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(NamedProducer, "turn_of", lambda self, attempt: None)


@dataclass(frozen=True)
class Story:
    rule: str
    schedule: Callable[[TransactionCluster], str]
    without: Callable[[pytest.MonkeyPatch], None]


STORIES = [
    Story("an abort is remembered", an_abort_is_forgotten, forgets_aborts),
    Story("the outcome of an id is kept until its block expires", a_commit_is_decided_twice, aborts_what_is_committed),
    Story("what is committed and not named here is aborted", a_stray_of_a_committed_id, forgets_outcomes),
    Story("a retry gets the first answer", a_named_retry, judges_by_epoch),
    Story("every start is the current offset", a_stale_start, takes_any_start),
    Story("the position is checked first", two_drivers, checks_no_position),
    Story("an expired id is refused", a_commit_after_expiry, takes_what_is_expired),
    Story("what is expired is over", a_commit_after_expiry, leaves_open_what_is_expired),
    Story("expiry spares commits that are not marked", expiry_with_markers_under_way, expires_ends_too),
    Story("ends are kept until every marker is there", a_leader_without_the_marker, forgets_ends_at_the_first_marker),
    Story("an end raises the epoch", a_late_batch_of_the_transaction_before, keeps_the_epoch),
    Story("an initialisation raises the epoch", a_zombie_after_an_initialisation, keeps_the_epoch),
    Story("an initialisation that comes again is none", an_initialisation_comes_twice, forgets_attempts),
    Story("one that comes after another is refused", an_initialisation_comes_after_its_successors, forgets_attempts),
    Story("a refused commit aborts what it names", a_refused_commit, leaves_what_a_refused_commit_names),
    Story("what is committed is never aborted", a_committed_id_is_aborted, aborts_what_is_committed),
]


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.rule.replace(" ", "-"))
def test_with_its_rule_the_schedule_does_no_harm_s13(story: Story) -> None:
    assert story.schedule(TransactionCluster()) == ""


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.rule.replace(" ", "-"))
def test_without_its_rule_the_schedule_breaks_something(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    story.without(monkeypatch)
    assert story.schedule(TransactionCluster()) != ""


def test_a_slow_commit_does_not_move_an_offset_back_s8() -> None:
    """V6: an ordinary commit of 1 is slow, one of 2 is accepted, and then 1 arrives: of the same owner and
    generation."""
    cluster = TransactionCluster()
    cluster.commit("", {0: 2})
    cluster.commit("", {0: 1})
    assert cluster.committed() == {0: 2}
    one, *_ = cluster.open_block()
    cluster.refuse(commit(output(one, {}), groups=(moves("readers", {0: (1, 2)}),)), "offset_moved")
    cluster.refuse(commit(output(key(0), {}), groups=(moves("readers", {0: (2, 1)}),)), "invalid_request")
    assert cluster.committed() == {0: 2}


def test_only_records_below_the_ends_of_a_commit_are_committed_s13() -> None:
    """A late batch is appended behind the acknowledged ones; the verdict names the end of the transaction."""
    cluster = TransactionCluster()
    one, *_ = cluster.open_block()
    cluster.do_change(commit(output(one, {0: 5})))
    told = cluster.verdict(one, 0)
    assert (told.outcome, told.end_offset) == (Outcome.COMMITTED, 5)
