"""Transactions on a node: what is asked goes to the quorum, whole or in parts, and answers reach who asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
import structlog

from http_api.service.transactions import (
    NotVisibleYet,
    WantedCommit,
    WantedGroupOffsets,
    WantedMove,
    WantedOutput,
    WantedPosition,
)
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
from raftlog.broker.changes.transaction_batches import TransactionBatches
from raftlog.broker.changes.transaction_pieces import pieces_of
from raftlog.broker.changes.transactions import Transactions
from raftlog.errors import InvalidRequest, RetriableError
from raftlog.model import BrokerId, Offset, QuorumStatus, TopicPartition
from raftlog.system.clock import ManualClock
from raftlog.transactions import TransactionKey
from tests.support.metadata_cluster import TOPIC
from tests.support.transactions import ABORTED, TransactionCluster, committed, key, tp

HERE, THERE = BrokerId(0), BrokerId(1)


class Node:
    """One node's transactions, and a quorum of one mind."""

    def __init__(self, *, partitions: int = 4, level: int = 3) -> None:
        self.cluster = TransactionCluster(partitions)
        self.level = level
        self.leader = HERE
        self.commands: list[Command] = []
        self.fates: list[Fate] = []
        """Of the next commands, which are not applied."""
        self.shown: int | None = None
        """How far the view is; None: as far as the quorum."""
        self.held: list[tuple[int, Callable[[], None]]] = []
        self.clock = ManualClock()
        batches = TransactionBatches(self, self.when_view_reaches, lambda: self.level)
        self.transactions = Transactions(
            HERE, self.cluster.view, self, batches, self.clock, Random(1), structlog.get_logger(), unused_ms=1_000
        )

    def when_view_reaches(self, index: int, callback: Callable[[], None]) -> None:
        if self.shown is None or index <= self.shown:
            callback()
        else:
            self.held.append((index, callback))

    def show(self, index: int) -> None:
        """The view is as far as that by now."""
        self.shown = index
        waiting, self.held = self.held, []
        for needed, callback in waiting:
            self.when_view_reaches(needed, callback)

    def status(self) -> QuorumStatus:
        return QuorumStatus(HERE, self.leader, self.cluster.term, 0, 0, 0, (HERE,))

    def propose(self, command: Command, done: Callable[[Proposed], None], *, timeout: float = 5.0) -> None:
        self.commands.append(command)
        asyncio.get_running_loop().call_soon(self._decide, command, done)

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


@pytest.fixture
async def node() -> Any:
    made = Node()
    yield made
    made.transactions.close()


def wants(*outputs: tuple[TransactionKey, dict[int, int]], **other: Any) -> WantedCommit:
    packed = (WantedOutput(of, tuple((tp(n), Offset(end)) for n, end in ends.items())) for of, ends in outputs)
    return WantedCommit(tuple(packed), **other)


async def test_a_transaction_from_beginning_to_end(node: Node) -> None:
    first = await node.transactions.initialize("app", 60_000)
    moved = WantedGroupOffsets("readers", "", 0, 0, (WantedMove(tp(1), -1, 7, 3, "here"),))
    asked = wants((first, {0: 5}), group_offsets=(moved,), positions=(WantedPosition("p", -1, 2),))
    (second,) = await node.transactions.commit(asked)
    assert second == key(first.producer_id, 1)
    assert await node.transactions.commit(asked) == (second,)
    assert node.cluster.verdict(first, 0) == committed(5)
    committed_there = node.cluster.view.groups.offsets("readers")[tp(1)]
    assert (committed_there.offset, committed_there.leader_epoch, committed_there.metadata) == (7, 3, "here")
    assert node.cluster.position("p") == 2
    assert await node.transactions.abort([second]) == (key(first.producer_id, 2),)
    with pytest.raises(InvalidRequest) as refused:
        await node.transactions.abort([first])
    assert refused.value.code == "producer_fenced"


