"""Changes of transactions on their way to the quorum: what is asked while a command is under way goes into the next.

So a thousand commits a second are some hundred commands, each no larger than `MAX_CHANGES_BYTES`, and what one node
asks for stays in order. What waits is bounded. A change's answer comes when this node's view shows it.

The first change of all raises the cluster's feature level, which the quorum refuses while some broker is too old to
know transactions.

What is *not* here: which changes (`transactions.py`), and what they do (`metadata/groups/transaction_image.py`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import msgspec

from metadata.command_results import TransactionAnswer
from metadata.commands import Command, Refused, SetFeatureLevel, TransactionsChanged
from metadata.engine import Fate, Outcome
from metadata.groups.transaction_changes import (
    MAX_CHANGE_BYTES,
    MAX_CHANGES,
    MAX_CHANGES_BYTES,
    TRANSACTIONS_FEATURE_LEVEL,
    ChangeTransactions,
    TransactionChange,
)
from raftlog.config import KIB, MIB
from raftlog.errors import InvalidRequest, RaftlogError, RetriableError, error_from_code

PROPOSAL_SECONDS = 5.0
MAX_WAITING = 20_000
MAX_WAITING_BYTES = 32 * MIB
MOST_BYTES = MAX_CHANGE_BYTES + 1 * KIB
"""Of one change: a part of that size, and what names it."""

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[TransactionChange] = msgspec.msgpack.Decoder(TransactionChange)


class Proposer(Protocol):
    """The part of the quorum that is needed here."""

    def propose(self, command: Command, done: Callable[[Outcome], None], *, timeout: float = 5.0) -> None: ...


@dataclass(frozen=True, slots=True)
class Decided:
    """A change was carried out."""

    index: int
    """Of the entry."""
    answer: TransactionAnswer | None
    """What there is to tell beyond that."""


@dataclass(slots=True)
class _Waiting:
    change: TransactionChange
    size: int
    decided: asyncio.Future[Decided]


def size_of(change: TransactionChange) -> int:
    """Bytes within a command. Raises `InvalidRequest` for what no node could decode: all else of its command would be
    refused, too."""
    try:
        packed = _encoder.encode(change)
        _decoder.decode(packed)
    except (msgspec.MsgspecError, UnicodeError, OverflowError) as error:
        raise InvalidRequest("invalid_request", f"malformed change of transactions: {error}") from None
    return len(packed)


class TransactionBatches:
    """One node's. Lives on the broker's loop."""

    def __init__(
        self,
        quorum: Proposer,
        when_view_reaches: Callable[[int, Callable[[], None]], None],
        feature_level: Callable[[], int],
    ) -> None:
        self._quorum = quorum
        self._when_view_reaches = when_view_reaches
        self._feature_level = feature_level
        self._queue: deque[_Waiting] = deque()
        self._bytes = 0
        """Of the queue."""
        self._under_way: list[_Waiting] = []
        self._proposing = False

    def submit(self, change: TransactionChange) -> asyncio.Future[Decided]:
        """Fails with the refusal, or a `RetriableError`. Raises `InvalidRequest` or `RetriableError` for what is not
        even begun."""
        size = size_of(change)
        if size > MOST_BYTES:
            raise InvalidRequest(
                "transaction_too_large", f"a change has at most {MOST_BYTES} bytes, not {size}: cut it"
            )
        if len(self._queue) >= MAX_WAITING or self._bytes + size > MAX_WAITING_BYTES:
            raise RetriableError("overloaded", "too many changes of transactions wait for the quorum")
        decided: asyncio.Future[Decided] = asyncio.get_running_loop().create_future()
        self._queue.append(_Waiting(change, size, decided))
        self._bytes += size
        self._pump()
        return decided

    def _pump(self) -> None:
        if self._proposing or not self._queue:
            return
        self._proposing = True
        if self._feature_level() < TRANSACTIONS_FEATURE_LEVEL:
            level = SetFeatureLevel(TRANSACTIONS_FEATURE_LEVEL)
            self._quorum.propose(level, self._level_set, timeout=PROPOSAL_SECONDS)
            return
        self._take()
        command = ChangeTransactions(tuple(waiting.change for waiting in self._under_way))
        self._quorum.propose(command, self._answered, timeout=PROPOSAL_SECONDS)

    def _take(self) -> None:
        """What the next command has room for, one change at least."""
        size = 0
        while self._queue and len(self._under_way) < MAX_CHANGES:
            waiting = self._queue[0]
            if self._under_way and size + waiting.size > MAX_CHANGES_BYTES:
                break
            size += waiting.size
            self._under_way.append(self._queue.popleft())
        self._bytes -= size

    def _level_set(self, outcome: Outcome) -> None:
        if outcome.fate is Fate.APPLIED and not isinstance(outcome.result, Refused):
            self._when_view_reaches(outcome.index, self._next)
            return
        # Nothing of what waits was proposed.
        if isinstance(outcome.result, Refused):
            error: RaftlogError = outcome.result.error()
        else:
            error = RetriableError("quorum_unavailable", f"the metadata quorum cannot decide: {outcome.detail}")
        self._under_way.extend(self._queue)
        self._queue.clear()
        self._bytes = 0
        self._fail(error)

    def _answered(self, outcome: Outcome) -> None:
        result = outcome.result
        if isinstance(result, TransactionsChanged):
            self._when_view_reaches(outcome.index, lambda: self._decided(outcome.index, result))
        elif isinstance(result, Refused):
            self._fail(result.error())
        elif outcome.fate is Fate.REFUSED:
            self._fail(RetriableError("quorum_unavailable", f"the metadata quorum cannot decide: {outcome.detail}"))
        else:
            self._fail(RetriableError("outcome_unknown", f"the quorum's decision is not known: {outcome.detail}"))

    def _decided(self, index: int, result: TransactionsChanged) -> None:
        answers = {answer.position: answer for answer in result.answers}
        for position, waiting in enumerate(self._under_way):
            answer = answers.get(position)
            if waiting.decided.done():
                continue  # whoever asked has gone
            if answer is not None and answer.code:
                waiting.decided.set_exception(error_from_code(answer.code, answer.detail))
            else:
                waiting.decided.set_result(Decided(index, answer))
        self._next()

    def _fail(self, error: RaftlogError) -> None:
        for waiting in self._under_way:
            if not waiting.decided.done():
                waiting.decided.set_exception(error_from_code(error.code, error.detail))
        self._next()

    def _next(self) -> None:
        self._under_way.clear()
        self._proposing = False
        self._pump()
