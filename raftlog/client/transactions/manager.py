"""One producer's transactions, one after the other: their keys and the outcome of the last one.

A **named** producer initializes its transactional id once, with its first transaction: from then on, the answer to
every end includes the key of the next transaction. If that answer is not available, it initializes again as the holder
of the last transaction. So a producer that was replaced learns of it (`producer_fenced`) and can never fence its
replacement. A commit whose answer was lost is retried before anything else begins, and gets the first answer. A
producer **without a transactional id** takes a fresh producer id for each transaction, from blocks that it requests now
and then.

Ends run as tasks of their own: if the caller is cancelled, the end continues, and the next transaction waits for it.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Coroutine
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from raftlog.client.cluster.api import HttpApi
from raftlog.client.producing.counts import ProduceCounts
from raftlog.client.producing.sender import Sender
from raftlog.client.producing.sending import CurrentTrace
from raftlog.client.settings import ProducerSettings
from raftlog.errors import ClientClosed, InvalidRequest, RaftlogError, RetriableError
from raftlog.model import ProducerEpoch, ProducerId
from raftlog.transactions import ATTEMPT_BYTES, TransactionKey

from .api import DECIDED_BY_REFUSAL, TransactionApi
from .sender import TransactionSender

logger = logging.getLogger("raftlog.client")

T = TypeVar("T")

BEGIN_TIMEOUT = 30.0
ABORT_TIMEOUT = 10.0
CLOSE_TIMEOUT = 3.0
"""Seconds that unfinished ends get when the producer is closed.

