"""Sending bytes without joining or copying them: buffers by `sendmsg`, regions of files by `sendfile`.

asyncio's transport copies what the socket does not take at once, and it cannot interleave a file's bytes without
private calls. So both users here work on a duplicate of the transport's descriptor, which the loop allows them to
watch:

* `SocketWriter` owns all writing on a connection (the transport's `write` is then never called): an ordered queue of
  parts, sent as far as the socket takes them. HTTP/2 (`raftlog/http2/`) is built on it.
* `send_region` is for a transport with another writer (aiohttp's): it waits until the transport's buffer is empty, then
  sends the region. The caller writes nothing to the transport meanwhile.

In both cases a `FileRegion` is released exactly once: when the kernel took its last byte, or when it was given up. The
source's pages should be in the page cache, because `sendfile` blocks the loop while it reads from the disk.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice

from raftlog.errors import DiskFailed, RetriableError
from raftlog.ports import Buffer, FileRegion, Part, behind, release_regions

GATHER_PARTS = 512
"""Maximum number of buffers in one `sendmsg`; Linux takes at most 1024."""
GATHER_BYTES = 4 * 1024 * 1024
"""Bytes that are enough for any socket buffer; offering more only costs time."""
TURN_BYTES = 8 * 1024 * 1024
"""Bytes after which the loop's other callbacks have their turn."""
CALL_BYTES = 16 * 1024
"""Bytes that a system call counts for at least: an answer may be ten thousand regions of a hundred bytes each."""
SENDFILE_BYTES = 4 * 1024 * 1024
"""Maximum bytes in one `sendfile`, so that a region of a cold file does not hold the loop for long."""


def duplicate_socket(transport: asyncio.BaseTransport) -> socket.socket:
    """Return the transport's connection under a new descriptor, because the loop guards the transport's own one.

    Raises `OSError`.
    """
    original = transport.get_extra_info("socket")
    assert original is not None, "a transport without a socket"
    duplicate = socket.socket(fileno=os.dup(original.fileno()))
    duplicate.setblocking(False)
    return duplicate


def send_file(sock: socket.socket, region: FileRegion, sent: int) -> int:
    """Send the next bytes of a region of which `sent` are already sent.

    Raises `BlockingIOError`, `OSError`, `DiskFailed`.
    """
    count = min(region.length - sent, SENDFILE_BYTES)
    taken = os.sendfile(sock.fileno(), region.file.fileno(), region.position + sent, count)
    if not taken:
        raise DiskFailed(f"the file ends {region.length - sent} bytes before the region does")
    return taken


