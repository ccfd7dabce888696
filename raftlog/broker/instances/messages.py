"""The messages between the node that faces a consumer's client and the consumer's owner, one in each stream message.

A message is a msgpack array that begins with its tag. A node that does not know a tag answers with an error.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec

from raftlog.errors import InvalidRequest, RemoteProtocolError
from raftlog.ports import Buffer

from .positions import Delivered

INSTANCES_PATH = "/raftlog.instances"
MAX_PARTITIONS = 10_000

Natural: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
Name: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
TopicIdBytes: TypeAlias = Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]


class _OfInstance(msgspec.Struct, frozen=True, array_like=True):
    number: Natural
    """Repeated in the answer."""
    group_id: Name
    name: Name
    epoch: Natural


class Lend(_OfInstance, frozen=True, tag="lend.1"):
    """Asks for the positions, for a read that takes `wait_ms` at most."""

    wait_ms: Annotated[int, msgspec.Meta(ge=0, le=300_000)]


class Settle(_OfInstance, frozen=True, tag="settle.1"):
    """Ends a lease, with what was delivered."""

    lease: Natural
    delivered: Annotated[tuple[Delivered, ...], msgspec.Meta(max_length=MAX_PARTITIONS)]


class SeekTo(msgspec.Struct, frozen=True, array_like=True):
    """A new position, if the present one is `expected` (-1: wherever it is)."""

    topic_id: TopicIdBytes
    partition: Natural
    offset: Natural
    expected: Annotated[int, msgspec.Meta(ge=-1, le=2**62)] = -1


class Seek(_OfInstance, frozen=True, tag="seek.1"):
    """Moves positions, all or none."""

    positions: Annotated[tuple[SeekTo, ...], msgspec.Meta(max_length=MAX_PARTITIONS)]


class LentPosition(msgspec.Struct, frozen=True, array_like=True):
    """The next offset of one partition."""

    topic_id: bytes
    partition: int
    granted: int
    offset: int
    delivered: bool


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """The answer to any of them: an error (a code of `raftlog.errors.CODES`), or to `Lend` a lease."""

    number: int
    error: str = ""
    detail: str = ""
    lease: int = 0
    positions: tuple[LentPosition, ...] = ()


Ask: TypeAlias = Lend | Settle | Seek

_encoder = msgspec.msgpack.Encoder()
_asks: msgspec.msgpack.Decoder[Ask] = msgspec.msgpack.Decoder(Ask)
_answers = msgspec.msgpack.Decoder(Answer)
_UNDECODABLE = (msgspec.MsgspecError, ValueError, RecursionError)


def encode(message: Ask | Answer) -> bytes:
    """Encode a message."""
    return _encoder.encode(message)


def decode_ask(message: Buffer) -> Ask:
    """Decode a question. Raises `InvalidRequest`."""
    try:
        return _asks.decode(message)
    except _UNDECODABLE as error:
        raise InvalidRequest("invalid_request", f"malformed question about a consumer: {error}") from None


def decode_answer(message: Buffer) -> Answer:
    """Decode an answer. Raises `RemoteProtocolError`."""
    try:
        return _answers.decode(message)
    except _UNDECODABLE as error:
        raise RemoteProtocolError(f"malformed answer about a consumer: {error}") from None
