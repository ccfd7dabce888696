"""What can be asked about transactions. One command carries many changes, each decided on its own and in order.

`Commit` is all there is to exactly-once: outputs of any number of producers, offsets of groups and named positions move
together in one entry, or not at all (S13). One that is larger than `MAX_CHANGE_BYTES` is staged: `StagePart` brings
pieces, which nobody acts on and nothing can alter, and `CommitStaged` names how many there are and their digest.

Sizes are bounded field by field, and the whole command by `MAX_CHANGES_BYTES`: its maker cuts it. Once it is released a
change never gains a field, and `change_transactions.1` never another kind of change: both would be a new command behind
a new feature level. `TRANSACTIONS_FEATURE_LEVEL` is the level from which these are proposed at all.
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
"""Of a command with several changes."""
MAX_CHANGE_BYTES = 64 * KIB
"""Of one change, some milliseconds of work: a larger commit is staged in pieces of this size."""
MAX_CHANGES = 500
MAX_PARTS = 64
"""Of a staged commit: four megabytes."""
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
    """A producer of this name begins: what an earlier one left undecided is aborted, and whoever still is one is
    fenced. Answered with the key of its first transaction. `now_ms`: the proposer's clock, for the expiry of names.

    `attempt`: which initialisation this is, where it can come twice: the repeated one is answered with the key of now,
    and changes nothing; it is refused (`producer_fenced`) where another one came in between.

    `after`: the last transaction that this producer had under the name. It is refused where another producer began
    since: who begins anew, for whatever reason, never fences its successor."""

    transactional_id: TransactionNameField
    timeout_ms: TimeoutField
    now_ms: NaturalField
    attempt: AttemptField | None = None
    after: Key | None = None


class OpenBlock(Part, frozen=True, tag="open_block"):
    """So many ids without a name, in a row; or those that the same `name` (empty: none) has already. Answered with the
    first one and their count."""

    name: BlockNameField
    count: Annotated[int, msgspec.Meta(ge=1, le=MAX_IDS_PER_BLOCK)]
    timeout_ms: TimeoutField


class RetireBlock(Part, frozen=True, tag="retire_block"):
    """Whatever is undecided in it is aborted for good. One that is not there (any more) is retired already."""

    name: TransactionNameField


# --- Ends ------------------------------------------------------------------------------------------------------------


class TopicEnds(Part, frozen=True):
    """Up to which offsets (exclusive) a transaction's records in partitions of one topic are meant; one for each."""

    topic_id: TopicIdField
    partitions: Annotated[tuple[PartitionField, ...], msgspec.Meta(max_length=MAX_PARTITIONS_PER_GROUP)]
    end_offsets: Annotated[tuple[OffsetField, ...], msgspec.Meta(max_length=MAX_PARTITIONS_PER_GROUP)]


class Output(Part, frozen=True):
    """What one transaction wrote. The same one may come in several pieces, each with other partitions."""

    producer_id: ProducerIdField
    producer_epoch: ProducerEpochField
    topics: Annotated[tuple[TopicEnds, ...], msgspec.Meta(max_length=MAX_OUTPUTS)]

    @property
    def key(self) -> TransactionKey:
        return TransactionKey(self.producer_id, self.producer_epoch)


class Move(Part, frozen=True):
    """A group's offset goes from `start` (-1: none is committed) to `end`. Refused unless it is at `start`."""

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
    """What one member of one group has consumed; no member id: of a group that has no members. The same fence as of an
    ordinary commit (`changes.Commit`), and beyond that every start must be the current offset."""

    group_id: GroupIdField
    member_id: NameField
    incarnation: NaturalField
    generation: NaturalField
    moves: Annotated[tuple[Move, ...], msgspec.Meta(max_length=MAX_PARTITIONS_PER_GROUP)]


class Position(Part, frozen=True):
    """A named counter goes from `current` (-1: there is none) up to `new`."""

    name: TransactionNameField
    current: StartField
    new: NaturalField


class Piece(Part, frozen=True):
    """A part of a staged commit."""

    outputs: Annotated[tuple[Output, ...], msgspec.Meta(max_length=MAX_OUTPUTS)]
    groups: Annotated[tuple[GroupMoves, ...], msgspec.Meta(max_length=MAX_GROUPS_PER_COMMIT)]


