"""The core's state of one stream, for both directions."""

from __future__ import annotations

from collections import deque

from raftlog.ports import Part

from .messages import MessageAssembler


class QueuedMessage:
    """A message with its prefix that is not, or not completely, framed yet."""

    __slots__ = ("left", "parts")

    def __init__(self, parts: deque[Part], left: int) -> None:
        self.parts = parts
        self.left = left


class StreamState:
    """One stream of a connection. The core writes it, the shell reads it.

    Invariant: `queued_bytes` is the sum of `left` over `queue`.

    Invariant: if `send_window` is negative (SETTINGS shrank it, RFC 9113 section 6.9.2), nothing is sent.
    """

    __slots__ = (
        "answered",
        "assembler",
        "closed",
        "content_left",
        "early",
        "early_end",
        "end_wanted",
        "id",
        "in_ring",
        "local_ended",
        "peer_max_message_bytes",
        "queue",
        "queued_bytes",
        "receive_window",
        "refused",
        "remote_ended",
        "send_window",
    )

    def __init__(self, stream_id: int, assembler: MessageAssembler, *, receive_window: int, send_window: int) -> None:
        self.id = stream_id
        self.assembler = assembler
        self.receive_window = receive_window
        self.send_window = send_window
        self.early = bytearray()
        """Content that came before the request was answered, so it is unknown whether it is messages."""
        self.early_end = False
        self.answered = False
        """Whether response headers were sent (listener) or received (dialer)."""
        self.refused = False
        """Whether this side answered with an error: the stream's content is discarded."""
        self.remote_ended = False
        self.local_ended = False
        self.closed = False
        self.content_left: int | None = None
        """Bytes that a `content-length` header still announces."""
        self.end_wanted = False
        """Whether this side ends once the queue is sent."""
        self.in_ring = False
        self.queue: deque[QueuedMessage] = deque()
        self.queued_bytes = 0
        self.peer_max_message_bytes = 2**32 - 1
