"""`Transaction`: records of many partitions, offsets of groups, named positions: all of it shows, or nothing (S13).

    async with producer.transaction() as transaction:
        transaction.send("invoices", b"...")
        transaction.send_offsets(consumer)

The end of the block commits, an exception (a cancelled task's too) aborts. One command of the metadata quorum decides;
`commit_together` has it decide over several writers at once.

What can be committed is certain beforehand: everything that was sent is acknowledged, and a record that failed, or
whose fate is not known, breaks the transaction. So three things can happen at the end. It is **committed**; it is
**aborted**, told by an `InvalidRequest` (nothing of it will ever show); or, because no answer came in time, it is
**unknown** (`outcome_unknown`), and `commit` may be asked again until somebody answers. `producer_fenced` tells no
outcome: another producer has taken the name over, so this one must stop and leave it to that one.
"""

from __future__ import annotations

import enum
import inspect
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any

from raftlog.client.cluster.api import HttpApi
from raftlog.client.cluster.waiters import Waiters
from raftlog.client.producing.delivery import DeliveryFuture, RecordDelivery, RecordMetadata
from raftlog.client.producing.sender import Sender
from raftlog.client.producing.sending import KeyPartitions, RecordSending
from raftlog.errors import InvalidRequest, RaftlogError, RetriableError
from raftlog.transactions import TransactionKey

from .api import (
    ABORTED_BY_REFUSAL,
    CommitRequest,
    ConsumedOffsets,
    Offsets,
    OffsetsSource,
    PositionMove,
    TransactionApi,
    TransactionOutput,
)
from .decision import DECISION_TIMEOUT, Decision, Wait
from .manager import TransactionManager
from .sender import aborted_because


class TransactionState(enum.Enum):
    """Where a transaction stands, as far as its producer knows."""

    NEW = "new"
    """Not begun."""
    OPEN = "open"
    PREPARED = "prepared"
    """It sends no more; whoever has its output decides."""
    ENDING = "ending"
    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"
    """No answer came in time, or the producer was replaced."""


_MAY_COMMIT = (TransactionState.OPEN, TransactionState.PREPARED, TransactionState.UNKNOWN)


