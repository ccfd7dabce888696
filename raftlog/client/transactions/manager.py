"""One producer's transactions, one after the other: their keys, and what became of the last one.

A **named** producer initialises its name once, with its first transaction: from then on every end is answered with the
key of the next transaction. Where that cannot be had it initialises again, as whoever had the last transaction. So a
producer that was replaced learns of it (`producer_fenced`) and can never fence the one that replaced it. A commit
whose answer was lost is asked for again before anything else begins; the first answer comes again. A producer **without
a name** takes a fresh id for each transaction out of blocks that it asks for now and then.

Ends are tasks of their own: whoever waits for one may be cancelled, it goes on, and the next transaction waits for it.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Coroutine
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from raftlog.client.cluster.api import HttpApi
from raftlog.client.producing.sender import Sender
from raftlog.client.producing.settings import ProducerSettings, TransactionSettings
from raftlog.errors import InvalidRequest, RaftlogError, RetriableError
from raftlog.model import ProducerEpoch, ProducerId
from raftlog.transactions import TransactionKey

from .api import ATTEMPT_BYTES, TransactionApi
from .sender import TransactionSender

logger = logging.getLogger("raftlog.client")

T = TypeVar("T")

BEGIN_TIMEOUT = 30.0
ABORT_TIMEOUT = 10.0
CLOSE_TIMEOUT = 3.0
"""What an end under way has when the producer is closed; beyond that the cluster aborts what is open when its time is
over."""
IDS_PER_BLOCK = 32


@dataclass(slots=True)
class _Block:
    next: int
    end: int
    good_until: float
    """Loop time until which one may be begun: the cluster keeps a block for twice its timeout, so whatever is begun
    within the first can stay open as long as it may."""


class OpenTransaction(Protocol):
    """What a manager needs of the transaction that is open."""

    def broken(self, error: RaftlogError) -> None:
        """It cannot be committed."""
        ...

    async def abandon(self, error: RaftlogError) -> None:
        """Abort it; whoever still uses it is told this error."""
        ...


class TransactionManager:
    """Belongs to one event loop; `close` it."""

    def __init__(self, api: HttpApi, settings: ProducerSettings, wanted: TransactionSettings) -> None:
        self.http = api
        self.api = TransactionApi(api)
        timeout = wanted.timeout_ms / 1000
        # A record that is sent when its transaction is over is of no use to anybody.
        patience = min(settings.delivery_timeout, timeout)
        self._settings = replace(settings, transactional=True, delivery_timeout=patience)
        self._wanted = wanted
        self._sending: TransactionSender | None = None
        self._current: OpenTransaction | None = None
        self._key: TransactionKey | None = None
        """With which a named producer goes on."""
        self._unknown: TransactionKey | None = None
        """Of a named producer: it was to be committed, and nobody has said whether it is."""
        self._last_key: TransactionKey | None = None
        """Of a named producer: of its last transaction, whatever became of that."""
        self._attempt: bytes | None = None
        """Of the initialisation that has no answer yet: the next one asks for that."""
        self._fenced: RaftlogError | None = None
        self._block: _Block | None = None
        self._ends: set[asyncio.Task[Any]] = set()
        self._closed = False

    @property
    def is_named(self) -> bool:
        """It has a transactional id."""
        return self._wanted.transactional_id is not None

    @property
    def buffered_bytes(self) -> int:
        return 0 if self._sending is None else self._sending.sender.accumulator.buffered_bytes

    @property
    def sending(self) -> TransactionSender:
        """Made when it is first needed. Raises `RetriableError` (`shutting_down`)."""
        self._check_open()
        if self._sending is None:
            self._sending = TransactionSender(self.http, self._settings)
        return self._sending

    @property
    def sender(self) -> Sender:
        """What sends the records of all transactions. Raises as `sending` does."""
        return self.sending.sender

    # --- From begin to end --------------------------------------------------------------------------------------------

    async def begin(self, transaction: OpenTransaction) -> TransactionKey:
        """Its key; the sender's records have it from now on.

        Raises `InvalidRequest` (`producer_fenced`; `invalid_request` while another is open) or `RetriableError`
        (`outcome_unknown` of the one before).
        """
        if self._ends:
            await asyncio.wait(self._ends)
        self._check_open()
        if self._current is not None:
            told = "a transaction of this producer is open: end it first, or use a producer for each"
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
        """This one needs the producer no more: another may begin."""
        if self._current is transaction:
            self._current = None

    def go_on(self, key: TransactionKey | None) -> None:
        """The last transaction is decided. `key`: what a named producer was answered; None: that was not said, so it
        begins anew. The former one is used up in any case."""
        self._unknown = None
        self._key = key

    def lost(self, key: TransactionKey) -> None:
        """Whether this one is committed is not known."""
        if self.is_named:
            self._unknown = key

    async def end(self, key: TransactionKey) -> bool:
        """Have it aborted. False: nobody answered, and where nobody was asked to commit it the cluster aborts it when
        its time is over. Raises `InvalidRequest` (`producer_fenced`, `transaction_committed`)."""
        self._unknown = self._key = None
        try:
            await self._end(key, ABORT_TIMEOUT)
        except InvalidRequest:
            raise
        except RaftlogError as error:
            logger.warning("aborting a transaction was not answered: the cluster does it in time: %s", error)
            return False
        return True

    async def finish(self, work: Coroutine[Any, Any, T]) -> T:
        """What `work` gives. It goes on to its end though its caller may be cancelled. Raises `RetriableError`
        (`outcome_unknown`) where the producer is closed meanwhile, and there is no answer."""
        task = asyncio.get_running_loop().create_task(work)
        self._ends.add(task)
        task.add_done_callback(self._ended)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if not task.cancelled() or (caller is not None and caller.cancelling()):
                raise
            told = "the producer was closed before it was answered how the transaction ended"
            raise RetriableError("outcome_unknown", told) from None

    async def close(self) -> None:
        """Abort what is open, wait a little for what is being decided, and let go of connections."""
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
        if self._wanted.transactional_id is None:
            return await self._unnamed_key()
        if self._fenced is not None:
            raise self._fenced
        if self._unknown is not None:
            told = (
                "whether the transaction before this one is committed is not known. Ask again with its `commit` or "
                "`abort`; or make a new producer of the same name, and begin at what is committed"
            )
            raise RetriableError("outcome_unknown", told)
        if self._key is None:
            self._key = await self._initialize(self._wanted.transactional_id)
        return self._key

    async def _initialize(self, name: str) -> TransactionKey:
        if self._attempt is None:
            self._attempt = secrets.token_bytes(ATTEMPT_BYTES)
        try:
            key = await self.api.initialize(
                name, self._wanted.timeout_ms, self._attempt, self._last_key, timeout=BEGIN_TIMEOUT
            )
        except InvalidRequest as error:
            # Another producer began since this one did, or since an earlier try that was taken.
            self._fenced = error if error.code == "producer_fenced" else None
            raise
        self._attempt = None
        return key

    async def _end(self, key: TransactionKey, timeout: float) -> None:
        try:
            keys = await self.api.abort([key], timeout=timeout)
        except InvalidRequest as error:
            if self.is_named and error.code == "producer_fenced":
                self._fenced = error  # for good
            raise
        self.go_on(keys[0] if keys else None)

    async def _unnamed_key(self) -> TransactionKey:
        loop = asyncio.get_running_loop()
        block = self._block
        if block is None or block.next >= block.end or loop.time() >= block.good_until:
            good_until = loop.time() + self._wanted.timeout_ms / 1000
            got = await self.api.open_block("", IDS_PER_BLOCK, self._wanted.timeout_ms, timeout=BEGIN_TIMEOUT)
            end = got.first_producer_id + got.count
            block = self._block = _Block(got.first_producer_id, end, good_until)
        key = TransactionKey(ProducerId(block.next), ProducerEpoch(0))
        block.next += 1
        return key

    # --- Inside -------------------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._closed:
            raise RetriableError("shutting_down", "the producer is closed")

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._ends.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, RaftlogError):
            logger.error("ending a transaction failed", exc_info=error)
