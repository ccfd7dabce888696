"""Commands about transactions. One command carries many changes, each decided on its own and in order.

`Commit` is all there is to exactly-once: outputs of any number of producers, offsets of groups and named positions move
together in one entry, or not at all (S13). A commit larger than `MAX_CHANGE_BYTES` is staged: `StagePart` brings
pieces, which have no effect and cannot be altered, and `CommitStaged` names their number and digest.

Sizes are bounded field by field, and the whole command by `MAX_CHANGES_BYTES`: its proposer splits it. Once released a
change never gains a field, and `change_transactions.1` never another kind of change: both would be a new command behind
a new feature level. `TRANSACTIONS_FEATURE_LEVEL` is the level from which these commands may be proposed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Annotated, TypeAlias

import msgspec

from metadata.records.transactions import ATTEMPT_BYTES
from raftlog.config import KIB
from raftlog.model import Offset, ProducerEpoch, ProducerId, TopicPartition
from raftlog.transactions import TransactionKey

from .fields import LeaderEpochField, NaturalField, Part, PartitionField, TextField, TopicIdField
from .groups import MAX_PARTITIONS_PER_GROUP, EpochField, GroupIdField, NameField

TRANSACTIONS_FEATURE_LEVEL = 3

MAX_CHANGES_BYTES = 128 * KIB
"""The size of a command with several changes, in bytes."""
MAX_CHANGE_BYTES = 64 * KIB
"""The size of one change, in bytes, some milliseconds of work: a larger commit is staged in pieces of this size."""
MAX_CHANGES = 500
MAX_PARTS = 64
"""The most parts of a staged commit: four megabytes."""
MAX_OUTPUTS = 10_000
"""In one change."""
MAX_KEYS = 5_000
"""In one change."""
MAX_EXPIRED = 256
MAX_POSITIONS_PER_COMMIT = 100
MAX_GROUPS_PER_COMMIT = 100
MAX_IDS_PER_BLOCK = 100_000
MIN_TIMEOUT_MS = 100
MAX_TIMEOUT_MS = 3_600_000
MAX_TRANSACTION_NAME = 512
COMMIT_ID_BYTES = 16
DIGEST_BYTES = 32

ProducerIdField: TypeAlias = Annotated[ProducerId, msgspec.Meta(ge=0, le=2**62)]
ProducerEpochField: TypeAlias = Annotated[ProducerEpoch, msgspec.Meta(ge=0, le=2**15 - 1)]
OffsetField: TypeAlias = Annotated[Offset, msgspec.Meta(ge=0, le=2**62)]
StartField: TypeAlias = Annotated[int, msgspec.Meta(ge=-1, le=2**62)]
TimeoutField: TypeAlias = Annotated[int, msgspec.Meta(ge=MIN_TIMEOUT_MS, le=MAX_TIMEOUT_MS)]
TransactionNameField: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_TRANSACTION_NAME)]
BlockNameField: TypeAlias = Annotated[str, msgspec.Meta(max_length=MAX_TRANSACTION_NAME)]
CommitIdField: TypeAlias = Annotated[bytes, msgspec.Meta(min_length=COMMIT_ID_BYTES, max_length=COMMIT_ID_BYTES)]
AttemptField: TypeAlias = Annotated[bytes, msgspec.Meta(min_length=ATTEMPT_BYTES, max_length=ATTEMPT_BYTES)]


class Key(Part, frozen=True):
    """A `TransactionKey` as it travels."""

    producer_id: ProducerIdField
    producer_epoch: ProducerEpochField

    @property
    def key(self) -> TransactionKey:
        return TransactionKey(self.producer_id, self.producer_epoch)


Keys: TypeAlias = Annotated[tuple[Key, ...], msgspec.Meta(max_length=MAX_KEYS)]


def pack_keys(keys: Iterable[TransactionKey]) -> tuple[Key, ...]:
    return tuple(Key(*key) for key in keys)


# --- Producers -------------------------------------------------------------------------------------------------------


class Initialize(Part, frozen=True, tag="initialize"):
    """A producer of this name begins: what an earlier one left undecided is aborted, and earlier producers are fenced.

    Answered with the key of its first transaction. `now_ms`: the proposer's clock, for the expiry of names.

    `attempt` identifies the initialisation if it can be retried: a retry is answered with the current key and changes
    nothing; it is refused (`producer_fenced`) if another initialisation came in between.

    `after`: the last transaction that this producer had under the name. The change is refused if another producer began
    since: a producer that reinitialises, for whatever reason, never fences its successor.
    """

    transactional_id: TransactionNameField
    timeout_ms: TimeoutField
    now_ms: NaturalField
    attempt: AttemptField | None = None
    after: Key | None = None


class OpenBlock(Part, frozen=True, tag="open_block"):
    """Opens a block of `count` consecutive ids without a name, or finds the block that `name` (empty: none) already
    has.

    Answered with the first id and their count.
    """

    name: BlockNameField
    count: Annotated[int, msgspec.Meta(ge=1, le=MAX_IDS_PER_BLOCK)]
    timeout_ms: TimeoutField


class RetireBlock(Part, frozen=True, tag="retire_block"):
    """Retires a block: its undecided ids are aborted permanently. A missing block counts as retired."""

    name: TransactionNameField


# --- Ends ------------------------------------------------------------------------------------------------------------


class TopicEnds(Part, frozen=True):
    """The end offsets (exclusive) of a transaction's records in partitions of one topic, one for each partition."""

    topic_id: TopicIdField
    partitions: Annotated[tuple[PartitionField, ...], msgspec.Meta(max_length=MAX_PARTITIONS_PER_GROUP)]
    end_offsets: Annotated[tuple[OffsetField, ...], msgspec.Meta(max_length=MAX_PARTITIONS_PER_GROUP)]