After that, the cluster aborts open transactions at their timeout.
"""
IDS_PER_BLOCK = 32


@dataclass(slots=True)
class _Block:
    next: int
    end: int
    good_until: float
    """Loop time until which a transaction may begin with an id of this block.

    The cluster keeps a block for twice its timeout, so a transaction begun within the first timeout may stay open for a
    full one.
    """


class OpenTransaction(Protocol):
    """The interface of the open transaction to its manager."""

    def broken(self, error: RaftlogError) -> None:
        """Record that it cannot be committed."""
        ...

    async def abandon(self, error: RaftlogError) -> None:
        """Abort it; `error` is raised to its users."""
        ...


class TransactionManager:
    """Manages a producer's transactions.

    Belongs to one event loop; `close` it.
    """

    def __init__(self, api: HttpApi, settings: ProducerSettings) -> None:
        settings.check_transactions()
        self.http = api
        self.api = TransactionApi(api)
        # A record that is sent after its transaction's timeout is useless.
        patience = min(settings.delivery_timeout_ms, settings.transaction_timeout_ms)
        self._settings = replace(settings, delivery_timeout_ms=patience)
        self.counts = ProduceCounts()
        """The counts of what is delivered; the owner may replace them by its own before the first transaction."""
        self._sending: TransactionSender | None = None
        self._current: OpenTransaction | None = None
        self._key: TransactionKey | None = None
        """Key of a named producer's next transaction."""
        self._unknown: TransactionKey | None = None
        """Key of a named producer's transaction whose commit has an unknown outcome."""
        self._last_key: TransactionKey | None = None
        """Key of a named producer's last transaction, whatever its outcome."""
        self._attempt: bytes | None = None
        """Random id of an unanswered initialization; a retry uses it again."""
        self._fenced: RaftlogError | None = None
        self._block: _Block | None = None
        self._ends: set[asyncio.Task[Any]] = set()
        self._closed = False

    @property
    def is_named(self) -> bool:
        """Whether the producer has a transactional id."""
        return self._settings.transactional_id is not None

    @property
    def trace_context(self) -> CurrentTrace | None:
        """The setting of the producer."""
        return self._settings.trace_context

    @property
    def buffered_bytes(self) -> int:
        return 0 if self._sending is None else self._sending.sender.accumulator.buffered_bytes

    @property
    def requests_in_flight(self) -> int:
        """Produce requests that are not answered yet."""
        return 0 if self._sending is None else self._sending.sender.facts().requests

    @property
    def sending(self) -> TransactionSender:
        """The sender of the open transaction, made when first needed. Raises `ClientClosed`."""
        self._check_open()
        if self._sending is None:
            self._sending = TransactionSender(self.http, self._settings)
            self._sending.sender.counts = self.counts
        return self._sending

    @property
    def sender(self) -> Sender:
        """The sender of the records of all transactions. Raises as `sending` does."""
        return self.sending.sender

    # --- From begin to end --------------------------------------------------------------------------------------------

    async def begin(self, transaction: OpenTransaction) -> TransactionKey:
        """Return the key of a new transaction, which the sender's records carry from now on.

        Raises `InvalidRequest` (`producer_fenced`; `invalid_request` while another one is open) or `RetriableError`
        (`outcome_unknown` of the one before).
        """
        if self._ends:
            await asyncio.wait(self._ends)
        self._check_open()
        if self._current is not None:
            told = "a transaction of this producer is open: end it first, or use another producer"
            raise InvalidRequest("invalid_request", told)
        self._current = transaction
        try:
            key = await self._next_key()
            self.sending.begin(key, transaction.broken)
            self._last_key = key if self.is_named else None
        except BaseException:
            self._current = None
            raise
        return key

    def leave(self, transaction: OpenTransaction) -> None:
        """Record that `transaction` no longer needs the producer, so that another may begin."""
        if self._current is transaction:
            self._current = None

    def go_on(self, key: TransactionKey | None) -> None:
        """Record the end of the last transaction, whose key is used up.

        `key`: the next key of a named producer; None if the answer had none, so the producer initializes again.
        """
        self._unknown = None
        self._key = key

    def lost(self, key: TransactionKey) -> None:
        """Record that the outcome of the commit of `key` is unknown."""
        if self.is_named:
            self._unknown = key

    async def end(self, key: TransactionKey) -> bool:
        """Abort a transaction. Return False if the quorum did not answer.

        In that case the cluster aborts it at its timeout, unless a commit was requested. Raises `InvalidRequest`
        (`producer_fenced`, `transaction_committed`, or another of `DECIDED_BY_REFUSAL`).
        """
        self._unknown = self._key = None
        try:
            keys = await self.api.abort([key], timeout=ABORT_TIMEOUT)
        except RaftlogError as error:
            if self.is_named and error.code == "producer_fenced":
                self._fenced = error  # permanently
            if error.code in DECIDED_BY_REFUSAL:
                raise
            logger.warning("an abort was not decided, so the cluster aborts the transaction at its timeout: %s", error)
            return False
        self.go_on(keys[0] if keys else None)
        return True

    async def finish(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` to its end even if the caller is cancelled, and return its result.

        Raises `RetriableError` (`outcome_unknown`) if the producer is closed before `work` has an answer.
        """
        task = asyncio.get_running_loop().create_task(work)
        self._ends.add(task)
        task.add_done_callback(self._ended)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if not task.cancelled() or (caller is not None and caller.cancelling()):
                raise
            told = "the producer was closed before the end of the transaction was answered"
            raise RetriableError("outcome_unknown", told) from None

    async def close(self) -> None:
        """Abort what is open, wait `CLOSE_TIMEOUT` for pending decisions, and close the connections."""
        if self._closed:
            return
        if self._current is not None:
            closing = RetriableError("shutting_down", "the producer was closed while the transaction was open")
            self._ends.add(asyncio.get_running_loop().create_task(self._current.abandon(closing)))
        ends, self._ends = set(self._ends), set()
        if ends:
            _, late = await asyncio.wait(ends, timeout=CLOSE_TIMEOUT)
            for task in late:
                task.cancel()
            await asyncio.gather(*ends, return_exceptions=True)
        self._closed = True
        if self._sending is not None:
            await self._sending.sender.close()

    # --- Keys ---------------------------------------------------------------------------------------------------------

    async def _next_key(self) -> TransactionKey:
        if self._settings.transactional_id is None:
            return await self._unnamed_key()
        if self._fenced is not None:
            raise self._fenced
        if self._unknown is not None:
            told = (
                "the outcome of the previous transaction's commit is unknown: retry its `commit` or "
                "`abort`, or make a new producer with this transactional id and continue from what is committed"
            )
            raise RetriableError("outcome_unknown", told)
        if self._key is None:
            self._key = await self._initialize(self._settings.transactional_id)
        return self._key

    async def _initialize(self, name: str) -> TransactionKey:
        if self._attempt is None:
            self._attempt = secrets.token_bytes(ATTEMPT_BYTES)
        try:
            key = await self.api.initialize(
                name, self._settings.transaction_timeout_ms, self._attempt, self._last_key, timeout=BEGIN_TIMEOUT
            )
        except InvalidRequest as error:
            # Another producer initialized after this one did, or after an earlier attempt that succeeded.
            self._fenced = error if error.code == "producer_fenced" else None
            raise
        self._attempt = None
        return key

    async def _unnamed_key(self) -> TransactionKey:
        loop = asyncio.get_running_loop()
        block = self._block
        if block is None or block.next >= block.end or loop.time() >= block.good_until:
            timeout_ms = self._settings.transaction_timeout_ms
            good_until = loop.time() + timeout_ms / 1000
            got = await self.api.open_block("", IDS_PER_BLOCK, timeout_ms, timeout=BEGIN_TIMEOUT)
            end = got.first_producer_id + got.count
            block = self._block = _Block(got.first_producer_id, end, good_until)
        key = TransactionKey(ProducerId(block.next), ProducerEpoch(0))
        block.next += 1
        return key

    # --- Inside -------------------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._closed:
            raise ClientClosed("the producer is closed: create a new one")

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._ends.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, RaftlogError):
            logger.error("ending a transaction failed", exc_info=error)