async def test_blocks(node: Node) -> None:
    block = await node.transactions.open_block("batch", 5, 60_000)
    assert await node.transactions.open_block("batch", 9, 60_000) == block
    one, other = key(block.first), key(block.first + 1)
    assert await node.transactions.commit(wants((one, {0: 5}), block="batch")) == ()
    assert node.cluster.verdict(other, 0) == ABORTED
    await node.transactions.retire_block("batch")
    assert (await node.transactions.open_block("batch", 5, 60_000)).first == block.first + block.count


async def test_bad_requests_are_refused_before_anything_is_proposed(node: Node) -> None:
    for asking in (
        node.transactions.initialize("app", 1),
        node.transactions.initialize("", 60_000),
        node.transactions.initialize("\ud800", 60_000),
        node.transactions.initialize("app", 60_000, b"short"),
        node.transactions.remove_position("", 1),
        node.transactions.remove_position("p", -1),
        node.transactions.open_block("b", 0, 60_000),
        node.transactions.open_block("b", 10**9, 60_000),
        node.transactions.retire_block("x" * 1_000),
        node.transactions.commit(wants((key(2**63), {0: 5}))),
        node.transactions.commit(wants((key(0), {0: -5}))),
        node.transactions.commit(wants(positions=(WantedPosition("\ud800", -1, 2),))),
        node.transactions.commit(wants(positions=(WantedPosition("p", -1, 2**70),))),
        node.transactions.commit(wants((key(2**70), {0: 5}))),
        node.transactions.abort([key(2**70)]),
        node.transactions.abort([key(-1)]),
        node.transactions.abort([key(0)] * 6_000),
    ):
        with pytest.raises(InvalidRequest):
            await asking
    assert node.commands == []


async def test_what_is_asked_while_a_command_is_under_way_goes_together(node: Node) -> None:
    keys = await asyncio.gather(*(node.transactions.initialize(f"app-{n}", 60_000) for n in range(20)))
    assert len(set(keys)) == 20
    assert [len(c.changes) for c in node.commands if isinstance(c, ChangeTransactions)] == [1, 19]


async def test_a_change_below_its_feature_level_is_refused_and_raises_nothing() -> None:
    node = Node(level=2)
    with pytest.raises(InvalidRequest, match="raftlog cluster finalize"):
        await node.transactions.initialize("app", 60_000)
    assert node.commands == []
    node.transactions.close()


@pytest.mark.parametrize(("fate", "code"), [(Fate.REFUSED, "quorum_unavailable"), (Fate.UNKNOWN, "outcome_unknown")])
async def test_what_the_quorum_did_not_decide_may_be_tried_again_as_it_was(node: Node, fate: Fate, code: str) -> None:
    first = await node.transactions.initialize("app", 60_000)
    node.fates = [fate]
    with pytest.raises(RetriableError) as undecided:
        await node.transactions.commit(wants((first, {0: 5})))
    assert undecided.value.code == code
    assert await node.transactions.commit(wants((first, {0: 5}))) == (key(first.producer_id, 1),)