class Output(Part, frozen=True):
    """The output of one transaction. It may come in several pieces, each with other partitions."""

    producer_id: ProducerIdField
    producer_epoch: ProducerEpochField
    topics: Annotated[tuple[TopicEnds, ...], msgspec.Meta(max_length=MAX_OUTPUTS)]

    @property
    def key(self) -> TransactionKey:
        return TransactionKey(self.producer_id, self.producer_epoch)


class Move(Part, frozen=True):
    """A move of a group's offset from `start` (-1: none is committed) to `end`. Refused unless it is at `start`."""

    topic_id: TopicIdField
    partition: PartitionField
    start: StartField
    end: OffsetField
    leader_epoch: EpochField = -1
    metadata: TextField = ""

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic_id, self.partition)


class GroupMoves(Part, frozen=True):
    """The offsets consumed by one member of one group; without a member id: of a group that has no members.

    The fence of an ordinary commit (`changes.Commit`) applies, and in addition every start must be the current offset.
    """

    group_id: GroupIdField
    member_id: NameField
    incarnation: NaturalField
    generation: NaturalField
    moves: Annotated[tuple[Move, ...], msgspec.Meta(max_length=MAX_PARTITIONS_PER_GROUP)]


class Position(Part, frozen=True):
    """A named counter that rises from `current` (-1: there is none) to `new`."""

    name: TransactionNameField
    current: StartField
    new: NaturalField


class Piece(Part, frozen=True):
    """A part of a staged commit."""

    outputs: Annotated[tuple[Output, ...], msgspec.Meta(max_length=MAX_OUTPUTS)]
    groups: Annotated[tuple[GroupMoves, ...], msgspec.Meta(max_length=MAX_GROUPS_PER_COMMIT)]


Positions: TypeAlias = Annotated[tuple[Position, ...], msgspec.Meta(max_length=MAX_POSITIONS_PER_COMMIT)]


class Commit(Part, frozen=True, tag="commit"):
    """A commit, all of it or nothing.

    A refusal aborts the undecided transactions that it names, because the attempt is over and they would only hold up
    readers until their timeout. A refusal for the form of the request or for lack of room changes nothing: it can be
    retried.

    Its named producers continue in the next epoch; if one does not, the answer has the keys of all of them, in the
    order of `outputs`.
    """

    outputs: Annotated[tuple[Output, ...], msgspec.Meta(max_length=MAX_OUTPUTS)]
    groups: Annotated[tuple[GroupMoves, ...], msgspec.Meta(max_length=MAX_GROUPS_PER_COMMIT)]
    positions: Positions
    block: BlockNameField
    """The block that is retired with the commit."""
    now_ms: NaturalField


