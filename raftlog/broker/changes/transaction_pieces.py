"""A commit as it was asked for → the pieces that a command, or several, can carry.

Pure, and slow for large commits: a thread does it then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

import msgspec

from http_api.service.transactions import WantedCommit, WantedGroupOffsets, WantedOutput
from metadata.commands.transactions import (
    MAX_CHANGE_BYTES,
    MAX_GROUPS_PER_COMMIT,
    MAX_OUTPUTS,
    GroupMoves,
    Move,
    Output,
    Piece,
    TopicEnds,
)
from raftlog.errors import InvalidRequest
from raftlog.model import Offset, TopicId

ENDS_PER_OUTPUT = 1_000
"""Of one transaction: where it has more, it comes in several outputs, each of which has room in a piece..."""
MOVES_PER_GROUP = 10
"""...and so does a member whose moves are too large together: each may have four kilobytes of metadata."""

FRAME_BYTES = 64
"""Of a piece, beside what is in it."""

_encoder = msgspec.msgpack.Encoder()


def size_of_wanted(wanted: WantedCommit) -> int:
    """How many offsets it names: what takes its time."""
    ends = sum(1 + len(output.end_offsets) for output in wanted.outputs)
    return ends + sum(len(group.moves) for group in wanted.group_offsets)


def pieces_of(wanted: WantedCommit, most_bytes: int = MAX_CHANGE_BYTES) -> list[Piece]:
    """One piece at least, none of them larger than that; together they are what was asked for. Raises `InvalidRequest`
    for what no command can say."""
    pieces: list[Piece] = []
    outputs: list[Output] = []
    groups: list[GroupMoves] = []
    room = most_bytes - FRAME_BYTES
    parts: Iterable[Output | GroupMoves] = chain(
        _outputs(wanted.outputs), _groups(wanted.group_offsets, most_bytes - FRAME_BYTES)
    )
    for part in parts:
        size = _size(part)
        full = len(outputs) >= MAX_OUTPUTS or len(groups) >= MAX_GROUPS_PER_COMMIT
        if (size > room or full) and (outputs or groups):
            pieces.append(Piece(tuple(outputs), tuple(groups)))
            outputs = []
            groups = []
            room = most_bytes - FRAME_BYTES
        room -= size
        if isinstance(part, Output):
            outputs.append(part)
        else:
            groups.append(part)
    return [*pieces, Piece(tuple(outputs), tuple(groups))]


def _size(part: Output | GroupMoves) -> int:
    try:
        return len(_encoder.encode(part))
    except (msgspec.MsgspecError, UnicodeError, OverflowError) as error:
        raise InvalidRequest("invalid_request", f"malformed transaction: {error}") from None


def _outputs(wanted: Iterable[WantedOutput]) -> Iterator[Output]:
    for one in wanted:
        for start in range(0, max(1, len(one.end_offsets)), ENDS_PER_OUTPUT):
            by_topic: dict[TopicId, tuple[list[int], list[Offset]]] = {}
            for topic_partition, end_offset in one.end_offsets[start : start + ENDS_PER_OUTPUT]:
                numbers, ends = by_topic.setdefault(topic_partition.topic_id, ([], []))
                numbers.append(topic_partition.partition)
                ends.append(end_offset)
            topics = tuple(TopicEnds(topic, tuple(numbers), tuple(ends)) for topic, (numbers, ends) in by_topic.items())
            yield Output(*one.key, topics)


def _groups(wanted: Iterable[WantedGroupOffsets], most_bytes: int) -> Iterator[GroupMoves]:
    for one in wanted:
        speaker = (one.group_id, one.member_id, one.incarnation, one.generation)
        moves = tuple(
            Move(
                move.topic_partition.topic_id,
                move.topic_partition.partition,
                move.start,
                Offset(move.end),
                move.leader_epoch,
                move.metadata,
            )
            for move in one.moves
        )
        whole = GroupMoves(*speaker, moves)
        if _size(whole) <= most_bytes:
            yield whole
            continue
        for start in range(0, len(moves), MOVES_PER_GROUP):
            yield GroupMoves(*speaker, moves[start : start + MOVES_PER_GROUP])
