"""Deciding transactions: one, or several writers' together, with one command of the metadata quorum.

Everything is prepared before the request is sent: each writer has all of its acknowledgements. If the answer to a
commit is lost, the request is retried at one node after the other until one answers; the first decision determined the
answer, and every retry gets it. A refusal is an answer: then none of it becomes visible, for any of the writers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Literal, Protocol, TypeAlias

import msgspec

from raftlog.api.transactions import ConsumedOffsets
from raftlog.errors import InvalidRequest, RaftlogError, RetriableError
from raftlog.transactions import TransactionKey
from raftlog.wire import CommitRequest, PositionMove, TransactionOutput

from .api import Offsets, TransactionApi
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

    def __init__(
        self,
        writers: Iterable[Writer],
        outputs: Iterable[TransactionOutput] = (),
        positions: Mapping[str, tuple[int, int]] | None = None,
        offsets: Iterable[Offsets] = (),
        block: str = "",
    ) -> None:
        """`outputs`: those of writers in other processes; `offsets`: as for `Transaction.send_offsets`."""
        self.writers = list(writers)
        self.outputs = list(outputs)
        self.positions = [PositionMove(name, *move) for name, move in (positions or {}).items()]
        self.block = block
        self._sources = [(one, one if isinstance(one, ConsumedOffsets) else one.consumed()) for one in offsets]
        """Offsets to commit, with their sources."""

    async def commit(self, wait: Wait, timeout: float, asking: TransactionManager) -> None:
        """Commit local writers' transactions, one of which belongs to the manager `asking`.

        Raises as `Transaction.commit` does.
        """
        await self.settle()
        await asking.finish(self.decide(asking.api, wait, timeout))

    async def settle(self) -> None:
        """Wait until every writer has all acknowledgements and sends no more.

        If one of them fails, abort all of them and raise its error.
        """
        try:
            for writer in self.writers:
                await writer.settle()
        except BaseException:
            # One of them is aborted, so none is committed.
            unsettled = [writer for writer in self.writers if writer.may_abort]
            await asyncio.gather(*(writer.abort() for writer in unsettled), return_exceptions=True)
            raise

    async def decide(self, api: TransactionApi, wait: Wait, timeout: float) -> None:
        """Send the commit and wait for the decision. Raises as `Transaction.commit` does."""
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
            keys, seen = (), not visible
        except BaseException as error:
            for writer in self.writers:
                writer.unanswered()
            if not isinstance(error, RaftlogError):
                raise
            told = f"no answer in {timeout:g} s, so it may be committed or not: retry. The last error was {error}"
            raise RetriableError("outcome_unknown", told) from error
        self._committed(keys)
        while visible and not seen:
            seen = await self._seen(api, request, deadline, timeout)

    def _check_as_before(self, request: CommitRequest) -> None:
        """Refuse to combine a commit of unknown outcome with other contents.

        In other company, one of the transactions could turn out to be committed before, without what is added to it
        now. Raises `InvalidRequest`, with no change.
        """
        for writer in self.writers:
            before = writer.asked
            if before is not None and _in_order(before) != _in_order(request):
                told = (
                    "an earlier commit of one of these transactions was not answered, and it had other contents (other "
                    "transactions, offsets or positions): retry it unchanged, or abort it"
                )
                raise InvalidRequest("invalid_request", told)

    async def _refused(self, error: InvalidRequest) -> None:
        """Make sure that none of it stays open after a refusal.

        Returns if everything turns out to be committed, by an earlier attempt whose answer was lost. Otherwise raises;
        what was refused is aborted for every writer.
        """
        became = await asyncio.gather(*(writer.refused(error) for writer in self.writers))
        # `transaction_committed` means that one of them was committed by another commit, so this one was not.
        if became and all(became) and error.code != "transaction_committed":
            return
        if None in became:
            told = f"it was refused, but an earlier attempt may have been accepted: retry. The refusal: {error}"
            raise RetriableError("outcome_unknown", told) from error
        raise error

    def _committed(self, keys: Iterable[TransactionKey]) -> None:
        named = iter(keys)
        for writer in self.writers:
            writer.committed(next(named, None) if writer.is_named else None)
        for source, offsets in self._sources:
            if not isinstance(source, ConsumedOffsets):
                source.consumed_is_committed(offsets)

    async def _seen(self, api: TransactionApi, request: CommitRequest, deadline: float, timeout: float) -> bool:
        """Repeat the commit, which gets the first answer and waits for markers again."""
        left = deadline - asyncio.get_running_loop().time()
        if left <= 0:
            told = f"it is committed, but after {timeout:g} s not visible in all partitions: some have no leader"
            raise RetriableError("request_timed_out", told)
        request = msgspec.structs.replace(request, visible_within_ms=int(min(VISIBLE_TURN, left) * 1000))
        try:
            return (await api.commit(request, timeout=left))[1]
        except RetriableError:
            return False
        except InvalidRequest as error:
            # One of the writers has begun another transaction, so the answer is no longer kept.
            told = f"it is committed, but whether it is visible everywhere is no longer known: {error.detail}"
            raise RetriableError("request_timed_out", told) from error

    def _request(self) -> CommitRequest | None:
        """Return the request, or None if there is nothing to decide."""
        offsets = [*(taken for _, taken in self._sources), *(one for writer in self.writers for one in writer.offsets)]
        positions = [*self.positions, *(one for writer in self.writers for one in writer.positions)]
        used = self.outputs or self.block or any(writer.is_used for writer in self.writers)
        if not (used or positions or any(one.ranges for one in offsets)):
            return None
        groups: dict[str, ConsumedOffsets] = {}
        for one in offsets:
            groups[one.group] = one if one.group not in groups else one.over(groups[one.group])
        # A writer without output is named nevertheless: this fences a writer that was replaced.
        outputs = [*(writer.output for writer in self.writers), *self.outputs]
        moved = tuple(one.packed() for one in groups.values() if one.ranges)
        return CommitRequest(0, tuple(outputs), moved, tuple(positions), self.block)


def _in_order(request: CommitRequest) -> CommitRequest:
    """Return the request with its transactions in a canonical order."""
    return msgspec.structs.replace(request, outputs=tuple(sorted(request.outputs, key=lambda one: one.key)))
