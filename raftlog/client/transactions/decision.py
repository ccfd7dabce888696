"""Deciding over transactions: one, or several writers' together, in one command of the metadata quorum.

All of it is prepared before anybody is asked: each writer has every acknowledgement. A commit whose answer was lost is
asked for again, of node after node, until one of them knows; who decided first gave the answer, and it comes again. A
refusal is an answer: then nothing of it shows, for any of the writers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Literal, Protocol, TypeAlias

import msgspec

from raftlog.errors import InvalidRequest, RaftlogError, RetriableError
from raftlog.transactions import TransactionKey

from .api import (
    CommitRequest,
    ConsumedOffsets,
    Offsets,
    PositionMove,
    TransactionApi,
    TransactionOutput,
)
from .manager import TransactionManager

Wait: TypeAlias = Literal["decided", "visible"]

DECISION_TIMEOUT = 30.0
VISIBLE_TURN = 2.0
"""Seconds for which one request waits for markers."""


class Writer(Protocol):
    """A transaction as a decision sees it (`Transaction`)."""

    @property
    def is_named(self) -> bool: ...

    @property
    def is_used(self) -> bool: ...

    @property
    def may_abort(self) -> bool: ...

    @property
    def offsets(self) -> list[ConsumedOffsets]: ...

    @property
    def positions(self) -> list[PositionMove]: ...

    @property
    def output(self) -> TransactionOutput: ...

    async def settle(self) -> None: ...

    async def abort(self) -> None: ...

    @property
    def asked(self) -> CommitRequest | None: ...

    def deciding(self, request: CommitRequest) -> None: ...

    def unneeded(self) -> None: ...

    def committed(self, next_key: TransactionKey | None) -> None: ...

    def unanswered(self) -> None: ...

    async def refused(self, error: RaftlogError) -> bool | None: ...


class Decision:
    """One commit."""

    def __init__(self, writers: Sequence[Writer]) -> None:
        self.writers = list(writers)
        self.outputs: list[TransactionOutput] = []
        """Of writers that are elsewhere."""
        self.positions: list[PositionMove] = []
        self.block = ""
        self._offsets: list[ConsumedOffsets] = []
        self._sources: list[tuple[Offsets, ConsumedOffsets]] = []

    def take_offsets(self, offsets: Iterable[Offsets]) -> None:
        """As for `Transaction.send_offsets`."""
        for one in offsets:
            taken = one if isinstance(one, ConsumedOffsets) else one.consumed()
            self._offsets.append(taken)
            self._sources.append((one, taken))

    async def commit(self, wait: Wait, timeout: float, asking: TransactionManager) -> None:
        """Of writers that are here, one of which is `asking`'s. Raises as `Transaction.commit` does."""
        await self.settle()
        await asking.finish(self.decide(asking.api, wait, timeout))

    async def settle(self) -> None:
        """Every writer has all acknowledgements and sends no more. Where one of them cannot, all are aborted, and this
        raises its error."""
        try:
            for writer in self.writers:
                await writer.settle()
        except BaseException:
            # One of them is aborted, so none is committed.
            unsettled = [writer for writer in self.writers if writer.may_abort]
            await asyncio.gather(*(writer.abort() for writer in unsettled), return_exceptions=True)
            raise

    async def decide(self, api: TransactionApi, wait: Wait, timeout: float) -> None:
        """Raises as `Transaction.commit` does."""
        request = self._request()
        if request is None:
            for writer in self.writers:
                writer.unneeded()
            return
        self._check_as_before(request)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        visible = min(VISIBLE_TURN, timeout / 2) if wait == "visible" else 0.0
        for writer in self.writers:
            writer.deciding(request)
        request = msgspec.structs.replace(request, visible_within_ms=int(visible * 1000))
        try:
            keys, seen = await api.commit(request, timeout=timeout)
        except InvalidRequest as error:
            await self._refused(error)
            keys, seen = [], not visible
        except RaftlogError as error:
            for writer in self.writers:
                writer.unanswered()
            told = f"no answer in {timeout:g} s, so it may be committed or not: ask again. The last error was {error}"
            raise RetriableError("outcome_unknown", told) from error
        except BaseException:
            for writer in self.writers:
                writer.unanswered()
            raise
        self._committed(keys)
        while visible and not seen:
            seen = await self._seen(api, request, deadline, timeout)

    def _check_as_before(self, request: CommitRequest) -> None:
        """A commit whose outcome is unknown is asked for as it was: with other company one of them could turn out to be
        committed before, without what comes with it now. Raises `InvalidRequest`; nothing is changed."""
        for writer in self.writers:
            before = writer.asked
            if before is not None and _in_order(before) != _in_order(request):
                told = (
                    "a commit of one of these transactions was not answered, and it was another one (with other "
                    "transactions, offsets or positions): ask again as it was, or abort it"
                )
                raise InvalidRequest("invalid_request", told)

    async def _refused(self, error: InvalidRequest) -> None:
        """See that nothing of it stays open. Returns where it turns out that all of it was committed, by an earlier try
        whose answer came to nobody. Otherwise raises, what was refused being aborted for every writer."""
        became = await asyncio.gather(*(writer.refused(error) for writer in self.writers))
        # Who hears that one of them was committed by another commit knows that this one was not.
        if became and all(became) and error.code != "transaction_committed":
            return
        if None in became:
            told = f"it was refused, and nobody answered whether an earlier try was not: ask again. It said {error}"
            raise RetriableError("outcome_unknown", told) from error
        raise error

    def _committed(self, keys: list[TransactionKey]) -> None:
        named = iter(keys)
        for writer in self.writers:
            writer.committed(next(named, None) if writer.is_named else None)
        for source, offsets in self._sources:
            if not isinstance(source, ConsumedOffsets):
                source.consumed_is_committed(offsets)

    async def _seen(self, api: TransactionApi, request: CommitRequest, deadline: float, timeout: float) -> bool:
        """Asking again is answered as the first time, and waits for markers again."""
        left = deadline - asyncio.get_running_loop().time()
        if left <= 0:
            told = f"it is committed, and {timeout:g} s later not to be seen in all partitions: some have no leader now"
            raise RetriableError("request_timed_out", told)
        request = msgspec.structs.replace(request, visible_within_ms=int(min(VISIBLE_TURN, left) * 1000))
        try:
            return (await api.commit(request, timeout=left))[1]
        except RetriableError:
            return False
        except InvalidRequest as error:
            # One of the writers has gone on, and its answer is remembered no more.
            told = f"it is committed, and whether it is to be seen everywhere cannot be told any more: {error.detail}"
            raise RetriableError("request_timed_out", told) from error

    def _request(self) -> CommitRequest | None:
        """None where there is nothing to decide."""
        offsets = [*self._offsets, *(one for writer in self.writers for one in writer.offsets)]
        positions = [*self.positions, *(one for writer in self.writers for one in writer.positions)]
        used = self.outputs or self.block or any(writer.is_used for writer in self.writers)
        if not (used or positions or any(one.ranges for one in offsets)):
            return None
        groups: dict[str, ConsumedOffsets] = {}
        for one in offsets:
            groups[one.group] = one if one.group not in groups else one.over(groups[one.group])
        # A writer that wrote nothing is named all the same: that is what fences one that was replaced.
        outputs = [*(writer.output for writer in self.writers), *self.outputs]
        moved = tuple(one for one in groups.values() if one.ranges)
        return CommitRequest(tuple(outputs), moved, tuple(positions), self.block)


def _in_order(request: CommitRequest) -> CommitRequest:
    """In whichever order its transactions were named."""
    ordered = sorted(request.transactions, key=lambda one: one.key)
    return msgspec.structs.replace(request, transactions=tuple(ordered))
