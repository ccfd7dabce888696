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

from raftlog.config import KIB
from raftlog.model import ProducerEpoch, ProducerId
from raftlog.transactions import ATTEMPT_BYTES, TransactionKey
from raftlog.wire import (
    MAX_GROUPS_PER_COMMIT,
    MAX_OUTPUTS,
    MAX_POSITIONS_PER_COMMIT,
    MAX_TRANSACTION_NAME,
    GroupMoves,
    PositionMove,
    TransactionName,
    TransactionOutput,
)

from .fields import LeaderEpochField, NaturalField, OfPartition, PrincipalField, WireStruct

TRANSACTIONS_FEATURE_LEVEL = 3

MAX_CHANGES_BYTES = 128 * KIB
"""The size of a command with several changes, in bytes."""
MAX_CHANGE_BYTES = 64 * KIB
"""The size of one change, in bytes, some milliseconds of work: a larger commit is staged in pieces of this size."""
MAX_CHANGES = 500
MAX_PARTS = 64
"""The most parts of a staged commit: four megabytes."""
MAX_KEYS = 5_000
"""In one change."""
MAX_EXPIRED = 256
MAX_IDS_PER_BLOCK = 100_000
MIN_TIMEOUT_MS = 100
MAX_TIMEOUT_MS = 3_600_000
COMMIT_ID_BYTES = 16
DIGEST_BYTES = 32

ProducerIdField: TypeAlias = Annotated[ProducerId, msgspec.Meta(ge=0, le=2**62)]
ProducerEpochField: TypeAlias = Annotated[ProducerEpoch, msgspec.Meta(ge=0, le=2**15 - 1)]
TimeoutField: TypeAlias = Annotated[int, msgspec.Meta(ge=MIN_TIMEOUT_MS, le=MAX_TIMEOUT_MS)]
BlockNameField: TypeAlias = Annotated[str, msgspec.Meta(max_length=MAX_TRANSACTION_NAME)]
CommitIdField: TypeAlias = Annotated[bytes, msgspec.Meta(min_length=COMMIT_ID_BYTES, max_length=COMMIT_ID_BYTES)]
AttemptField: TypeAlias = Annotated[bytes, msgspec.Meta(min_length=ATTEMPT_BYTES, max_length=ATTEMPT_BYTES)]


Keys: TypeAlias = Annotated[tuple[TransactionKey, ...], msgspec.Meta(max_length=MAX_KEYS)]


# --- Producers -------------------------------------------------------------------------------------------------------


class Initialize(WireStruct, frozen=True, tag="initialize"):
    """A producer of this name begins: what an earlier one left undecided is aborted, and earlier producers are fenced.

    Answered with the key of its first transaction. `now_ms`: the proposer's clock, for the expiry of names.

    `attempt` identifies the initialization if it can be retried: a retry is answered with the current key and changes
    nothing; it is refused (`producer_fenced`) if another initialization came in between.

    `after`: the last transaction that this producer had under the name. The change is refused if another producer began
    since: a producer that reinitializes, for whatever reason, never fences its successor.
    """

    transactional_id: TransactionName
    timeout_ms: TimeoutField
    now_ms: NaturalField
    attempt: AttemptField | None = None
    after: TransactionKey | None = None


class OpenBlock(WireStruct, frozen=True, tag="open_block"):
    """Opens a block of `count` consecutive ids without a name, or finds the block that `name` (empty: none) already
    has.

    Answered with the first id and their count.
    """

    name: BlockNameField
    count: Annotated[int, msgspec.Meta(ge=1, le=MAX_IDS_PER_BLOCK)]
    timeout_ms: TimeoutField


class RetireBlock(WireStruct, frozen=True, tag="retire_block"):
    """Retires a block: its undecided ids are aborted permanently. A missing block counts as retired."""

    name: TransactionName


# --- Ends ------------------------------------------------------------------------------------------------------------


class Piece(WireStruct, frozen=True):
    """A part of a staged commit."""

    outputs: Annotated[tuple[TransactionOutput, ...], msgspec.Meta(max_length=MAX_OUTPUTS)]
    groups: Annotated[tuple[GroupMoves, ...], msgspec.Meta(max_length=MAX_GROUPS_PER_COMMIT)]


