"""Messages → DATA frames, within the peer's frame size and windows. The one owner of the windows that we send into.

A message that fits goes out at once as one frame whose header and prefix are one piece of 13 bytes, followed by the
caller's own buffers. What does not fit (a peer with 16 KiB frames, an empty window, a full socket) waits in its
stream's queue; streams with something to send take turns, a frame each, so that bulk on one delays the others by one
frame. A frame never holds parts of two messages: a receiver like ours then has one message a frame.

Nothing is joined that is larger than `JOIN_BYTES`, and nothing is copied: pieces are memoryviews, and a file region
is cut into regions that share one `release`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace

from ..ports import FileRegion, Part
from .frames import DATA, DATA_AND_PREFIX, FRAME_HEADER, PREFIX, PREFIX_BYTES, ErrorCode, Http2Error
from .limits import DEFAULT_WINDOW, LARGEST_WINDOW, SMALLEST_FRAME
from .messages import release_regions
from .stream_table import QueuedMessage, StreamState

JOIN_BYTES = 4096
"""A message up to this size is copied into one piece: cheaper than handing the kernel three."""


class Outbox:
    """What is to be sent on one connection.

    Invariant: `queued_bytes` is the sum of `queued_bytes` over all streams, `queued_messages` that of their queues.
    Invariant: a stream is in the ring if and only if its queue is not empty.
    """

    def __init__(self) -> None:
        self.output: list[Part] = []
        """Pieces in wire order, for the shell to take. Control frames are put here too."""
        self.room = 0
        """How many bytes of DATA the shell wants now; the shell sets it, each frame lowers it."""
        self.window = DEFAULT_WINDOW
        """Of the connection. May not be changed by SETTINGS."""
        self.max_frame_bytes = SMALLEST_FRAME
        self.initial_window = DEFAULT_WINDOW
        self.queued_bytes = 0
        self.queued_messages = 0
        self.framed_bytes = 0
        """Of DATA, since the beginning: what the peer's windows have let through."""
        self.ended: list[StreamState] = []
        """Streams whose queue ran empty and that are to end: the core says END_STREAM."""
        self._ring: deque[StreamState] = deque()

    def send(self, stream: StreamState, parts: list[Part], total: int) -> None:
        """One message of `total` bytes: into frames at once where possible, else into the stream's queue."""
        size = total + PREFIX_BYTES
        if (
            stream.queue
            or self.room <= 0
            or size > self.max_frame_bytes
            or size > self.window
            or size > stream.send_window
        ):
            self._enqueue(stream, parts, total)
            return
        self.window -= size
        stream.send_window -= size
        self.room -= size
        self.framed_bytes += size
        header = DATA_AND_PREFIX.pack(size << 8 | DATA, 0, stream.id, total)
        if size <= JOIN_BYTES and FileRegion not in map(type, parts):
            self.output.append(b"".join((header, *parts)))  # type: ignore[arg-type]
        else:
            self.output.append(header)
            self.output.extend(parts)

    def fill(self) -> None:
        """Frames from the queues until there is no room, or nothing that a window lets through."""
        blocked = 0
        while self.room > 0 and self.window > 0 and blocked < len(self._ring):
            stream = self._ring[0]
            if stream.send_window <= 0:
                self._ring.rotate(-1)
                blocked += 1
                continue
            blocked = 0
            self._emit(stream)
            if stream.queue:
                self._ring.rotate(-1)
                continue
            self._ring.popleft()
            stream.in_ring = False
            if stream.end_wanted:
                self.ended.append(stream)

    def drop(self, stream: StreamState) -> None:
        """The stream is over: what waits for it is given up."""
        if not stream.in_ring:
            return
        self._ring.remove(stream)
        stream.in_ring = False
        self.queued_bytes -= stream.queued_bytes
        stream.queued_bytes = 0
        queue, stream.queue = stream.queue, deque()
        self.queued_messages -= len(queue)
        for message in queue:
            release_regions(list(message.parts))

    def connection_window_opened(self, increment: int) -> None:
        """WINDOW_UPDATE for the connection. Raises `Http2Error`."""
        if increment == 0:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE of 0 for the connection")
        self.window += increment
        if self.window > LARGEST_WINDOW:
            raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, "the connection's window grew beyond 2^31-1")

    def initial_window_changed(self, size: int, streams: list[StreamState]) -> None:
        """SETTINGS changed the window of all streams, the open ones included. Raises `Http2Error`."""
        delta = size - self.initial_window
        self.initial_window = size
        for stream in streams:
            stream.send_window += delta
            if stream.send_window > LARGEST_WINDOW:
                raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, "SETTINGS made a window grow beyond 2^31-1")

    def _enqueue(self, stream: StreamState, parts: list[Part], total: int) -> None:
        size = total + PREFIX_BYTES
        stream.queue.append(QueuedMessage(deque((PREFIX.pack(total), *parts)), size))
        stream.queued_bytes += size
        self.queued_bytes += size
        self.queued_messages += 1
        if not stream.in_ring:
            stream.in_ring = True
            self._ring.append(stream)

    def _emit(self, stream: StreamState) -> None:
        message = stream.queue[0]
        size = min(message.left, self.max_frame_bytes, self.window, stream.send_window)
        self.output.append(FRAME_HEADER.pack(size << 8 | DATA, 0, stream.id))
        take(message.parts, size, self.output)
        message.left -= size
        stream.queued_bytes -= size
        self.queued_bytes -= size
        self.window -= size
        stream.send_window -= size
        self.room -= size
        self.framed_bytes += size
        if not message.left:
            stream.queue.popleft()
            self.queued_messages -= 1


class SharedRelease:
    """One `release` for several pieces of a region: called when the last piece was sent or given up."""

    __slots__ = ("_holders", "_release")

    def __init__(self, release: Callable[[], None]) -> None:
        self._release = release
        self._holders = 1

    def hold(self) -> None:
        self._holders += 1

    def drop(self) -> None:
        self._holders -= 1
        assert self._holders >= 0
        if not self._holders:
            self._release()


def take(parts: deque[Part], count: int, into: list[Part]) -> None:
    """Move the first `count` bytes of `parts` to `into`, cutting the piece at the border in two."""
    while count:
        part = parts[0]
        length = part.length if isinstance(part, FileRegion) else len(part)
        if length <= count:
            into.append(parts.popleft())
            count -= length
            continue
        if isinstance(part, FileRegion):
            head, tail = _cut_region(part, count)
            into.append(head)
            parts[0] = tail
        else:
            view = memoryview(part)
            into.append(view[:count])
            parts[0] = view[count:]
        return


def _cut_region(region: FileRegion, count: int) -> tuple[FileRegion, FileRegion]:
    # The method's object tells whether this region is itself a piece: then the share is already counted.
    shared = getattr(region.release, "__self__", None)
    if not isinstance(shared, SharedRelease):
        shared = SharedRelease(region.release)
    shared.hold()
    head = replace(region, length=count, release=shared.drop)
    tail = replace(region, position=region.position + count, length=region.length - count, release=shared.drop)
    return head, tail