class Transaction(RecordSending):
    """Made by `Producer.transaction`; belongs to that producer's loop."""

    def __init__(
        self, manager: TransactionManager, linger: float, key_partitions: KeyPartitions, wait: Wait, timeout: float
    ) -> None:
        """`wait`, `timeout`: for the commit at the end of its block."""
        super().__init__(linger, key_partitions)
        self.manager = manager
        self._wait = wait
        self._timeout = timeout
        self._state = TransactionState.NEW
        self._key: TransactionKey | None = None
        self._used = False
        """Something was sent, or tried."""
        self._error: RaftlogError | None = None
        """Why it is broken, or over."""
        self._offsets: dict[str, ConsumedOffsets] = {}
        """By group."""
        self._sources: dict[OffsetsSource, ConsumedOffsets] = {}
        self._positions: dict[str, PositionMove] = {}
        self._output: TransactionOutput | None = None
        self._handed_out = False
        """`prepare` gave its output away: whoever has it may have committed it."""
        self._asked: CommitRequest | None = None
        """What the cluster was asked to commit, and may have committed."""
        self._sending = 0
        """Calls under way that send."""
        self._idle = Waiters()
        self._unsent: dict[Coroutine[Any, Any, RecordMetadata], None] = {}
        """What is to be sent when somebody awaits it."""

    @property
    def state(self) -> TransactionState:
        return self._state

    @property
    def key(self) -> TransactionKey:
        """Its name in the cluster. Raises `InvalidRequest` before it is begun."""
        if self._key is None:
            raise InvalidRequest("invalid_request", "this transaction was not begun: use `async with`")
        return self._key

    # --- What goes into it --------------------------------------------------------------------------------------------

    async def send_many(
        self,
        topic: str,
        values: Sequence[bytes | None] | Any,
        *,
        keys: Sequence[bytes | None] | Any = None,
        partition: int | None = None,
        timestamps: Sequence[int] | Any = None,
    ) -> list[DeliveryFuture]:
        self._sending += 1
        try:
            return await super().send_many(topic, values, keys=keys, partition=partition, timestamps=timestamps)
        finally:
            self._sending -= 1
            self._idle.wake()

    send_many.__doc__ = RecordSending.send_many.__doc__

    def _send_later(self, *record: Any) -> Coroutine[Any, Any, RecordMetadata]:
        async def send() -> RecordMetadata:
            took = await self._queue_when_room(*record)
            del self._unsent[sending]
            return await RecordDelivery(took.delivery, took.count - 1, record[4])

        sending = send()
        self._unsent[sending] = None
        return sending

    def send_offsets(self, consumed: Offsets) -> None:
        """Commit with it what a consumer of a group has handed out up to now (its automatic commits must be off), or
        these offsets. Refused, and the transaction with it, unless each group is where the offsets begin
        (`offset_moved`) and the consumer still owns the partitions (`stale_generation`). Raises `InvalidRequest`."""
        self._check_open()
        offsets = consumed if isinstance(consumed, ConsumedOffsets) else consumed.consumed()
        if not isinstance(consumed, ConsumedOffsets):
            self._sources[consumed] = offsets
        before = self._offsets.get(offsets.group)
        self._offsets[offsets.group] = offsets if before is None else offsets.over(before)

    def set_position(self, name: str, current: int, new: int) -> None:
        """Commit with it that a named counter goes from `current` (-1: there is none) up to `new`. Where it is not at
        `current` the transaction is refused (`position_taken`): what was to be published is published already."""
        self._check_open()
        self._positions[name] = PositionMove(name, current, new)

    def doom(self, error: RaftlogError) -> None:
        """It cannot be committed any more, because of this error, and nothing of it is sent."""
        if self._state is TransactionState.OPEN:
            self.manager.sending.stop(error)

    # --- The end ------------------------------------------------------------------------------------------------------

    async def commit(self, *, wait: Wait = "decided", timeout: float = DECISION_TIMEOUT) -> None:
        """Wait for all acknowledgements, then have the cluster decide. Nothing is done where it is committed already.

        `wait`: `"decided"`, or `"visible"`: until every reader that asks gets to see it. `timeout`: seconds for the
        decision.

        Raises `InvalidRequest`: `transaction_aborted` where a record failed (the cause tells why), `offset_moved`,
        `position_taken`, `stale_generation`, ... where it was refused: it is aborted; `producer_fenced`: this producer
        was replaced and must stop. Raises `RetriableError`: `outcome_unknown` where no answer came, ask again;
        `request_timed_out` where it is committed and, with `wait="visible"`, not to be seen everywhere in time.
        """
        if self._state is not TransactionState.COMMITTED:
            await Decision([self]).commit(wait, timeout, self.manager)

    async def abort(self) -> None:
        """Nothing of it will ever show. Nothing is done where it is aborted already. Raises `InvalidRequest`
        (`transaction_committed`; `producer_fenced`), and `RetriableError` (`outcome_unknown`) where it may have been
        committed before and no answer came: ask again."""
        if self._state is TransactionState.ABORTED:
            return
        if self._state not in _MAY_COMMIT:
            raise self._over()
        why = InvalidRequest("transaction_aborted", "the program aborted it")
        await self.manager.finish(self._abort(why, was_open=self._state is TransactionState.OPEN))

    async def prepare(self) -> TransactionOutput:
        """Wait for all acknowledgements and send no more: what `commit_together` needs of this transaction, wherever
        that is called. Raises `InvalidRequest` (`transaction_aborted`; `invalid_request` for a named producer, whose
        own process has to learn how it goes on)."""
        if self.manager.is_named:
            raise InvalidRequest("invalid_request", "only a transaction without a name is decided by another process")
        await self.settle()
        self._handed_out = True
        self.manager.leave(self)
        return self.output

    async def __aenter__(self) -> Transaction:
        if self._state is not TransactionState.NEW:
            raise InvalidRequest("invalid_request", "a transaction begins once: `producer.transaction()` makes another")
        self._key = await self.manager.begin(self)
        self._state = TransactionState.OPEN
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._state is not TransactionState.OPEN:
            return
        if error is None:
            await self.commit(wait=self._wait, timeout=self._timeout)
            return
        why = f"its block ended with {type(error).__name__}: {error}"
        try:
            await self.manager.finish(self._abort(InvalidRequest("transaction_aborted", why), was_open=True))
        except RaftlogError as unended:
            error.add_note(f"aborting the transaction: {unended}")

    # --- For the manager and for decisions ----------------------------------------------------------------------------

    def broken(self, error: RaftlogError) -> None:
        self._open = {}
        self._error = error

    async def abandon(self, error: RaftlogError) -> None:
        if self._state is TransactionState.OPEN:
            await self._abort(error, was_open=True)

    @property
    def is_named(self) -> bool:
        """Its producer has a transactional id."""
        return self.manager.is_named

    @property
    def offsets(self) -> list[ConsumedOffsets]:
        """Of each group once."""
        return list(self._offsets.values())

    @property
    def positions(self) -> list[PositionMove]:
        return list(self._positions.values())

    @property
    def output(self) -> TransactionOutput:
        """What it wrote, once it is prepared."""
        assert self._output is not None
        return self._output

    @property
    def is_used(self) -> bool:
        """It has, or may have, written something."""
        return self._used

    async def settle(self) -> None:
        """Send no more, and have everything acknowledged: then it is prepared. Raises `InvalidRequest`
        (`transaction_aborted`), and aborts it, where a record failed; aborts it too where this is cancelled."""
        if self._state in (TransactionState.PREPARED, TransactionState.UNKNOWN):
            return
        if self._state is not TransactionState.OPEN:
            raise self._over()
        self._open = {}
        self._state = TransactionState.ENDING
        sending = self.manager.sending
        sender = sending.sender
        try:
            self._check_all_sent()
            await self._until_idle()
            sender.accumulator.seal_all()
            sender.pump()
            for delivery in sender.unfinished():
                await delivery.settled()
            if self._error is not None:
                raise aborted_because(self._error)
        except RaftlogError as error:
            await self.manager.finish(self._abort(error, was_open=True))
            raise
        except BaseException as error:
            stopped = InvalidRequest("transaction_aborted", f"it was stopped on the way: {error!r}")
            with suppress(RaftlogError):  # whoever cancels must hear of that, and the next transaction of a fence
                await self.manager.finish(self._abort(stopped, was_open=True))
            raise
        self._output = sending.finish()
        self._state = TransactionState.PREPARED

    @property
    def asked(self) -> CommitRequest | None:
        """What the cluster was asked for, where that was not answered."""
        return self._asked if self._state is TransactionState.UNKNOWN else None

    def deciding(self, request: CommitRequest) -> None:
        """It is asked for now, with this."""
        self._asked = request
        self._state = TransactionState.ENDING

    def unneeded(self) -> None:
        """Nothing is in it, so nobody has to decide, and its key is as good as before."""
        self._state = TransactionState.COMMITTED
        self.manager.leave(self)

    def committed(self, next_key: TransactionKey | None) -> None:
        """So it was decided. `next_key`: what a named producer goes on with."""
        self._state = TransactionState.COMMITTED
        self.manager.go_on(next_key)
        self.manager.leave(self)
        for source, offsets in self._sources.items():
            source.consumed_is_committed(offsets)

    def unanswered(self) -> None:
        """Whether it is committed is not known."""
        self._state = TransactionState.UNKNOWN
        self.manager.lost(self.key)
        self.manager.leave(self)

    async def refused(self, error: RaftlogError) -> bool | None:
        """A commit of it was refused: see that it is aborted. True where it turns out to be committed; None where
        nobody answered, and that refusal leaves it open."""
        fenced = error.code == "producer_fenced"
        committed = False
        self._error = error
        try:
            answered = await self.manager.end(self.key)
        except InvalidRequest as unended:
            answered = True
            committed = unended.code == "transaction_committed"
            fenced = fenced or unended.code == "producer_fenced"
        finally:
            self.manager.leave(self)
        if committed:
            self._state = TransactionState.COMMITTED
            return True
        if not (answered or fenced or error.code in ABORTED_BY_REFUSAL):
            self.unanswered()
            return None
        self._state = TransactionState.UNKNOWN if fenced else TransactionState.ABORTED
        return False

    @property
    def may_abort(self) -> bool:
        """It is neither decided nor being decided."""
        return self._state in (TransactionState.OPEN, TransactionState.PREPARED)

    # --- Inside -------------------------------------------------------------------------------------------------------

    @property
    def _sender(self) -> Sender:
        return self.manager.sender

    def _check_open(self) -> None:
        if self._state is not TransactionState.OPEN:
            raise self._over()
        if self._error is not None:
            raise aborted_because(self._error)

    def _started(self) -> Sender:
        self._check_open()
        self._used = True
        sender = self._sender
        self._open = sender.accumulator.open
        return sender

    def _over(self) -> RaftlogError:
        if self._state is TransactionState.NEW:
            return InvalidRequest("invalid_request", "this transaction was not begun: use `async with`")
        if self._state is TransactionState.ABORTED and self._error is not None:
            return aborted_because(self._error)
        return InvalidRequest("invalid_request", f"this transaction is {self._state.value}: it takes nothing more")

    def _check_all_sent(self) -> None:
        """What a full buffer did not take, and nobody has awaited yet, would be left out of the commit."""
        unsent, self._unsent = self._unsent, {}
        if any(inspect.getcoroutinestate(one) != inspect.CORO_CLOSED for one in unsent):
            told = (
                "the buffer was full, and what `send_and_wait` gave for a record was not awaited, so it was never sent"
            )
            raise aborted_because(InvalidRequest("invalid_request", told))

    async def _until_idle(self) -> None:
        while self._sending:
            await self._idle.wait()

    async def _abort(self, why: RaftlogError, *, was_open: bool) -> None:
        """`was_open`: it may still be sending. Where nobody can have committed it, it is aborted whatever comes of
        this."""
        self._open = {}
        self._error = self._error or why
        may_be_committed = self._handed_out or self._asked is not None
        self._state = TransactionState.UNKNOWN if may_be_committed else TransactionState.ABORTED
        if was_open:
            sending = self.manager.sending
            sending.stop(why)
            await self._until_idle()
            sending.finish()
        try:
            if self._used or not was_open:
                answered = await self.manager.end(self.key)
                if may_be_committed and not answered:
                    self.manager.lost(self.key)
                    told = "nobody answered whether it is aborted, or was committed before: ask again"
                    raise RetriableError("outcome_unknown", told)
            self._state = TransactionState.ABORTED
        except InvalidRequest as error:
            if error.code == "transaction_committed":
                self._state = TransactionState.COMMITTED
            raise
        finally:
            self.manager.leave(self)