class SocketWriter:
    """The only writer of a non-blocking stream socket, with a queue of parts.

    Invariant: `backlog` is the number of bytes in the queue that the kernel has not taken.

    Invariant: the loop watches the socket if and only if the queue is not empty after a `flush`.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        *,
        refill: Callable[[], None],
        failed: Callable[[str], None],
    ) -> None:
        """`refill` is called before each send, and may `extend`; `failed` is called once, when nothing can be sent any
        more."""
        self._loop = loop
        self._sock = sock
        self._refill = refill
        self._failed = failed
        self._queue: deque[Part] = deque()
        self._region_sent = 0
        """Bytes sent of the region at the head of the queue."""
        self._watching = False
        self._closed = False
        self.backlog = 0
        self.total_sent = 0

    @property
    def pieces(self) -> int:
        """Number of parts in the queue."""
        return len(self._queue)

    def extend(self, parts: Sequence[Part]) -> None:
        """Queue parts, none of them empty; memoryviews must have items of one byte."""
        if self._closed:
            release_regions(parts)
            return
        self._queue.extend(parts)
        for part in parts:
            self.backlog += part.length if isinstance(part, FileRegion) else len(part)

    def send(self, parts: list[Part]) -> None:
        """`extend` and `flush`. For an empty queue and only buffers, this takes one system call and no queueing."""
        if self._queue or self._closed or FileRegion in map(type, parts) or len(parts) > GATHER_PARTS:
            self.extend(parts)
            self.flush()
            return
        buffers: list[Buffer] = parts  # type: ignore[assignment]
        try:
            if len(buffers) == 1:
                size = len(buffers[0])
                sent = self._sock.send(buffers[0])
            else:
                size = sum(map(len, buffers))
                sent = self._sock.sendmsg(buffers)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError as error:
            self.close()
            self._failed(str(error))
            return
        self.total_sent += sent
        if sent < size:
            self.extend(behind(map(memoryview, buffers), sent))
            self.flush()

    def flush(self) -> None:
        """Send what the socket takes now; the rest is sent when it takes more."""
        if not self._watching and not self._closed:
            self._send()

    def detach(self) -> tuple[socket.socket, list[Part]]:
        """Stop, and return the socket with the unsent parts. The rest of a partly sent region becomes a region."""
        self._watch(False)
        self._closed = True
        parts, self._queue = list(self._queue), deque()
        if self._region_sent:
            head = parts[0]
            assert isinstance(head, FileRegion)
            parts[0] = FileRegion(
                head.file, head.position + self._region_sent, head.length - self._region_sent, head.release
            )
        return self._sock, parts

    def shutdown(self) -> None:
        """Tell the peer that nothing more is sent."""
        try:
            self._sock.shutdown(socket.SHUT_WR)
        except OSError:  # the peer closed first
            return

    def close(self) -> None:
        """Drop the queued parts and close the duplicate socket. A second call does nothing."""
        if self._closed:
            return
        sock, parts = self.detach()
        sock.close()
        release_regions(parts)
        self.backlog = 0

    def _send(self) -> None:
        budget = TURN_BYTES
        try:
            while budget > 0:
                self._refill()
                if not self._queue:
                    break
                head = self._queue[0]
                sent = self._send_region(head) if isinstance(head, FileRegion) else self._send_buffers()
                budget -= max(sent, CALL_BYTES)
                self.backlog -= sent
                self.total_sent += sent
        except (BlockingIOError, InterruptedError):
            self._watch(True)
        except (OSError, DiskFailed) as error:
            self.close()
            self._failed(str(error))
        else:
            self._watch(bool(self._queue))

    def _send_buffers(self) -> int:
        buffers: list[bytes | bytearray | memoryview] = []
        size = flags = 0
        for part in islice(self._queue, GATHER_PARTS):
            if isinstance(part, FileRegion):
                flags = socket.MSG_MORE  # no packet of its own for a nine-byte header
                break
            buffers.append(part)
            size += len(part)
            if size >= GATHER_BYTES:
                break
        sent = left = self._sock.sendmsg(buffers, [], flags)
        if sent == size:
            for _ in buffers:
                self._queue.popleft()
            return sent
        for buffer in buffers:
            if left < len(buffer):
                self._queue[0] = memoryview(buffer)[left:]
                break
            left -= len(buffer)
            self._queue.popleft()
        return sent

    def _send_region(self, region: FileRegion) -> int:
        sent = send_file(self._sock, region, self._region_sent)
        self._region_sent += sent
        if self._region_sent == region.length:
            self._region_sent = 0
            self._queue.popleft()
            region.release()
        return sent

    def _watch(self, wanted: bool) -> None:
        if wanted == self._watching or self._closed:
            return
        self._watching = wanted
        if wanted:
            self._loop.add_writer(self._sock.fileno(), self._send)
        else:
            self._loop.remove_writer(self._sock.fileno())


def can_send_region(transport: asyncio.BaseTransport, region: FileRegion) -> bool:
    """Return whether `send_region` works here: it needs a plain socket and a file with a descriptor."""
    plain = transport.get_extra_info("sslcontext") is None and transport.get_extra_info("socket") is not None
    return plain and region.file.fileno() >= 0


async def send_region(transport: asyncio.WriteTransport, region: FileRegion, *, timeout: float) -> None:
    """Send a region of a file to the peer of a plain transport, after everything written to the transport before.

    Nothing else may be written to the transport until this returns. The region is released in any case. If an error is
    raised, an unknown part of the region was sent, so the transport is aborted.

    Raises `RetriableError`: `slow_request` if the peer did not take the region within `timeout` seconds,
    `connection_lost` if it closed the connection; `DiskFailed` if the file is too short.
    """
    try:
        assert can_send_region(transport, region), "check `can_send_region` first"
        if region.length:
            async with asyncio.timeout(timeout):
                await _send_region(transport, region)
    except TimeoutError:
        transport.abort()
        raise RetriableError("slow_request", f"the peer took less than {region.length} bytes in {timeout} s") from None
    except OSError as error:
        transport.abort()
        raise RetriableError("connection_lost", f"the peer closed the connection: {error}") from None
    except BaseException:
        transport.abort()
        raise
    finally:
        region.release()


async def _send_region(transport: asyncio.WriteTransport, region: FileRegion) -> None:
    loop = asyncio.get_running_loop()
    sock = duplicate_socket(transport)
    done: asyncio.Future[None] = loop.create_future()
    sent = 0

    def step() -> None:
        nonlocal sent
        if done.done():
            return
        try:
            if transport.is_closing():
                raise ConnectionResetError("the transport is closing")
            if transport.get_write_buffer_size():
                return  # the transport's own writer also runs when the socket is writable
            turn_end = sent + TURN_BYTES
            while sent < region.length:
                if sent >= turn_end:
                    return  # the loop calls again
                sent += send_file(sock, region, sent)
        except (BlockingIOError, InterruptedError):
            return
        except (OSError, DiskFailed) as error:
            done.set_exception(error)
        else:
            done.set_result(None)

    try:
        loop.add_writer(sock.fileno(), step)
        step()
        await done
    finally:
        loop.remove_writer(sock.fileno())
        sock.close()
