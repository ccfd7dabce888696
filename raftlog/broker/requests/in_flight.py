"""The requests of one stream that are not answered yet: their bounds, and the stream's end after the last one."""

from __future__ import annotations

from raftlog.config import MIB
from raftlog.http2 import Http2Stream

MAX_REQUESTS_IN_FLIGHT = 4096
"""Maximum number of requests in flight on one stream; more are refused as `overloaded`."""
MAX_BYTES_IN_FLIGHT = 64 * MIB
"""Maximum bytes of unanswered produce requests on one stream."""


class InFlight:
    """The requests in flight on one stream. It ends this side of the stream once the peer has ended and all are
    answered."""

    __slots__ = ("_bytes", "_ended", "_requests", "_stream")

    def __init__(self, stream: Http2Stream) -> None:
        self._stream = stream
        self._requests = 0
        self._bytes = 0
        self._ended = False

    def has_room(self, size: int) -> bool:
        """Return whether one more request of `size` bytes may be in flight; a large one may, if it is alone."""
        fits = self._bytes + size <= MAX_BYTES_IN_FLIGHT or not self._requests
        return fits and self._requests < MAX_REQUESTS_IN_FLIGHT

    def begin(self, size: int) -> None:
        self._requests += 1
        self._bytes += size

    def finish(self, size: int) -> None:
        """Count a request of `size` bytes as answered."""
        self._requests -= 1
        self._bytes -= size
        if self._ended:
            self._end_when_answered()

    def end(self) -> None:
        """Note that the peer sends nothing more."""
        self._ended = True
        self._end_when_answered()

    def _end_when_answered(self) -> None:
        if not self._requests and not self._stream.closed:
            self._stream.end()