Positions: TypeAlias = Annotated[tuple[Position, ...], msgspec.Meta(max_length=MAX_POSITIONS_PER_COMMIT)]


class Commit(Part, frozen=True, tag="commit"):
    """All of it, or nothing. A refusal aborts what it names and is undecided, unless its reason is the request itself
    or a want of room. Its named producers go on in the next epoch; where one does not, the answer has the keys of all
    of them, in the order of `outputs`."""

    outputs: Annotated[tuple[Output, ...], msgspec.Meta(max_length=MAX_OUTPUTS)]
    groups: Annotated[tuple[GroupMoves, ...], msgspec.Meta(max_length=MAX_GROUPS_PER_COMMIT)]
    positions: Positions
    block: BlockNameField
    """Retired with it."""
    now_ms: NaturalField


class StagePart(Part, frozen=True, tag="stage_part"):
    """A piece of a commit to come (`Piece`, as bytes). The same one may come twice, another in its place never."""

    commit_id: CommitIdField
    number: Annotated[int, msgspec.Meta(ge=0, le=MAX_PARTS - 1)]
    piece: Annotated[bytes, msgspec.Meta(max_length=MAX_CHANGE_BYTES)]


class CommitStaged(Part, frozen=True, tag="commit_staged"):
    """Parts 0 to `parts` - 1 of this id, whose digest this is, as one `Commit`. They are dropped with the answer."""

    commit_id: CommitIdField
    parts: Annotated[int, msgspec.Meta(ge=1, le=MAX_PARTS)]
    digest: Annotated[bytes, msgspec.Meta(min_length=DIGEST_BYTES, max_length=DIGEST_BYTES)]
    positions: Positions
    block: BlockNameField
    now_ms: NaturalField


class Abort(Part, frozen=True, tag="abort"):
    """Those of them that are undecided are aborted; refused where one is not aborted then. Answered as `Commit` is."""

    keys: Keys
    now_ms: NaturalField


class AbortOverdue(Part, frozen=True, tag="abort_overdue"):
    """A leader finds them open for longer than they may be: presumed abort. What is decided stays decided."""

    keys: Keys


class Marked(Part, frozen=True, tag="marked"):
    """The leader of `leader_epoch` has what was decided about these below its high watermark: nobody needs to remember
    for this partition any more. Refused in another leader epoch, whose leader looks for itself."""

    topic_id: TopicIdField
    partition: PartitionField
    leader_epoch: LeaderEpochField
    keys: Keys

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic_id, self.partition)


# --- What is forgotten ------------------------------------------------------------------------------------------------


class ExpiredBlock(Part, frozen=True):
    """As it was at `changed`."""

    first: ProducerIdField
    changed: NaturalField


class ExpiredProducer(Part, frozen=True):
    """As it was in this epoch."""

    transactional_id: TransactionNameField
    producer_id: ProducerIdField
    producer_epoch: ProducerEpochField


class ExpiredParts(Part, frozen=True):
    """As they were when there were so many."""

    commit_id: CommitIdField
    parts: NaturalField


class RemovePosition(Part, frozen=True, tag="remove_position"):
    """A named counter that stands at `value` is forgotten. Nothing happens where there is none (any more)."""

    name: TransactionNameField
    value: NaturalField


class Expire(Part, frozen=True, tag="expire"):
    """What nobody has used for its time is forgotten, where it is still what it was. Commits that are not marked
    everywhere stay. `term`: refused in an entry of another one, because its maker was deposed."""

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
    """Answered by `TransactionsChanged`."""

    changes: Annotated[tuple[TransactionChange, ...], msgspec.Meta(max_length=MAX_CHANGES)]


# --- Pieces ----------------------------------------------------------------------------------------------------------

_encoder = msgspec.msgpack.Encoder()
_piece_decoder = msgspec.msgpack.Decoder(Piece)


def encode_piece(piece: Piece) -> bytes:
    return _encoder.encode(piece)


def decode_piece(packed: bytes) -> Piece | None:
    """None where these bytes are not a piece."""
    try:
        return _piece_decoder.decode(packed)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def digest_of(pieces: Iterable[bytes]) -> bytes:
    """Of all of them in their order; their lengths count, so that no other cut has the same one."""
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(len(piece).to_bytes(8, "big"))
        digest.update(piece)
    return digest.digest()
