"""Transactions on one node: the producers' requests and, beside the quorum's leader, expiry.

The node that receives a request proposes it: the quorum's leader gets everything anyway, and the image decides. A
commit that is too large for one change is first staged in parts; a retry stages them again, under another id.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from http_api.service.transactions import NotVisibleYet, OpenTransaction, ProducerIdBlock, WantedCommit
from metadata.commands.transactions import (
    COMMIT_ID_BYTES,
    MAX_CHANGE_BYTES,
    MAX_IDS_PER_BLOCK,
    MAX_KEYS,
    MAX_PARTS,
    MAX_TIMEOUT_MS,
    MIN_TIMEOUT_MS,
    Abort,
    Commit,
    CommitStaged,
    Initialize,
    Key,
    OpenBlock,
    Piece,
    Position,
    RemovePosition,
    RetireBlock,
    StagePart,
    TransactionChange,
    digest_of,
    encode_piece,
    pack_keys,
)
from metadata.controller.transaction_expiry import TransactionExpiry
from metadata.quorum.port import MetadataQuorum
from metadata.view import ClusterView, MetadataEvent
from raftlog.errors import InvalidRequest, RaftlogError, RetriableError
from raftlog.model import BrokerId
from raftlog.ports import Clock, Logger, Random
from raftlog.transactions import TransactionKey

from .transaction_batches import Decided, TransactionBatches
from .transaction_pieces import pieces_of, size_of_wanted

AFTER_ERROR_SECONDS = 1.0
"""Pause after an unexpected error before expiry continues, in seconds."""

INLINE_OFFSETS = 2_000
"""Number of offsets up to which a commit is divided on the loop, in some milliseconds. A thread divides larger ones."""


class Transactions:
    """See `http_api.service.transactions.TransactionService`. All calls are made on the broker's loop. It must be
    closed."""

    def __init__(
        self,
        node_id: BrokerId,
        view: ClusterView,
        quorum: MetadataQuorum,
        batches: TransactionBatches,
        clock: Clock,
        random: Random,
        logger: Logger,
        *,
        unused_ms: int,
        open_here: Callable[[], Sequence[OpenTransaction]] = tuple,
    ) -> None:
        """`unused_ms` is how long an unused transactional id is kept. `open_here` returns the open transactions of
        this node's leaders."""
        self._node_id = node_id
        self._view = view
        self._quorum = quorum
        self._batches = batches
        self._clock = clock
        self._random = random
        self._logger = logger
        self._unused_ms = unused_ms
        self._open_here = open_here
        self._expiry: TransactionExpiry | None = None
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.Handle | None = None
        self._expiring = False
        self._closed = False
        self._visible: dict[asyncio.Future[None], list[TransactionKey]] = {}
        """Callers that wait until these transactions are marked in all their partitions."""
        self._unsubscribe = view.subscribe(self._on_events)

    def close(self) -> None:
        """Stop expiring. Changes that were proposed may still be decided."""
        self._closed = True
        self._unsubscribe()
        self._expiry = None
        if self._timer is not None:
            self._timer.cancel()

    # --- Requests of producers ---------------------------------------------------------------------------------------

    async def initialize(
        self,
        transactional_id: str,
        timeout_ms: int,
        attempt: bytes | None = None,
        after: TransactionKey | None = None,
    ) -> TransactionKey:
        _check_timeout(timeout_ms)
        packed = None if after is None else Key(*after)
        asked = Initialize(transactional_id, timeout_ms, self._clock.wall_ms(), attempt, packed)
        (key,) = _keys(await self._submit(asked))
        return key

    async def open_block(self, name: str, count: int, timeout_ms: int) -> ProducerIdBlock:
        _check_timeout(timeout_ms)
        if not 1 <= count <= MAX_IDS_PER_BLOCK:
            raise InvalidRequest(
                "invalid_request", f"a block must have 1 to {MAX_IDS_PER_BLOCK} producer ids, not {count}"
            )
        decided = await self._submit(OpenBlock(name, count, timeout_ms))
        (key,) = _keys(decided)
        assert decided.answer is not None
        return ProducerIdBlock(key.producer_id, decided.answer.count)

    async def retire_block(self, name: str) -> None:
        await self._submit(RetireBlock(name))

    async def remove_position(self, name: str, value: int) -> None:
        await self._submit(RemovePosition(name, value))

    async def commit(self, wanted: WantedCommit, *, visible_within_s: float = 0) -> tuple[TransactionKey, ...]:
        # The deadline is computed at once, because it includes the decision.
        deadline = self._loop.time() + visible_within_s
        positions = tuple(Position(one.name, one.current, one.new) for one in wanted.positions)
        keys = [output.key for output in wanted.outputs]
        shown = visible_within_s > 0 or not self._knows_names(keys)
        if size_of_wanted(wanted) <= INLINE_OFFSETS:
            pieces = pieces_of(wanted)
        else:
            pieces = await asyncio.to_thread(pieces_of, wanted)
        if len(pieces) == 1:
            (whole,) = pieces
            commit = Commit(whole.outputs, whole.groups, positions, wanted.block, self._clock.wall_ms())
            decided = await self._submit(commit, shown=shown)
        else:
            decided = await self._commit_staged(pieces, positions, wanted.block, shown=shown)
        going_on = self._going_on(decided, keys)
        if visible_within_s > 0 and not await self._become_visible(keys, deadline):
            raise NotVisibleYet(going_on)
        return going_on

    def open_here(self) -> Sequence[OpenTransaction]:
        return self._open_here()

    async def abort(self, keys: Sequence[TransactionKey]) -> tuple[TransactionKey, ...]:
        if len(keys) > MAX_KEYS:
            raise InvalidRequest("transaction_too_large", f"{MAX_KEYS} transactions in one request are the maximum")
        asked = Abort(pack_keys(keys), self._clock.wall_ms())
        return self._going_on(await self._submit(asked, shown=not self._knows_names(keys)), keys)

    def _knows_names(self, keys: Sequence[TransactionKey]) -> bool:
        """Return whether this view, which may lag behind the decision, shows which of the transactions have names.

        It does for every producer id that it knows to be granted, as long as decisions about that id are possible.
        """
        granted_below = self._view.transactions.granted_below
        return all(key.producer_id < granted_below for key in keys)

    def _going_on(self, decided: Decided, ended: Sequence[TransactionKey]) -> tuple[TransactionKey, ...]:
        return _keys(decided) or self._view.transactions.going_on(ended)

    async def _submit(self, change: TransactionChange, *, shown: bool = True) -> Decided:
        """Submit a change. `shown`: the next step needs it in the view."""
        return await self._batches.submit(change, shown=shown)

    async def _commit_staged(
        self, pieces: Sequence[Piece], positions: tuple[Position, ...], block: str, *, shown: bool
    ) -> Decided:
        if len(pieces) > MAX_PARTS:
            raise InvalidRequest(
                "transaction_too_large", f"a commit may have {MAX_PARTS * MAX_CHANGE_BYTES} bytes at most"
            )
        packed = await asyncio.to_thread(lambda: [encode_piece(piece) for piece in pieces])
        commit_id = self._random.randbytes(COMMIT_ID_BYTES)
        try:
            # One by one, so that a large commit does not crowd out small ones.
            for number, piece in enumerate(packed):
                await self._submit(StagePart(commit_id, number, piece), shown=False)
        except RetriableError as error:
            # Whatever happened to the part, nothing was committed.
            raise RetriableError(
                "overloaded" if error.code == "overloaded" else "quorum_unavailable", error.detail
            ) from None
        now_ms = self._clock.wall_ms()
        whole = CommitStaged(commit_id, len(packed), digest_of(packed), positions, block, now_ms)
        return await self._submit(whole, shown=shown)

    # --- Waiting for all markers -------------------------------------------------------------------------------------

    async def _become_visible(self, keys: list[TransactionKey], deadline: float) -> bool:
        """Wait until the transactions are visible. Return False if the deadline passed first."""
        if self._are_visible(keys):
            return True
        future: asyncio.Future[None] = self._loop.create_future()
        self._visible[future] = keys
        try:
            async with asyncio.timeout_at(deadline):
                await future
        except TimeoutError:
            return False
        finally:
            del self._visible[future]
        return True

    def _are_visible(self, keys: list[TransactionKey]) -> bool:
        """Return whether all are visible. Visible ones stay so, and are removed from the list."""
        while keys and not self._view.transactions.unmarked_count(keys[-1]):
            keys.pop()
        return not keys

    def _on_events(self, index: int, events: Sequence[MetadataEvent]) -> None:
        if self._visible:
            for future, keys in self._visible.items():
                if not future.done() and self._are_visible(keys):
                    future.set_result(None)
        leads = self._view.controller == self._node_id
        if leads and self._timer is None and not self._view.transactions.is_empty:
            self.wake()

    # --- Expiry ------------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Schedule a turn: something may expire, or this node has become the quorum's leader."""
        if self._timer is None and not self._closed:
            self._timer = self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._timer = None
        try:
            self._look_for_expired()
        except BaseException:
            # The loop reports the error. Expiry continues later.
            if self._timer is None and not self._closed:
                self._timer = self._loop.call_later(AFTER_ERROR_SECONDS, self._turn)
            raise

    def _look_for_expired(self) -> None:
        status = self._quorum.status()
        if self._closed or status.leader != self._node_id:
            self._expiry = None
            return
        if self._expiry is None or self._expiry.term != status.term:
            self._expiry = TransactionExpiry(self._view.transactions, status.term, unused_ms=self._unused_ms)
        now = self._loop.time()
        change = None if self._expiring else self._expiry.decide(now, self._view.time)
        if change is not None:
            self._propose(change)
        due = self._expiry.next_call(now)
        if due is not None:
            self._timer = self._loop.call_at(due, self._turn)

    def _propose(self, change: TransactionChange) -> None:
        try:
            decided = self._batches.submit(change)
        except RaftlogError as error:
            self._logger.warning("transaction_expiry_refused", error=str(error))
            return
        self._expiring = True
        decided.add_done_callback(self._expired)

    def _expired(self, decided: asyncio.Future[Decided]) -> None:
        """Continue. A change that was not accepted is found again at the next check."""
        self._expiring = False
        error = None if decided.cancelled() else decided.exception()
        if error is not None and not isinstance(error, RaftlogError):
            raise error


def _check_timeout(timeout_ms: int) -> None:
    if not MIN_TIMEOUT_MS <= timeout_ms <= MAX_TIMEOUT_MS:
        raise InvalidRequest(
            "invalid_request",
            f"a transaction's timeout must be {MIN_TIMEOUT_MS} to {MAX_TIMEOUT_MS} ms, not {timeout_ms}",
        )


def _keys(decided: Decided) -> tuple[TransactionKey, ...]:
    return () if decided.answer is None else tuple(packed.key for packed in decided.answer.keys)
