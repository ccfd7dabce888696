"""JSON bodies about transactions: the schemas of `openapi.json`."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

MAX_TRANSACTIONS_PER_REQUEST = 10_000
MAX_OFFSETS_PER_TOPIC = 10_000
MAX_GROUPS_PER_COMMIT = 100
MAX_POSITIONS_PER_COMMIT = 100
MAX_IDS_PER_BLOCK = 100_000
MAX_VISIBLE_WITHIN_MS = 30_000
DEFAULT_TRANSACTION_TIMEOUT_MS = 60_000

Text = Annotated[str, Meta(max_length=512)]
Named = Annotated[str, Meta(min_length=1, max_length=512)]
Timeout = Annotated[int, Meta(ge=100, le=3_600_000)]
Natural = Annotated[int, Meta(ge=0, le=2**62)]
Start = Annotated[int, Meta(ge=-1, le=2**62)]
ProducerEpochNumber = Annotated[int, Meta(ge=0, le=2**15 - 1)]
Partition = Annotated[int, Meta(ge=0, le=2**31 - 1)]
TopicId = Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]
Attempt = Annotated[str, Meta(pattern="^([0-9a-f]{32})?$")]


class NamedTransaction(msgspec.Struct, forbid_unknown_fields=True):
    """The key of a transaction."""

    producer_id: Natural
    producer_epoch: ProducerEpochNumber


class InitializeProducer(msgspec.Struct, forbid_unknown_fields=True):
    transactional_id: Named
    timeout_ms: Timeout = DEFAULT_TRANSACTION_TIMEOUT_MS
    """The time that a transaction of this producer may stay open, in milliseconds."""
    attempt: Attempt = ""
    """Random, and the same in each retry of this request: a retry gets the first answer and fences no producer."""
    after: NamedTransaction | None = None
    """The producer's last transaction under this name; the request is refused if another producer has begun since."""


class OpenBlock(msgspec.Struct, forbid_unknown_fields=True):
    count: Annotated[int, Meta(ge=1, le=MAX_IDS_PER_BLOCK)]
    name: Text = ""
    """Requests with the same name get the same block until it is retired. Empty for a block of this request alone."""
    timeout_ms: Timeout = DEFAULT_TRANSACTION_TIMEOUT_MS


class ProducerIdBlock(msgspec.Struct):
    """The ids `[first_producer_id, first_producer_id + count)`, each valid for one transaction, of epoch 0."""

    first_producer_id: int
    count: int


class OutputTopic(msgspec.Struct, forbid_unknown_fields=True):
    topic_id: TopicId
    end_offsets: Annotated[list[tuple[Partition, Natural]], Meta(max_length=MAX_OFFSETS_PER_TOPIC)]
    """Pairs of a partition and the offset after the transaction's last record in it."""


class TransactionOutput(msgspec.Struct, forbid_unknown_fields=True):
    """The output of one transaction."""

    producer_id: Natural
    producer_epoch: ProducerEpochNumber
    topics: Annotated[list[OutputTopic], Meta(max_length=MAX_OFFSETS_PER_TOPIC)] = []


class ConsumedRange(msgspec.Struct, forbid_unknown_fields=True):
    """A move of a group's offset in one partition from `start` to `end`."""

    topic_id: TopicId
    partition: Partition
    start: Start
    """-1 if no offset is committed. If the group's offset differs, the whole commit is refused (`offset_moved`)."""
    end: Natural
    leader_epoch: Annotated[int, Meta(ge=-1, le=2**31 - 1)] = -1
    metadata: Annotated[str, Meta(max_length=1_024)] = ""


class ConsumedOffsets(msgspec.Struct, forbid_unknown_fields=True):
    """The offsets that one member of a group has consumed."""

    group: Annotated[str, Meta(min_length=1, max_length=255)]
    ranges: Annotated[list[ConsumedRange], Meta(min_length=1, max_length=MAX_OFFSETS_PER_TOPIC)]
    member_id: Annotated[str, Meta(max_length=255)] = ""
    """Empty for a group that has no members."""
    incarnation: Natural = 0
    generation: Natural = 0


class PositionMove(msgspec.Struct, forbid_unknown_fields=True):
    """An advance of a named counter from `current` (-1: it does not exist) to `new`."""

    name: Named
    current: Start
    new: Natural


class CommitTransactions(msgspec.Struct, forbid_unknown_fields=True):
    """The content of one commit, applied as a whole or not at all."""

    transactions: Annotated[list[TransactionOutput], Meta(max_length=MAX_TRANSACTIONS_PER_REQUEST)] = []
    group_offsets: Annotated[list[ConsumedOffsets], Meta(max_length=MAX_GROUPS_PER_COMMIT)] = []
    positions: Annotated[list[PositionMove], Meta(max_length=MAX_POSITIONS_PER_COMMIT)] = []
    block: Text = ""
    """The name of a block that is retired with the commit: ids of it that this does not commit are aborted
    permanently."""
    visible_within_ms: Annotated[int, Meta(ge=0, le=MAX_VISIBLE_WITHIN_MS)] = 0
    """The time to wait until the transactions are visible in every partition, in milliseconds; 0 to wait for the
    decision only."""


class AbortTransactions(msgspec.Struct, forbid_unknown_fields=True):
    transactions: Annotated[list[NamedTransaction], Meta(min_length=1, max_length=MAX_TRANSACTIONS_PER_REQUEST)]


class ProducerKey(msgspec.Struct):
    """The key with which a producer writes its next transaction."""

    producer_id: int
    producer_epoch: int


class EndedTransactions(msgspec.Struct):
    """The answer to a decided commit or abort."""

    producers: list[ProducerKey]
    """The next keys of the named producers, in the order of their transactions; unnamed producers have none."""
    visible: bool
    """Whether every partition had its marker within `visible_within_ms`."""


class TransactionPartition(msgspec.Struct):
    topic: str
    topic_id: str
    partition: int
    first_offset: int | None
    """The offset of the first record; null if this node only knows that the partition awaits its marker."""


TransactionState = Literal["Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort"]


class TransactionDescription(msgspec.Struct):
    transactional_id: str | None
    producer_id: int
    producer_epoch: int
    state: TransactionState
    timeout_ms: int | None
    started_ms: int | None
    """The arrival of the first record by its leader's clock; null if no such leader was asked."""
    duration_ms: int | None
    partitions: list[TransactionPartition]


class Transactions(msgspec.Struct):
    transactions: list[TransactionDescription]


class NamedPosition(msgspec.Struct):
    name: str
    value: int | None
    """Null if no position was ever committed under this name."""


class PositionDescription(msgspec.Struct):
    name: str
    value: int


class Positions(msgspec.Struct):
    positions: list[PositionDescription]
    more: bool
    """Whether there are further positions: ask with a longer prefix."""
