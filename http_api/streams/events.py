"""The events of a stream as server-sent events, or as lines of JSON.

An event has a type, the stream's cursor after it, and members. As a server-sent event (WHATWG HTML, 9.2) the type is
its `event`, the cursor its `id`, and the members are its data. As JSON (lines, and messages of a WebSocket) all three
are members of one object.

Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from raftlog.errors import CODES, RaftlogError
from raftlog.model import TopicId

Shape = Callable[[str, str, bytes], bytes]
"""Makes an event of its type, the cursor, and its members: a JSON object."""

RECONNECT_MS = 1_000
"""The time after which a browser connects again."""

_encode = msgspec.json.Encoder().encode


def server_sent(kind: str, cursor: str, members: bytes) -> bytes:
    """Return a server-sent event. A heartbeat has no data: it moves the reader's cursor, and wakes no listener."""
    if kind == HEARTBEAT:
        return b"id: %b\n\n" % cursor.encode()
    return b"event: %b\nid: %b\ndata: %b\n\n" % (kind.encode(), cursor.encode(), members)


def json_line(kind: str, cursor: str, members: bytes) -> bytes:
    """Return an event as one line of JSON."""
    rest = members[1:] if members == b"{}" else b"," + members[1:]
    return b'{"type":"%b","cursor":"%b"%b\n' % (kind.encode(), cursor.encode(), rest)


HEARTBEAT = "heartbeat"
JOINED, LEFT, MOVED, RECORDS, STUCK, END = "joined", "left", "moved", "records", "stuck", "end"


def joined(topic: str, topic_id: TopicId, starts: Sequence[tuple[int, int]]) -> bytes:
    """Return the members of the event that partitions are read from now on: pairs of a partition and its offset."""
    return _encode({"topic": topic, "topic_id": topic_id.hex(), "partitions": starts})


def left(topic: str | None, topic_id: TopicId) -> bytes:
    """Return the members of the event that a topic is not read any more."""
    return _encode({"topic": topic, "topic_id": topic_id.hex()})


def records(
    topic: str, topic_id: TopicId, partition: int, next_offset: int, high_watermark: int, found: bytes
) -> bytes:
    """Return the members of an event of records; `found` is their JSON array."""
    head = _encode(
        {
            "topic": topic,
            "topic_id": topic_id.hex(),
            "partition": partition,
            "next_offset": next_offset,
            "high_watermark": high_watermark,
        }
    )
    return b'%b,"records":%b}' % (head[:-1], found)


def moved(topic: str, topic_id: TopicId, partition: int, position: int, next_offset: int) -> bytes:
    """Return the members of the event that the log did not have the position any more."""
    return _encode(
        {
            "topic": topic,
            "topic_id": topic_id.hex(),
            "partition": partition,
            "offset": position,
            "next_offset": next_offset,
        }
    )


def stuck(topic: str, topic_id: TopicId, partition: int, error: RaftlogError) -> bytes:
    """Return the members of the event that a partition cannot be read."""
    place: dict[str, Any] = {"topic": topic, "topic_id": topic_id.hex(), "partition": partition}
    return _encode(place | _told(error))


def end(error: RaftlogError | None) -> bytes:
    """Return the members of the last event. None: all that the request wants was sent."""
    return _encode({"code": "complete", "detail": "", "retriable": False} if error is None else _told(error))


def _told(error: RaftlogError) -> dict[str, Any]:
    return {"code": error.code, "detail": error.detail, "retriable": CODES[error.code].retriable}
