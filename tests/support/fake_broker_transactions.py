"""Transactions for a broker in memory: the image's own rules on the fake broker's topics, decided at once.

What is open, and which markers are written, a test says (`open_now`, `mark`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from http_api.service.transactions import NotVisibleYet, OpenTransaction, ProducerIdBlock, WantedCommit
from metadata.commands.results import TransactionAnswer
from metadata.commands.transactions import (
    Abort,
    ChangeTransactions,
    Commit,
    GroupMoves,
    Initialize,
    Key,
    Marked,
    Move,
    OpenBlock,
    Output,
    Position,
    RemovePosition,
    RetireBlock,
    TopicEnds,
    TransactionChange,
    pack_keys,
)
from metadata.image.transaction_state import TransactionsState
from metadata.image.transactions import change_transactions
from raftlog.errors import error_from_code
from raftlog.model import Offset, ProducerId, TopicPartition
from raftlog.transactions import TransactionKey

from .fake_groups import NOW_MS, FakeGroups

if TYPE_CHECKING:
    from metadata.image.image import ClusterImage


class FakeBrokerTransactions:
    """`TransactionService`."""

    def __init__(self, groups: FakeGroups) -> None:
        self._groups = groups
        self._state = TransactionsState(groups.note)
        self.open_now: list[OpenTransaction] = []
        self.marked = asyncio.Event()
        """Set and replaced whenever a marker was reported."""
        self.fail: Exception | None = None
        """What every call raises."""

    def change(self, change: TransactionChange) -> TransactionAnswer:
        """What was answered. Raises the refusal."""
        if self.fail is not None:
            raise self.fail
        groups: Any = self._groups
        groups.transactions = self._state
        typed: ClusterImage = groups
        steps = change_transactions(typed, ChangeTransactions((change,)), self._groups.view.index + 1, 1)
        try:
            while True:
                next(steps)
        except StopIteration as done:
            answers = done.value.answers
        self._groups.feed_events()
        (answer,) = answers or (TransactionAnswer(0, "", "", (), 0),)
        if answer.code:
            raise error_from_code(answer.code, answer.detail)
        return answer

    def mark(self, partition: TopicPartition, key: TransactionKey) -> None:
        """Its leader has the marker below the high watermark."""
        record = self._groups.partitions[partition]
        self.change(Marked(partition.topic_id, partition.partition, record.leader_epoch, (Key(*key),)))
        self.marked.set()
        self.marked = asyncio.Event()

    # --- TransactionService ---

    async def initialize(
        self, transactional_id: str, timeout_ms: int, attempt: bytes | None = None, after: TransactionKey | None = None
    ) -> TransactionKey:
        packed = None if after is None else Key(*after)
        (key,) = self.change(Initialize(transactional_id, timeout_ms, NOW_MS, attempt, packed)).keys
        return key.key

    async def open_block(self, name: str, count: int, timeout_ms: int) -> ProducerIdBlock:
        answer = self.change(OpenBlock(name, count, timeout_ms))
        return ProducerIdBlock(ProducerId(answer.keys[0].producer_id), answer.count)

    async def retire_block(self, name: str) -> None:
        self.change(RetireBlock(name))

    async def remove_position(self, name: str, value: int) -> None:
        self.change(RemovePosition(name, value))

    async def commit(self, wanted: WantedCommit, *, visible_within_s: float = 0) -> tuple[TransactionKey, ...]:
        outputs = tuple(
            Output(*one.key, tuple(TopicEnds(tp.topic_id, (tp.partition,), (end,)) for tp, end in one.end_offsets))
            for one in wanted.outputs
        )
        groups = tuple(
            GroupMoves(
                one.group_id,
                one.member_id,
                one.incarnation,
                one.generation,
                tuple(
                    Move(m.topic_partition.topic_id, m.topic_partition.partition, m.start, Offset(m.end),
                         m.leader_epoch, m.metadata)
                    for m in one.moves
                ),
            )
            for one in wanted.group_offsets
        )  # fmt: skip
        positions = tuple(Position(one.name, one.current, one.new) for one in wanted.positions)
        answer = self.change(Commit(outputs, groups, positions, wanted.block, NOW_MS))
        deadline = asyncio.get_running_loop().time() + visible_within_s
        while visible_within_s and any(self._state.unmarked_count(one.key) for one in wanted.outputs):
            try:
                async with asyncio.timeout_at(deadline):
                    await self.marked.wait()
            except TimeoutError:
                raise NotVisibleYet(tuple(self._going_on(answer, [one.key for one in wanted.outputs]))) from None
        return self._going_on(answer, [one.key for one in wanted.outputs])

    def open_here(self) -> Sequence[OpenTransaction]:
        return self.open_now

    async def abort(self, keys: Sequence[TransactionKey]) -> tuple[TransactionKey, ...]:
        return self._going_on(self.change(Abort(pack_keys(keys), NOW_MS)), keys)

    def _going_on(self, answer: TransactionAnswer, ended: Sequence[TransactionKey]) -> tuple[TransactionKey, ...]:
        return tuple(key.key for key in answer.keys) or self._state.going_on(ended)
