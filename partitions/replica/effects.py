"""The effects that a replica's cores return: one small class each, performed by the shell in the order given.

The order is part of the data. An answer that must wait for the disk travels inside the effect that writes
(`Append.after`, `WhenStable.after`): the shell cannot answer early, because it holds a write and not an answer until
the fsync. An answer that must wait for other replicas is not returned before it is due.

The leader's answers to a follower (`Answer`) and the proposal of an ISR (`IsrProposal`) are here too, because effects
carry them. Only `partitions/driver/driver.py` performs effects.
"""

from __future__ import annotations

import enum
import math
from typing import NewType, TypeAlias

import msgspec

from raftlog.errors import RaftlogError
from raftlog.model import (
    EVERY_PRODUCER_ID,
    Acks,
    BrokerId,
    Incarnation,
    LeaderEpoch,
    Offset,
    PartitionEpoch,
    ProducerId,
    TopicPartition,
)
from raftlog.ports import Buffer
from raftlog.records.batch import BatchHeader, Control
from raftlog.transactions import TransactionKey

FIRST_OFFSET = Offset(0)

RequestId = NewType("RequestId", int)
"""The id of one waiting request within its driver; never reused."""

NO_REQUEST = RequestId(0)
"""The id for a batch without a waiting request."""


# --- Produces --------------------------------------------------------------------------------------------------------


class IncomingBatch(msgspec.Struct):
    """A producer's batch that passed the leader's check."""

    request: RequestId
    header: BatchHeader
    data: Buffer
    acks: Acks
    log_append_time_ms: int = -1
    """The wall clock at arrival, in milliseconds, if the topic uses the append time; else -1."""
    deadline: float = math.inf
    """The deadline of the producer's request, in monotonic seconds."""
    control: Control | None = None
    """The content of a marker. The leader itself writes markers, and no request waits for one."""
    resent: bool = False
    """Whether an earlier attempt may have been appended."""
    restored: bool = False
    """Whether the batch is from a backup and keeps its offset."""
    expected_end_offset: int = -1
    """The offset that the batch must get, or -1."""


class Acknowledge(msgspec.Struct):
    """The produce succeeded as far as its `acks` required."""

    request: RequestId
    base_offset: Offset
    log_append_time_ms: int = -1


class Reject(msgspec.Struct):
    """The produce failed, or its outcome is unknown here; the error says which."""

    request: RequestId
    error: RaftlogError


class RecordsDeleted(msgspec.Struct):
    """Every replica that may lead next has on disk that the log begins at `log_start_offset` or later."""

    request: RequestId
    log_start_offset: Offset


class Append(msgspec.Struct):
    """Stamp the batch and append it; perform `after` once everything below its end is stable."""

    leader_epoch: LeaderEpoch
    base_offset: Offset
    batch: IncomingBatch
    after: tuple[Acknowledge, ...] = ()


class WhenStable(msgspec.Struct):
    """Perform `after` once everything below `end_offset` is stable: for a resend of a batch that is not stable yet."""

    end_offset: Offset
    after: tuple[Acknowledge, ...]


class AbandonWrites(msgspec.Struct):
    """Reject everything that still waits in an `after` with this code: this leadership has ended."""

    code: str
    detail: str


# --- The log of a follower -------------------------------------------------------------------------------------------


class FetchedBatch(msgspec.Struct):
    """A batch as the leader pushed it, checked against its CRC."""

    header: BatchHeader
    data: Buffer
    control: Control | None = None
    """The content of a control batch."""


class AppendFetched(msgspec.Struct):
    """Append these batches; the core reports what became stable when it learns of that."""

    leader_epoch: LeaderEpoch
    batches: list[FetchedBatch]


class TruncateTo(msgspec.Struct):
    """Drop everything at or above the offset, then notify the core (`on_truncated`)."""

    leader_epoch: LeaderEpoch
    end_offset: Offset


class StartLogAt(msgspec.Struct):
    """Drop everything and continue, empty, at the offset; then notify the core (`on_truncated`)."""

    leader_epoch: LeaderEpoch
    offset: Offset
    greatest_producer_id: ProducerId = EVERY_PRODUCER_ID
    """The greatest producer id that wrote below the offset, as far as is known."""


class AdvanceLogStart(msgspec.Struct):
    """Move the log start here; a leader passes it on to its followers."""

    offset: Offset


# --- Between leader and follower -------------------------------------------------------------------------------------


class Subscribe(msgspec.Struct, frozen=True):
    """Subscribe to the leader's log from `fetch_offset` on, and send the end of this log for comparison.

    `last_epoch` and `fetch_offset` are (epoch, end) of the whole log; only `stable_end_offset` counts as replicated.
    """

    leader: BrokerId
    leader_incarnation: Incarnation
    leader_epoch: LeaderEpoch
    last_epoch: LeaderEpoch
    fetch_offset: Offset
    stable_end_offset: Offset
    stable_start_offset: Offset = FIRST_OFFSET


