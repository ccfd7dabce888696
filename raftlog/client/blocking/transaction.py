"""The blocking `Transaction`: an asyncio one (`raftlog/client/transactions/transaction.py`) on its producer's thread.

Any thread may use it. Its records pass through the same queue as the producer's others, and the end of the block waits
until all of them were taken: a record that the producer refuses breaks the transaction, as one that fails later does.
Producers have threads of their own, so a decision over several of them runs on yet another thread, which calls each
producer on its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from raftlog.client.cluster.api import HttpApi
from raftlog.client.producing.sending import HeadersArgument
from raftlog.client.transactions.api import (
    CommitRequest,
    ConsumedOffsets,
    PositionMove,
    TransactionApi,
    TransactionOutput,
)
from raftlog.client.transactions.decision import DECISION_TIMEOUT, Decision, Wait
from raftlog.client.transactions.transaction import Transaction as AsyncTransaction
from raftlog.client.transactions.transaction import TransactionState
from raftlog.errors import RaftlogError, RetriableError
from raftlog.transactions import TransactionKey

from .handover import RECORD_BYTES, Handover, SentRecord
from .loop_thread import LoopThread

if TYPE_CHECKING:
    from .group_consumer import GroupConsumer

Result = TypeVar("Result")


class _Consumed:
    """A blocking consumer's offsets, read on the program's thread."""

    def __init__(self, consumer: GroupConsumer) -> None:
        self._consumer = consumer
        self._offsets = consumer.consumed()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Consumed) and other._consumer is self._consumer

    def __hash__(self) -> int:
        return id(self._consumer)

    def consumed(self) -> ConsumedOffsets:
        return self._offsets

    def consumed_is_committed(self, offsets: ConsumedOffsets) -> None:
        self._consumer.consumed_is_committed(offsets)


Offsets: TypeAlias = "GroupConsumer | ConsumedOffsets"


def _taken_down(consumed: Offsets) -> _Consumed | ConsumedOffsets:
    return consumed if isinstance(consumed, ConsumedOffsets) else _Consumed(consumed)


class Transaction:
    """A transaction, made by `Producer.transaction`; for any thread.

    Use it with `with`.
    """

    def __init__(self, wrapped: AsyncTransaction, handover: Handover) -> None:
        self._wrapped = wrapped
        self._handover = handover

    @property
    def state(self) -> TransactionState:
        return self._wrapped.state

    @property
    def key(self) -> TransactionKey:
        """Its producer id and epoch. Raises `InvalidRequest` before it is begun."""
        return self._wrapped.key

    def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: HeadersArgument | None = None,
    ) -> SentRecord:
        """Queue one record; wait for room if the buffer is full.

        An error of the record is raised by the result of the returned object, and by the commit. Raises
        `RetriableError` (`shutting_down`).
        """
        size = RECORD_BYTES + (len(value) if value else 0) + (len(key) if key else 0)
        return self._handover.put((topic, value, key, partition, timestamp_ms, headers), size, self._wrapped)

    def send_many(
        self,
        topic: str,
        values: Sequence[bytes | None] | Any,
        *,
        keys: Sequence[bytes | None] | Any = None,
        partition: int | None = None,
        timestamps: Sequence[int] | Any = None,
    ) -> None:
        """Queue whole columns, as `raftlog.Producer.send_many` does, and return once all are queued."""

        async def send() -> None:
            await self._wrapped.send_many(topic, values, keys=keys, partition=partition, timestamps=timestamps)

        self._handover.after_queued(send)

    def send_offsets(self, consumed: Offsets) -> None:
        """Add offsets as `raftlog`'s `Transaction.send_offsets` does."""
        taken = _taken_down(consumed)
        self._here(lambda: self._wrapped.send_offsets(taken))

    def set_position(self, name: str, current: int, new: int) -> None:
        """Add a named position as `raftlog`'s `Transaction.set_position` does."""
        self._here(lambda: self._wrapped.set_position(name, current, new))

    def commit(self, *, wait: Wait = "decided", timeout: float = DECISION_TIMEOUT) -> None:
        """Commit as `raftlog`'s `Transaction.commit` does."""
        self._handover.after_queued(lambda: self._wrapped.commit(wait=wait, timeout=timeout))

    def abort(self) -> None:
        """Abort as `raftlog`'s `Transaction.abort` does."""
        self._handover.after_queued(self._wrapped.abort)

    def prepare(self) -> TransactionOutput:
        """Prepare as `raftlog`'s `Transaction.prepare` does."""
        return self._handover.after_queued(self._wrapped.prepare)

    def __enter__(self) -> Transaction:
        self._handover.thread.run(self._wrapped.__aenter__)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._handover.after_queued(lambda: self._wrapped.__aexit__(kind, error, traceback))

    def _here(self, call: Callable[[], None]) -> None:
        """Run `call` on the transaction's thread."""

        async def run() -> None:
            call()

        self._handover.thread.run(run)


