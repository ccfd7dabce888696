"""The decision about a commit: everything is checked before anything is written, and then all of it is (S13, S8).

The order is this, because the first answer must be the last one, too:

1. The request itself, and whether there is room: an impossible request is refused, and nothing is changed (S11).
2. Named **positions**: if one is taken, its output was published before. If by this very commit, the retry gets its
   first answer; otherwise its undecided transactions are aborted.
3. Every **transaction** must be undecided. If all of them are committed, this is a retry: the first answer.
4. Every named partition must exist.
5. Every **group offset** must be its member's to commit, and be where the transaction says that it began: a consumer
   that was overtaken has read records that its successor reads again, and must not publish them (R5).

A refusal of 2 to 5 aborts the commit's undecided transactions and retires its block: no reader waits for them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator, Mapping
from itertools import islice

import msgspec

from metadata.commands.results import Refused
from metadata.commands.transactions import Commit, CommitStaged, Piece, decode_piece, digest_of
from metadata.records.events import EndsCommitted, PositionMoved
from metadata.records.groups import CommittedOffset
from metadata.records.owners import Owned
from metadata.records.transactions import Standing
from raftlog.model import Offset, TopicPartition
from raftlog.transactions import Outcome, TransactionKey
from raftlog.wire import GroupMoves, PositionMove, TransactionOutput

from . import groups
from .image import ClusterImage
from .shares import own, refuse_offsets, refuse_records
from .transaction_ends import KEYS_PER_STEP, Decision, abort_undecided, describe, end_all, retire_block, told_after

MAX_KEYS_PER_COMMIT = 100_000
MAX_ENDS_PER_COMMIT = 200_000
MAX_ENDS = 400_000
"""The most ends not marked yet, of all commits: every node keeps them in memory and in every snapshot."""
MAX_MOVES_PER_COMMIT = 10_000
"""The most moves of group offsets in one commit."""
MAX_POSITIONS = 100_000
MAX_NAMED_PER_COMMIT = 100
"""The most named producers in one commit: the answer, kept for retries, has a key for each of them."""
OFFSETS_PER_STEP = 2_000
"""The offsets handled in one step: some milliseconds of work."""
ENDS_PER_EVENT = 250
"""Offsets in one `EndsCommitted`: a consumer that applies a fixed number of events at a time does this much work for
each.
"""


class _Wanted:
    """A commit with its pieces merged."""

    def __init__(self, change: Commit | CommitStaged, now_ms: int, principal: str) -> None:
        self.principal = principal
        self.positions: tuple[PositionMove, ...] = change.positions
        self.block = change.block
        self.now_ms = now_ms
        self.keys: dict[TransactionKey, None] = {}
        self.ends: dict[TopicPartition, dict[TransactionKey, Offset]] = {}
        self.end_count = 0
        self.moves: dict[str, GroupMoves] = {}
        self.move_count = 0
        self._folded = 0

    def fold(self, piece: Piece | Commit) -> Generator[None, None, Refused | None]:
        """Merge one more piece."""
        for output in piece.outputs:
            refused = self._fold_output(output)
            if refused is not None:
                return refused
            if self._folded >= OFFSETS_PER_STEP:
                self._folded = 0
                yield
        for group in piece.groups:
            refused = self._fold_group(group)
            if refused is not None:
                return refused
        return None

    def _fold_output(self, output: TransactionOutput) -> Refused | None:
        key = output.key
        self.keys[key] = None
        self._folded += 1
        if len(self.keys) > MAX_KEYS_PER_COMMIT:
            return Refused("transaction_too_large", f"a commit is of {MAX_KEYS_PER_COMMIT} transactions at most")
        for topic in output.topics:
            if len(topic.partitions) != len(topic.end_offsets):
                return _malformed(f"{describe(key)} does not name one offset for each partition")
            self._folded += len(topic.partitions)
            self.end_count += len(topic.partitions)
            if self.end_count > MAX_ENDS_PER_COMMIT:
                return Refused("transaction_too_large", f"a commit names {MAX_ENDS_PER_COMMIT} ends at most")
            for number, end_offset in zip(topic.partitions, topic.end_offsets, strict=True):
                named = self.ends.setdefault(TopicPartition(topic.topic_id, number), {})
                if key in named:
                    return _malformed(f"{describe(key)} names a partition twice")
                named[key] = end_offset
        return None

    def _fold_group(self, group: GroupMoves) -> Refused | None:
        self.move_count += len(group.moves)
        if self.move_count > MAX_MOVES_PER_COMMIT:
            return Refused("transaction_too_large", f"a commit moves {MAX_MOVES_PER_COMMIT} offsets of groups at most")
        known = self.moves.get(group.group_id)
        if known is None:
            self.moves[group.group_id] = group
            return None
        speaker = (group.member_id, group.incarnation, group.generation)
        if speaker != (known.member_id, known.incarnation, known.generation):
            return _malformed(f"two members speak for group {group.group_id!r}")
        self.moves[group.group_id] = msgspec.structs.replace(known, moves=(*known.moves, *group.moves))
        return None


def commit(state: ClusterImage, change: Commit | CommitStaged, index: int, principal: str) -> Decision:
    """Decide one commit of a principal, in steps."""
    wanted = _Wanted(change, state.stamp_ms(change.now_ms), principal)
    pieces: list[bytes] = []
    if isinstance(change, CommitStaged):
        staged = _take_parts(state, change)
        if isinstance(staged, Refused):
            return staged
        pieces = staged
    else:
        refused = yield from wanted.fold(change)
        if refused is not None:
            return refused
    for packed in pieces:
        yield
        piece = decode_piece(packed)
        assert piece is not None, "it was read when it came"
        refused = yield from wanted.fold(piece)
        if refused is not None:
            return refused
    return (yield from _decide(state, wanted, index))


def _take_parts(state: ClusterImage, change: CommitStaged) -> list[bytes] | Refused:
    """Take and drop the staged parts, whatever the answer will be."""
    parts = state.transactions.parts.get(change.commit_id, {})
    if sorted(parts) != list(range(change.parts)):
        # The parts expired or were used up: nothing is committed, and they can be staged again.
        return Refused("overloaded", f"{len(parts)} parts of this commit are there, not {change.parts}")
    pieces = [parts[number] for number in range(change.parts)]
    state.transactions.drop_parts(change.commit_id)
    if digest_of(pieces) != change.digest:
        return _malformed("the parts of this commit are not those that its digest is of")
    return pieces


def _decide(state: ClusterImage, wanted: _Wanted, index: int) -> Decision:
    refused = _cannot_be(wanted)
    if refused is not None:
        return refused
    named = 0
    standings: dict[TransactionKey, Standing] = {}
    for number, key in enumerate(wanted.keys, 1):
        standings[key] = state.transactions.standing(key)
        named += state.transactions.producer_of(key.producer_id) is not None
        if number % KEYS_PER_STEP == 0:
            yield
    if named > MAX_NAMED_PER_COMMIT:
        return Refused("transaction_too_large", f"a commit is of {MAX_NAMED_PER_COMMIT} named producers at most")
    yield
    if _was_accepted(state, wanted, standings):
        return told_after(state, wanted.keys)
    yield
    refused = _position_refusal(state, wanted) or _standing_refusal(standings, wanted)
    if refused is None:
        refused = yield from _partition_refusal(state, wanted)
    if refused is None:
        yield
        refused = _group_refusal(state, wanted)
    if refused is None:
        yield
        full = _no_room(state, wanted)
        if full is not None:
            return full
        yield from _write(state, wanted, index)
        return told_after(state, wanted.keys)
    yield from abort_undecided(state, wanted.keys, index, wanted.now_ms)
    retire_block(state, wanted.block, index)
    return refused


# --- What cannot be, whatever the state: nothing is changed (S11) ----------------------------------------------------


def _malformed(why: str) -> Refused:
    return Refused("invalid_request", why)


def _cannot_be(wanted: _Wanted) -> Refused | None:
    if len({key.producer_id for key in wanted.keys}) != len(wanted.keys):
        return _malformed("a commit names two transactions of one producer")
    if len({position.name for position in wanted.positions}) != len(wanted.positions):
        return _malformed("a commit names a position twice")
    for position in wanted.positions:
        if position.new <= position.current:
            return _malformed(f"position {position.name!r} goes up only, not from {position.current} to {position.new}")
    for group in wanted.moves.values():
        if len({move.topic_partition for move in group.moves}) != len(group.moves):
            return _malformed(f"a commit names a partition of group {group.group_id!r} twice")
        if any(move.end < move.start for move in group.moves):
            return _malformed(f"an offset of group {group.group_id!r} goes back: only a reset does that")
    return None


def _no_room(state: ClusterImage, wanted: _Wanted) -> Refused | None:
    """Refuse for lack of capacity. The commit may succeed later, except at the position limit: positions are never
    expired.
    """
    if state.transactions.ends_count + wanted.end_count > MAX_ENDS:
        return Refused("overloaded", f"{MAX_ENDS} offsets of commits wait for their markers, which is the most")
    fresh = sum(state.transactions.position(position.name) < 0 for position in wanted.positions)
    if fresh and state.transactions.position_count + fresh > MAX_POSITIONS:
        return Refused("invalid_request", f"the cluster keeps {MAX_POSITIONS} positions at most")
    groups_to_be = [group_id for group_id in wanted.moves if group_id not in state.groups.by_id]
    if groups_to_be and len(state.groups.by_id) + len(groups_to_be) > groups.MAX_GROUPS:
        return Refused("invalid_request", f"the cluster has {groups.MAX_GROUPS} groups, which is the most")
    offsets_to_be: Counter[str] = Counter()
    for group in wanted.moves.values():
        current = state.groups.offsets_of(group.group_id)
        owner = groups.owner_to_be(state, group.group_id, wanted.principal)
        offsets_to_be[owner] += sum(move.topic_partition not in current for move in group.moves)
    total = offsets_to_be.total()
    if total and state.groups.offset_count + total > groups.MAX_COMMITTED_OFFSETS:
        return Refused("invalid_request", f"the cluster keeps {groups.MAX_COMMITTED_OFFSETS} committed offsets at most")
    refusals = (
        refuse_records(state, wanted.principal, Owned.POSITION, fresh, MAX_POSITIONS),
        refuse_records(state, wanted.principal, Owned.GROUP, len(groups_to_be), groups.MAX_GROUPS),
        *(
            refuse_offsets(state, owner, added, groups.MAX_COMMITTED_OFFSETS)
            for owner, added in sorted(offsets_to_be.items())
        ),
    )
    return next((refused for refused in refusals if refused is not None), None)


# --- Preconditions that no longer hold: the attempt ends -------------------------------------------------------------


def _was_accepted(state: ClusterImage, wanted: _Wanted, standings: dict[TransactionKey, Standing]) -> bool:
    """Return whether this commit was accepted before: its transactions are committed, and all its positions have moved.

    If only some of the positions are taken, another commit took them.
    """
    committed = bool(standings) and all(standing is Standing.COMMITTED for standing in standings.values())
    return committed and all(state.transactions.position(one.name) >= one.new for one in wanted.positions)


def _position_refusal(state: ClusterImage, wanted: _Wanted) -> Refused | None:
    moved = None
    for position in wanted.positions:
        value = state.transactions.position(position.name)
        if value >= position.new:
            return Refused("position_taken", f"position {position.name!r} is at {value}: {position.new} was published")
        if value != position.current:
            moved = Refused("offset_moved", f"position {position.name!r} is at {value}, not at {position.current}")
    return moved


def _standing_refusal(standings: dict[TransactionKey, Standing], wanted: _Wanted) -> Refused | None:
    """Return the most specific refusal.

    If the commit may have been accepted before (some transactions are committed, and the others are no longer kept),
    the only truthful answer is that its outcome is unknown.
    """
    found = {standing: key for key, standing in reversed(standings.items())}
    if Standing.ABORTED in found:
        return Refused("transaction_aborted", f"{describe(found[Standing.ABORTED])} is aborted")
    if Standing.UNKNOWN in found:
        return Refused("unknown_transaction", f"{describe(found[Standing.UNKNOWN])} was never begun")
    # An accepted commit would have decided its transactions and taken its positions.
    was_never_accepted = bool(wanted.positions) or Standing.UNDECIDED in found
    if Standing.COMMITTED in found and was_never_accepted:
        return Refused(
            "transaction_committed", f"{describe(found[Standing.COMMITTED])} was committed by another commit"
        )
    if Standing.FENCED in found:
        of = describe(found[Standing.FENCED])
        return Refused("producer_fenced", f"{of} is of an older epoch: another producer has taken its place")
    if Standing.EXPIRED not in found:
        return None
    of = describe(found[Standing.EXPIRED])
    if was_never_accepted:
        return Refused("producer_ids_expired", f"{of} came too late: it is aborted")
    return Refused("outcome_unknown", f"{of} is not remembered any more")


def _partition_refusal(state: ClusterImage, wanted: _Wanted) -> Generator[None, None, Refused | None]:
    for count, topic_partition in enumerate(wanted.ends, 1):
        if topic_partition not in state.partitions:
            return Refused("unknown_partition", f"there is no partition {topic_partition}")
        if count % OFFSETS_PER_STEP == 0:
            yield
    return None


def _group_refusal(state: ClusterImage, wanted: _Wanted) -> Refused | None:
    for group in wanted.moves.values():
        named = [move.topic_partition for move in group.moves]
        refused = groups.refuse_if_not_owner(state, group, named)
        if refused is not None:
            return refused
        current = state.groups.offsets_of(group.group_id)
        for topic_partition, move in zip(named, group.moves, strict=True):
            if topic_partition not in state.partitions:
                return Refused("unknown_partition", f"there is no partition {topic_partition}")
            committed = current.get(topic_partition)
            offset = -1 if committed is None else committed.offset
            if offset != move.start:
                return Refused(
                    "offset_moved",
                    f"group {group.group_id!r} is at {offset} in {topic_partition}, not at {move.start}, where this "
                    "transaction began",
                )
    return None


# --- All of it -------------------------------------------------------------------------------------------------------


def _write(state: ClusterImage, wanted: _Wanted, index: int) -> Generator[None, None, None]:
    # The ends before the outcome: a copy that applies this in pieces must not miss an end (S13).
    for number, piece in enumerate(slices_of_ends(wanted.ends)):
        state.transactions.change(EndsCommitted(piece))
        if number % 4 == 3:
            yield
    yield from end_all(state, wanted.keys, Outcome.COMMITTED, index, wanted.now_ms)
    yield
    retire_block(state, wanted.block, index, answered=_position_tells_all(state, wanted))
    yield
    for group in wanted.moves.values():
        groups.have_group(state, group.group_id, index, wanted.principal)
        moved = {
            move.topic_partition: CommittedOffset(move.end, move.leader_epoch, move.metadata, wanted.now_ms)
            for move in group.moves
        }
        state.groups.put_offsets(group.group_id, moved)
    for position in wanted.positions:
        if state.transactions.position(position.name) < 0:
            own(state, wanted.principal, Owned.POSITION, position.name)
        state.transactions.change(PositionMoved(position.name, position.new))


def _position_tells_all(state: ClusterImage, wanted: _Wanted) -> bool:
    """Return whether this decided commit's positions reveal all that is committed in the block that it retires.

    Other commits in the block may have had no position, and may be retried.
    """
    block = state.transactions.open_block(wanted.block) if wanted.positions and wanted.block else None
    if block is None:
        return False
    own = sum(block.first <= key.producer_id < block.end for key in wanted.keys)
    return own == sum(end - first for first, end in block.committed)


def slices_of_ends(
    ends: Mapping[TopicPartition, Mapping[TransactionKey, Offset]],
) -> Iterator[dict[TopicPartition, dict[TransactionKey, Offset]]]:
    """Yield the ends in pieces of at most `ENDS_PER_EVENT` offsets."""
    piece: dict[TopicPartition, dict[TransactionKey, Offset]] = {}
    room = ENDS_PER_EVENT
    for topic_partition, of_partition in ends.items():
        rest = iter(of_partition.items())
        while some := dict(islice(rest, room)):
            piece[topic_partition] = some
            room -= len(some)
            if not room:
                yield piece
                piece, room = {}, ENDS_PER_EVENT
    if piece:
        yield piece
