"""Typed access to the transaction endpoints of the HTTP API, and the values that name the contents of a commit.

All of these values may travel between processes (to the one that commits for several writers); none holds a connection.

Requests that begin or end something may be retried unchanged: the first decision determined the answer, and every retry
gets it. So they are sent to one node after the other until one answers. An initialisation carries a random `attempt`
for that purpose: without it, a duplicated request that arrives late would fence the producer that had sent it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias
from urllib.parse import quote

import msgspec

from raftlog.client.cluster.api import HttpApi
from raftlog.model import Offset, ProducerEpoch, ProducerId, TopicPartition
from raftlog.transactions import TransactionKey

PATH = "/v1/transactions"
READ_TIMEOUT = 10.0
REMOVE_TIMEOUT = 15.0
ATTEMPT_BYTES = 16
HEDGE_AFTER = 1.0
"""Seconds after which another node is asked as well.

It is longer than for reads: each node that is asked has the quorum decide, and an overloaded quorum must not get every
request three times.
"""

ABORTED_BY_REFUSAL = frozenset(
    {
        "transaction_aborted",
        "transaction_committed",
        "position_taken",
        "offset_moved",
        "stale_generation",
        "member_fenced",
        "unknown_member",
        "group_not_empty",
        "unknown_partition",
        "producer_ids_expired",
        "unknown_transaction",
    }
)
"""Error codes of a refused commit which prove that it never was, and never will be, accepted."""


class OutputTopic(msgspec.Struct, frozen=True):
    """End offsets of one topic: pairs of partition and offset after the last acknowledged record."""

    topic_id: str
    """Topic id, as 32 hexadecimal digits."""
    end_offsets: tuple[tuple[int, int], ...]


class TransactionOutput(msgspec.Struct, frozen=True):
    """The records that one transaction wrote: all of them acknowledged; no others become visible."""

    producer_id: int
    producer_epoch: int
    topics: tuple[OutputTopic, ...] = ()

    @property
    def key(self) -> TransactionKey:
        return TransactionKey(ProducerId(self.producer_id), ProducerEpoch(self.producer_epoch))


class ConsumedRange(msgspec.Struct, frozen=True):
    """A move of a group's offset in one partition from `start` (-1: no committed offset) to `end`."""

    topic_id: str
    partition: int
    start: int
    end: int
    leader_epoch: int = -1
    metadata: str = ""


class ConsumedOffsets(msgspec.Struct, frozen=True):
    """Offsets that one member of a group has consumed.

    No member id: the group has no members.
    """

    group: str
    ranges: tuple[ConsumedRange, ...]
    member_id: str = ""
    incarnation: int = 0
    generation: int = 0

    def over(self, before: ConsumedOffsets) -> ConsumedOffsets:
        """Return both combined.

        Of a partition that both name, this one's end counts, and the start of `before`.
        """
        starts = {(one.topic_id, one.partition): one.start for one in before.ranges}
        ranges = {(one.topic_id, one.partition): one for one in before.ranges}
        for one in self.ranges:
            place = (one.topic_id, one.partition)
            ranges[place] = msgspec.structs.replace(one, start=starts.get(place, one.start))
        return msgspec.structs.replace(self, ranges=tuple(ranges.values()))


class OffsetsSource(Protocol):
    """A consumer whose offsets a transaction commits."""

    def consumed(self) -> ConsumedOffsets:
        """Return everything that it has handed out and its group has not committed."""
        ...

    def consumed_is_committed(self, offsets: ConsumedOffsets) -> None:
        """Note that a transaction has committed `offsets`."""
        ...


Offsets: TypeAlias = OffsetsSource | ConsumedOffsets


class PositionMove(msgspec.Struct, frozen=True):
    """A move of a named position from `current` (-1: it does not exist) to `new`."""

    name: str
    current: int
    new: int


class CommitRequest(msgspec.Struct, frozen=True):
    """The contents of one atomic commit."""

    transactions: tuple[TransactionOutput, ...]
    group_offsets: tuple[ConsumedOffsets, ...] = ()
    positions: tuple[PositionMove, ...] = ()
    block: str = ""
    """Name of a block of producer ids that is retired by the same decision."""
    visible_within_ms: int = 0


class ProducerIdBlock(msgspec.Struct, frozen=True):
    """The producer ids `[first_producer_id, first_producer_id + count)`.

    Each serves one transaction, with epoch 0.
    """

    first_producer_id: int
    count: int


class TransactionInfo(msgspec.Struct, frozen=True):
    """One transaction as the cluster reports it (see `docs/http-api.md`)."""

    transactional_id: str | None
    producer_id: int
    producer_epoch: int
    state: str
    timeout_ms: int | None = None
    started_ms: int | None = None
    duration_ms: int | None = None
    partitions: list[TransactionPartition] = []


class TransactionPartition(msgspec.Struct, frozen=True):
    topic: str
    topic_id: str
    partition: int
    first_offset: int | None = None
    """Offset of its first record; null if the partition only waits for the marker."""


class _Key(msgspec.Struct, frozen=True):
    producer_id: int
    producer_epoch: int

    def unpacked(self) -> TransactionKey:
        return TransactionKey(ProducerId(self.producer_id), ProducerEpoch(self.producer_epoch))


class _Ended(msgspec.Struct, frozen=True):
    producers: list[_Key]
    visible: bool = False


