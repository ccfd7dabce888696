"""The transaction endpoints of the HTTP API, typed; and the values that name what a commit is to make one.

All of these values may travel between processes (to whoever commits for several writers); none holds a connection.

What begins or ends something may be asked again as it was: the first decision gave the answer, and it is given again.
So it is asked of node after node until somebody knows. An initialisation has a number for that (`attempt`): without it
a request that was repeated, and came late, would fence the producer that had made it.
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
"""Seconds after which another node is asked, too. Longer than for reading: each that is asked has the quorum decide,
and a quorum that is slow because it has much to do must not get all of it three times."""

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
"""Codes of a refused commit that tell for certain that it never was, and never will be, accepted."""


class OutputTopic(msgspec.Struct, frozen=True):
    """What was written to one topic: (partition, offset after the last acknowledged record) each."""

    topic_id: str
    """32 hexadecimal digits."""
    end_offsets: tuple[tuple[int, int], ...]


class TransactionOutput(msgspec.Struct, frozen=True):
    """What one transaction wrote: all of it acknowledged, and nothing else of it is to show."""

    producer_id: int
    producer_epoch: int
    topics: tuple[OutputTopic, ...] = ()

    @property
    def key(self) -> TransactionKey:
        return TransactionKey(ProducerId(self.producer_id), ProducerEpoch(self.producer_epoch))


class ConsumedRange(msgspec.Struct, frozen=True):
    """A group's offset in one partition goes from `start` (-1: nothing is committed there) to `end`."""

    topic_id: str
    partition: int
    start: int
    end: int
    leader_epoch: int = -1
    metadata: str = ""


class ConsumedOffsets(msgspec.Struct, frozen=True):
    """What one member of one group has consumed; no member id: of a group that has no members."""

    group: str
    ranges: tuple[ConsumedRange, ...]
    member_id: str = ""
    incarnation: int = 0
    generation: int = 0

    def over(self, before: ConsumedOffsets) -> ConsumedOffsets:
        """Both together: of a partition that both name this one's end counts, and where `before` began."""
        starts = {(one.topic_id, one.partition): one.start for one in before.ranges}
        ranges = {(one.topic_id, one.partition): one for one in before.ranges}
        for one in self.ranges:
            place = (one.topic_id, one.partition)
            ranges[place] = msgspec.structs.replace(one, start=starts.get(place, one.start))
        return msgspec.structs.replace(self, ranges=tuple(ranges.values()))


class OffsetsSource(Protocol):
    """A consumer whose offsets a transaction takes along."""

    def consumed(self) -> ConsumedOffsets:
        """Everything that it has handed out and its group has not committed."""
        ...

    def consumed_is_committed(self, offsets: ConsumedOffsets) -> None:
        """That is committed now."""
        ...


Offsets: TypeAlias = OffsetsSource | ConsumedOffsets


class PositionMove(msgspec.Struct, frozen=True):
    """A named counter goes from `current` (-1: there is none) up to `new`."""

    name: str
    current: int
    new: int


class CommitRequest(msgspec.Struct, frozen=True):
    """All of it, or nothing."""

    transactions: tuple[TransactionOutput, ...]
    group_offsets: tuple[ConsumedOffsets, ...] = ()
    positions: tuple[PositionMove, ...] = ()
    block: str = ""
    """The name of a block of producer ids that is retired with it."""
    visible_within_ms: int = 0


class ProducerIdBlock(msgspec.Struct, frozen=True):
    """`[first_producer_id, first_producer_id + count)`: each is good for one transaction, of epoch 0."""

    first_producer_id: int
    count: int


class TransactionInfo(msgspec.Struct, frozen=True):
    """One transaction as the cluster shows it (see `docs/http-api.md`)."""

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
    """Of its records; null where the partition waits for no more than the marker."""


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
    """A named counter that commits have moved."""

    name: str
    value: int


class _Position(msgspec.Struct, frozen=True):
    value: int | None


class _Positions(msgspec.Struct, frozen=True):
    positions: list[NamedPosition]
    more: bool


