"""`Admin` on transactions: what is under way anywhere, ends by hand, named positions.

A node knows what is decided, and of open transactions those in partitions that it leads. So everybody is asked, and
what they say of one transaction is put together; who did not answer is named.

What is *not* here: having transactions (`transaction.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import msgspec

from raftlog.errors import InvalidRequest, RaftlogError
from raftlog.model import ProducerEpoch, ProducerId
from raftlog.transactions import TransactionKey

from .api import HttpApi
from .metadata import ClusterInfo, NodeInfo
from .transaction_api import NamedPosition, TransactionApi, TransactionInfo, TransactionPartition

ABORT_TIMEOUT = 30.0
_STATES = ("PrepareCommit", "PrepareAbort", "Ongoing", "CompleteCommit", "CompleteAbort", "Empty")
"""What tells most first: some nodes may not have seen the decision, or not the end of it."""


class TransactionList(msgspec.Struct, frozen=True):
    """Transactions that are under way, by producer id."""

    transactions: list[TransactionInfo]
    silent_nodes: list[int] = []
    """Did not answer: what is open in partitions that they lead is missing."""


class PositionList(msgspec.Struct, frozen=True):
    """Named positions, by name."""

    positions: list[NamedPosition]
    more: bool
    """There are others behind the last one: ask with a longer prefix."""


class AdminTransactions:
    """The part of `Admin` that is about transactions."""

    _api: HttpApi

    async def cluster(self) -> ClusterInfo:
        """See `Admin.cluster`."""
        raise NotImplementedError

    async def list_transactions(self) -> TransactionList:
        """Open ones, and those that are decided and not shown by every partition yet."""
        nodes = (await self.cluster()).nodes
        answers = await asyncio.gather(*map(_ask, nodes))
        told = [one for answer in answers for one in answer or ()]
        silent = [node.id for node, answer in zip(nodes, answers, strict=True) if answer is None]
        return TransactionList(_merged(told), silent)

    async def describe_transaction(self, transactional_id: str) -> TransactionInfo:
        """What a named producer is at. Raises `InvalidRequest` (`unknown_transaction`)."""
        known = await TransactionApi(self._api).describe(transactional_id)
        found = await self.list_transactions()
        same = [
            one for one in found.transactions
            if (one.producer_id, one.producer_epoch) == (known.producer_id, known.producer_epoch)
        ]  # fmt: skip
        return _merged([known, *same])[0]

    async def abort_transaction(self, producer_id: int, producer_epoch: int) -> None:
        """Nothing of it will ever show. Its producer is told when it wants to commit. Raises `InvalidRequest`
        (`transaction_committed`, `producer_fenced`: it is over already)."""
        key = TransactionKey(ProducerId(producer_id), ProducerEpoch(producer_epoch))
        await TransactionApi(self._api).abort([key], timeout=ABORT_TIMEOUT)

    async def position(self, name: str) -> int | None:
        """A named position as the quorum has it now; None where nothing was ever committed under that name."""
        return await TransactionApi(self._api).position(name)

    async def list_positions(self, prefix: str = "") -> PositionList:
        """Named positions whose names begin so, by name, as the quorum has them now: at most 10,000."""
        return PositionList(*await TransactionApi(self._api).positions(prefix))

    async def delete_position(self, name: str, value: int) -> None:
        """Forget it, for good: work that it was for may be published again. Nothing is done where there is none. Raises
        `InvalidRequest` (`offset_moved`: it does not stand at `value`)."""
        await TransactionApi(self._api).remove_position(name, value)


async def _ask(node: NodeInfo) -> list[TransactionInfo] | None:
    """This node alone; None where it does not answer."""
    try:
        api = HttpApi(node.api)
    except InvalidRequest:
        return None
    try:
        return await TransactionApi(api).list()
    except RaftlogError:
        return None
    finally:
        await api.close()


def _merged(told: Iterable[TransactionInfo]) -> list[TransactionInfo]:
    by_key: dict[tuple[int, int], TransactionInfo] = {}
    for one in told:
        key = (one.producer_id, one.producer_epoch)
        known = by_key.get(key)
        by_key[key] = one if known is None else _both(known, one)
    return [by_key[key] for key in sorted(by_key)]


def _both(one: TransactionInfo, other: TransactionInfo) -> TransactionInfo:
    partitions: dict[tuple[str, int], TransactionPartition] = {}
    for place in (*one.partitions, *other.partitions):
        known = partitions.get((place.topic, place.partition))
        if known is None or known.first_offset is None:
            partitions[place.topic, place.partition] = place
    return msgspec.structs.replace(
        one,
        state=min(one.state, other.state, key=lambda state: _STATES.index(state) if state in _STATES else len(_STATES)),
        started_ms=min(_known(one.started_ms, other.started_ms), default=None),
        duration_ms=max(_known(one.duration_ms, other.duration_ms), default=None),
        partitions=[partitions[place] for place in sorted(partitions)],
    )


def _known(*numbers: int | None) -> list[int]:
    return [number for number in numbers if number is not None]
