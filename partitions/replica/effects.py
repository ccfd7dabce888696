"""What the cores of a replica ask of their shell: one small class an effect, performed in the order given.

Order is data. What must wait for the disk travels inside the effect that writes (`Append.after`, `WhenStable.after`):
the shell cannot answer early, because what it holds before the fsync is a write, not an answer. What must wait for
other replicas is not given out at all until it is due.

Answers of the leader to a follower (`Answer`) and the proposal of an ISR (`IsrProposal`) are here as well: they are
what effects carry. `partitions/driver/driver.py` performs effects; nobody else does.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from typing import NewType, TypeAlias

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
"""Names one waiting produce within its driver. Never used again."""

NO_REQUEST = RequestId(0)
"""Of a batch that nobody waits for."""


# --- Produces --------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class IncomingBatch:
    """A producer's batch that passed the leader's check."""

    request: RequestId
    header: BatchHeader
    data: Buffer
    acks: Acks
    log_append_time_ms: int = -1
    """The wall clock at its arrival, where the topic stamps the time of append; else -1."""
    deadline: float = math.inf
    """Until when whoever sent it waits for an answer, in monotonic seconds."""
    control: Control | None = None
    """What a marker says, which the leader itself makes; nobody waits for it."""
    resent: bool = False
    """An earlier attempt may have been appended."""


@dataclass(slots=True)
class Acknowledge:
    """The produce succeeded as far as its `acks` asked."""

    request: RequestId
    base_offset: Offset
    log_append_time_ms: int = -1


@dataclass(slots=True)
class Reject:
    """The produce failed, or its outcome will not be known here: the error tells which."""

    request: RequestId
    error: RaftlogError


@dataclass(slots=True)
class RecordsDeleted:
    """Everybody who may lead next has on disk that the log begins at `log_start_offset`, or later."""

    request: RequestId
    log_start_offset: Offset


@dataclass(slots=True)
class Append:
    """Stamp the batch and append it; perform `after` once everything below its end is stable."""

    leader_epoch: LeaderEpoch
    base_offset: Offset
    batch: IncomingBatch
    after: tuple[Acknowledge, ...] = ()


@dataclass(slots=True)
class WhenStable:
    """Perform `after` once everything below `end_offset` is stable: a resend of a batch that is not yet."""

    end_offset: Offset
    after: tuple[Acknowledge, ...]


@dataclass(slots=True)
class AbandonWrites:
    """Whatever still waits in an `after` is rejected with this code instead: this leadership is over."""

    code: str
    detail: str


# --- The log of a follower -------------------------------------------------------------------------------------------


@dataclass(slots=True)
class FetchedBatch:
    """A batch as the leader pushed it, checked against its CRC."""

    header: BatchHeader
    data: Buffer
    control: Control | None = None
    """What a control batch says."""


@dataclass(slots=True)
class AppendFetched:
    """Append these; what became stable is reported by the core when it is told of it."""

    leader_epoch: LeaderEpoch
    batches: list[FetchedBatch]


@dataclass(slots=True)
class TruncateTo:
    """Drop what lies at or above the offset, then tell the core (`on_truncated`)."""

    leader_epoch: LeaderEpoch
    end_offset: Offset


@dataclass(slots=True)
class StartLogAt:
    """Drop everything and go on, empty, at the offset; then tell the core (`on_truncated`)."""

    leader_epoch: LeaderEpoch
    offset: Offset
    greatest_producer_id: ProducerId = EVERY_PRODUCER_ID
    """Of those who wrote below, as far as is known."""


@dataclass(slots=True)
class AdvanceLogStart:
    """The leader's log begins here now: at a leader its followers are told."""

    offset: Offset


# --- Between leader and follower -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Subscribe:
    """Ask the leader for its log from `fetch_offset` on, and tell it where ours ends, for it to compare.

    `last_epoch` and `fetch_offset` are (epoch, end) of the whole log; only `stable_end_offset` counts as ours.
    """

    leader: BrokerId
    leader_incarnation: Incarnation
    leader_epoch: LeaderEpoch
    last_epoch: LeaderEpoch
    fetch_offset: Offset
    stable_end_offset: Offset
    stable_start_offset: Offset = FIRST_OFFSET


