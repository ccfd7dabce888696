"""The requests of one stream that are not answered yet: their bounds, and the stream's end after the last one.

Fetches wait for records, and each record wakes them. So they are also bounded by connection and by caller: a user, or
the address of a client without a name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable

from raftlog.config import MIB
from raftlog.http2 import Http2Stream

MAX_REQUESTS_IN_FLIGHT = 4096
"""Maximum number of requests in flight on one stream; more are refused as `overloaded`."""
MAX_BYTES_IN_FLIGHT = 64 * MIB
"""Maximum bytes of unanswered produce requests on one stream."""
MAX_POLLS_OF_CONNECTION = 256
"""Maximum number of fetches in flight on one connection of a client; more are refused as `overloaded`."""
MAX_POLLS_OF_CALLER = 2_000
"""The same of one caller on all of its connections to this broker, a fifth of `MAX_WAITING_POLLS`."""


class Polls:
    """The fetches in flight of a broker's clients, by connection and by caller.

    Invariant: a count that is kept is above 0.
    """

    def __init__(self) -> None:
        self._of_connection: Counter[Hashable] = Counter()
        self._of_caller: Counter[Hashable] = Counter()

    def begin(self, connection: Hashable, caller: Hashable) -> bool:
        """Count one more; return False, and count nothing, if that is over a limit."""
        if self._of_connection[connection] >= MAX_POLLS_OF_CONNECTION or self._of_caller[caller] >= MAX_POLLS_OF_CALLER:
            return False
        self._of_connection[connection] += 1
        self._of_caller[caller] += 1
        return True

    def end(self, connection: Hashable, caller: Hashable, count: int) -> None:
        """Count fewer, which `begin` counted."""
        for counts, key in ((self._of_connection, connection), (self._of_caller, caller)):
            counts[key] -= count
            if counts[key] <= 0:
                del counts[key]


class InFlight:
    """The requests in flight on one stream. It ends this side of the stream once the peer has ended and all are
    answered."""

    __slots__ = ("_bytes", "_caller", "_ended", "_polling", "_polls", "_requests", "_stream")

    def __init__(self, stream: Http2Stream, polls: Polls | None = None, caller: Hashable = "") -> None:
        """`polls` counts the fetches of this caller; None: they are another node's clients', counted there."""
        self._stream = stream
        self._polls = polls
        self._caller = caller
        self._polling = 0
        self._requests = 0
        self._bytes = 0
        self._ended = False

    def has_room(self, size: int) -> bool:
        """Return whether one more request of `size` bytes may be in flight; a large one may, if it is alone."""
        fits = self._bytes + size <= MAX_BYTES_IN_FLIGHT or not self._requests
        return fits and self._requests < MAX_REQUESTS_IN_FLIGHT

    def begin_poll(self) -> bool:
        """Count a fetch; return False if there are too many."""
        if self._polls is None:
            return True
        if not self._polls.begin(self._stream.connection, self._caller):
            return False
        self._polling += 1
        return True

    def end_poll(self) -> None:
        """Count a fetch as answered, unless the stream has closed."""
        self._end_polls(min(self._polling, 1))

    def close(self) -> None:
        """Count no fetch any more: the stream has closed."""
        self._end_polls(self._polling)

    def _end_polls(self, count: int) -> None:
        if self._polls is not None and count:
            self._polling -= count
            self._polls.end(self._stream.connection, self._caller, count)

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