class StagePart(Part, frozen=True, tag="stage_part"):
    """Stages a piece of a commit (`Piece`, as bytes). The same piece may come twice, a different one in its place
    never.
    """

    commit_id: CommitIdField
    number: Annotated[int, msgspec.Meta(ge=0, le=MAX_PARTS - 1)]
    piece: Annotated[bytes, msgspec.Meta(max_length=MAX_CHANGE_BYTES)]


class CommitStaged(Part, frozen=True, tag="commit_staged"):
    """Commits parts 0 to `parts` - 1 of this id, with this digest, as one `Commit`; the answer drops them."""

    commit_id: CommitIdField
    parts: Annotated[int, msgspec.Meta(ge=1, le=MAX_PARTS)]
    digest: Annotated[bytes, msgspec.Meta(min_length=DIGEST_BYTES, max_length=DIGEST_BYTES)]
    positions: Positions
    block: BlockNameField
    now_ms: NaturalField


class Abort(Part, frozen=True, tag="abort"):
    """Aborts the undecided ones of these transactions; refused if one is not aborted then. Answered as `Commit` is."""

    keys: Keys
    now_ms: NaturalField


class AbortOverdue(Part, frozen=True, tag="abort_overdue"):
    """Aborts transactions that a leader finds open beyond their timeout: presumed abort. Decided ones are unchanged."""

    keys: Keys


class Marked(Part, frozen=True, tag="marked"):
    """Reports that the leader of `leader_epoch` has the outcome of these below its high watermark.

    The ends in this partition can then be dropped. Refused in another leader epoch, whose leader checks for itself.
    """

    topic_id: TopicIdField
    partition: PartitionField
    leader_epoch: LeaderEpochField
    keys: Keys

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic_id, self.partition)


# --- What is forgotten ------------------------------------------------------------------------------------------------


class ExpiredBlock(Part, frozen=True):
    """A block to expire, as it was at `changed`."""

    first: ProducerIdField
    changed: NaturalField


class ExpiredProducer(Part, frozen=True):
    """A producer to expire, as it was in this epoch."""

    transactional_id: TransactionNameField
    producer_id: ProducerIdField
    producer_epoch: ProducerEpochField


class ExpiredParts(Part, frozen=True):
    """The staged parts to expire, if there are still `count` of them."""

    commit_id: CommitIdField
    parts: NaturalField


class RemovePosition(Part, frozen=True, tag="remove_position"):
    """Removes a named counter that stands at `value`. A missing counter is no error."""

    name: TransactionNameField
    value: NaturalField


class Expire(Part, frozen=True, tag="expire"):
    """Expires unused records that have not changed. Commits that are not marked everywhere stay.

    `term`: refused in an entry of another term, because its proposer was deposed.
    """

    term: NaturalField
    blocks: Annotated[tuple[ExpiredBlock, ...], msgspec.Meta(max_length=MAX_EXPIRED)]
    producers: Annotated[tuple[ExpiredProducer, ...], msgspec.Meta(max_length=MAX_EXPIRED)]
    parts: Annotated[tuple[ExpiredParts, ...], msgspec.Meta(max_length=MAX_EXPIRED)]


TransactionChange: TypeAlias = (
    Commit
    | Abort
    | Marked
    | Initialize
    | OpenBlock
    | RetireBlock
    | AbortOverdue
    | StagePart
    | CommitStaged
    | Expire
    | RemovePosition
)


class ChangeTransactions(Part, frozen=True, tag="change_transactions.1"):
    """Changes of transactions, in order. Answered by `TransactionsChanged`."""

    changes: Annotated[tuple[TransactionChange, ...], msgspec.Meta(max_length=MAX_CHANGES)]


# --- Pieces ----------------------------------------------------------------------------------------------------------

_encoder = msgspec.msgpack.Encoder()
_piece_decoder = msgspec.msgpack.Decoder(Piece)


def encode_piece(piece: Piece) -> bytes:
    return _encoder.encode(piece)


def decode_piece(packed: bytes) -> Piece | None:
    """Decode a piece; None if the bytes are not one."""
    try:
        return _piece_decoder.decode(packed)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def digest_of(pieces: Iterable[bytes]) -> bytes:
    """Return the digest of the pieces in order; lengths are included, so that no other split has the same digest."""
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(len(piece).to_bytes(8, "big"))
        digest.update(piece)
    return digest.digest()
