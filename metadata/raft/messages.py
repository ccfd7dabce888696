"""What voters say to each other to agree: the engine's messages, typed and bounded.

Each is a msgpack array that begins with its tag, version included. `decode` checks shapes and ranges and the relations
that one message must keep in itself; whoever steps the engine with a decoded message need not ask again. Nothing here
is ever pickled, and no other codec is tried.

`term` is on every message. It is the sender's current term, except in a `PreVote`, where it is the term that the
sender *would* campaign in, and changes nobody's term.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec

from metadata.voters.configuration import decode_configuration, decode_entry
from raftlog.errors import RemoteProtocolError
from raftlog.ports import Buffer

MAX_APPEND_BYTES = 256 * 1024
"""An append carries entries up to this size, or one larger entry."""

MAX_APPEND_ENTRIES = 4096

MAX_ENTRY_BYTES = 7 * 1024 * 1024
"""Above the largest command."""

MAX_ENGINE_MESSAGE_BYTES = MAX_ENTRY_BYTES + MAX_APPEND_BYTES + 64 * 1024

SNAPSHOT_CHUNK_BYTES = 256 * 1024

MAX_CONFIGURATION_BYTES = 128 * 1024
"""Above the largest that can be coded."""

MAX_TERM_LEAP = 2**32
"""Terms that a node may have missed: far more elections than any cluster lives to see. Terms are bounded (`_Natural`):
one broken message could otherwise use all of them up."""

_Natural: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
_Crc: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]


class _Message(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """Base: arrays without surplus."""


class PreVote(_Message, frozen=True, tag="pre_vote.1"):
    """Would you vote for me in `term`? Asked before a term is raised (Raft dissertation, 9.6)."""

    term: _Natural
    round: _Natural
    last_index: _Natural
    last_term: _Natural
    configuration_index: _Natural = 0
    """At which index the candidate's log names it a voter, by its disk; 0 where it does not."""


class PreVoteReply(_Message, frozen=True, tag="pre_vote_reply.1"):
    """`term` is the responder's current one."""

    term: _Natural
    round: _Natural
    granted: bool


class RequestVote(_Message, frozen=True, tag="request_vote.1"):
    """Vote for me in `term`."""

    term: _Natural
    last_index: _Natural
    last_term: _Natural
    configuration_index: _Natural = 0
    """As in `PreVote`."""


class Vote(_Message, frozen=True, tag="vote.1"):
    """The answer, for the term that it names."""

    term: _Natural
    granted: bool


class Entry(_Message, frozen=True):
    """An entry as it travels; its index is given by its place."""

    term: _Natural
    command: Annotated[bytes, msgspec.Meta(min_length=1, max_length=MAX_ENTRY_BYTES)]


class Append(_Message, frozen=True, tag="append.1"):
    """Entries after (`prev_index`, `prev_term`); without entries a heartbeat."""

    term: _Natural
    prev_index: _Natural
    prev_term: _Natural
    commit_index: _Natural
    entries: Annotated[tuple[Entry, ...], msgspec.Meta(max_length=MAX_APPEND_ENTRIES)]
    acknowledged_by: Annotated[bytes, msgspec.Meta(max_length=16)] = b""
    """The directory id of the disk that has acknowledged entry `prev_index` to this leader in this term; empty where
    none has, or it is not asked. A receiver on this disk without that entry has forgotten it."""


class AppendReply(_Message, frozen=True, tag="append_reply.1"):
    """With `success` the logs agree up to `index`, durably here. Otherwise entry `index` was missing or another, and
    `hint` is the greatest index at which they may still agree."""

    term: _Natural
    success: bool
    index: _Natural
    hint: _Natural
    forgot: bool = False
    """The sender lacks what it once acknowledged: it follows, and is not to be counted."""


class SnapshotChunk(_Message, frozen=True, tag="snapshot_chunk.1"):
    """Bytes `offset..` of a snapshot. `(index, last_term, size, crc)` name the snapshot; `chunk_crc` covers `data`.

    An empty chunk asks how far the receiver is. It never moves the receiver's commit index: only a whole snapshot does.
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
    """In effect at `index`; empty: the initial voters."""


class SnapshotReply(_Message, frozen=True, tag="snapshot_reply.1"):
    """Of the snapshot up to `index`, `next_offset` bytes are here; with `installed` the log now begins there."""

    term: _Natural
    index: _Natural
    next_offset: _Natural
    installed: bool
    forgot: bool = False
    """As in `AppendReply`."""


class Resign(_Message, frozen=True, tag="resign.1"):
    """The leader of `term` leads no more, on purpose: whoever can may campaign at once."""

    term: _Natural


Message: TypeAlias = (
    PreVote | PreVoteReply | RequestVote | Vote | Append | AppendReply | SnapshotChunk | SnapshotReply | Resign
)

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


def encode(message: Message) -> bytes:
    """The message's bytes."""
    return _encoder.encode(message)


def decode(packed: Buffer) -> Message:
    """Raises `RemoteProtocolError` for anything that is not a well-formed message."""
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
            raise RemoteProtocolError(f"entry of term {entry.term} after term {term} from a leader of {message.term}")
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
