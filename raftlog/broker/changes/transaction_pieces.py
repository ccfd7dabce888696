"""Division of a commit into pieces that fit into one or several commands.

The functions are pure, and slow for large commits, for which a thread runs them.
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
"""Ends of one transaction in an output. A transaction with more has several outputs, each of which fits into a
piece..."""
MOVES_PER_GROUP = 10
"""...and likewise a member whose moves are too large together: each move may have four kilobytes of metadata."""

FRAME_BYTES = 64
"""Size of a piece's frame in bytes, without its content."""

_encoder = msgspec.msgpack.Encoder()


def size_of_wanted(wanted: WantedCommit) -> int:
    """Return the number of offsets that a commit names, which determines the time to divide it."""
    ends = sum(1 + len(output.end_offsets) for output in wanted.outputs)
    return ends + sum(len(group.moves) for group in wanted.group_offsets)


def pieces_of(wanted: WantedCommit, most_bytes: int = MAX_CHANGE_BYTES) -> list[Piece]:
    """Return at least one piece, none of them larger than `most_bytes`, which together are the commit.

    Raises `InvalidRequest` for a commit that no command can express.
    """
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
