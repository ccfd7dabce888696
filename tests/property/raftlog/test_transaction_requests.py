"""Requests of transactional producers at one node: each is answered once, and a large commit stays whole (S13)."""

from __future__ import annotations

from random import Random
from typing import Any
from unittest import mock

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from metadata.commands.transactions import encode_piece
from metadata.quorum.port import Fate
from raftlog.broker.changes import transaction_pieces
from raftlog.broker.changes.transaction_pieces import pieces_of
from raftlog.config import KIB
from raftlog.errors import InvalidRequest, RaftlogError
from raftlog.model import Offset, ProducerEpoch, ProducerId, TopicId, TopicPartition
from raftlog.transactions import TransactionKey
from raftlog.wire import (
    AbortRequest,
    CommitRequest,
    GroupMoves,
    InitializeRequest,
    OffsetMove,
    OpenBlockRequest,
    PositionMove,
    RetireBlockRequest,
    TransactionOutput,
    TransactionRequest,
    decode_request,
    encode,
)
from tests.support.metadata.transactions import output, tp
from tests.unit.raftlog.broker.changes.test_transactions import MINUTE_MS, Asked, Node

TOPICS = [TopicId(bytes([number]) * 16) for number in range(3)]
KEYS = st.builds(TransactionKey, st.integers(0, 5).map(ProducerId), st.integers(0, 3).map(ProducerEpoch))
PARTITIONS = st.builds(TopicPartition, st.sampled_from(TOPICS), st.integers(0, 2_000))
OUTPUTS = st.builds(
    TransactionOutput.of, KEYS, st.dictionaries(PARTITIONS, st.integers(0, 2**62).map(Offset), max_size=40)
)
MOVES = st.builds(
    OffsetMove,
    st.sampled_from(TOPICS),
    st.integers(0, 50),
    st.integers(-1, 5),
    st.integers(0, 2**62).map(Offset),
    st.integers(-1, 3),
    st.text(max_size=20),
)
GROUPS = st.builds(
    GroupMoves,
    st.sampled_from("gh"),
    st.sampled_from(["", "m"]),
    st.just(0),
    st.just(0),
    st.lists(MOVES, max_size=30).map(tuple),
)
COMMITS = st.builds(
    CommitRequest, st.just(0), st.lists(OUTPUTS, max_size=8).map(tuple), st.lists(GROUPS, max_size=3).map(tuple)
)


def ends(outputs: Any) -> list[tuple[TransactionKey, TopicId, int, int]]:
    return [
        (one.key, topic.topic_id, number, end)
        for one in outputs
        for topic in one.topics
        for number, end in zip(topic.partitions, topic.end_offsets, strict=True)
    ]


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(COMMITS, st.integers(600, 4_000), st.integers(1, 20), st.integers(1, 5))
def test_the_pieces_of_a_commit_are_bounded_and_together_the_commit(
    commit: CommitRequest, most_bytes: int, ends_per_output: int, moves_per_group: int
) -> None:
    with (
        mock.patch.object(transaction_pieces, "ENDS_PER_OUTPUT", ends_per_output),
        mock.patch.object(transaction_pieces, "MOVES_PER_GROUP", moves_per_group),
    ):
        pieces = pieces_of(commit, most_bytes)
    packed = [encode_piece(piece) for piece in pieces]
    assert all(len(one) <= most_bytes for one in packed)
    outputs = [one for piece in pieces for one in piece.outputs]
    assert ends(outputs) == ends(commit.outputs)
    assert {one.key for one in outputs} == {one.key for one in commit.outputs}
    groups = [group for piece in pieces for group in piece.groups]
    assert [move for group in groups for move in group.moves] == [m for group in commit.groups for m in group.moves]


@given(COMMITS)
def test_a_commit_that_a_node_decodes_is_the_one_that_was_sent(commit: CommitRequest) -> None:
    try:
        message = b"".join(map(bytes, encode(commit)))  # type: ignore[arg-type]
    except UnicodeError:
        return
    assert decode_request(message)[0] == commit


class Chaos:
    """One node, random requests, and a quorum that may not decide."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.node = Node(partitions=3)
        self.asked: list[Asked] = []
        self.keys: list[TransactionKey] = [TransactionKey(ProducerId(0), ProducerEpoch(0))]

    def request(self) -> TransactionRequest:
        random, name = self.random, f"p{self.random.randrange(3)}"
        key = random.choice(self.keys[-4:])
        ends = {random.randrange(4): random.randrange(9) for _ in range(random.randrange(3))}
        visible = {"visible_within_ms": random.choice((0, 50, 5_000))}
        return random.choice(
            (
                InitializeRequest(0, name, MINUTE_MS, random.choice((None, bytes(16)))),
                OpenBlockRequest(0, random.choice(("", "b")), random.randrange(3), MINUTE_MS),
                RetireBlockRequest(0, "b"),
                CommitRequest(0, (output(key, ends),), **visible),  # type: ignore[arg-type]
                CommitRequest(0, tuple(output(key, {n: 5}) for n in range(4)), **visible),  # type: ignore[arg-type]
                CommitRequest(0, (), positions=(PositionMove("q", random.randrange(-1, 2), 2),)),
                AbortRequest(0, (key,)),
            )
        )

    def step(self) -> None:
        node, random = self.node, self.random
        what = random.randrange(8)
        if what < 4:
            self.asked.append(node.begin(self.request()))
        elif what == 4:
            node.fates = [random.choice((Fate.REFUSED, Fate.UNKNOWN))]
        elif what == 5:
            for number in range(3):
                for key in list(node.cluster.view.transactions.unmarked(tp(number)))[:2]:
                    node.cluster.mark(number, key)
        elif what == 6:
            node.scheduler.advance(random.choice((0.01, 0.1, 1.0)))
        else:
            node.worker.run_all()
        for one in self.asked:
            if one.done and not isinstance(one.outcome, RaftlogError):
                self.keys += [key for key in one.response.keys if key not in self.keys]


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 60), st.booleans(), st.booleans())
def test_every_request_is_answered_once_and_nothing_stays(seed: int, steps: int, staged: bool, closes: bool) -> None:
    """`Asked` refuses a second answer."""
    chaos = Chaos(seed)
    with mock.patch.object(transaction_pieces, "MAX_CHANGE_BYTES", 100 if staged else 64 * KIB):
        for _ in range(steps):
            chaos.step()
        if closes:
            chaos.node.transactions.close()
        chaos.node.fates = []
        chaos.node.worker.run_all()
        chaos.node.scheduler.advance(10.0)
        chaos.node.transactions.close()
    assert all(one.done for one in chaos.asked)
    errors = [one.outcome for one in chaos.asked if isinstance(one.outcome, RaftlogError)]
    assert all(isinstance(error, InvalidRequest) or error.retriable for error in errors), errors
