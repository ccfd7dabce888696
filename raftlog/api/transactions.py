"""Transactions and named positions: begin, commit, abort, and list those in progress."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from raftlog.model import Offset, TopicId
from raftlog.wire import MAX_GROUPS_PER_COMMIT, MAX_POSITIONS_PER_COMMIT, MAX_VISIBLE_WITHIN_MS, GroupMoves, OffsetMove

from .base import HexTopicId, Natural, OfTopicPartition, PartitionNumber, Request

MAX_IDS_PER_BLOCK = 100_000
MAX_TRANSACTIONS_PER_REQUEST = 10_000
MAX_OFFSETS_PER_TOPIC = 10_000
DEFAULT_TRANSACTION_TIMEOUT_MS = 60_000

Name = Annotated[str, Meta(max_length=512)]
Named = Annotated[str, Meta(min_length=1, max_length=512)]
Start = Annotated[int, Meta(ge=-1, le=2**62)]
ProducerEpochNumber = Annotated[int, Meta(ge=0, le=2**15 - 1)]
Attempt = Annotated[str, Meta(pattern="^([0-9a-f]{32})?$")]
TransactionTimeout = Annotated[int, Meta(ge=100, le=3_600_000)]
"""The time that a transaction may stay open, in milliseconds."""


class NamedTransaction(Request, frozen=True):
    """The key of a transaction."""

    producer_id: Natural
    producer_epoch: ProducerEpochNumber


class InitializeProducer(Request, frozen=True):
    transactional_id: Named
    timeout_ms: TransactionTimeout = DEFAULT_TRANSACTION_TIMEOUT_MS
    """The time that a transaction of this producer may stay open, in milliseconds."""
    attempt: Attempt = ""
    """Random, and the same in each retry of this request: a retry gets the first answer and fences no producer."""
    after: NamedTransaction | None = None
    """The producer's last transaction under this name; the request is refused if another producer has begun since."""


class OpenBlock(Request, frozen=True):
    count: Annotated[int, Meta(ge=1, le=MAX_IDS_PER_BLOCK)]
    name: Name = ""
    """Requests with the same name get the same block until it is retired. Empty for a block of this request alone."""
    timeout_ms: TransactionTimeout = DEFAULT_TRANSACTION_TIMEOUT_MS


class ProducerIdBlock(msgspec.Struct, frozen=True):
    """The producer ids `[first_producer_id, first_producer_id + count)`.

    Each serves one transaction, with epoch 0.
    """

    first_producer_id: int
    count: int


class OutputTopic(Request, frozen=True):
    topic_id: HexTopicId
    end_offsets: Annotated[list[tuple[PartitionNumber, Natural]], Meta(max_length=MAX_OFFSETS_PER_TOPIC)]
    """Pairs of a partition and the offset after the transaction's last record in it."""


class TransactionOutput(NamedTransaction, frozen=True):
    """The output of one transaction."""

    topics: Annotated[list[OutputTopic], Meta(max_length=MAX_OFFSETS_PER_TOPIC)] = []


class ConsumedRange(Request, frozen=True):
    """A move of a group's offset in one partition from `start` to `end`."""

    topic_id: HexTopicId
    partition: PartitionNumber
    start: Start
    """-1 if no offset is committed. If the group's offset differs, the whole commit is refused (`offset_moved`)."""
    end: Natural
    leader_epoch: Annotated[int, Meta(ge=-1, le=2**31 - 1)] = -1
    metadata: Annotated[str, Meta(max_length=1_024)] = ""


class ConsumedOffsets(Request, frozen=True):
    """The offsets that one member of a group has consumed."""

    group: Annotated[str, Meta(min_length=1, max_length=255)]
    ranges: Annotated[tuple[ConsumedRange, ...], Meta(min_length=1, max_length=MAX_OFFSETS_PER_TOPIC)]
    member_id: Annotated[str, Meta(max_length=255)] = ""
    """Empty for a group that has no members."""
    incarnation: Natural = 0
    generation: Natural = 0

    def packed(self) -> GroupMoves:
        """Return the offsets as a commit names them."""
        moves = (
            OffsetMove(
                TopicId(bytes.fromhex(one.topic_id)),
                one.partition,
                one.start,
                Offset(one.end),
                one.leader_epoch,
                one.metadata,
            )
            for one in self.ranges
        )
        return GroupMoves(self.group, self.member_id, self.incarnation, self.generation, tuple(moves))

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


class PositionMove(Request, frozen=True):
    """An advance of a named counter from `current` (-1: it does not exist) to `new`."""

    name: Named
    current: Start
    new: Natural


class CommitTransactions(Request, frozen=True):
    """The content of one commit, applied as a whole or not at all."""

    transactions: Annotated[list[TransactionOutput], Meta(max_length=MAX_TRANSACTIONS_PER_REQUEST)] = []
    group_offsets: Annotated[list[ConsumedOffsets], Meta(max_length=MAX_GROUPS_PER_COMMIT)] = []
    positions: Annotated[list[PositionMove], Meta(max_length=MAX_POSITIONS_PER_COMMIT)] = []
    block: Name = ""
    """The name of a block that is retired with the commit: ids of it that this does not commit are aborted
    permanently."""
    visible_within_ms: Annotated[int, Meta(ge=0, le=MAX_VISIBLE_WITHIN_MS)] = 0
    """The time to wait until the transactions are visible in every partition, in milliseconds; 0 to wait for the
    decision only."""


class AbortTransactions(Request, frozen=True):
    transactions: Annotated[list[NamedTransaction], Meta(min_length=1, max_length=MAX_TRANSACTIONS_PER_REQUEST)]


class ProducerKey(msgspec.Struct, frozen=True):
    """The key with which a producer writes its next transaction."""

    producer_id: int
    producer_epoch: int


class EndedTransactions(msgspec.Struct, frozen=True):
    """The answer to a decided commit or abort."""

    producers: list[ProducerKey]
    """The next keys of the named producers, in the order of their transactions; unnamed producers have none."""
    visible: bool = False
    """Whether every partition had its marker within `visible_within_ms`."""


class TransactionPartition(OfTopicPartition, frozen=True):
    first_offset: int | None = None
    """Offset of its first record; None if the node only knows that the partition awaits its marker."""


class TransactionInfo(msgspec.Struct, frozen=True):
    """One transaction as the cluster reports it (see `docs/http-api.md`)."""

    transactional_id: str | None
    producer_id: int
    producer_epoch: int
    state: str
    timeout_ms: int | None = None
    started_ms: int | None = None
    """The arrival of the first record by its leader's clock; None if no such leader was asked."""
    duration_ms: int | None = None
    partitions: list[TransactionPartition] = []


class Transactions(msgspec.Struct, frozen=True):
    transactions: list[TransactionInfo]


class PositionValue(msgspec.Struct, frozen=True):
    """The answer about one name."""

    name: str
    value: int | None
    """None if no position was ever committed under this name."""


class NamedPosition(msgspec.Struct, frozen=True):
    """A named position, which commits move."""

    name: str
    value: int


class PositionList(msgspec.Struct, frozen=True):
    """Named positions, ordered by name."""

    positions: list[NamedPosition]
    more: bool
    """Whether the list was cut off: use a longer prefix."""
