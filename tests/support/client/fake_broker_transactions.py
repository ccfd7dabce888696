"""Transactions for a broker in memory: the image's own rules on the fake broker's topics, decided at once.

The test determines the open transactions (`open_now`) and the written markers (`mark`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from http_api.service.transactions import OpenTransaction, check_request
from metadata.commands.results import TransactionAnswer
from metadata.commands.transactions import (
    Abort,
    ChangeTransactionsAs,
    Commit,
    Initialize,
    Marked,
    OpenBlock,
    RemovePosition,
    RetireBlock,
    TransactionChange,
)
from metadata.image.transaction_state import TransactionsState
from metadata.image.transactions import change_transactions
from raftlog.errors import RaftlogError, error_from_code
from raftlog.model import TopicPartition
from raftlog.ports import Answer
from raftlog.transactions import TransactionKey
from raftlog.wire import (
    AbortRequest,
    CommitRequest,
    InitializeRequest,
    OpenBlockRequest,
    RemovePositionRequest,
    RetireBlockRequest,
    TransactionRequest,
    TransactionResponse,
)

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
        self._waiting: set[asyncio.Task[bool]] = set()
        self.fail: Exception | None = None
        """The exception that every call raises."""

    def change(self, change: TransactionChange, principal: str = "") -> TransactionAnswer:
        """Apply the change of a principal and return its answer. Raises the refusal."""
        if self.fail is not None:
            raise self.fail
        groups: Any = self._groups
        groups.transactions = self._state
        typed: ClusterImage = groups
        command = ChangeTransactionsAs((change,), (principal,))
        steps = change_transactions(typed, command, self._groups.view.index + 1, 1)
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
        self.change(Marked(partition.topic_id, partition.partition, record.leader_epoch, (key,)))
        self.marked.set()
        self.marked = asyncio.Event()

    # --- TransactionService ---

    def ask(self, request: TransactionRequest, answer: Answer[TransactionResponse], principal: str = "") -> None:
        try:
            check_request(request)
            told = self.change(_change(request), principal)
        except RaftlogError as error:
            answer(error)
            return
        ended: Sequence[TransactionKey] = ()
        if isinstance(request, CommitRequest):
            ended = [output.key for output in request.outputs]
        elif isinstance(request, AbortRequest):
            ended = request.transactions
        response = TransactionResponse(request.correlation_id, told.keys or self._state.going_on(ended), told.count)
        within_s = request.visible_within_ms / 1000 if isinstance(request, CommitRequest) else 0.0
        if within_s:
            waiting = asyncio.get_running_loop().create_task(self._wait(list(ended), within_s))
            waiting.add_done_callback(lambda done: answer(msgspec.structs.replace(response, visible=done.result())))
            self._waiting.add(waiting)
        else:
            answer(response)

    def open_here(self) -> Sequence[OpenTransaction]:
        return self.open_now

    async def _wait(self, keys: list[TransactionKey], within_s: float) -> bool:
        """Return whether they became visible in time."""
        try:
            async with asyncio.timeout(within_s):
                while any(self._state.unmarked_count(key) for key in keys):
                    await self.marked.wait()
        except TimeoutError:
            return False
        return True


def _change(request: TransactionRequest) -> TransactionChange:
    match request:
        case InitializeRequest(_, name, timeout_ms, attempt, after):
            return Initialize(name, timeout_ms, NOW_MS, attempt, after)
        case OpenBlockRequest(_, name, count, timeout_ms):
            return OpenBlock(name, count, timeout_ms)
        case RetireBlockRequest(_, name):
            return RetireBlock(name)
        case RemovePositionRequest(_, name, value):
            return RemovePosition(name, value)
        case CommitRequest(_, outputs, groups, positions, block):
            return Commit(outputs, groups, positions, block, NOW_MS)
        case AbortRequest(_, keys):
            return Abort(keys, NOW_MS)
