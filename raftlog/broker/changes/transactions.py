"""Transactions on one node: the producers' requests and, beside the quorum's leader, expiry.

The node that receives a request proposes it: the quorum's leader gets everything anyway, and the image decides. A
commit that is too large for one change is first staged in parts; a retry stages them again, under another id.

Nothing here depends on asyncio, sockets or threads: the simulator runs this class unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import msgspec

from http_api.service.transactions import OpenTransaction, check_request
from metadata.commands.transactions import (
    COMMIT_ID_BYTES,
    MAX_IDS_PER_BLOCK,
    MAX_KEYS,
    MAX_TIMEOUT_MS,
    MIN_TIMEOUT_MS,
    Abort,
    Commit,
    CommitStaged,
    Initialize,
    OpenBlock,
    RemovePosition,
    RetireBlock,
    StagePart,
    TransactionChange,
)
from metadata.controller.transaction_expiry import TransactionExpiry
from metadata.quorum.port import MetadataQuorum
from metadata.records.owners import NO_OWNER
from metadata.view import ClusterView, MetadataEvent
from raftlog.broker.unforeseen import raise_soon
from raftlog.errors import InvalidRequest, RaftlogError, RetriableError
from raftlog.model import BrokerId
from raftlog.ports import Answer, Clock, Logger, Random, Scheduler, Timer, Worker
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

from .transaction_batches import Decided, TransactionBatches
from .transaction_pieces import Division, Parts, divide, offsets_in

AFTER_ERROR_SECONDS = 1.0
"""Pause after an unexpected error before expiry continues, in seconds."""
INLINE_OFFSETS = 2_000
"""Number of offsets up to which a commit is divided on the loop, in some milliseconds. A thread divides larger ones."""
MAX_INVISIBLE = 10_000
"""Number of commits that wait for markers from which no further one may wait."""


@dataclass(slots=True, eq=False)
class _Commit:
    """A commit in progress."""

    request: CommitRequest
    answer: Answer[TransactionResponse]
    principal: str
    deadline: float
    """When it stops waiting for its markers, on the monotonic clock."""
    shown: bool
    """Whether the answer waits for this node's view."""
    invisible: list[TransactionKey]
    """The transactions that are not known to be marked in all of their partitions."""
    result: TransactionResponse = field(init=False)
    timer: Timer = field(init=False)


