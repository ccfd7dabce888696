"""The shapes of JSON bodies about transactions: what `openapi.json` calls schemas."""

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
    """Which transaction."""

    producer_id: Natural
    producer_epoch: ProducerEpochNumber


class InitializeProducer(msgspec.Struct, forbid_unknown_fields=True):
    transactional_id: Named
    timeout_ms: Timeout = DEFAULT_TRANSACTION_TIMEOUT_MS
    """How long one of its transactions may stay open."""
    attempt: Attempt = ""
    """Random, and the same in each retry of this request: a repeated one gets the first answer and fences nobody."""
    after: NamedTransaction | None = None
    """The last transaction that this producer had under the name: refused where another producer began since."""


class OpenBlock(msgspec.Struct, forbid_unknown_fields=True):
    count: Annotated[int, Meta(ge=1, le=MAX_IDS_PER_BLOCK)]
    name: Text = ""
    """Whoever asks for the same one gets the same block, until it is retired. Empty: nobody else gets it."""
    timeout_ms: Timeout = DEFAULT_TRANSACTION_TIMEOUT_MS


class ProducerIdBlock(msgspec.Struct):
    """`[first_producer_id, first_producer_id + count)`: each is good for one transaction, of epoch 0."""

    first_producer_id: int
    count: int


class OutputTopic(msgspec.Struct, forbid_unknown_fields=True):
    topic_id: TopicId
    end_offsets: Annotated[list[tuple[Partition, Natural]], Meta(max_length=MAX_OFFSETS_PER_TOPIC)]
    """(partition, offset after the last record that is meant) each."""


class TransactionOutput(msgspec.Struct, forbid_unknown_fields=True):
    """What one transaction wrote."""

    producer_id: Natural
    producer_epoch: ProducerEpochNumber
    topics: Annotated[list[OutputTopic], Meta(max_length=MAX_OFFSETS_PER_TOPIC)] = []


class ConsumedRange(msgspec.Struct, forbid_unknown_fields=True):
    """A group's offset in one partition goes from `start` to `end`."""

    topic_id: TopicId
    partition: Partition
    start: Start
    """-1: nothing is committed there. Where the group is elsewhere all is refused (`offset_moved`)."""
    end: Natural
    leader_epoch: Annotated[int, Meta(ge=-1, le=2**31 - 1)] = -1
    metadata: Annotated[str, Meta(max_length=1_024)] = ""


class ConsumedOffsets(msgspec.Struct, forbid_unknown_fields=True):
    """What one member of a group has consumed."""

    group: Annotated[str, Meta(min_length=1, max_length=255)]
    ranges: Annotated[list[ConsumedRange], Meta(min_length=1, max_length=MAX_OFFSETS_PER_TOPIC)]
    member_id: Annotated[str, Meta(max_length=255)] = ""
    """Empty: of a group that has no members."""
    incarnation: Natural = 0
    generation: Natural = 0


class PositionMove(msgspec.Struct, forbid_unknown_fields=True):
    """A named counter goes from `current` (-1: there is none) up to `new`."""

    name: Named
    current: Start
    new: Natural


class CommitTransactions(msgspec.Struct, forbid_unknown_fields=True):
    """All of it, or nothing."""

    transactions: Annotated[list[TransactionOutput], Meta(max_length=MAX_TRANSACTIONS_PER_REQUEST)] = []
    group_offsets: Annotated[list[ConsumedOffsets], Meta(max_length=MAX_GROUPS_PER_COMMIT)] = []
    positions: Annotated[list[PositionMove], Meta(max_length=MAX_POSITIONS_PER_COMMIT)] = []
    block: Text = ""
    """The name of a block that is retired with it: whatever of its ids this does not commit is aborted for good."""
    visible_within_ms: Annotated[int, Meta(ge=0, le=MAX_VISIBLE_WITHIN_MS)] = 0
    """Wait so long for every partition to show it; 0: for the decision only."""


class AbortTransactions(msgspec.Struct, forbid_unknown_fields=True):
    transactions: Annotated[list[NamedTransaction], Meta(min_length=1, max_length=MAX_TRANSACTIONS_PER_REQUEST)]


class ProducerKey(msgspec.Struct):
    """With which a producer writes its next transaction."""

    producer_id: int
    producer_epoch: int


class EndedTransactions(msgspec.Struct):
    """It is decided."""

    producers: list[ProducerKey]
    """With what the named producers go on, in the order of their transactions; those without a name have none."""
    visible: bool
    """Every partition showed it within the time that was given for that."""


class TransactionPartition(msgspec.Struct):
    topic: str
    topic_id: str
    partition: int
    first_offset: int | None
    """Of its records; null where this node only knows that the partition waits for its marker."""


TransactionState = Literal["Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort"]


class TransactionDescription(msgspec.Struct):
    transactional_id: str | None
    producer_id: int
    producer_epoch: int
    state: TransactionState
    timeout_ms: int | None
    started_ms: int | None
    """When its first record came, by the clock of the leader that took it; null where no such leader was asked."""
    duration_ms: int | None
    partitions: list[TransactionPartition]


class Transactions(msgspec.Struct):
    transactions: list[TransactionDescription]


class NamedPosition(msgspec.Struct):
    name: str
    value: int | None
    """null: nothing was ever committed under this name."""


class PositionDescription(msgspec.Struct):
    name: str
    value: int


class Positions(msgspec.Struct):
    positions: list[PositionDescription]
    more: bool
    """There are others behind the last one: ask with a longer prefix."""