class _Transactions(msgspec.Struct, frozen=True):
    transactions: list[TransactionInfo]


class NamedPosition(msgspec.Struct, frozen=True):
    """A named position, which commits move."""

    name: str
    value: int


class _Position(msgspec.Struct, frozen=True):
    value: int | None


class _Positions(msgspec.Struct, frozen=True):
    positions: list[NamedPosition]
    more: bool


class TransactionApi:
    """The transaction endpoints.

    Belongs to one event loop. Every call may raise a `RaftlogError`; `timeout` is in seconds.
    """

    def __init__(self, api: HttpApi) -> None:
        self._api = api

    async def initialize(
        self, transactional_id: str, timeout_ms: int, attempt: bytes, after: TransactionKey | None, *, timeout: float
    ) -> TransactionKey:
        """Initialise a named producer and return the key of its first transaction.

        * `attempt`: `ATTEMPT_BYTES` random bytes, the same in each retry, which gets the first answer.
        * `after`: the key of its last transaction, if any.

        Raises `InvalidRequest` (`producer_fenced`: another producer has initialised the name since).
        """
        body = {
            "transactional_id": transactional_id,
            "timeout_ms": timeout_ms,
            "attempt": attempt.hex(),
            "after": None if after is None else _pack_key(after),
        }
        path = f"{PATH}/initialize"
        return (await self._api.post(path, _Key, body, timeout=timeout, hedge_after=HEDGE_AFTER)).unpacked()

    async def open_block(self, name: str, count: int, timeout_ms: int, *, timeout: float) -> ProducerIdBlock:
        """Return a block of producer ids without a transactional id.

        The same `name` gets the same block until it is retired; an empty one gets a new block.
        """
        body = {"name": name, "count": count, "timeout_ms": timeout_ms}
        path = f"{PATH}/blocks"
        return await self._api.post(path, ProducerIdBlock, body, timeout=timeout, hedge_after=HEDGE_AFTER)

    async def retire_block(self, name: str, *, timeout: float) -> None:
        """Retire a block; its undecided transactions are aborted permanently."""
        await self._api.repeatable("DELETE", f"{PATH}/blocks/{quote(name, safe='')}", timeout=timeout)

    async def commit(self, wanted: CommitRequest, *, timeout: float) -> tuple[list[TransactionKey], bool]:
        """Commit, and return the next keys of the named producers, in order, and whether everything is visible.

        Visibility is reported only if the request waits for it.
        """
        hedge_after = HEDGE_AFTER + wanted.visible_within_ms / 1000
        answer = await self._api.post(f"{PATH}/commit", _Ended, wanted, timeout=timeout, hedge_after=hedge_after)
        return [key.unpacked() for key in answer.producers], answer.visible

    async def abort(self, keys: Sequence[TransactionKey], *, timeout: float) -> list[TransactionKey]:
        """Abort, and return the next keys of the named producers among them, in order."""
        body = {"transactions": [_pack_key(key) for key in keys]}
        answer = await self._api.post(f"{PATH}/abort", _Ended, body, timeout=timeout, hedge_after=HEDGE_AFTER)
        return [key.unpacked() for key in answer.producers]

    async def describe(self, transactional_id: str) -> TransactionInfo:
        """Return a named producer's transaction. Raises `InvalidRequest` (`unknown_transaction`)."""
        return await self._api.get(f"{PATH}/{quote(transactional_id, safe='')}", TransactionInfo, timeout=READ_TIMEOUT)

    async def position(self, name: str) -> int | None:
        """Return a named position as the quorum has it now (S7); None if it was never committed."""
        path = f"/v1/positions/{quote(name, safe='')}"
        return (await self._api.get(path, _Position, timeout=READ_TIMEOUT)).value

    async def positions(self, prefix: str) -> tuple[list[NamedPosition], bool]:
        """Return the named positions with this prefix, by name, as the quorum has them, and whether there are more."""
        found = await self._api.get(f"/v1/positions?prefix={quote(prefix, safe='')}", _Positions, timeout=READ_TIMEOUT)
        return found.positions, found.more

    async def remove_position(self, name: str, value: int) -> None:
        """Delete a named position. Raises `InvalidRequest` (`offset_moved`) if it is not at `value`."""
        path = f"/v1/positions/{quote(name, safe='')}?value={value}"
        await self._api.change("DELETE", path, None, timeout=REMOVE_TIMEOUT)

    async def list(self) -> list[TransactionInfo]:
        """Return what one node knows: open transactions in partitions that it leads, and decided ones."""
        return (await self._api.get(PATH, _Transactions, timeout=READ_TIMEOUT)).transactions


def _pack_key(key: TransactionKey) -> dict[str, int]:
    return {"producer_id": key.producer_id, "producer_epoch": key.producer_epoch}


def pack_output(key: TransactionKey, end_offsets: dict[TopicPartition, Offset]) -> TransactionOutput:
    """Return the output of a transaction that wrote up to these offsets."""
    topics: dict[str, list[tuple[int, int]]] = {}
    for partition in sorted(end_offsets):
        topics.setdefault(partition.topic_id.hex(), []).append((partition.partition, end_offsets[partition]))
    packed = tuple(OutputTopic(topic_id, tuple(ends)) for topic_id, ends in topics.items())
    return TransactionOutput(key.producer_id, key.producer_epoch, packed)
