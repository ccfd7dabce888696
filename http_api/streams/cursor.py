"""The cursor of a stream: the offset of every partition that it reads, as short text for an event's id.

The bytes are a version, the number of topics, and for each topic its id (16 bytes) and its number of partitions; for
each partition how many numbers are left out before it, and its offset plus 1 (0: the start is not known yet). Numbers
are varints (LEB128). The text is base64url (RFC 4648, 5) without padding. Topics are named by id, so the cursor of a
deleted topic never fits another topic of that name.

Pure.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from itertools import groupby

from raftlog.errors import InvalidRequest
from raftlog.model import TopicId, TopicPartition

UNKNOWN = -1
"""The position of a partition whose start is not known yet."""
MAX_CURSOR = 8_000
"""The longest cursor, in characters: one fits into a header field."""
MAX_TOPICS = 64
MAX_PARTITIONS = 512
"""The most topics and partitions of one stream: with offsets up to 2**55 their cursor is at most `MAX_CURSOR` long."""

_VERSION = 1
_ID_BYTES = 16
_MOST = 2**63 - 1
_TEXT = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)


def encode_cursor(positions: Mapping[TopicPartition, int]) -> str:
    """Return the cursor with these offsets, or `UNKNOWN`."""
    out = bytearray((_VERSION,))
    groups = [(topic, list(found)) for topic, found in groupby(sorted(positions), key=lambda one: one.topic_id)]
    _put(out, len(groups))
    for topic_id, partitions in groups:
        out += topic_id
        _put(out, len(partitions))
        before = -1
        for one in partitions:
            _put(out, one.partition - before - 1)
            _put(out, positions[one] + 1)
            before = one.partition
    return base64.urlsafe_b64encode(out).rstrip(b"=").decode()


def decode_cursor(text: str) -> dict[TopicPartition, int]:
    """Return the offsets of a cursor. Raises `InvalidRequest` for text that `encode_cursor` never returns."""
    if not _TEXT.fullmatch(text) or len(text) > MAX_CURSOR:
        raise _refused()
    try:
        data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        found = _decoded(data)
    except (binascii.Error, IndexError):
        raise _refused() from None
    if encode_cursor(found) != text:
        raise _refused()
    return found


def _decoded(data: bytes) -> dict[TopicPartition, int]:
    """Raises `IndexError` for data that ends too early, and `InvalidRequest` for numbers out of range."""
    if data[0] != _VERSION:
        raise _refused()
    found: dict[TopicPartition, int] = {}
    topics, place = _take(data, 1)
    for _ in range(min(topics, MAX_TOPICS + 1)):
        topic_id = TopicId(data[place : place + _ID_BYTES])
        partitions, place = _take(data, place + _ID_BYTES)
        before = -1
        for _ in range(min(partitions, MAX_PARTITIONS + 1)):
            step, place = _take(data, place)
            position, place = _take(data, place)
            before += step + 1
            if before >= 2**31 or len(found) >= MAX_PARTITIONS:
                raise _refused()
            found[TopicPartition(topic_id, before)] = position - 1
    return found


def _put(out: bytearray, number: int) -> None:
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)


def _take(data: bytes, place: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[place]
        place += 1
        number |= (byte & 0x7F) << shift
        if number > _MOST:
            raise _refused()
        if byte < 0x80:
            return number, place
        shift += 7


def _refused() -> InvalidRequest:
    return InvalidRequest("invalid_request", "the cursor is none that a stream has sent: give the last one unchanged")