# --- Together --------------------------------------------------------------------------------------------------------


def commit_together(
    transactions: Sequence[Transaction | TransactionOutput],
    *,
    positions: Mapping[str, tuple[int, int]] | None = None,
    offsets: Iterable[Offsets] = (),
    block: str = "",
    wait: Wait = "decided",
    timeout: float = DECISION_TIMEOUT,
    bootstrap: str | Sequence[str] = "",
) -> None:
    """Commit as `raftlog.commit_together` does, for transactions of blocking producers."""
    writers = [_Writer(one) for one in dict.fromkeys(t for t in transactions if not isinstance(t, TransactionOutput))]
    decision = Decision(writers)
    decision.outputs = [one for one in transactions if isinstance(one, TransactionOutput)]
    decision.positions = [PositionMove(name, *move) for name, move in (positions or {}).items()]
    decision.take_offsets(_taken_down(one) for one in offsets)
    decision.block = block
    addresses = [str(address) for address in writers[0].addresses] if writers else bootstrap

    async def run() -> None:
        api = HttpApi(addresses)
        try:
            await decision.settle()
            await decision.decide(TransactionApi(api), wait, timeout)
        finally:
            await api.close()

    thread = LoopThread(decision, "decision")
    try:
        thread.run(run)
    finally:
        thread.stop()


class _Writer:
    """Presents a transaction on another thread to a decision on this one.

    It may block on that thread: a decision has its loop to itself.
    """

    def __init__(self, transaction: Transaction) -> None:
        self._wrapped = transaction._wrapped
        self._handover = transaction._handover

    @property
    def addresses(self) -> Sequence[object]:
        return self._wrapped.manager.http.addresses

    @property
    def is_named(self) -> bool:
        return self._wrapped.is_named

    @property
    def is_used(self) -> bool:
        return self._wrapped.is_used

    @property
    def may_abort(self) -> bool:
        return self._wrapped.may_abort

    @property
    def offsets(self) -> list[ConsumedOffsets]:
        return self._wrapped.offsets

    @property
    def positions(self) -> list[PositionMove]:
        return self._wrapped.positions

    @property
    def output(self) -> TransactionOutput:
        return self._wrapped.output

    async def settle(self) -> None:
        async def settle() -> None:
            await self._handover.reached()
            await self._wrapped.settle()

        await self._there(settle)

    async def abort(self) -> None:
        await self._there(self._wrapped.abort)

    async def refused(self, error: RaftlogError) -> bool | None:
        return await self._there(lambda: self._wrapped.refused(error))

    @property
    def asked(self) -> CommitRequest | None:
        return self._wrapped.asked

    def deciding(self, request: CommitRequest) -> None:
        self._now(lambda: self._wrapped.deciding(request))

    def unneeded(self) -> None:
        self._now(self._wrapped.unneeded)

    def committed(self, next_key: TransactionKey | None) -> None:
        self._now(lambda: self._wrapped.committed(next_key))

    def unanswered(self) -> None:
        self._now(self._wrapped.unanswered)

    async def _there(self, call: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        return await asyncio.wrap_future(self._handover.thread.submit(call))

    def _now(self, call: Callable[[], None]) -> None:
        async def run() -> None:
            call()

        with suppress(RetriableError):  # if its producer was closed, there is nothing to update; the others still are
            self._handover.thread.run(run)
