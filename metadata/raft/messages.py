"""The engine's messages between quorum nodes, typed and bounded.

Each message is a msgpack array that begins with its tag, which includes the version. `decode` checks shapes, ranges
and the relations within one message, so the engine need not check a decoded message again. Nothing is ever pickled,
and no other codec is tried.

Every message has a `term`. It is the sender's current term, except in a `PreVote`, where it is the term in which the
sender *would* campaign, and changes no receiver's term.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec

from metadata.voters.configuration import decode_configuration, decode_entry
from raftlog.errors import RemoteProtocolError
from raftlog.ports import Buffer

MAX_APPEND_BYTES = 256 * 1024
"""The most bytes of entries in one append, unless a single entry is larger."""

MAX_APPEND_ENTRIES = 4096

MAX_ENTRY_BYTES = 7 * 1024 * 1024
"""The largest entry in bytes; above the largest command."""

MAX_ENGINE_MESSAGE_BYTES = MAX_ENTRY_BYTES + MAX_APPEND_BYTES + 64 * 1024

SNAPSHOT_CHUNK_BYTES = 256 * 1024

MAX_CONFIGURATION_BYTES = 128 * 1024
"""The largest encoded configuration in bytes; above the largest that can be encoded."""

MAX_TERM_LEAP = 2**20
"""The most terms by which one message raises a node's term.

Terms are bounded (`_Natural`): without this limit, one broken message could use all of them up; with it, four trillion
would be needed. It costs no liveness: a node that missed a million elections enters the present term in several
steps, one a message (`_enter`), and heartbeats arrive ten times a second.
"""

_Natural: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
_Crc: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]


class _Message(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """The base of all messages: arrays without extra elements."""


class PreVote(_Message, frozen=True, tag="pre_vote.1"):
    """The question whether the receiver would vote for the sender in `term`, asked before a term is raised (Raft
    dissertation, 9.6)."""

    term: _Natural
    round: _Natural
    last_index: _Natural
    last_term: _Natural
    configuration_index: _Natural = 0
    """The index at which the candidate's log names it a voter on its disk, or 0 if it does not."""


class PreVoteReply(_Message, frozen=True, tag="pre_vote_reply.1"):
    """The answer to a `PreVote`. `term` is the responder's current one."""

    term: _Natural
    round: _Natural
    granted: bool


class RequestVote(_Message, frozen=True, tag="request_vote.1"):
    """A candidate's request for a vote in `term`."""

    term: _Natural
    last_index: _Natural
    last_term: _Natural
    configuration_index: _Natural = 0
    """As in `PreVote`."""


class Vote(_Message, frozen=True, tag="vote.1"):
    """The answer to a `RequestVote`, for the term that it names."""

    term: _Natural
    granted: bool


class Entry(_Message, frozen=True):
    """An entry on the wire; its index follows from its position."""

    term: _Natural
    command: Annotated[bytes, msgspec.Meta(min_length=1, max_length=MAX_ENTRY_BYTES)]


class Append(_Message, frozen=True, tag="append.1"):
    """Entries after (`prev_index`, `prev_term`). Without entries, a heartbeat."""

    term: _Natural
    prev_index: _Natural
    prev_term: _Natural
    commit_index: _Natural
    entries: Annotated[tuple[Entry, ...], msgspec.Meta(max_length=MAX_APPEND_ENTRIES)]
    acknowledged_by: Annotated[bytes, msgspec.Meta(max_length=16)] = b""
    """The directory id of the disk that acknowledged entry `prev_index` to this leader in this term.

    It is empty if no disk has, or if the leader does not ask. A receiver on this disk without that entry has
    forgotten it.
    """


class AppendReply(_Message, frozen=True, tag="append_reply.1"):
    """The answer to an `Append`. With `success` the logs agree up to `index`, durably at the sender. Otherwise entry
    `index` was missing or different, and `hint` is the greatest index at which the logs may still agree; both are 0
    if the append was of an earlier term, and no logs were compared."""

    term: _Natural
    success: bool
    index: _Natural
    hint: _Natural
    forgot: bool = False
    """Whether the sender lacks what it once acknowledged: it follows, and must not be counted."""


class SnapshotChunk(_Message, frozen=True, tag="snapshot_chunk.1"):
    """Bytes `offset..` of a snapshot. `(index, last_term, size, crc)` identify the snapshot; `chunk_crc` covers
    `data`.

    An empty chunk asks how many bytes the receiver holds. It never moves the receiver's commit index: only a complete
    snapshot does.
    """

    term: _Natural
    index: _Natural
    last_term: _Natural
    size: _Natural
    crc: _Crc
    offset: _Natural
    chunk_crc: _Crc
    data: Annotated[bytes, msgspec.Meta(max_length=SNAPSHOT_CHUNK_BYTES)]
    configuration: Annotated[bytes, msgspec.Meta(max_length=MAX_CONFIGURATION_BYTES)] = b""
    """The encoded configuration in effect at `index`; if empty, the initial voters."""


class SnapshotReply(_Message, frozen=True, tag="snapshot_reply.1"):
    """The answer to a `SnapshotChunk`: of the snapshot up to `index`, `next_offset` bytes are held. With `installed`,
    the log now begins there."""

    term: _Natural
    index: _Natural
    next_offset: _Natural
    installed: bool
    forgot: bool = False
    """As in `AppendReply`."""


class Resign(_Message, frozen=True, tag="resign.1"):
    """The deliberate resignation of the leader of `term`: other voters may campaign at once."""

    term: _Natural


Message: TypeAlias = (
    PreVote | PreVoteReply | RequestVote | Vote | Append | AppendReply | SnapshotChunk | SnapshotReply | Resign
)

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


def encode(message: Message) -> bytes:
    """Encode a message."""
    return _encoder.encode(message)


def decode(packed: Buffer) -> Message:
    """Decode a message. Raises `RemoteProtocolError` for anything that is not well-formed."""
    if memoryview(packed).nbytes > MAX_ENGINE_MESSAGE_BYTES:
        raise RemoteProtocolError("a quorum message is too large")
    try:
        message = _decoder.decode(packed)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise RemoteProtocolError(f"malformed quorum message: {error}") from None
    if isinstance(message, Append):
        _check_append(message)
    elif isinstance(message, SnapshotChunk):
        _check_chunk(message)
    return message


def _check_append(message: Append) -> None:
    term = message.prev_term
    for entry in message.entries:
        if not term <= entry.term <= message.term:
            raise RemoteProtocolError(
                f"entry of term {entry.term} after term {term} from a leader of term {message.term}"
            )
        term = entry.term
        decode_entry(entry.command)
    if message.prev_index < 1 or message.prev_term > message.term:
        raise RemoteProtocolError(f"append after entry {message.prev_index} of term {message.prev_term}")


def _check_chunk(message: SnapshotChunk) -> None:
    if message.index < 1 or message.last_term > message.term:
        raise RemoteProtocolError(f"snapshot up to {message.index} of term {message.last_term}")
    if message.configuration:
        decode_configuration(message.configuration)
    if message.offset + len(message.data) > message.size:
        raise RemoteProtocolError(f"{len(message.data)} bytes at {message.offset} of a snapshot of {message.size}")
