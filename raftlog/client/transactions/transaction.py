"""`Transaction`: records, group offsets and named positions that become visible together or not at all (S13).

    async with producer.transaction() as transaction:
        transaction.send("invoices", b"...")
        transaction.send_offsets(consumer)

The end of the block commits; an exception, including a cancellation, aborts. One command of the metadata quorum decides
the transaction; `commit_together` decides several writers' transactions with a single command.

Before a commit is requested, every record is acknowledged; a record that failed, or whose outcome is unknown, breaks
the transaction. So a transaction ends in one of three states:

* **committed**;
* **aborted**, reported by an `InvalidRequest`: none of it ever becomes visible;
* **unknown** (`outcome_unknown`), because no answer arrived in time: `commit` may be retried until it is answered.

`producer_fenced` reports no outcome: another producer has taken over the transactional id, so this one must stop.
"""

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Unpack

from raftlog.api.transactions import ConsumedOffsets
from raftlog.client.cluster.api import HttpApi
from raftlog.client.cluster.connection_security import ConnectionSecurity
from raftlog.client.cluster.waiters import Waiters
from raftlog.client.keywords import AdminKeywords
from raftlog.client.producing.delivery import RecordMetadata
from raftlog.client.producing.sender import Sender
from raftlog.client.producing.sending import KeyPartitions, Queued, RecordSending
from raftlog.client.settings import AdminSettings, takes
from raftlog.client.times import Seconds, seconds_of
from raftlog.errors import InvalidRequest, RaftlogError, RetriableError
from raftlog.transactions import TransactionKey
from raftlog.wire import CommitRequest, PositionMove, TransactionOutput

from .api import ABORTED_BY_REFUSAL, Offsets, OffsetsSource, TransactionApi
from .decision import DECISION_TIMEOUT, Decision, Wait
from .manager import TransactionManager
from .sender import aborted_because


class TransactionState(enum.Enum):
    """State of a transaction, as far as its producer knows."""

    NEW = "new"
    """It has not begun."""
    OPEN = "open"
    PREPARED = "prepared"
    """It sends no more; the holder of its output decides it."""
    ENDING = "ending"
    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"
    """No answer arrived in time, or the producer was fenced."""


_MAY_COMMIT = (TransactionState.OPEN, TransactionState.PREPARED, TransactionState.UNKNOWN)