class Transactions:
    """See `http_api.service.transactions.TransactionService`. All calls are made on the scheduler's thread. It must be
    closed."""

    def __init__(
        self,
        node_id: BrokerId,
        view: ClusterView,
        quorum: MetadataQuorum,
        batches: TransactionBatches,
        clock: Clock,
        scheduler: Scheduler,
        worker: Worker,
        random: Random,
        logger: Logger,
        *,
        unused_ms: int,
        max_timeout_ms: int = MAX_TIMEOUT_MS,
        open_here: Callable[[], Sequence[OpenTransaction]] = tuple,
    ) -> None:
        """`unused_ms` is how long an unused transactional id is kept, `max_timeout_ms` the longest timeout that a
        transaction may ask for. `open_here` returns the open transactions of this node's leaders."""
        self._node_id = node_id
        self._view = view
        self._quorum = quorum
        self._batches = batches
        self._clock = clock
        self._scheduler = scheduler
        self._worker = worker
        self._random = random
        self._logger = logger
        self._unused_ms = unused_ms
        self._max_timeout_ms = max_timeout_ms
        self._open_here = open_here
        self._expiry: TransactionExpiry | None = None
        self._timer: Timer | None = None
        self._expiring = False
        self._closed = False
        self._invisible: dict[_Commit, None] = {}
        """Decided commits whose callers wait until they are visible."""
        self._looking = False
        """Whether a check of `_invisible` is scheduled."""
        self._unsubscribe = view.subscribe(self._on_events)

    def close(self) -> None:
        """Stop expiring, and waiting for markers. Changes that were proposed may still be decided."""
        self._closed = True
        self._unsubscribe()
        self._expiry = None
        if self._timer is not None:
            self._timer.cancel()
        for commit in list(self._invisible):
            self._stop_waiting(commit, visible=False)

    def open_here(self) -> Sequence[OpenTransaction]:
        return self._open_here()

    # --- Requests of producers ---------------------------------------------------------------------------------------

    def ask(self, request: TransactionRequest, answer: Answer[TransactionResponse], principal: str = NO_OWNER) -> None:
        try:
            check_request(request)
            if isinstance(request, CommitRequest):
                self._commit(request, answer, principal)
                return
            change = self._change(request)
        except RaftlogError as error:
            answer(error)
            return
        shown = not (isinstance(change, Abort) and self._knows_names(change.keys))
        self._submit(change, partial(self._changed, request, answer), shown=shown, principal=principal)

    def _change(
        self,
        request: InitializeRequest | OpenBlockRequest | RetireBlockRequest | AbortRequest | RemovePositionRequest,
    ) -> TransactionChange:
        """Return what to propose. Raises `InvalidRequest`."""
        match request:
            case InitializeRequest(_, name, timeout_ms, attempt, after):
                _check_timeout(timeout_ms, self._max_timeout_ms)
                return Initialize(name, timeout_ms, self._clock.wall_ms(), attempt, after)
            case OpenBlockRequest(_, name, count, timeout_ms):
                _check_timeout(timeout_ms, self._max_timeout_ms)
                _check_count(count)
                return OpenBlock(name, count, timeout_ms)
            case RetireBlockRequest(_, name):
                return RetireBlock(name)
            case AbortRequest(_, keys):
                _check_keys(keys)
                return Abort(keys, self._clock.wall_ms())
            case RemovePositionRequest(_, name, value):
                return RemovePosition(name, value)

    def _changed(
        self, request: TransactionRequest, answer: Answer[TransactionResponse], outcome: Decided | RaftlogError
    ) -> None:
        if isinstance(outcome, RaftlogError):
            answer(outcome)
            return
        ended = request.transactions if isinstance(request, AbortRequest) else ()
        answer(TransactionResponse(request.correlation_id, self._next_keys(outcome, ended), outcome.count))

    def _submit(
        self,
        change: TransactionChange,
        answer: Answer[Decided],
        *,
        shown: bool = True,
        principal: str = NO_OWNER,
    ) -> None:
        """Submit a change. `shown`: the answer waits for the view."""
        try:
            self._batches.submit(change, answer, shown=shown, principal=principal)
        except RaftlogError as error:
            answer(error)

    def _knows_names(self, keys: Sequence[TransactionKey]) -> bool:
        """Return whether this view, which may lag behind the decision, shows which of the transactions have names.

        It does for every producer id that it knows to be granted, as long as decisions about that id are possible.
        """
        granted_below = self._view.transactions.granted_below
        return all(key.producer_id < granted_below for key in keys)

    def _next_keys(self, decided: Decided, ended: Sequence[TransactionKey]) -> tuple[TransactionKey, ...]:
        return decided.keys or self._view.transactions.going_on(ended)

    # --- Commits -----------------------------------------------------------------------------------------------------

    def _commit(self, request: CommitRequest, answer: Answer[TransactionResponse], principal: str) -> None:
        within_s = request.visible_within_ms / 1000
        if within_s and len(self._invisible) >= MAX_INVISIBLE:
            raise RetriableError("overloaded", "too many commits wait until they are visible")
        keys = [output.key for output in request.outputs]
        # The deadline is computed at once, because it includes the decision.
        deadline = self._clock.monotonic() + within_s
        shown = within_s > 0 or not self._knows_names(keys)
        commit = _Commit(request, answer, principal, deadline, shown, keys)
        if offsets_in(request) <= INLINE_OFFSETS:
            self._divided(commit, divide(request))
        else:
            self._worker.submit(partial(divide, request), partial(self._divided_elsewhere, commit))

    def _divided_elsewhere(self, commit: _Commit, division: Division | None, error: BaseException | None) -> None:
        if division is not None:
            self._divided(commit, division)
        elif isinstance(error, RaftlogError):
            commit.answer(error)
        else:
            assert error is not None
            raise_soon(self._scheduler, error)
            commit.answer(RaftlogError("internal_error", f"an unexpected error on this node: {error!r}"))

    def _divided(self, commit: _Commit, division: Division) -> None:
        if isinstance(division, Parts):
            self._stage(commit, self._random.randbytes(COMMIT_ID_BYTES), division, 0)
        else:
            asked, now_ms = commit.request, self._clock.wall_ms()
            self._decide(commit, Commit(division.outputs, division.groups, asked.positions, asked.block, now_ms))

    def _stage(self, commit: _Commit, commit_id: bytes, parts: Parts, number: int) -> None:
        """Stage the parts from `number` on, then commit them. One by one, so that they do not crowd out small ones."""
        if number == len(parts.packed):
            asked, now_ms = commit.request, self._clock.wall_ms()
            self._decide(commit, CommitStaged(commit_id, number, parts.digest, asked.positions, asked.block, now_ms))
            return

        def staged(outcome: Decided | RaftlogError) -> None:
            if not isinstance(outcome, RaftlogError):
                self._stage(commit, commit_id, parts, number + 1)
            elif outcome.retriable:
                # Whatever happened to the part, nothing was committed.
                code = "overloaded" if outcome.code == "overloaded" else "quorum_unavailable"
                commit.answer(RetriableError(code, outcome.detail))
            else:
                commit.answer(outcome)

        self._submit(StagePart(commit_id, number, parts.packed[number]), staged, shown=False)

    def _decide(self, commit: _Commit, change: Commit | CommitStaged) -> None:
        self._submit(change, partial(self._decided, commit), shown=commit.shown, principal=commit.principal)

    def _decided(self, commit: _Commit, outcome: Decided | RaftlogError) -> None:
        if isinstance(outcome, RaftlogError):
            commit.answer(outcome)
            return
        asked = commit.request
        keys = self._next_keys(outcome, commit.invisible)
        visible = asked.visible_within_ms > 0 and self._is_visible(commit)
        commit.result = TransactionResponse(asked.correlation_id, keys, visible=visible)
        left = commit.deadline - self._clock.monotonic()
        if visible or left <= 0 or self._closed:
            commit.answer(commit.result)
        else:
            commit.timer = self._scheduler.call_later(left, partial(self._stop_waiting, commit, visible=False))
            self._invisible[commit] = None

    # --- Waiting for all markers -------------------------------------------------------------------------------------

    def _is_visible(self, commit: _Commit) -> bool:
        """Return whether everything is visible. Visible transactions stay so, and are removed from the list."""
        keys = commit.invisible
        while keys and not self._view.transactions.unmarked_count(keys[-1]):
            keys.pop()
        return not keys

    def _on_events(self, index: int, events: Sequence[MetadataEvent]) -> None:
        if self._invisible and not self._looking:
            self._looking = True
            self._scheduler.call_soon(self._look_for_visible)
        leads = self._view.controller == self._node_id
        if leads and self._timer is None and not self._view.transactions.is_empty:
            self.wake()

    def _look_for_visible(self) -> None:
        self._looking = False
        for commit in [one for one in self._invisible if self._is_visible(one)]:
            self._stop_waiting(commit, visible=True)

    def _stop_waiting(self, commit: _Commit, *, visible: bool) -> None:
        del self._invisible[commit]
        commit.timer.cancel()
        commit.answer(msgspec.structs.replace(commit.result, visible=visible))

    # --- Expiry ------------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Schedule a turn: something may expire, or this node has become the quorum's leader."""
        if self._timer is None and not self._closed:
            self._timer = self._scheduler.call_later(0.0, self._turn)

    def _turn(self) -> None:
        self._timer = None
        try:
            self._look_for_expired()
        except BaseException:
            # The scheduler reports the error. Expiry continues later.
            if self._timer is None and not self._closed:
                self._timer = self._scheduler.call_later(AFTER_ERROR_SECONDS, self._turn)
            raise

    def _look_for_expired(self) -> None:
        status = self._quorum.status()
        if self._closed or status.leader != self._node_id:
            self._expiry = None
            return
        if self._expiry is None or self._expiry.term != status.term:
            self._expiry = TransactionExpiry(self._view.transactions, status.term, unused_ms=self._unused_ms)
        now = self._clock.monotonic()
        change = None if self._expiring else self._expiry.decide(now, self._view.time)
        if change is not None:
            self._propose(change)
        due = self._expiry.next_call(now)
        if due is not None:
            self._timer = self._scheduler.call_later(max(0.0, due - now), self._turn)

    def _propose(self, change: TransactionChange) -> None:
        self._expiring = True
        try:
            self._batches.submit(change, self._expired)
        except RaftlogError as error:
            self._expiring = False
            self._logger.warning("transaction_expiry_refused", error=str(error))

    def _expired(self, outcome: Decided | RaftlogError) -> None:
        """Continue. A change that was not accepted is found again at the next check."""
        self._expiring = False


def _check_timeout(timeout_ms: int, longest_ms: int) -> None:
    if not MIN_TIMEOUT_MS <= timeout_ms <= longest_ms:
        raise InvalidRequest(
            "invalid_request",
            f"a transaction's timeout must be {MIN_TIMEOUT_MS} to {longest_ms} ms (transaction_max_timeout_ms), not "
            f"{timeout_ms}",
        )


def _check_count(count: int) -> None:
    if not 1 <= count <= MAX_IDS_PER_BLOCK:
        raise InvalidRequest("invalid_request", f"a block must have 1 to {MAX_IDS_PER_BLOCK} producer ids, not {count}")


def _check_keys(keys: Sequence[TransactionKey]) -> None:
    if len(keys) > MAX_KEYS:
        raise InvalidRequest("transaction_too_large", f"{MAX_KEYS} transactions in one request are the maximum")
