"""Division of a commit that does not fit into one change into parts that do.

The functions are pure, and slow for large commits, for which a thread runs them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import TypeAlias

import msgspec

from metadata.commands.transactions import MAX_CHANGE_BYTES, MAX_PARTS, Piece, digest_of, encode_piece
from raftlog.errors import InvalidRequest
from raftlog.wire import MAX_GROUPS_PER_COMMIT, MAX_OUTPUTS, CommitRequest, GroupMoves, TopicEnds, TransactionOutput

ENDS_PER_OUTPUT = 1_000
"""Ends of one transaction in an output. A transaction with more has several outputs, each of which fits into a
piece..."""
MOVES_PER_GROUP = 10
"""...and likewise a member whose moves are too large together: each move may have four kilobytes of metadata."""

FRAME_BYTES = 64
"""Size of a piece's frame in bytes, without its content."""

_encoder = msgspec.msgpack.Encoder()


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a staged commit."""

    packed: tuple[bytes, ...]
    digest: bytes


Division: TypeAlias = Parts | Piece
"""How a commit is proposed: in parts, or as the one piece that it is."""


def offsets_in(request: CommitRequest) -> int:
    """Return the number of offsets that a commit names, which determines the time to divide it."""
    ends = sum(1 + sum(1 + len(topic.end_offsets) for topic in output.topics) for output in request.outputs)
    return ends + sum(len(group.moves) for group in request.groups)


def divide(request: CommitRequest) -> Division:
    """Divide a commit. Raises `InvalidRequest` for a commit that no command can express."""
    pieces = pieces_of(request, MAX_CHANGE_BYTES)
    if len(pieces) == 1:
        return pieces[0]
    if len(pieces) > MAX_PARTS:
        raise InvalidRequest("transaction_too_large", f"a commit may have {MAX_PARTS * MAX_CHANGE_BYTES} bytes at most")
    packed = tuple(map(encode_piece, pieces))
    return Parts(packed, digest_of(packed))


def pieces_of(request: CommitRequest, most_bytes: int) -> list[Piece]:
    """Return at least one piece, none of them larger than `most_bytes`, which together are the commit."""
    pieces: list[Piece] = []
    outputs: list[TransactionOutput] = []
    groups: list[GroupMoves] = []
    room = most_bytes - FRAME_BYTES
    parts: Iterable[TransactionOutput | GroupMoves] = chain(
        _outputs(request), _groups(request, most_bytes - FRAME_BYTES)
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
        if isinstance(part, TransactionOutput):
            outputs.append(part)
        else:
            groups.append(part)
    return [*pieces, Piece(tuple(outputs), tuple(groups))]


def _size(part: TransactionOutput | GroupMoves) -> int:
    try:
        return len(_encoder.encode(part))
    except (msgspec.MsgspecError, UnicodeError, OverflowError) as error:
        raise InvalidRequest("invalid_request", f"malformed transaction: {error}") from None


def _outputs(request: CommitRequest) -> Iterator[TransactionOutput]:
    for output in request.outputs:
        if sum(1 + len(topic.partitions) for topic in output.topics) <= ENDS_PER_OUTPUT:
            yield output
            continue
        for topic in output.topics:
            most = max(1, len(topic.partitions), len(topic.end_offsets))  # a mismatch is refused by the image
            for start in range(0, most, ENDS_PER_OUTPUT):
                some = slice(start, start + ENDS_PER_OUTPUT)
                ends = TopicEnds(topic.topic_id, topic.partitions[some], topic.end_offsets[some])
                yield TransactionOutput(*output.key, (ends,))


def _groups(request: CommitRequest, most_bytes: int) -> Iterator[GroupMoves]:
    for group in request.groups:
        if _size(group) <= most_bytes:
            yield group
            continue
        for start in range(0, len(group.moves), MOVES_PER_GROUP):
            yield msgspec.structs.replace(group, moves=group.moves[start : start + MOVES_PER_GROUP])
