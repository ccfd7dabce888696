"""What is different under TLS: bytes pass through Python and the loop's `ssl`, so there is no `sendfile`.

`TransportWriter` is to a TLS transport what `raftlog.zero_copy.SocketWriter` is to a socket. File regions are read in
pieces and written like buffers; nothing is joined.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable, Sequence

from ..errors import DiskFailed, RetriableError
from ..ports import Buffer, FileRegion, Part
from .messages import release_regions

ALPN = "h2"
HIGH_WATER_BYTES = 512 * 1024
PIECE_BYTES = 256 * 1024
"""Is read from a file, or encrypted, at once."""
TURN_BYTES = 4 * 1024 * 1024
"""After so many bytes the loop's other callbacks have their turn."""


def prepare(context: ssl.SSLContext | None) -> ssl.SSLContext | None:
    """The context, offering HTTP/2 and nothing else (RFC 9113 section 3.2)."""
    if context is not None:
        context.set_alpn_protocols([ALPN])
        context.minimum_version = max(context.minimum_version, ssl.TLSVersion.TLSv1_2)
    return context


def speaks_h2(transport: asyncio.BaseTransport) -> bool:
    """Whether the handshake agreed on HTTP/2; true for a plain connection, where it is known beforehand."""
    connection = transport.get_extra_info("ssl_object")
    return connection is None or connection.selected_alpn_protocol() == ALPN


class TransportWriter:
    """Parts → a TLS transport. Same interface as `SocketWriter`, `detach` apart."""

    def __init__(
        self, transport: asyncio.WriteTransport, *, refill: Callable[[], None], failed: Callable[[str], None]
    ) -> None:
        self._transport = transport
        self._refill = refill
        self._failed = failed
        self._queue: deque[Part] = deque()
        self._queued = 0
        self._region_sent = 0
        self._paused = self._closed = self._turn_due = False
        self._accepted = 0
        transport.set_write_buffer_limits(high=HIGH_WATER_BYTES)

    @property
    def backlog(self) -> int:
        """Bytes that the kernel has not taken."""
        return self._queued + (0 if self._closed else self._transport.get_write_buffer_size())

    @property
    def pieces(self) -> int:
        return len(self._queue)

    @property
    def total_sent(self) -> int:
        return self._accepted - (0 if self._closed else self._transport.get_write_buffer_size())

    def extend(self, parts: Sequence[Part]) -> None:
        if self._closed:
            release_regions(parts)
            return
        self._queue.extend(parts)
        for part in parts:
            self._queued += part.length if isinstance(part, FileRegion) else len(part)

    def pause(self) -> None:
        """The transport holds enough."""
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        self.flush()

    def flush(self) -> None:
        turn_ends = self._accepted + TURN_BYTES
        while not self._paused and not self._closed:
            self._refill()
            if not self._queue:
                return
            if self._accepted >= turn_ends:
                self._take_turns()
                return
            try:
                self._write_next()
            except (OSError, RetriableError) as error:
                self.close()
                self._failed(str(error))

    def shutdown(self) -> None:
        """TLS ends both ways at once: `close` of the transport says so, after what was written."""

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        parts, self._queue = list(self._queue), deque()
        self._queued = 0
        release_regions(parts)

    def _take_turns(self) -> None:
        if not self._turn_due:
            self._turn_due = True
            asyncio.get_running_loop().call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._turn_due = False
        self.flush()

    def _write_next(self) -> None:
        head = self._queue[0]
        if isinstance(head, FileRegion):
            wanted = min(PIECE_BYTES, head.length - self._region_sent)
            data: Buffer = head.file.pread(wanted, head.position + self._region_sent)
            if len(data) < wanted:
                raise DiskFailed(f"the file ends {head.length - self._region_sent} bytes before the region does")
            self._region_sent += wanted
            if self._region_sent == head.length:
                self._region_sent = 0
                self._queue.popleft()
                head.release()
        elif len(head) > PIECE_BYTES:
            data = memoryview(head)[:PIECE_BYTES]
            self._queue[0] = memoryview(head)[PIECE_BYTES:]
        else:
            data = head
            self._queue.popleft()
        self._queued -= len(data)
        self._accepted += len(data)
        self._transport.write(data)