Positions: TypeAlias = Annotated[tuple[PositionMove, ...], msgspec.Meta(max_length=MAX_POSITIONS_PER_COMMIT)]


class Commit(WireStruct, frozen=True, tag="commit"):
    """A commit, all of it or nothing.

    A refusal aborts the undecided transactions that it names, because the attempt has ended and they would only hold up
    readers until their timeout. A refusal for the form of the request or for lack of room changes nothing: it can be
    retried.

    Its named producers continue in the next epoch; if one does not, the answer has the keys of all of them, in the
    order of `outputs`.
    """

    outputs: Annotated[tuple[TransactionOutput, ...], msgspec.Meta(max_length=MAX_OUTPUTS)]
    groups: Annotated[tuple[GroupMoves, ...], msgspec.Meta(max_length=MAX_GROUPS_PER_COMMIT)]
    positions: Positions
    block: BlockNameField
    """The block that is retired with the commit."""
    now_ms: NaturalField


class StagePart(WireStruct, frozen=True, tag="stage_part"):
    """Stages a piece of a commit (`Piece`, as bytes). The same piece may come twice, a different one in its place
    never.
    """

    commit_id: CommitIdField
    number: Annotated[int, msgspec.Meta(ge=0, le=MAX_PARTS - 1)]
    piece: Annotated[bytes, msgspec.Meta(max_length=MAX_CHANGE_BYTES)]


class CommitStaged(WireStruct, frozen=True, tag="commit_staged"):
    """Commits parts 0 to `parts` - 1 of this id, with this digest, as one `Commit`; the answer drops them."""

    commit_id: CommitIdField
    parts: Annotated[int, msgspec.Meta(ge=1, le=MAX_PARTS)]
    digest: Annotated[bytes, msgspec.Meta(min_length=DIGEST_BYTES, max_length=DIGEST_BYTES)]
    positions: Positions
    block: BlockNameField
    now_ms: NaturalField


class Abort(WireStruct, frozen=True, tag="abort"):
    """Aborts the undecided ones of these transactions; refused if one is not aborted then. Answered as `Commit` is."""

    keys: Keys
    now_ms: NaturalField


class AbortOverdue(WireStruct, frozen=True, tag="abort_overdue"):
    """Aborts transactions that a leader finds open beyond their timeout: presumed abort. Decided ones are unchanged."""

    keys: Keys


class Marked(OfPartition, frozen=True, tag="marked"):
    """Reports that the leader of `leader_epoch` has the outcome of these below its high watermark.

    The ends in this partition can then be dropped. Refused in another leader epoch, whose leader checks for itself.
    """

    leader_epoch: LeaderEpochField
    keys: Keys


# --- What is forgotten ------------------------------------------------------------------------------------------------


class ExpiredBlock(WireStruct, frozen=True):
    """A block to expire, as it was at `changed`."""

    first: ProducerIdField
    changed: NaturalField


class ExpiredProducer(WireStruct, frozen=True):
    """A producer to expire, as it was in this epoch."""

    transactional_id: TransactionName
    producer_id: ProducerIdField
    producer_epoch: ProducerEpochField


class ExpiredParts(WireStruct, frozen=True):
    """The staged parts to expire, if there are still `count` of them."""

    commit_id: CommitIdField
    parts: NaturalField


class RemovePosition(WireStruct, frozen=True, tag="remove_position"):
    """Removes a named counter whose value is `value`. A missing counter is not an error."""

    name: TransactionName
    value: NaturalField


class Expire(WireStruct, frozen=True, tag="expire"):
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


class ChangeTransactions(WireStruct, frozen=True, tag="change_transactions.1"):
    """Changes of transactions, in order. Answered by `TransactionsChanged`."""

    changes: Annotated[tuple[TransactionChange, ...], msgspec.Meta(max_length=MAX_CHANGES)]


class ChangeTransactionsAs(ChangeTransactions, frozen=True, tag="change_transactions.2"):
    """The same, with the principal of each change (empty: none), to which belongs what the change makes.

    Needs `SECURITY_FEATURE_LEVEL`.
    """

    principals: Annotated[tuple[PrincipalField, ...], msgspec.Meta(max_length=MAX_CHANGES)]


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
