"""The differences under TLS: bytes pass through Python and the loop's `ssl`, so there is no `sendfile`.

`TransportWriter` is to a TLS transport what `raftlog.system.zero_copy.SocketWriter` is to a socket. File regions are
read in pieces and written like buffers. A piece joins all parts that fit, because each write to the transport costs a
TLS record, a system call and a turn of the peer's loop: more than the copy. Bytes in the page cache are read at once,
the rest by a thread, one at a time per connection: the disk never blocks the loop.

`DialTls` is a dialer's TLS configuration for one peer; `explain` says for an error of `ssl` which end has to be fixed.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from ..errors import DiskFailed, RetriableError
from ..ports import Buffer, FileRegion, Part, release_regions

ALPN = "h2"
HIGH_WATER_BYTES = 512 * 1024
PIECE_BYTES = 256 * 1024
"""Bytes that are read from a file, or encrypted, at once."""
TURN_BYTES = 4 * 1024 * 1024
"""Bytes after which the loop's other callbacks run."""


ContextSource: TypeAlias = Callable[[], ssl.SSLContext]
"""Called for each connection, so that new certificates need no restart.

Several threads may call it; the context that it returns was made by `prepare` and does not change any more.
"""


def prepare(context: ssl.SSLContext) -> ssl.SSLContext:
    """Make the context offer HTTP/2 only (RFC 9113 section 3.2), and return it.

    Must be called before the context's first connection.
    """
    context.set_alpn_protocols([ALPN])
    context.minimum_version = max(context.minimum_version, ssl.TLSVersion.TLSv1_2)
    return context


def _anybody(certificate: Mapping[str, Any] | None) -> None:
    """Accept the certificate: the context's own checks suffice."""


@dataclass(frozen=True, slots=True)
class DialTls:
    """The TLS configuration for one peer."""

    context: ContextSource
    server_name: str | None = None
    """Server name sent in the clear; None: the host that is dialed. See `client_hello.py`."""
    check: Callable[[Mapping[str, Any] | None], None] = _anybody
    """Check of the peer's verified certificate, in the format of `ssl.SSLSocket.getpeercert`.

    Raises a `RaftlogError` if the peer is not the right one. No other bytes of the peer were processed before.
    """
    or_plain: bool = False
    """Whether a peer that speaks no TLS is dialed again in plain text."""

    @staticmethod
    def of(given: ssl.SSLContext | DialTls) -> DialTls:
        """Wrap a bare context, which accepts every peer that it trusts."""
        return given if isinstance(given, DialTls) else DialTls(source_of(given))


def source_of(given: ssl.SSLContext | ContextSource) -> ContextSource:
    """Wrap a bare context as a source that never changes."""
    if not isinstance(given, ssl.SSLContext):
        return given
    context = prepare(given)
    return lambda: context


_NOT_TLS = (
    "WRONG_VERSION_NUMBER",
    "HTTP_REQUEST",
    "UNEXPECTED_MESSAGE",
    "RECORD_LAYER_FAILURE",
    "PACKET_LENGTH_TOO_LONG",
)
CUT_SHORT = "it ended the TLS handshake: it speaks no TLS, or does not take this certificate; its log says which"


def speaks_no_tls(error: BaseException) -> bool:
    """Return whether a handshake failed because the peer's bytes are no TLS."""
    return isinstance(error, ssl.SSLError) and str(error.reason or "") in _NOT_TLS


def explain(error: BaseException) -> str:
    """Return a text for a failed TLS handshake, for the log of the end that noticed. "It" is the peer."""
    text = str(error) or type(error).__name__
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted here: {text}"
    if isinstance(error, ssl.SSLError):
        reason = str(error.reason or "")
        if speaks_no_tls(error):
            return f"it speaks no TLS: it has no [tls] settings, or this is not its data listener ({text})"
        if "ALERT" in reason or reason == "":
            return f"{CUT_SHORT} ({text})"
        return f"the TLS handshake failed ({text})"
    if isinstance(error, ConnectionResetError | ConnectionAbortedError | BrokenPipeError):
        return f"{CUT_SHORT} ({text})"
    return "no TLS handshake in time" if isinstance(error, TimeoutError) else text