class FollowerPosition(msgspec.Struct, frozen=True):
    """A follower's subscription as the leader receives it: its epoch, (epoch, end) of the whole log, its stable end."""

    leader_epoch: LeaderEpoch
    last_epoch: LeaderEpoch
    fetch_offset: Offset
    stable_end_offset: Offset


class Unsubscribe(msgspec.Struct, frozen=True):
    """End the subscription: this broker no longer needs the log."""

    leader: BrokerId
    leader_epoch: LeaderEpoch


class ReportStable(msgspec.Struct):
    """Report to the leader how far this log is fsynced; may be merged with later reports."""

    leader_epoch: LeaderEpoch
    fetch_offset: Offset
    stable_end_offset: Offset
    stable_start_offset: Offset = FIRST_OFFSET
    """The start of this log as far as it is on disk."""


class Matched(msgspec.Struct):
    """The follower's log is a prefix of the leader's: batches follow, and its stable end counts."""

    high_watermark: Offset
    log_start_offset: Offset


class Diverged(msgspec.Struct, frozen=True):
    """The leader lacks the follower's last epoch, or has less of it.

    The answer carries the leader's greatest epoch up to that one, and its end. The follower truncates accordingly and
    subscribes again (KIP-101, KIP-279).
    """

    epoch: LeaderEpoch
    end_offset: Offset


class StartAt(msgspec.Struct, frozen=True):
    """Nothing of the follower's log can be compared: it starts over with the leader's batch that begins here.

    The log start may lie inside a batch; the follower receives it with the marks.
    """

    first_batch_offset: Offset
    greatest_producer_id: ProducerId = EVERY_PRODUCER_ID
    """An upper bound of the producer ids in the leader's log: a follower that starts in its middle misses them (S1)."""


class Refused(msgspec.Struct, frozen=True):
    """The leader has no data for this follower, or no longer; the code (of `raftlog.errors.CODES`) says why."""

    code: str


Answer: TypeAlias = Matched | Diverged | StartAt | Refused


class AnswerFollower(msgspec.Struct):
    """Pass this to the follower's subscription."""

    follower: BrokerId
    answer: Answer


class DropFollowers(msgspec.Struct):
    """End every subscription with this code: this replica no longer leads in the epoch."""

    code: str


class AdvanceHighWatermark(msgspec.Struct):
    """Pass the high watermark to the followers. If `exposed`, consumers may read up to it: serve waiting fetches."""

    high_watermark: Offset
    exposed: bool


# --- Transactions ----------------------------------------------------------------------------------------------------


class LookAtTransactions(msgspec.Struct):
    """Schedule a check of the open transactions (`LeaderTransactions.look`)."""


class MarkersWritten(msgspec.Struct):
    """For these commits, this partition has all markers below its high watermark, or needs none."""

    keys: tuple[TransactionKey, ...]


class TransactionsOverdue(msgspec.Struct):
    """These transactions have been open longer than their timeout, and should be aborted."""

    keys: tuple[TransactionKey, ...]


# --- The in-sync replicas --------------------------------------------------------------------------------------------


class IsrProposal(msgspec.Struct, frozen=True):
    """A leader's proposal to the quorum: make this the ISR if the partition is still at `partition_epoch`."""

    topic_partition: TopicPartition
    leader: BrokerId
    leader_incarnation: Incarnation
    leader_epoch: LeaderEpoch
    partition_epoch: PartitionEpoch
    isr: tuple[tuple[BrokerId, Incarnation], ...]
    """The members, sorted, each in the incarnation that the leader knows."""

    def __str__(self) -> str:
        members = ",".join(f"{broker}@{incarnation}" for broker, incarnation in self.isr)
        return (
            f"{self.topic_partition} isr={members} leader={self.leader}@{self.leader_incarnation} "
            f"epoch={self.leader_epoch} partition_epoch={self.partition_epoch}"
        )


class Fate(enum.Enum):
    """The outcome of a proposal."""

    ACCEPTED = "accepted"
    """Applied; the partition's new record is on its way."""
    REFUSED = "refused"
    """Certainly not applied, now or later."""
    UNKNOWN = "unknown"
    """It may still be applied."""


class ProposeIsr(msgspec.Struct):
    """Send the proposal to the quorum, and pass its fate to the core (`on_isr_answer`, with the same `attempt`)."""

    proposal: IsrProposal
    attempt: int


Effect: TypeAlias = (
    Acknowledge
    | Reject
    | RecordsDeleted
    | Append
    | WhenStable
    | AbandonWrites
    | AppendFetched
    | TruncateTo
    | StartLogAt
    | AdvanceLogStart
    | Subscribe
    | Unsubscribe
    | ReportStable
    | AnswerFollower
    | DropFollowers
    | AdvanceHighWatermark
    | LookAtTransactions
    | MarkersWritten
    | TransactionsOverdue
    | ProposeIsr
)
