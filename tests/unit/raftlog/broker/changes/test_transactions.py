"""Transactions on a node: requests go to the quorum, whole or in parts, and each gets one answer."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
import structlog

from metadata.commands.envelope import Command
from metadata.commands.results import Refused, TransactionsChanged
from metadata.commands.transactions import (
    MAX_CHANGE_BYTES,
    ChangeTransactions,
    Commit,
    CommitStaged,
    Expire,
    Piece,
    StagePart,
    TransactionChange,
    encode_piece,
)
from metadata.controller import transaction_expiry
from metadata.quorum.port import Fate
from metadata.quorum.port import Outcome as Proposed
from raftlog.broker.changes import batches as change_batches
from raftlog.broker.changes import transactions as node_transactions
from raftlog.broker.changes.transaction_batches import TransactionBatches
from raftlog.broker.changes.transaction_pieces import pieces_of
from raftlog.broker.changes.transactions import Transactions
from raftlog.errors import RaftlogError
from raftlog.model import BrokerId, Offset, QuorumStatus, TopicPartition
from raftlog.transactions import TransactionKey
from raftlog.wire import (
    AbortRequest,
    CommitRequest,
    GroupMoves,
    InitializeRequest,
    OffsetMove,
    OpenBlockRequest,
    PositionMove,
    RemovePositionRequest,
    RetireBlockRequest,
    TopicEnds,
    TransactionOutput,
    TransactionRequest,
    TransactionResponse,
)
from tests.support.metadata.cluster import TOPIC
from tests.support.metadata.transactions import ABORTED, TransactionCluster, committed, key, output, tp
from tests.support.partitions.manual import ManualScheduler, ManualWorker

HERE, THERE = BrokerId(0), BrokerId(1)
MINUTE_MS = 60_000


class Asked:
    """A request and its answer."""

    def __init__(self) -> None:
        self.outcome: TransactionResponse | RaftlogError | None = None

    def answer(self, outcome: TransactionResponse | RaftlogError) -> None:
        assert self.outcome is None, "answered twice"
        self.outcome = outcome

    @property
    def done(self) -> bool:
        return self.outcome is not None

    @property
    def response(self) -> TransactionResponse:
        assert isinstance(self.outcome, TransactionResponse), self.outcome
        return self.outcome

    @property
    def code(self) -> str:
        assert isinstance(self.outcome, RaftlogError), self.outcome
        return self.outcome.code


class Node:
    """The transactions of one node on ports that a test drives, and a quorum that always agrees."""

    def __init__(self, *, partitions: int = 4, level: int = 3) -> None:
        self.cluster = TransactionCluster(partitions)
        self.level = level
        self.leader = HERE
        self.commands: list[Command] = []
        self.fates: list[Fate] = []
        """Outcomes of the next commands, which are not applied."""
        self.shown: int | None = None
        """The index of the view; None: that of the quorum."""
        self.held: list[tuple[int, Callable[[], None]]] = []
        self.scheduler = ManualScheduler()
        self.worker = ManualWorker(self.scheduler)
        clock = self.scheduler.clock
        batches = TransactionBatches(self, self.when_view_reaches, lambda: self.level, clock, self.scheduler)
        self.transactions = Transactions(
            HERE,
            self.cluster.view,
            self,
            batches,
            clock,
            self.scheduler,
            self.worker,
            Random(1),
            structlog.get_logger(),
            unused_ms=1_000,
            max_timeout_ms=900_000,
        )

    def when_view_reaches(self, index: int, callback: Callable[[], None]) -> None:
        if self.shown is None or index <= self.shown:
            callback()
        else:
            self.held.append((index, callback))

    def show(self, index: int) -> None:
        """Advance the view to this index."""
        self.shown = index
        waiting, self.held = self.held, []
        for needed, callback in waiting:
            self.when_view_reaches(needed, callback)
        self.worker.run_all()

    def status(self) -> QuorumStatus:
        return QuorumStatus(HERE, self.leader, self.cluster.term, 0, 0, 0, (HERE,))

    def read_barrier(self, done: Callable[[Proposed], None], *, timeout: float = 5.0) -> None:
        done(Proposed(Fate.APPLIED, self.cluster.image.index))

    def propose(self, command: Command, done: Callable[[Proposed], None], *, timeout: float = 5.0) -> None:
        self.commands.append(command)
        self.scheduler.call_soon(lambda: self._decide(command, done))

    def _decide(self, command: Command, done: Callable[[Proposed], None]) -> None:
        if self.fates:
            done(Proposed(self.fates.pop(0), detail="lost"))
            return
        result = self.cluster.apply(command)
        assert isinstance(result, TransactionsChanged)
        done(Proposed(Fate.APPLIED, self.cluster.image.index, result))

    def changes(self, *kinds: type[TransactionChange]) -> list[TransactionChange]:
        found = (change for c in self.commands if isinstance(c, ChangeTransactions) for change in c.changes)
        return [change for change in found if isinstance(change, kinds)]

    # --- Requests ---

    def begin(self, request: TransactionRequest) -> Asked:
        """Submit a request, and do nothing else."""
        asked = Asked()
        self.transactions.ask(request, asked.answer)
        return asked

    def ask(self, request: TransactionRequest) -> Asked:
        """Submit a request, and run everything that is due."""
        asked = self.begin(request)
        self.worker.run_all()
        return asked

    def initialize(self, name: str = "app", attempt: bytes | None = None) -> TransactionKey:
        (first,) = self.ask(InitializeRequest(0, name, MINUTE_MS, attempt)).response.keys
        return first

    def open_block(self, name: str, count: int, timeout_ms: int = MINUTE_MS) -> TransactionKey:
        answer = self.ask(OpenBlockRequest(0, name, count, timeout_ms)).response
        assert answer.count == count
        return answer.keys[0]


@pytest.fixture
def node() -> Any:
    made = Node()
    yield made
    made.transactions.close()


def wants(*outputs: tuple[TransactionKey, dict[int, int]], **other: Any) -> CommitRequest:
    return CommitRequest(0, tuple(output(of, ends) for of, ends in outputs), **other)


def following(first: TransactionKey, epochs: int = 1) -> TransactionKey:
    return key(first.producer_id, first.producer_epoch + epochs)


def test_a_transaction_from_beginning_to_end(node: Node) -> None:
    first = node.initialize()
    moved = GroupMoves("readers", "", 0, 0, (OffsetMove(TOPIC, 1, -1, Offset(7), 3, "here"),))
    wanted = wants((first, {0: 5}), groups=(moved,), positions=(PositionMove("p", -1, 2),))
    second = following(first)
    assert node.ask(wanted).response.keys == (second,)
    assert node.ask(wanted).response.keys == (second,)
    assert node.cluster.verdict(first, 0) == committed(5)
    committed_there = node.cluster.view.groups.offsets("readers")[tp(1)]
    assert (committed_there.offset, committed_there.leader_epoch, committed_there.metadata) == (7, 3, "here")
    assert node.cluster.position("p") == 2
    assert node.ask(AbortRequest(0, (second,))).response.keys == (following(second),)
    assert node.ask(AbortRequest(0, (first,))).code == "producer_fenced"


def test_an_answer_has_the_correlation_id_of_its_request(node: Node) -> None:
    first = node.initialize()
    requests = [
        InitializeRequest(1, "other", MINUTE_MS),
        OpenBlockRequest(2, "block", 5, MINUTE_MS),
        CommitRequest(3, (output(first, {}),), visible_within_ms=1_000),
        AbortRequest(4, (following(first),)),
        RetireBlockRequest(5, "block"),
        RemovePositionRequest(6, "p", 1),
    ]
    assert [node.ask(request).response.correlation_id for request in requests] == [1, 2, 3, 4, 5, 6]


def test_ids_without_a_name_come_in_blocks(node: Node) -> None:
    first = node.open_block("batch", 5)
    assert node.ask(OpenBlockRequest(0, "batch", 9, MINUTE_MS)).response.keys == (first,)
    other = key(first.producer_id + 1)
    assert node.ask(wants((first, {0: 5}), block="batch")).response.keys == ()
    assert node.cluster.verdict(other, 0) == ABORTED
    node.ask(RetireBlockRequest(0, "batch"))
    assert node.open_block("batch", 5).producer_id == first.producer_id + 5


def test_bad_requests_are_refused_before_anything_is_proposed(node: Node) -> None:
    moved = GroupMoves("readers", "", 0, 0, (OffsetMove(TOPIC, 1, -1, Offset(7)),))
    for request in (
        InitializeRequest(0, "app", 1),
        InitializeRequest(0, "", MINUTE_MS),
        InitializeRequest(0, "\ud800", MINUTE_MS),
        InitializeRequest(0, "two\nlines", MINUTE_MS),
        InitializeRequest(0, "app", MINUTE_MS, b"short"),
        RemovePositionRequest(0, "", 1),
        RemovePositionRequest(0, "p", -1),
        OpenBlockRequest(0, "b", 0, MINUTE_MS),
        OpenBlockRequest(0, "b", 10**9, MINUTE_MS),
        OpenBlockRequest(0, "b\x07", 1, MINUTE_MS),
        RetireBlockRequest(0, "x" * 1_000),
        CommitRequest(0, ()),
        CommitRequest(0, (), (moved,)),
        wants((key(2**63), {0: 5})),
        wants((key(0), {0: -5})),
        wants(positions=(PositionMove("\ud800", -1, 2),)),
        wants(positions=(PositionMove("p", -1, 2**70),)),
        wants((key(2**70), {0: 5})),
        AbortRequest(0, (key(2**70),)),
        AbortRequest(0, (key(-1),)),
        AbortRequest(0, (key(0),) * 6_000),
    ):
        assert node.ask(request).code in ("invalid_request", "transaction_too_large"), request
    assert node.commands == []


def test_requests_during_a_command_share_the_next_command(node: Node) -> None:
    asked = [node.begin(InitializeRequest(0, f"app-{n}", MINUTE_MS)) for n in range(20)]
    node.scheduler.run()
    assert len({one.response.keys for one in asked}) == 20
    assert [len(c.changes) for c in node.commands if isinstance(c, ChangeTransactions)] == [1, 19]


def test_a_change_below_its_feature_level_is_refused_and_does_not_raise_the_level() -> None:
    node = Node(level=2)
    refused = node.ask(InitializeRequest(0, "app", MINUTE_MS)).outcome
    assert "raftlog cluster finalize" in str(refused)
    assert node.commands == []


@pytest.mark.parametrize(("fate", "code"), [(Fate.REFUSED, "quorum_unavailable"), (Fate.UNKNOWN, "outcome_unknown")])
def test_an_undecided_request_may_be_retried_unchanged(node: Node, fate: Fate, code: str) -> None:
    first = node.initialize()
    node.fates = [fate]
    assert node.ask(wants((first, {0: 5}))).code == code
    assert node.ask(wants((first, {0: 5}))).response.keys == (following(first),)


# --- Before the view shows it ----------------------------------------------------------------------------------------


def test_an_end_is_answered_after_its_decision_even_if_the_view_is_behind(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(change_batches, "MOST_AHEAD", 1)
    first = node.initialize()
    node.shown = node.cluster.image.index
    (second,) = node.ask(wants((first, {0: 5}))).response.keys
    (third,) = node.ask(AbortRequest(0, (second,))).response.keys
    assert (second, third) == (following(first), following(first, 2))
    # The lead over the view is bounded: beyond it the next change waits.
    waiting = node.ask(wants((third, {0: 7})))
    assert not waiting.done and len(node.changes(Commit)) == 1
    node.show(node.shown + 1)
    assert waiting.response.keys == (following(first, 3),)


def test_a_refusal_is_answered_at_once_and_an_initialization_after_the_view_shows_it(node: Node) -> None:
    first = node.initialize()
    node.shown = node.cluster.image.index
    assert node.ask(wants((first, {77: 5}))).code == "unknown_partition"
    begun = node.ask(InitializeRequest(0, "other", MINUTE_MS))
    assert not begun.done and len(node.held) == 1, "with the key the producer writes to leaders that read their views"
    node.show(node.cluster.image.index)
    assert begun.response.keys[0].producer_id > first.producer_id


def test_a_view_without_the_decision_does_not_make_it_visible(node: Node) -> None:
    first = node.initialize()
    node.shown = node.cluster.image.index
    waiting = node.ask(wants((first, {}), visible_within_ms=20_000))
    assert not waiting.done
    node.show(node.cluster.image.index)
    assert waiting.response == TransactionResponse(0, (following(first),), visible=True)


def test_a_view_that_is_behind_does_not_decide_which_ids_have_names(node: Node) -> None:
    first = node.initialize()
    node.shown = node.cluster.image.index
    node.cluster.view.transactions.granted_below = first.producer_id
    waiting = node.ask(wants((first, {0: 5})))
    assert not waiting.done
    node.show(node.cluster.image.index)
    assert waiting.response.keys == (following(first),)


def test_a_repeated_initialization_gets_the_first_answer(node: Node) -> None:
    first = node.initialize("app", b"0123456789abcdef")
    assert node.initialize("app", b"0123456789abcdef") == first
    assert node.initialize("app", b"another one 1234") != first
    assert node.ask(InitializeRequest(0, "app", MINUTE_MS, b"0123456789abcdef")).code == "producer_fenced"


def test_a_removed_position_must_have_the_given_offset(node: Node) -> None:
    node.ask(wants(positions=(PositionMove("p", -1, 2),)))
    assert node.ask(RemovePositionRequest(0, "p", 1)).code == "offset_moved"
    assert node.ask(RemovePositionRequest(0, "p", 2)).response == TransactionResponse(0)
    assert node.cluster.position("p") == -1


# --- Until it is visible in all partitions ---------------------------------------------------------------------------


def test_a_commit_may_wait_until_it_is_visible_in_all_partitions(node: Node) -> None:
    first = node.initialize()
    waiting = node.ask(wants((first, {0: 5, 1: 6}), visible_within_ms=20_000))
    node.cluster.mark(0, first)
    node.worker.run_all()
    assert not waiting.done
    node.cluster.mark(1, first)
    node.worker.run_all()
    assert waiting.response == TransactionResponse(0, (following(first),), visible=True)
    node.scheduler.advance(30)  # the deadline passes without effect


def test_a_commit_with_late_markers_is_committed_and_not_visible(node: Node) -> None:
    first = node.initialize()
    late = node.ask(wants((first, {0: 5}), visible_within_ms=100))
    node.scheduler.advance(0.09)
    assert not late.done
    node.scheduler.advance(0.02)
    assert late.response == TransactionResponse(0, (following(first),), visible=False)
    assert node.cluster.verdict(first, 0) == committed(5)
    assert node.ask(wants((first, {0: 5}))).response.keys == (following(first),)
    node.cluster.mark(0, first)
    node.worker.run_all()


def test_no_transaction_may_ask_for_a_longer_timeout_than_the_node_allows(node: Node) -> None:
    """S10: for that long an abandoned one holds back readers."""
    for request in (OpenBlockRequest(0, "", 1, 900_001), InitializeRequest(0, "w", 900_001, b"a" * 16)):
        asked = node.ask(request)
        assert asked.code == "invalid_request" and "transaction_max_timeout_ms" in str(asked.outcome)
    assert node.commands == []
    assert node.ask(OpenBlockRequest(0, "", 1, 900_000)).done


def test_the_timeout_for_markers_includes_the_decision(node: Node) -> None:
    first = node.initialize()
    late = node.begin(wants((first, {0: 5}), visible_within_ms=100))
    node.scheduler.clock.advance(0.2)
    node.worker.run_all()
    assert late.response == TransactionResponse(0, (following(first),), visible=False)


def test_a_node_that_stops_answers_commits_that_wait_for_markers(node: Node) -> None:
    first = node.initialize()
    waiting = node.ask(wants((first, {0: 5}), visible_within_ms=20_000))
    unanswered = node.begin(wants((following(first), {0: 9}), visible_within_ms=20_000))
    node.transactions.close()
    assert waiting.response == TransactionResponse(0, (following(first),), visible=False)
    node.worker.run_all()
    assert unanswered.response.keys == (following(first, 2),) and not unanswered.response.visible
    node.scheduler.advance(30)


def test_the_number_of_commits_that_wait_for_markers_is_bounded(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_transactions, "MAX_INVISIBLE", 1)
    first, other = node.initialize(), node.initialize("other")
    waiting = node.ask(wants((first, {0: 5}), visible_within_ms=20_000))
    assert node.ask(wants((other, {0: 5}), visible_within_ms=20_000)).code == "overloaded"
    assert node.ask(wants((other, {0: 5}))).response.keys == (following(other),)
    node.cluster.mark(0, first)
    node.worker.run_all()
    assert waiting.response.visible
    assert not node.ask(wants((following(other), {0: 9}), visible_within_ms=20_000)).done


# --- Large commits ---------------------------------------------------------------------------------------------------


def large(first: int, tasks: int, partitions: int) -> CommitRequest:
    ends = {number: 1_000_000 + number for number in range(partitions)}
    return wants(*((key(first + task), ends) for task in range(tasks)), positions=(PositionMove("q", -1, 0),))


def test_a_large_commit_is_sent_in_parts_and_decided_at_once() -> None:
    node = Node(partitions=20)
    first = node.open_block("", 1_000).producer_id
    wanted = large(first, 1_000, 20)
    asked = node.begin(wanted)
    assert len(node.worker.pending) == 1, "it is divided on another thread"
    node.worker.run_all()
    assert asked.response.keys == ()
    parts = node.changes(StagePart)
    assert len(parts) >= 2 and not node.changes(Commit)
    assert all(isinstance(part, StagePart) and len(part.piece) <= MAX_CHANGE_BYTES for part in parts)
    assert node.cluster.verdict(key(first + 999), 19) == committed(1_000_019)
    assert node.cluster.view.transactions.ends_count == 20_000
    assert node.cluster.view.transactions.staged() == []
    before = node.cluster.view.transactions.positions()
    assert node.ask(wanted).response.keys == (), "a retry gets the first answer"
    assert node.cluster.view.transactions.positions() == before


def test_parts_with_an_unknown_outcome_commit_nothing() -> None:
    node = Node(partitions=20)
    first = node.open_block("", 1_000).producer_id
    wanted = large(first, 1_000, 20)
    node.fates = [Fate.UNKNOWN]
    assert node.ask(wanted).code == "quorum_unavailable"
    assert not node.changes(CommitStaged)
    assert node.ask(wanted).response.keys == ()


def test_a_commit_that_cannot_be_divided_is_refused(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    ends = dict.fromkeys(range(4), 5)
    assert node.ask(wants(*((key(2**70), ends) for _ in range(1_000)))).code == "invalid_request"
    monkeypatch.setattr("raftlog.broker.changes.transaction_pieces.MAX_PARTS", 1)
    asked = wants(*((key(n), ends) for n in range(3_000)))
    assert node.ask(asked).code == "transaction_too_large"
    broken = ZeroDivisionError("a bug")
    monkeypatch.setattr("raftlog.broker.changes.transaction_pieces.digest_of", lambda _: 1 / 0)
    monkeypatch.setattr("raftlog.broker.changes.transaction_pieces.MAX_PARTS", 64)
    unforeseen = node.begin(asked)
    with pytest.raises(type(broken)):
        node.worker.run_all()
    assert unforeseen.code == "internal_error"
    assert node.commands == []


def test_parts_are_bounded_and_complete() -> None:
    wide = output(key(1), {number: 2**40 + number for number in range(9_000)})
    small = [output(key(number), {0: 5}) for number in range(2, 2_000)]
    moves = tuple(OffsetMove(TOPIC, number, 0, Offset(1), -1, "é" * 1_000) for number in range(200))
    wanted = CommitRequest(0, (wide, *small, output(key(2_000), {})), (GroupMoves("g", "m", 1, 2, moves),))
    pieces = pieces_of(wanted, MAX_CHANGE_BYTES)
    assert len(pieces) > 5
    assert all(len(encode_piece(piece)) <= MAX_CHANGE_BYTES for piece in pieces)

    def ends(outputs: tuple[TransactionOutput, ...]) -> list[tuple[TransactionKey, TopicPartition, int]]:
        return [
            (one.key, TopicPartition(topic.topic_id, number), end)
            for one in outputs
            for topic in one.topics
            for number, end in zip(topic.partitions, topic.end_offsets, strict=True)
        ]

    divided = tuple(one for piece in pieces for one in piece.outputs)
    assert ends(divided) == ends(wanted.outputs)
    assert {one.key for one in divided} == {one.key for one in wanted.outputs}
    moved = [move.partition for piece in pieces for group in piece.groups for move in group.moves]
    assert moved == list(range(200))
    assert pieces_of(CommitRequest(0, ()), MAX_CHANGE_BYTES) == [Piece((), ())]


@pytest.mark.parametrize("topics", [((0, 1), (5,)), ((), (5,)), (tuple(range(3_000)), (5,) * 2_999)])
def test_offsets_that_do_not_match_their_partitions_are_refused(
    node: Node, topics: tuple[tuple[int, ...], tuple[Any, ...]]
) -> None:
    """They are refused in a divided output as well."""
    first = node.initialize()
    filler = tuple(TopicEnds(TOPIC, (), ()) for _ in range(1_100))
    for more in ((), filler):
        wanted = CommitRequest(0, (TransactionOutput(*first, (TopicEnds(TOPIC, *topics), *more)),))
        assert node.ask(wanted).code == "invalid_request"


# --- Expiry ----------------------------------------------------------------------------------------------------------


def test_only_the_leader_of_the_quorum_expires_transactions(node: Node) -> None:
    node.leader = THERE
    block = node.open_block("batch", 5, 100)
    node.transactions.wake()
    node.scheduler.advance(10 * transaction_expiry.LOOK_SECONDS)
    assert node.cluster.view.transactions.block(block.producer_id) is not None
    node.leader = HERE
    node.transactions.wake()
    node.scheduler.advance(10 * transaction_expiry.LOOK_SECONDS)
    assert node.cluster.view.transactions.block(block.producer_id) is None
    assert len(node.changes(Expire)) == 1
    assert TOPIC in node.cluster.image.topics
    assert not isinstance(node.commands[-1], Refused)


def test_expiry_continues_after_an_undecided_change(node: Node) -> None:
    block = node.open_block("batch", 5, 100)
    node.fates = [Fate.UNKNOWN]
    node.transactions.wake()
    node.scheduler.advance(20 * transaction_expiry.LOOK_SECONDS)
    assert node.cluster.view.transactions.block(block.producer_id) is None
    assert len(node.changes(Expire)) == 2