# --- Before the view shows it ----------------------------------------------------------------------------------------


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_an_end_is_told_when_it_is_decided_however_late_the_view_is(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(change_batches, "MOST_AHEAD", 1)
    first = await node.transactions.initialize("app", 60_000)
    node.shown = node.cluster.image.index
    (second,) = await node.transactions.commit(wants((first, {0: 5})))
    (third,) = await node.transactions.abort([second])
    assert (second, third) == (key(first.producer_id, 1), key(first.producer_id, 2))
    # What the view has to take over is bounded: beyond that the next one waits.
    waiting = asyncio.ensure_future(node.transactions.commit(wants((third, {0: 7}))))
    await turns()
    assert not waiting.done() and len(node.changes(Commit)) == 1
    node.show(node.shown + 1)
    assert await waiting == (key(first.producer_id, 3),)


async def test_a_refusal_is_told_as_soon_and_a_beginning_when_the_view_shows_it(node: Node) -> None:
    first = await node.transactions.initialize("app", 60_000)
    node.shown = node.cluster.image.index
    with pytest.raises(InvalidRequest) as refused:
        await node.transactions.commit(wants((first, {77: 5})))
    assert refused.value.code == "unknown_partition"
    begun = asyncio.ensure_future(node.transactions.initialize("other", 60_000))
    await turns()
    assert not begun.done() and len(node.held) == 1, "whoever has the key writes to leaders that look at their views"
    node.show(node.cluster.image.index)
    assert (await begun).producer_id > first.producer_id


async def test_nothing_is_called_visible_by_a_view_that_does_not_know_of_the_decision(node: Node) -> None:
    first = await node.transactions.initialize("app", 60_000)
    node.shown = node.cluster.image.index
    waiting = asyncio.ensure_future(node.transactions.commit(wants((first, {})), visible_within_s=20))
    await turns()
    assert not waiting.done()
    node.show(node.cluster.image.index)
    assert await waiting == (key(first.producer_id, 1),)


async def test_of_ids_that_the_view_does_not_know_it_cannot_tell_who_has_a_name(node: Node) -> None:
    first = await node.transactions.initialize("app", 60_000)
    node.shown = node.cluster.image.index
    node.cluster.view.transactions.granted_below = first.producer_id
    waiting = asyncio.ensure_future(node.transactions.commit(wants((first, {0: 5}))))
    await turns()
    assert not waiting.done()
    node.show(node.cluster.image.index)
    assert await waiting == (key(first.producer_id, 1),)


async def test_an_initialisation_that_comes_again_is_answered_as_the_first(node: Node) -> None:
    first = await node.transactions.initialize("app", 60_000, b"0123456789abcdef")
    assert await node.transactions.initialize("app", 60_000, b"0123456789abcdef") == first
    assert await node.transactions.initialize("app", 60_000, b"another one 1234") != first
    with pytest.raises(InvalidRequest) as fenced:
        await node.transactions.initialize("app", 60_000, b"0123456789abcdef")
    assert fenced.value.code == "producer_fenced"


async def test_a_position_is_removed_where_it_stands(node: Node) -> None:
    await node.transactions.commit(wants(positions=(WantedPosition("p", -1, 2),)))
    with pytest.raises(InvalidRequest) as moved:
        await node.transactions.remove_position("p", 1)
    assert moved.value.code == "offset_moved"
    await node.transactions.remove_position("p", 2)
    assert node.cluster.position("p") == -1


# --- Until everybody sees it -----------------------------------------------------------------------------------------


async def test_a_commit_may_wait_until_it_is_visible_everywhere(node: Node) -> None:
    first = await node.transactions.initialize("app", 60_000)
    waiting = asyncio.ensure_future(node.transactions.commit(wants((first, {0: 5, 1: 6})), visible_within_s=20))
    while not node.cluster.view.transactions.unmarked_count(first):  # noqa: ASYNC110 - two turns of the loop
        await asyncio.sleep(0)
    node.cluster.mark(0, first)
    await asyncio.sleep(0)
    assert not waiting.done()
    node.cluster.mark(1, first)
    assert await waiting == (key(first.producer_id, 1),)


async def test_where_markers_do_not_come_in_time_it_is_committed_all_the_same(node: Node) -> None:
    first = await node.transactions.initialize("app", 60_000)
    with pytest.raises(NotVisibleYet) as late:
        await node.transactions.commit(wants((first, {0: 5})), visible_within_s=0.01)
    assert (late.value.code, late.value.going_on) == ("request_timed_out", (key(first.producer_id, 1),))
    assert node.cluster.verdict(first, 0) == committed(5)
    assert await node.transactions.commit(wants((first, {0: 5}))) == (key(first.producer_id, 1),)


# --- Large commits ---------------------------------------------------------------------------------------------------


def large(first: int, tasks: int, partitions: int) -> WantedCommit:
    ends = {number: 1_000_000 + number for number in range(partitions)}
    return wants(*((key(first + task), ends) for task in range(tasks)), positions=(WantedPosition("q", -1, 0),))


async def test_a_large_commit_is_staged_in_parts_and_decided_at_once() -> None:
    node = Node(partitions=20)
    block = await node.transactions.open_block("", 1_000, 60_000)
    asked = large(block.first, 1_000, 20)
    assert await node.transactions.commit(asked) == ()
    parts = node.changes(StagePart)
    assert len(parts) >= 2 and not node.changes(Commit)
    assert all(isinstance(part, StagePart) and len(part.piece) <= MAX_CHANGE_BYTES for part in parts)
    assert node.cluster.verdict(key(block.first + 999), 19) == committed(1_000_019)
    assert node.cluster.view.transactions.ends_count == 20_000
    assert node.cluster.view.transactions.staged() == []
    before = node.cluster.view.transactions.positions()
    assert await node.transactions.commit(asked) == (), "a retry gets the first answer"
    assert node.cluster.view.transactions.positions() == before
    node.transactions.close()


async def test_parts_whose_fate_is_not_known_have_committed_nothing() -> None:
    node = Node(partitions=20)
    block = await node.transactions.open_block("", 1_000, 60_000)
    asked = large(block.first, 1_000, 20)
    node.fates = [Fate.UNKNOWN]
    with pytest.raises(RetriableError) as undecided:
        await node.transactions.commit(asked)
    assert undecided.value.code == "quorum_unavailable"
    assert not node.changes(CommitStaged)
    assert await node.transactions.commit(asked) == ()
    node.transactions.close()


def test_pieces_are_bounded_and_nothing_is_lost_between_them() -> None:
    wide = WantedOutput(key(1), tuple((tp(number), Offset(2**40 + number)) for number in range(9_000)))
    small = [WantedOutput(key(number), ((tp(0), Offset(5)),)) for number in range(2, 2_000)]
    moves = tuple(WantedMove(tp(number), 0, 1, -1, "é" * 1_000) for number in range(200))
    wanted = WantedCommit((wide, *small, WantedOutput(key(2_000), ())), (WantedGroupOffsets("g", "m", 1, 2, moves),))
    pieces = pieces_of(wanted)
    assert len(pieces) > 5
    assert all(len(encode_piece(piece)) <= MAX_CHANGE_BYTES for piece in pieces)
    ends = [
        (output.key, TopicPartition(topic.topic_id, number), end)
        for piece in pieces
        for output in piece.outputs
        for topic in output.topics
        for number, end in zip(topic.partitions, topic.end_offsets, strict=True)
    ]
    assert ends == [(one.key, *named) for one in wanted.outputs for named in one.end_offsets]
    assert {output.key for piece in pieces for output in piece.outputs} == {one.key for one in wanted.outputs}
    moved = [move.partition for piece in pieces for group in piece.groups for move in group.moves]
    assert moved == list(range(200))
    assert pieces_of(WantedCommit(())) == [Piece((), ())]


# --- Expiry ----------------------------------------------------------------------------------------------------------


async def test_only_the_quorums_leader_lets_anything_expire(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_expiry, "LOOK_SECONDS", 0.02)
    node.leader = THERE
    block = await node.transactions.open_block("batch", 5, 100)
    node.transactions.wake()
    async with asyncio.timeout(20):
        while node.transactions._timer is not None:  # noqa: ASYNC110 - a turn of the loop
            await asyncio.sleep(0)
    node.leader = HERE
    node.transactions.wake()
    async with asyncio.timeout(20):
        while node.cluster.view.transactions.block(block.first) is not None:  # noqa: ASYNC110 - a timer of its own
            await asyncio.sleep(0.01)
    assert len(node.changes(Expire)) == 1
    assert TOPIC in node.cluster.image.topics
    assert not isinstance(node.commands[-1], Refused)