class Transaction(RecordSending):
    """A transaction, made by `Producer.transaction`; it belongs to that producer's event loop."""

    def __init__(
        self, manager: TransactionManager, linger: float, key_partitions: KeyPartitions, wait: Wait, timeout: Seconds
    ) -> None:
        """`wait` and `timeout` are those of the commit at the end of the block."""
        super().__init__(linger, key_partitions, manager.trace_context)
        self.manager = manager
        self._wait = wait
        self._timeout = seconds_of(timeout)
        self._state = TransactionState.NEW
        self._key: TransactionKey | None = None
        self.is_used = False
        """Whether something was sent, or a send was attempted."""
        self._error: RaftlogError | None = None
        """The error that broke or ended it."""
        self._offsets: dict[str, ConsumedOffsets] = {}
        """Offsets to commit, by group."""
        self._sources: dict[OffsetsSource, ConsumedOffsets] = {}
        self._positions: dict[str, PositionMove] = {}
        self._output: TransactionOutput | None = None
        self._handed_out = False
        """Whether `prepare` handed its output to another party, which may have committed it."""
        self._asked: CommitRequest | None = None
        """Commit request that was sent and may have been applied."""
        self._sending = 0
        """Number of send calls in progress."""
        self._idle = Waiters()
        self._unsent: dict[Coroutine[Any, Any, RecordMetadata], None] = {}
        """Records that are sent only once their coroutine is awaited."""

    @property
    def state(self) -> TransactionState:
        return self._state

    @property
    def key(self) -> TransactionKey:
        """Its producer id and epoch. Raises `InvalidRequest` before it is begun."""
        if self._key is None:
            raise InvalidRequest("invalid_request", "this transaction was not begun: use `async with`")
        return self._key

    # --- Contents -----------------------------------------------------------------------------------------------------

    @contextmanager
    def _sending_columns(self) -> Iterator[None]:
        self._sending += 1
        try:
            yield
        finally:
            self._sending -= 1
            self._idle.wake()

    def _send_later(self, queue: Callable[[], Queued], timestamp_ms: int | None) -> Coroutine[Any, Any, RecordMetadata]:
        def send() -> Queued:
            took = queue()
            del self._unsent[sending]
            return took

        sending = super()._send_later(send, timestamp_ms)
        self._unsent[sending] = None
        return sending

    def send_offsets(self, consumed: Offsets) -> None:
        """Add a group consumer's handed-out offsets (its automatic commits must be off), or the given offsets.

        The commit is refused, and the whole transaction aborted, unless each group's committed offset is where these
        begin (`offset_moved`) and the consumer still owns the partitions (`stale_generation`). Raises `InvalidRequest`.
        """
        self._check_open()
        offsets = consumed if isinstance(consumed, ConsumedOffsets) else consumed.consumed()
        if not isinstance(consumed, ConsumedOffsets):
            self._sources[consumed] = offsets
        before = self._offsets.get(offsets.group)
        self._offsets[offsets.group] = offsets if before is None else offsets.over(before)

    def set_position(self, name: str, current: int, new: int) -> None:
        """Add a named position: it moves from `current` (-1: it does not exist) to `new`.

        If it is not at `current` at the commit, the transaction is refused (`position_taken`): the work has been
        published before.
        """
        self._check_open()
        self._positions[name] = PositionMove(name, current, new)

    def doom(self, error: RaftlogError) -> None:
        """Break the transaction with this error: it can no longer be committed, and it sends nothing more."""
        if self._state is TransactionState.OPEN:
            self.manager.sending.stop(error)

    # --- The end ------------------------------------------------------------------------------------------------------

    async def commit(self, *, wait: Wait = "decided", timeout: Seconds = DECISION_TIMEOUT) -> None:
        """Wait for all acknowledgements, then have the cluster commit. Idempotent if it is committed already.

        * `wait`: `"decided"`, or `"visible"`: return once every reader can see the records.
        * `timeout`: seconds for the decision.

        Raises `InvalidRequest`: `transaction_aborted` if a record failed (the cause is in the text); `offset_moved`,
        `position_taken`, `stale_generation`, ... if the commit was refused, so the transaction is aborted;
        `producer_fenced` if this producer was replaced and must stop. Raises `RetriableError`: `outcome_unknown` if no
        answer arrived: retry; `request_timed_out` if, with `wait="visible"`, it is committed but not visible everywhere
        in time.
        """
        if self._state is not TransactionState.COMMITTED:
            await Decision([self]).commit(wait, seconds_of(timeout), self.manager)

    async def abort(self) -> None:
        """Abort: none of it ever becomes visible. Idempotent if it is aborted already.

        Raises `InvalidRequest` (`transaction_committed`, `producer_fenced`), and `RetriableError` (`outcome_unknown`)
        if an earlier commit may have been applied and no answer arrived: retry.
        """
        if self._state is TransactionState.ABORTED:
            return
        if self._state not in _MAY_COMMIT:
            raise self._over()
        why = InvalidRequest("transaction_aborted", "the program aborted it")
        await self.manager.finish(self._abort(why, was_open=self._state is TransactionState.OPEN))

    async def prepare(self) -> TransactionOutput:
        """Wait for all acknowledgements, stop sending, and return the output for `commit_together`, in any process.

        Raises `InvalidRequest` (`transaction_aborted`; `invalid_request` for a named producer, whose own process has to
        learn the key of its next transaction).
        """
        if self.manager.is_named:
            raise InvalidRequest(
                "invalid_request",
                "only a transaction of a producer without a transactional id can be decided by another process",
            )
        await self.settle()
        self._handed_out = True
        self.manager.leave(self)
        return self.output

    async def __aenter__(self) -> Transaction:
        if self._state is not TransactionState.NEW:
            raise InvalidRequest(
                "invalid_request", "a transaction begins only once: make another with `producer.transaction()`"
            )
        self._key = await self.manager.begin(self)
        self._state = TransactionState.OPEN
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, *_: object) -> None:
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
        """Whether its producer has a transactional id."""
        return self.manager.is_named

    @property
    def offsets(self) -> list[ConsumedOffsets]:
        """Offsets to commit, one entry per group."""
        return list(self._offsets.values())

    @property
    def positions(self) -> list[PositionMove]:
        return list(self._positions.values())

    @property
    def output(self) -> TransactionOutput:
        """Description of what it wrote, once it is prepared."""
        assert self._output is not None
        return self._output

    async def settle(self) -> None:
        """Stop sending, wait until everything is acknowledged, and become prepared.

        If a record failed, abort and raise `InvalidRequest` (`transaction_aborted`). A cancellation aborts, too.
        """
        if self._state in (TransactionState.PREPARED, TransactionState.UNKNOWN):
            return
        if self._state is not TransactionState.OPEN:
            raise self._over()
        self._open = {}
        self._state = TransactionState.ENDING
        sending = self.manager.sending
        try:
            self._check_all_sent()
            await self._until_idle()
            await sending.sender.settled()
            if self._error is not None:
                raise aborted_because(self._error)
        except RaftlogError as error:
            await self.manager.finish(self._abort(error, was_open=True))
            raise
        except BaseException as error:
            stopped = InvalidRequest("transaction_aborted", f"it was interrupted before the commit: {error!r}")
            with suppress(RaftlogError):  # a fence shows in the next transaction
                await self.manager.finish(self._abort(stopped, was_open=True))
            raise
        self._output = sending.finish()
        self._state = TransactionState.PREPARED

    @property
    def asked(self) -> CommitRequest | None:
        """The unanswered commit request, if its outcome is unknown."""
        return self._asked if self._state is TransactionState.UNKNOWN else None

    def deciding(self, request: CommitRequest) -> None:
        """Record that `request`, which includes this transaction, is about to be sent."""
        self._asked = request
        self._state = TransactionState.ENDING

    def unneeded(self) -> None:
        """Count as committed: it is empty, so no decision is needed and its key can be used again."""
        self._state = TransactionState.COMMITTED
        self.manager.leave(self)

    def committed(self, next_key: TransactionKey | None) -> None:
        """Record the commit. `next_key`: the key of a named producer's next transaction."""
        self._state = TransactionState.COMMITTED
        self.manager.go_on(next_key)
        self.manager.leave(self)
        for source, offsets in self._sources.items():
            source.consumed_is_committed(offsets)

    def unanswered(self) -> None:
        """Record that the outcome of the commit is unknown."""
        self._state = TransactionState.UNKNOWN
        self.manager.lost(self.key)
        self.manager.leave(self)

    async def refused(self, error: RaftlogError) -> bool | None:
        """Make sure that a transaction whose commit was refused is aborted.

        Return True if it turns out to be committed, and None if no node answered and the refusal leaves it open.
        """
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
        """Whether it is neither decided nor being decided."""
        return self._state in (TransactionState.OPEN, TransactionState.PREPARED)

    # --- Inside -------------------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._state is not TransactionState.OPEN:
            raise self._over()
        if self._error is not None:
            raise aborted_because(self._error)

    def _started(self) -> Sender:
        self._check_open()
        self.is_used = True
        sender = self.manager.sender
        self._open_directly(sender)
        return sender

    def _over(self) -> RaftlogError:
        if self._state is TransactionState.NEW:
            return InvalidRequest("invalid_request", "this transaction was not begun: use `async with`")
        if self._state is TransactionState.ABORTED and self._error is not None:
            return aborted_because(self._error)
        return InvalidRequest("invalid_request", f"this transaction is {self._state.value}: begin another to send more")

    def _check_all_sent(self) -> None:
        """Refuse the commit if a record was neither buffered nor awaited: the commit would leave it out."""
        unsent, self._unsent = self._unsent, {}
        if any(inspect.getcoroutinestate(one) != inspect.CORO_CLOSED for one in unsent):
            told = "a record was never sent: the buffer was full, and the result of its `send_and_wait` was not awaited"
            raise aborted_because(InvalidRequest("invalid_request", told))

    async def _until_idle(self) -> None:
        while self._sending:
            await self._idle.wait()

    async def _abort(self, why: RaftlogError, *, was_open: bool) -> None:
        """Abort it, even if the request is not answered, unless another party may have committed it.

        `was_open`: it may still be sending.
        """
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
            if self.is_used or not was_open:
                answered = await self.manager.end(self.key)
                if may_be_committed and not answered:
                    self.manager.lost(self.key)
                    told = "no node answered whether it was aborted or had been committed before: retry"
                    raise RetriableError("outcome_unknown", told)
            self._state = TransactionState.ABORTED
        except InvalidRequest as error:
            if error.code == "transaction_committed":
                self._state = TransactionState.COMMITTED
            raise
        finally:
            self.manager.leave(self)


