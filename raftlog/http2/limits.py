"""Every bound of the carrier, in one value that listener and dialer are given.

A number here is either announced to the peer (RFC 9113 section 6.5.2) or enforced by us whatever the peer believes.
Both ends of a raftlog cluster use the defaults; tests and cautious installations bring their own.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..config import KIB, MAX_WIRE_MESSAGE_BYTES, MIB

LARGEST_WINDOW = 2**31 - 1
"""RFC 9113 section 6.9.1: a flow-control window may not grow beyond this."""

LARGEST_FRAME = 2**24 - 1
"""RFC 9113 section 4.2: the largest `SETTINGS_MAX_FRAME_SIZE`."""

SMALLEST_FRAME = 2**14
"""RFC 9113 section 4.2: what a peer takes before it has announced anything, and the smallest it may announce."""

DEFAULT_WINDOW = 65_535
"""RFC 9113 section 6.9.2: the initial window of a connection, and of a stream where nothing was announced."""


@dataclass(frozen=True, slots=True)
class Http2Limits:
    """Bounds of one connection. Times in seconds, sizes in bytes."""

    max_frame_bytes: int = LARGEST_FRAME
    """Announced: so that a message of ours is one DATA frame. Other frames have a bound of their own."""
    window_bytes: int = LARGEST_WINDOW
    """Announced, for each stream and for the connection. Received bytes are handed on at once, so what bounds memory is
    the reader's pace (`pause_reading`), not this."""
    max_message_bytes: int = MAX_WIRE_MESSAGE_BYTES
    """Announced in a header field; a longer message fails the connection before any of it is buffered."""
    max_partial_bytes: int = 2 * MAX_WIRE_MESSAGE_BYTES
    """Unfinished messages held for all streams of a connection; the stream that would go beyond is reset."""
    max_queued_bytes: int = 256 * MIB
    """What may wait to be sent on a connection. A peer that reads too slowly for that is cut off: credits above this
    layer keep honest peers far below."""
    max_queued_pieces: int = 100_000
    """The same, counted: the smallest frames and messages cost more memory than their bytes."""
    max_control_frame_bytes: int = 16 * KIB
    """Largest frame that is not DATA: also what peers assume who were told nothing."""
    max_header_block_bytes: int = 32 * KIB
    """HEADERS and its CONTINUATIONs together, still compressed."""
    max_header_list_bytes: int = 16 * KIB
    """Announced: the same, decompressed. Ours are below 1 KiB."""
    max_concurrent_streams: int = 128
    """Announced; streams above are refused one by one, since a peer may not have seen the number yet."""
    control_frames_per_second: float = 500.0
    """Frames that cost us work or an answer and carry nothing: PING, SETTINGS, RST_STREAM, PRIORITY, empty DATA,
    CONTINUATION, requests that we had to refuse. Ours send a handful a minute."""
    control_frames_burst: int = 2_000
    """So many may come at once: a client that cancels a thousand requests is no attacker."""
    connect_timeout_s: float = 3.0
    """Of a dialer, until the peer has shown that it speaks HTTP/2."""
    handshake_timeout_s: float = 5.0
    """Until the peer has sent its preface and SETTINGS: half-open connections end here."""
    ping_interval_s: float = 10.0
    ping_timeout_s: float = 5.0
    """After a PING, bytes of any kind must arrive within this."""
    idle_timeout_s: float = 300.0
    """A listener closes a connection that had no stream for so long."""
    stall_timeout_s: float = 30.0
    """Bytes wait to be sent and the peer took none for so long: it is cut off."""
    linger_s: float = 1.0
    """After the last bytes of ours: so long we go on reading, so that no RST overtakes the GOAWAY."""
    max_connections: int = 4_096
    """Of one listener, those included whose TLS handshake is under way; further ones are closed at once."""
    max_handshakes: int = 512
    """TLS handshakes under way at a listener; beyond it the oldest is given up for the newest."""
    moved_handshakes_per_second: float = 20.0
    """TLS handshakes that a server name may bring to another loop; those beyond stay on the listener's. Anybody can ask
    for them, and each is a millisecond of work."""
    moved_handshakes_burst: int = 100

    @property
    def _times(self) -> tuple[float, ...]:
        return (
            self.connect_timeout_s,
            self.handshake_timeout_s,
            self.ping_interval_s,
            self.ping_timeout_s,
            self.idle_timeout_s,
            self.stall_timeout_s,
            self.linger_s,
        )

    def __post_init__(self) -> None:
        relations = {
            "max_frame_bytes within 2^14..2^24-1": SMALLEST_FRAME <= self.max_frame_bytes <= LARGEST_FRAME,
            "window_bytes within 65535..2^31-1": DEFAULT_WINDOW <= self.window_bytes <= LARGEST_WINDOW,
            "max_message_bytes <= max_partial_bytes": 0 < self.max_message_bytes <= self.max_partial_bytes,
            "max_message_bytes < 2^32": self.max_message_bytes < 2**32,
            "max_control_frame_bytes within 2^14..2^16": SMALLEST_FRAME <= self.max_control_frame_bytes <= 2**16,
            "max_header_block_bytes >= max_header_list_bytes": self.max_header_block_bytes
            >= self.max_header_list_bytes,
            "max_concurrent_streams >= 1": self.max_concurrent_streams >= 1,
            "max_handshakes >= 1": self.max_handshakes >= 1,
            "all times above 0": min(self._times) > 0,
        }
        broken = [text for text, holds in relations.items() if not holds]
        if broken:
            raise ValueError(f"limits must keep {broken[0]}")


class RateLimit:
    """A token bucket: `rate` a second on average, `burst` at once."""

    __slots__ = ("_burst", "_last", "_rate", "_tokens")

    def __init__(self, rate: float, burst: int, now: float) -> None:
        self._rate = rate
        self._burst = float(burst)
        self._tokens = float(burst)
        self._last = now

    def allow(self, now: float) -> bool:
        """Take one token; false when there is none."""
        if now > self._last:
            self._tokens = min(self._burst, self._tokens + (now - self._last) * self._rate)
            self._last = now
        self._tokens -= 1.0
        return self._tokens >= 0.0