@dataclass(frozen=True, slots=True)
class FollowerPosition:
    """Its content as the leader hears it: the epoch asked in, (epoch, end) of the whole log, and its stable end."""

    leader_epoch: LeaderEpoch
    last_epoch: LeaderEpoch
    fetch_offset: Offset
    stable_end_offset: Offset


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    """This broker's log is no longer of interest."""

    leader: BrokerId
    leader_epoch: LeaderEpoch


@dataclass(slots=True)
class ReportStable:
    """Tell the leader how far our log is fsynced; may be merged with later ones."""

    leader_epoch: LeaderEpoch
    fetch_offset: Offset
    stable_end_offset: Offset
    stable_start_offset: Offset = FIRST_OFFSET
    """Where our log begins, as far as our disk knows."""


@dataclass(slots=True)
class Matched:
    """The follower's log is a prefix of the leader's: batches follow, and its stable end counts from now on."""

    high_watermark: Offset
    log_start_offset: Offset


@dataclass(frozen=True, slots=True)
class Diverged:
    """The leader has nothing of the follower's last epoch, or less of it: its greatest epoch up to that one, and where
    it ends. The follower truncates by it and asks again (KIP-101, KIP-279)."""

    epoch: LeaderEpoch
    end_offset: Offset


@dataclass(frozen=True, slots=True)
class StartAt:
    """Nothing of the follower's log can be compared: it begins anew with the batch of the leader's that begins here.
    (The log start may lie inside a batch; the follower hears of it with the marks.)"""

    first_batch_offset: Offset
    greatest_producer_id: ProducerId = EVERY_PRODUCER_ID
    """Nobody with a greater id wrote to the leader's log: whoever begins in the middle of it has not seen them (S1)."""


@dataclass(frozen=True, slots=True)
class Refused:
    """No data for this follower now, or no longer; the code (of `raftlog.errors.CODES`) says why."""

    code: str


Answer: TypeAlias = Matched | Diverged | StartAt | Refused


@dataclass(slots=True)
class AnswerFollower:
    """Pass this to the follower's subscription."""

    follower: BrokerId
    answer: Answer


@dataclass(slots=True)
class DropFollowers:
    """This replica leads no longer (or another epoch): every subscription ends with this code."""

    code: str


@dataclass(slots=True)
class AdvanceHighWatermark:
    """Followers are told. `exposed`: consumers may read up to it, so waiting fetches look again."""

    high_watermark: Offset
    exposed: bool


# --- Transactions ----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class LookAtTransactions:
    """Ask the leader soon, again, what became of what is open (`LeaderTransactions.look`)."""


@dataclass(slots=True)
class MarkersWritten:
    """What these commits say of this partition is below its high watermark, or there is nothing to be said."""

    keys: tuple[TransactionKey, ...]


@dataclass(slots=True)
class TransactionsOverdue:
    """Open for longer than they may be: somebody should abort them."""

    keys: tuple[TransactionKey, ...]


# --- The in-sync replicas --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class IsrProposal:
    """A leader asks the quorum to make this the ISR, if the partition is still at `partition_epoch`."""

    topic_partition: TopicPartition
    leader: BrokerId
    leader_incarnation: Incarnation
    leader_epoch: LeaderEpoch
    partition_epoch: PartitionEpoch
    isr: tuple[tuple[BrokerId, Incarnation], ...]
    """Sorted; each member in the incarnation that its leader knows."""

    def __str__(self) -> str:
        members = ",".join(f"{broker}@{incarnation}" for broker, incarnation in self.isr)
        return (
            f"{self.topic_partition} isr={members} leader={self.leader}@{self.leader_incarnation} "
            f"epoch={self.leader_epoch} partition_epoch={self.partition_epoch}"
        )


class Fate(enum.Enum):
    """What became of a proposal."""

    ACCEPTED = "accepted"
    """Applied; the partition's new record is on its way."""
    REFUSED = "refused"
    """Certainly not applied, and it never will be."""
    UNKNOWN = "unknown"
    """It may still be applied."""


@dataclass(slots=True)
class ProposeIsr:
    """Bring it to the quorum and tell the core its fate (`on_isr_answer`, with the same `attempt`)."""

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
