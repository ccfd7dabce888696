"""Idempotency keys of requests as idempotent producers: a key is a producer of one batch.

A client names a request by a key (`Idempotency-Key`), and sends it again if it has no answer. A batch of the request is
written with a producer id that is a hash of the key, epoch 0, and a base sequence that is a hash of the body. So the
producer state of every replica keeps it, the log's batch headers tell it after a restart, and a retry is found like a
resend (S1); another body has another sequence.

Such ids are `FIRST_KEYED_ID` or greater, and the quorum never grants one. The hash covers the principal, so the key of
one is never that of another.

Source: draft-ietf-httpapi-idempotency-key-header. Pure.
"""

from __future__ import annotations

import hashlib

from .model import FIRST_KEYED_ID, ProducerEpoch, ProducerId, Sequence

MAX_KEY = 255
"""The longest key, in characters."""
KEYED_EPOCH = ProducerEpoch(0)
KEYS_FEATURE_LEVEL = 7
"""Nodes of lower levels would take a keyed batch for that of a producer."""

_IDS = 2**62 - 1


def is_keyed(producer_id: int) -> bool:
    """Return whether a producer id is that of an idempotency key."""
    return producer_id >= FIRST_KEYED_ID


def keyed_producer_id(principal: str, topic_id: bytes, key: str) -> ProducerId:
    """Return the producer id of a key. `principal`: empty without security."""
    parts = (principal.encode(), topic_id, key.encode())
    text = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    return ProducerId(FIRST_KEYED_ID + int.from_bytes(hashlib.sha256(text).digest()[:8], "big") % _IDS)


def body_sequence(*parts: bytes) -> Sequence:
    """Return the base sequence for a request with this content."""
    text = b"".join(len(part).to_bytes(8, "big") + part for part in parts)
    return Sequence(int.from_bytes(hashlib.sha256(text).digest()[:4], "big") & 0x7FFF_FFFF)