async def commit_together(
    transactions: Sequence[Transaction | TransactionOutput],
    *,
    positions: Mapping[str, tuple[int, int]] | None = None,
    offsets: Iterable[Offsets] = (),
    block: str = "",
    wait: Wait = "decided",
    timeout: float = DECISION_TIMEOUT,
    bootstrap: str | Sequence[str] = "",
) -> None:
    """All of these transactions, or none of them (S13): open ones of producers of this program, or what `prepare` gave
    in others. `positions`: name → (current, new); `offsets`: as for `Transaction.send_offsets`; both beside what the
    transactions have of their own. `block`: a named block of producer ids that is retired with it. `bootstrap`: API
    addresses, needed where no producer is here.

    Raises as `Transaction.commit` does, for all of them: what is refused is aborted as a whole.
    """
    writers = dict.fromkeys(one for one in transactions if not isinstance(one, TransactionOutput))
    decision = Decision(list(writers))
    decision.outputs = [one for one in transactions if isinstance(one, TransactionOutput)]
    decision.positions = [PositionMove(name, *move) for name, move in (positions or {}).items()]
    decision.take_offsets(offsets)
    decision.block = block
    if writers:
        await decision.commit(wait, timeout, next(iter(writers)).manager)
        return
    api = HttpApi(bootstrap)
    try:
        await decision.decide(TransactionApi(api), wait, timeout)
    finally:
        await api.close()