@takes(AdminSettings)
async def commit_together(
    transactions: Sequence[Transaction | TransactionOutput],
    *,
    positions: Mapping[str, tuple[int, int]] | None = None,
    offsets: Iterable[Offsets] = (),
    block: str = "",
    wait: Wait = "decided",
    timeout: Seconds = DECISION_TIMEOUT,
    bootstrap: str | Sequence[str] = "",
    **keywords: Unpack[AdminKeywords],
) -> None:
    """Commit all of these transactions, or none of them (S13).

    * `transactions`: open ones of this program's producers, or the outputs that `prepare` returned in others.
    * `positions`: name → (current, new); `offsets`: as for `Transaction.send_offsets`. Both are added to the
      transactions' own.
    * `block`: a named block of producer ids that is retired by the same decision.
    * `bootstrap`, and the keywords for TLS and the credential: as for `Admin`; needed if none of the transactions
      belongs to a producer of this program.

    Raises as `Transaction.commit` does, for all of them: if the commit is refused, all are aborted.
    """
    writers = dict.fromkeys(one for one in transactions if not isinstance(one, TransactionOutput))
    outputs = (one for one in transactions if isinstance(one, TransactionOutput))
    decision = Decision(writers, outputs, positions, offsets, block)
    if writers:
        await decision.commit(wait, seconds_of(timeout), next(iter(writers)).manager)
        return
    async with HttpApi(bootstrap, ConnectionSecurity(AdminSettings(**keywords))) as api:
        await decision.decide(TransactionApi(api), wait, seconds_of(timeout))
