"""Every limit of the transport, in one value for listener and dialer.

A limit is either announced to the peer (RFC 9113 section 6.5.2) or enforced regardless of what the peer assumes. Both
ends of a raftlog cluster use the defaults; tests and cautious installations set their own.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from ..config import KIB, MAX_WIRE_MESSAGE_BYTES, MIB

LARGEST_WINDOW = 2**31 - 1
"""Limit of a flow-control window, in bytes (RFC 9113 section 6.9.1)."""

LARGEST_FRAME = 2**24 - 1
"""The largest `SETTINGS_MAX_FRAME_SIZE` (RFC 9113 section 4.2)."""

SMALLEST_FRAME = 2**14
"""Frame size that every peer accepts before announcing another, and the smallest it may announce (section 4.2)."""

DEFAULT_WINDOW = 65_535
"""Initial window of a connection, and of a stream without an announced one (RFC 9113 section 6.9.2)."""


@dataclass(frozen=True, slots=True)
class Http2Limits:
    """Limits of one connection.

    Times are in seconds, sizes in bytes.
    """

    max_frame_bytes: int = LARGEST_FRAME
    """Announced, so that a message is a single DATA frame. Other frames have their own limit."""
    window_bytes: int = LARGEST_WINDOW
    """Announced, for each stream and for the connection.

    Received bytes are delivered at once, so memory is bounded by the reader's pace (`pause_reading`), not by this.
    """
    unaccepted_window_bytes: int = LARGEST_WINDOW
    """Announced by a listener, for each stream until it is accepted.

    What a peer sends before its credential is checked waits undecoded, so this bounds it.
    """
    content_window_bytes: int = 1 * MIB
    """The window of the content of a request that is not made of messages (`exchange.py`), once its user reads it.

    What the user has not read waits in memory, so this bounds it.
    """
    max_message_bytes: int = MAX_WIRE_MESSAGE_BYTES
    """Announced in a header field; a longer message fails the connection before any of it is buffered."""
    max_partial_bytes: int = 2 * MAX_WIRE_MESSAGE_BYTES
    """Unfinished messages of all streams of a connection; a stream that would exceed it is reset."""
    max_listener_partial_bytes: int = 256 * MIB
    """Unfinished messages of all connections of a listener on one loop; beyond it, the oldest message's stream is
    reset. Beside it a quarter as much for content before an answer, with the same rule."""
    message_timeout_s: float = 60.0
    """Time from a message's first bytes to its last, after which its stream is reset."""
    max_queued_bytes: int = 256 * MIB
    """Bytes waiting to be sent on a connection.

    A peer that reads too slowly for it is disconnected; credits above this layer keep honest peers far below.
    """
    max_queued_pieces: int = 100_000
    """The same limit as a count: the smallest frames and messages cost more memory than their bytes."""
    max_unread_bytes: int = 8 * MIB
    """Bytes waiting to be sent on a listener's connection, from which on its requests wait, too: this many bytes of
    them.
    """
    max_listener_unread_bytes: int = 256 * MIB
    """The same of all connections of a listener on one loop; beyond it, the slowest reader gives way."""
    max_control_frame_bytes: int = 16 * KIB
    """Largest frame other than DATA; also what peers assume before any announcement."""
    max_header_block_bytes: int = 32 * KIB
    """HEADERS and its CONTINUATIONs together, compressed."""
    max_header_list_bytes: int = 16 * KIB
    """Announced: the same, decompressed. Raftlog's own are below 1 KiB."""
    max_concurrent_streams: int = 128
    """Announced; streams above it are refused one by one, since a peer may not have seen the number yet."""
    control_frames_per_second: float = 500.0
    """Frames per second that cause work or an answer without content.

    PING, SETTINGS, RST_STREAM, PRIORITY, empty DATA, CONTINUATION, refused requests. Raftlog's own connections send a
    handful per minute.
    """
    control_frames_burst: int = 2_000
    """Such frames at once: a client that cancels a thousand requests is no attacker."""
    address_control_frames_per_second: float = 1_000.0
    """Such frames per second of all connections from one address, on one loop of a listener: a peer that connects
    again does not get another budget."""
    address_control_frames_burst: int = 4_000
    """Such frames at once, of one address."""
    connect_timeout_s: float = 3.0
    """A dialer's deadline for the peer to show that it speaks HTTP/2."""
    handshake_timeout_s: float = 5.0
    """Deadline for the peer's preface and SETTINGS, which ends half-open connections."""
    ping_interval_s: float = 10.0
    ping_timeout_s: float = 5.0
    """Time after a PING within which bytes of any kind must arrive."""
    idle_timeout_s: float = 300.0
    """Time without a stream after which a listener closes a connection."""
    stall_timeout_s: float = 30.0
    """Time for which a peer may take none of the waiting bytes before it is disconnected."""
    linger_s: float = 1.0
    """Time for which input is still read after the last output, so that no RST overtakes the GOAWAY."""
    max_connections: int = 4_096
    """Connections of one listener, including TLS handshakes; further ones are closed at once."""
    max_handshakes: int = 512
    """TLS handshakes in progress at a listener; beyond it, the oldest gives way to the newest."""
    max_handshakes_per_address: int = 128
    """The same of one address; beyond it, the address's oldest gives way."""
    max_strangers: int = 512
    """Connections of a listener without an accepted stream; beyond it, the oldest gives way to the newest."""
    max_strangers_per_address: int = 256
    """The same of one address; beyond it, the address's oldest gives way."""
    stranger_timeout_s: float = 30.0
    """Time after which a listener closes a connection without an accepted stream."""
    reserved_for_nodes: int = 64
    """Connections that only links between nodes may use, at most a quarter of all.

    Strangers' connections use them, too, and give way.
    """
    moved_handshakes_per_second: float = 20.0
    """TLS handshakes per second that a server name may move to another loop; others stay on the listener's.

    Any peer can request them, and each takes a millisecond.
    """
    moved_handshakes_burst: int = 100

    def __post_init__(self) -> None:
        times = [getattr(self, one.name) for one in fields(self) if one.name.endswith("_s")]
        relations = {
            "max_frame_bytes within 2^14..2^24-1": SMALLEST_FRAME <= self.max_frame_bytes <= LARGEST_FRAME,
            "window_bytes within 65535..2^31-1": DEFAULT_WINDOW <= self.window_bytes <= LARGEST_WINDOW,
            "unaccepted_window_bytes within 65535..2^31-1": DEFAULT_WINDOW
            <= self.unaccepted_window_bytes
            <= LARGEST_WINDOW,
            "content_window_bytes within 65535..2^31-1": DEFAULT_WINDOW <= self.content_window_bytes <= LARGEST_WINDOW,
            "max_message_bytes <= max_partial_bytes": 0 < self.max_message_bytes <= self.max_partial_bytes,
            "max_message_bytes <= max_listener_partial_bytes": self.max_message_bytes
            <= self.max_listener_partial_bytes,
            "max_message_bytes < 2^32": self.max_message_bytes < 2**32,
            "max_control_frame_bytes within 2^14..2^16": SMALLEST_FRAME <= self.max_control_frame_bytes <= 2**16,
            "max_header_block_bytes >= max_header_list_bytes": self.max_header_block_bytes
            >= self.max_header_list_bytes,
            "max_concurrent_streams >= 1": self.max_concurrent_streams >= 1,
            "max_handshakes >= 1": self.max_handshakes >= 1,
            "max_handshakes_per_address >= 1": self.max_handshakes_per_address >= 1,
            "max_strangers >= 1": self.max_strangers >= 1,
            "max_strangers_per_address >= 1": self.max_strangers_per_address >= 1,
            "reserved_for_nodes >= 0": self.reserved_for_nodes >= 0,
            "all times above 0": min(times) > 0,
        }
        broken = [text for text, holds in relations.items() if not holds]
        if broken:
            raise ValueError(f"limits must keep {broken[0]}")

    @property
    def first_window_bytes(self) -> int:
        """The window of a stream that a listener has not accepted yet."""
        return min(self.window_bytes, self.unaccepted_window_bytes)


class RateLimit:
    """A token bucket: `rate` per second on average, `burst` at once."""

    __slots__ = ("_burst", "_last", "_rate", "_tokens")

    def __init__(self, rate: float, burst: int, now: float) -> None:
        self._rate = rate
        self._burst = float(burst)
        self._tokens = float(burst)
        self._last = now

    def allow(self, now: float) -> bool:
        """Take one token; return False if there is none. A refusal costs nothing: a flood has no effect after it."""
        if now > self._last:
            self._tokens = min(self._burst, self._tokens + (now - self._last) * self._rate)
            self._last = now
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True
