"""The producer in whose name a request's batches are written: an idempotency key, or a transaction.

Pure.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from raftlog.errors import InvalidRequest
from raftlog.idempotency import KEYED_EPOCH, MAX_KEY, body_sequence, keyed_producer_id
from raftlog.model import NO_PRODUCER_ID


class BatchIdentity(msgspec.Struct, frozen=True):
    """The producer in a batch's header."""

    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = -1
    base_sequence: int = -1
    transactional: bool = False
    idempotency_key: str = ""
    """The text of which the producer id is the hash."""


class Identity(Protocol):
    """The producer of a request's batches."""

    def of_batch(self, number: int) -> BatchIdentity:
        """Return the identity of the batch with this number among those of one partition."""
        ...


class Nobody(msgspec.Struct, frozen=True):
    """Batches without a producer."""

    def of_batch(self, number: int) -> BatchIdentity:
        return BatchIdentity()


class KeyedRequest(msgspec.Struct, frozen=True):
    """A request with an idempotency key: each of its batches is a producer of its own, which a retry finds."""

    principal: str
    topic_id: bytes
    key: str
    content: tuple[bytes, ...]
    """All of the request that decides which records are written where."""

    def of_batch(self, number: int) -> BatchIdentity:
        text = f"{number}:{self.key}"
        producer_id = keyed_producer_id(self.principal, self.topic_id, text)
        return BatchIdentity(producer_id, KEYED_EPOCH, body_sequence(*self.content), idempotency_key=text)


class InTransaction(msgspec.Struct, frozen=True):
    """A request that writes one batch of a transaction, or of an idempotent producer."""

    producer_id: int
    producer_epoch: int
    base_sequence: int
    transactional: bool

    def of_batch(self, number: int) -> BatchIdentity:
        if number:
            raise InvalidRequest("batch_too_large", "the records must fit into one batch, because it has one sequence")
        return BatchIdentity(self.producer_id, self.producer_epoch, self.base_sequence, self.transactional)


def parse_key(text: str) -> str:
    """Return an idempotency key: a string of a structured field (RFC 8941, 3.3.3), or the text as it is. Raises
    `InvalidRequest`."""
    text = text.strip()
    if text.startswith('"'):
        text = _unquoted(text)
    if not 1 <= len(text) <= MAX_KEY or not (text.isascii() and text.isprintable()):
        raise InvalidRequest("invalid_request", f"Idempotency-Key must have 1 to {MAX_KEY} printable ASCII characters")
    return text


def _unquoted(text: str) -> str:
    found: list[str] = []
    characters = iter(text[1:])
    for one in characters:
        if one == '"':
            if next(characters, None) is None:
                return "".join(found)
            break
        if one == "\\":
            one = next(characters, "")
            if one not in ('"', "\\"):
                break
        found.append(one)
    raise InvalidRequest("invalid_request", "Idempotency-Key is not a string of a structured field (RFC 8941)")