def speaks_h2(transport: asyncio.BaseTransport) -> bool:
    """Whether the handshake agreed on HTTP/2; true for a plain connection, on which HTTP/2 is agreed in advance."""
    connection = transport.get_extra_info("ssl_object")
    return connection is None or connection.selected_alpn_protocol() == ALPN


class TransportWriter:
    """Writes parts to a TLS transport, with `SocketWriter`'s interface except `detach`."""

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
        self._reading: FileRegion | None = None
        """The region that a thread is reading: the head of the queue."""
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

    def send(self, parts: Sequence[Part]) -> None:
        """Call `extend`, then `flush`."""
        self.extend(parts)
        self.flush()

    def pause(self) -> None:
        """Stop writing: the transport's buffer is full."""
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        self.flush()

    def flush(self) -> None:
        turn_ends = self._accepted + TURN_BYTES
        while not self._paused and not self._closed and self._reading is None:
            self._refill()
            if not self._queue:
                return
            if self._accepted >= turn_ends:
                self._take_turns()
                return
            try:
                self._write_next()
            except (OSError, RetriableError) as error:
                self._fail(error)

    def shutdown(self) -> None:
        """Do nothing: TLS ends both directions at once, when the transport is closed after what was written."""

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        parts, self._queue = list(self._queue), deque()
        self._queued = 0
        if self._reading is not None:
            del parts[0]  # the thread still reads it, and a region keeps its file open
        release_regions(parts)

    def _fail(self, error: Exception) -> None:
        self.close()
        self._failed(str(error))

    def _take_turns(self) -> None:
        if not self._turn_due:
            self._turn_due = True
            asyncio.get_running_loop().call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._turn_due = False
        self.flush()

    def _write_next(self) -> None:
        """Write the next piece: one record of TLS and one system call carry many small parts."""
        gathered: list[Buffer] = []
        room = PIECE_BYTES
        while room and self._queue and self._reading is None:
            data = self._take_next(room)
            if data is not None:
                gathered.append(data)
                room -= len(data)
        if gathered:
            self._hand_over(gathered[0] if len(gathered) == 1 else b"".join(gathered))

    def _take_next(self, room: int) -> Buffer | None:
        """Take at most `room` bytes from the head of the queue; None: a thread has to read them."""
        head = self._queue[0]
        if isinstance(head, FileRegion):
            wanted = min(room, head.length - self._region_sent)
            data = head.file.pread_cached(wanted, head.position + self._region_sent)
            if data is None:
                self._read_by_thread(head)
                return None
            self._took(head, data, wanted)
            return data
        if len(head) > room:
            self._queue[0] = memoryview(head)[room:]
            return memoryview(head)[:room]
        return self._queue.popleft()  # type: ignore[return-value]  # it is the head

    def _took(self, region: FileRegion, data: Buffer, wanted: int) -> None:
        if len(data) < wanted:
            missing = region.length - self._region_sent - len(data)
            raise DiskFailed(f"the file ends {missing} bytes before the region does")
        self._region_sent += wanted
        if self._region_sent == region.length:
            self._region_sent = 0
            self._queue.popleft()
            region.release()

    def _hand_over(self, data: Buffer) -> None:
        self._queued -= len(data)
        self._accepted += len(data)
        self._transport.write(data)

    def _read_by_thread(self, region: FileRegion) -> None:
        self._reading = region
        wanted = min(PIECE_BYTES, region.length - self._region_sent)
        position = region.position + self._region_sent
        reading = asyncio.get_running_loop().run_in_executor(None, region.file.pread, wanted, position)
        reading.add_done_callback(lambda done: self._was_read(region, done, wanted))

    def _was_read(self, region: FileRegion, done: asyncio.Future[bytes], wanted: int) -> None:
        self._reading = None
        if self._closed:
            region.release()
            done.exception()  # the result is not needed
            return
        try:
            data = done.result()
            self._took(region, data, wanted)
            self._hand_over(data)
        except (OSError, RetriableError) as error:
            self._fail(error)
        else:
            self.flush()