class TransactionApi:
    """Belongs to one event loop. Every call raises a `RaftlogError`; `timeout` in seconds."""

    def __init__(self, api: HttpApi) -> None:
        self._api = api

    async def initialize(
        self, transactional_id: str, timeout_ms: int, attempt: bytes, after: TransactionKey | None, *, timeout: float
    ) -> TransactionKey:
        """A producer of this name begins. `attempt`: `ATTEMPT_BYTES` at random, the same ones in each retry, which gets
        the first answer; `after`: the last transaction that it had, if any. Raises `InvalidRequest` (`producer_fenced`:
        another producer began since)."""
        body = {
            "transactional_id": transactional_id,
            "timeout_ms": timeout_ms,
            "attempt": attempt.hex(),
            "after": None if after is None else _pack_key(after),
        }
        path = f"{PATH}/initialize"
        return (await self._api.post(path, _Key, body, timeout=timeout, hedge_after=HEDGE_AFTER)).unpacked()

    async def open_block(self, name: str, count: int, timeout_ms: int, *, timeout: float) -> ProducerIdBlock:
        """Producer ids without a name; the same `name` (empty: none) gets the same block until it is retired."""
        body = {"name": name, "count": count, "timeout_ms": timeout_ms}
        path = f"{PATH}/blocks"
        return await self._api.post(path, ProducerIdBlock, body, timeout=timeout, hedge_after=HEDGE_AFTER)

    async def retire_block(self, name: str, *, timeout: float) -> None:
        """What is undecided in it is aborted for good."""
        await self._api.repeatable("DELETE", f"{PATH}/blocks/{quote(name, safe='')}", timeout=timeout)

    async def commit(self, wanted: CommitRequest, *, timeout: float) -> tuple[list[TransactionKey], bool]:
        """The keys with which the named producers go on, in their order; and whether all of it may be read by now
        (where that was waited for)."""
        hedge_after = HEDGE_AFTER + wanted.visible_within_ms / 1000
        answer = await self._api.post(f"{PATH}/commit", _Ended, wanted, timeout=timeout, hedge_after=hedge_after)
        return [key.unpacked() for key in answer.producers], answer.visible

    async def abort(self, keys: Sequence[TransactionKey], *, timeout: float) -> list[TransactionKey]:
        """The keys with which the named producers among them go on, in their order."""
        body = {"transactions": [_pack_key(key) for key in keys]}
        answer = await self._api.post(f"{PATH}/abort", _Ended, body, timeout=timeout, hedge_after=HEDGE_AFTER)
        return [key.unpacked() for key in answer.producers]

    async def describe(self, transactional_id: str) -> TransactionInfo:
        """Raises `InvalidRequest` (`unknown_transaction`)."""
        return await self._api.get(f"{PATH}/{quote(transactional_id, safe='')}", TransactionInfo, timeout=READ_TIMEOUT)

    async def position(self, name: str) -> int | None:
        """A named position as the quorum has it now (S7); None where nothing was ever committed under that name."""
        path = f"/v1/positions/{quote(name, safe='')}"
        return (await self._api.get(path, _Position, timeout=READ_TIMEOUT)).value

    async def positions(self, prefix: str) -> tuple[list[NamedPosition], bool]:
        """Those whose names begin so, by name, as the quorum has them now; and whether there are more than these."""
        found = await self._api.get(f"/v1/positions?prefix={quote(prefix, safe='')}", _Positions, timeout=READ_TIMEOUT)
        return found.positions, found.more

    async def remove_position(self, name: str, value: int) -> None:
        """Forget it, where it stands at `value`. Raises `InvalidRequest` (`offset_moved`: it does not)."""
        path = f"/v1/positions/{quote(name, safe='')}?value={value}"
        await self._api.change("DELETE", path, None, timeout=REMOVE_TIMEOUT)

    async def list(self) -> list[TransactionInfo]:
        """What the node that answers knows of: what is open in partitions that it leads, and what it was told of."""
        return (await self._api.get(PATH, _Transactions, timeout=READ_TIMEOUT)).transactions


def _pack_key(key: TransactionKey) -> dict[str, int]:
    return {"producer_id": key.producer_id, "producer_epoch": key.producer_epoch}


def pack_output(key: TransactionKey, end_offsets: dict[TopicPartition, Offset]) -> TransactionOutput:
    """What this transaction wrote."""
    topics: dict[str, list[tuple[int, int]]] = {}
    for partition in sorted(end_offsets):
        topics.setdefault(partition.topic_id.hex(), []).append((partition.partition, end_offsets[partition]))
    packed = tuple(OutputTopic(topic_id, tuple(ends)) for topic_id, ends in topics.items())
    return TransactionOutput(key.producer_id, key.producer_epoch, packed)
