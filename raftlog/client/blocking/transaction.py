"""The blocking `Transaction`: an asyncio one (`raftlog/client/transactions/transaction.py`) on its producer's thread.

Any thread may use it. Its records pass through the same queue as the producer's others, and the end of the block waits
until all of them were taken: a record that the producer refuses breaks the transaction, as one that fails later does.
Producers have threads of their own, so a decision over several of them runs on yet another thread, which calls each
producer on its own.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from raftlog.api.transactions import ConsumedOffsets
from raftlog.client.cluster.api import HttpApi
from raftlog.client.cluster.connection_security import ConnectionSecurity
from raftlog.client.settings import AdminSettings
from raftlog.client.times import Seconds, seconds_of
from raftlog.client.transactions.api import Offsets, OffsetsSource, TransactionApi
from raftlog.client.transactions.decision import DECISION_TIMEOUT, Decision, Wait, Writer
from raftlog.client.transactions.transaction import Transaction as AsyncTransaction
from raftlog.client.transactions.transaction import commit_together as async_commit_together
from raftlog.errors import ClientClosed
from raftlog.wire import TransactionOutput

from .loop_thread import LoopThread
from .sending import Sending
from .twin import take_over

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class _Consumed:
    """A blocking consumer's offsets, read on the program's thread."""

    consumer: OffsetsSource
    offsets: ConsumedOffsets = field(compare=False)

    def consumed(self) -> ConsumedOffsets:
        return self.offsets

    def consumed_is_committed(self, offsets: ConsumedOffsets) -> None:
        self.consumer.consumed_is_committed(offsets)


def _taken_down(consumed: Offsets) -> Offsets:
    return consumed if isinstance(consumed, ConsumedOffsets) else _Consumed(consumed, consumed.consumed())


class Transaction(Sending, of=AsyncTransaction, names=("state", "key", "set_position", "commit", "abort", "prepare")):
    """A transaction, made by `Producer.transaction`; for any thread.

    Use it with `with`.
    """

    def send_offsets(self, consumed: Offsets) -> None:
        taken = _taken_down(consumed)
        self._do(lambda: self._wrapped.send_offsets(taken))

    def _end(self, last: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._run(last)  # the thread is the producer's


# --- Together --------------------------------------------------------------------------------------------------------


def commit_together(
    transactions: Sequence[Transaction | TransactionOutput],
    *,
    wait: Wait = "decided",
    timeout: Seconds = DECISION_TIMEOUT,
    **together: Any,
) -> None:
    """Commit as `raftlog.commit_together` does, for transactions of blocking producers."""
    writers = [_Writer(one) for one in dict.fromkeys(t for t in transactions if not isinstance(t, TransactionOutput))]
    outputs = (one for one in transactions if isinstance(one, TransactionOutput))
    elsewhere = together.pop("bootstrap", "")
    keywords = {name: together.pop(name) for name in AdminSettings.__dataclass_fields__ if name in together}
    decision = Decision(cast(list[Writer], writers), outputs, **together)

    def api_of_cluster() -> HttpApi:
        if writers:
            return writers[0].http.of()
        return HttpApi(elsewhere, ConnectionSecurity(AdminSettings(**keywords)))

    async def run() -> None:
        async with api_of_cluster() as api:
            await decision.settle()
            await decision.decide(TransactionApi(api), wait, seconds_of(timeout))

    thread = LoopThread(decision, "decision")
    try:
        thread.run(run)
    finally:
        thread.stop()


take_over(commit_together, async_commit_together)


class _Writer:
    """Presents a transaction on another thread to a decision on this one (`Writer`).

    Its methods run there. The plain ones block until they have; a decision has its loop to itself.
    """

    def __init__(self, transaction: Transaction) -> None:
        self._wrapped: AsyncTransaction = transaction._wrapped
        self._handover = transaction._handover

    @property
    def http(self) -> HttpApi:
        return self._wrapped.manager.http

    async def settle(self) -> None:
        await self._there(lambda: self._handover.in_turn(self._wrapped.settle))

    def __getattr__(self, name: str) -> Any:
        member = getattr(self._wrapped, name)
        if inspect.iscoroutinefunction(member):
            return lambda *args: self._there(lambda: member(*args))
        return (lambda *args: self._now(lambda: member(*args))) if callable(member) else member

    async def _there(self, call: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        return await asyncio.wrap_future(self._handover.thread.submit(call))

    def _now(self, call: Callable[[], None]) -> None:
        async def run() -> None:
            call()

        with suppress(ClientClosed):  # if its producer was closed, there is nothing to update; the others still are
            self._handover.thread.run(run)
