"""The core's state of one stream, for both directions."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from raftlog.ports import Part

from .messages import MessageAssembler


@dataclass(slots=True, eq=False)
class QueuedMessage:
    """A message with its prefix that is not, or not completely, framed yet."""

    parts: deque[Part]
    left: int
    """Bytes that are not framed yet."""


@dataclass(slots=True, eq=False)
class StreamState:
    """One stream of a connection. The core writes it, the shell reads it.

    Invariant: `queued_bytes` is the sum of `left` over `queue`.

    Invariant: if `send_window` is negative (SETTINGS shrank it, RFC 9113 section 6.9.2), nothing is sent.
    """

    id: int
    assembler: MessageAssembler
    receive_window: int
    send_window: int
    early: bytearray = field(default_factory=bytearray)
    """Content that came before the request was answered, so it is unknown whether it is messages; of an exchange, the
    content that its user has not read."""
    early_end: bool = False
    answered: bool = False
    """Whether response headers were sent (listener) or received (dialer)."""
    refused: bool = False
    """Whether this side answered with an error: the stream's content is discarded."""
    remote_ended: bool = False
    local_ended: bool = False
    closed: bool = False
    content_left: int | None = None
    """Bytes that a `content-length` header still announces."""
    end_wanted: bool = False
    """Whether this side ends once the queue is sent."""
    in_ring: bool = False
    queue: deque[QueuedMessage] = field(default_factory=deque)
    queued_bytes: int = 0
    peer_max_message_bytes: int = 2**32 - 1
    is_exchange: bool = False
    """Whether its content is bytes, not messages (`exchange.py`)."""
    content_told: bool = False
    """Whether the user of an exchange knows that there is content to read."""
    takes_rest: bool = False
    """Whether the peer may go on sending an exchange's content, which is discarded."""
    waits_for_room: bool = False
    """Whether the user of an exchange waits until less of its content is queued."""
