"""Messages into DATA frames, within the peer's frame size and windows. The only owner of the windows for sending.

A message that fits goes out at once as one frame, whose header and prefix are one piece of 13 bytes, followed by the
caller's own buffers. A message that does not fit (a peer with 16 KiB frames, an empty window, a full socket) waits in
its stream's queue; streams with queued messages take turns, one frame each, so that bulk on one delays the others by
one frame. A frame never contains parts of two messages: so a receiver like ours gets one message per frame.

Nothing larger than `JOIN_BYTES` is joined, and nothing is copied: pieces are memoryviews, and a file region is cut into
regions that share one `release`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace

from ..ports import Buffer, FileRegion, Part, release_regions
from .frames import DATA, DATA_AND_PREFIX, FRAME_HEADER, PREFIX, PREFIX_BYTES, ErrorCode, Http2Error
from .limits import DEFAULT_WINDOW, LARGEST_WINDOW, SMALLEST_FRAME
from .stream_table import QueuedMessage, StreamState

LOW_CONTENT_BYTES = 64 * 1024
"""Queued bytes of an exchange from which on its user may send more."""
JOIN_BYTES = 4096
"""Size up to which a message is copied into one piece, in bytes: cheaper than passing three to the kernel."""


class Outbox:
    """The send queues of one connection.

    Invariant: `queued_bytes` is the sum of `queued_bytes` over all streams, `queued_messages` that of their queues.

    Invariant: a stream is in the ring if and only if its queue is not empty.
    """

    def __init__(self) -> None:
        self.output: list[Part] = []
        """Pieces in wire order, for the shell to take; includes control frames."""
        self.room = 0
        """Bytes of DATA that the shell can take now; the shell sets it, each frame lowers it."""
        self.window = DEFAULT_WINDOW
        """The connection's window, in bytes, which SETTINGS may not change."""
        self.max_frame_bytes = SMALLEST_FRAME
        self.initial_window = DEFAULT_WINDOW
        self.queued_bytes = 0
        self.queued_messages = 0
        self.framed_bytes = 0
        """Bytes of DATA framed since the beginning: what the peer's windows have allowed."""
        self.ended: list[StreamState] = []
        """Streams whose queue ran empty and that are to end: the core sends END_STREAM."""
        self.lowered: list[StreamState] = []
        """Exchanges whose users wait for room, which there is now."""
        self._ring: deque[StreamState] = deque()

    def send(self, stream: StreamState, parts: list[Part], total: int) -> None:
        """Frame one message of `total` bytes at once if possible, else queue it on its stream."""
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

    def send_content(self, stream: StreamState, content: Buffer) -> None:
        """Frame bytes that are no message at once, or queue them: the text of a refusal, or an exchange's content."""
        size = len(content)
        full = stream.is_exchange and self.room <= 0
        if stream.queue or full or size > min(self.max_frame_bytes, self.window, stream.send_window):
            self._queue(stream, QueuedMessage(deque([content]), size))
            return
        self.window -= size
        stream.send_window -= size
        self.room -= size
        self.framed_bytes += size
        header = FRAME_HEADER.pack(size << 8 | DATA, 0, stream.id)
        if size <= JOIN_BYTES:
            self.output.append(b"".join((header, content)))
        else:
            self.output.extend((header, content))

    def fill(self) -> None:
        """Frame queued messages until there is no room, or no window allows more."""
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
        """Drop the queue of a stream that has ended."""
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
        """Handle WINDOW_UPDATE for the connection. Raises `Http2Error`."""
        if increment == 0:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE of 0 for the connection")
        self.window += increment
        if self.window > LARGEST_WINDOW:
            raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, "the connection's window grew beyond 2^31-1")

    def initial_window_changed(self, size: int, streams: list[StreamState]) -> None:
        """Handle a change of all streams' windows by SETTINGS, including open ones. Raises `Http2Error`."""
        delta = size - self.initial_window
        self.initial_window = size
        for stream in streams:
            stream.send_window += delta
            if stream.send_window > LARGEST_WINDOW:
                raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, "SETTINGS made a window grow beyond 2^31-1")

    def _enqueue(self, stream: StreamState, parts: list[Part], total: int) -> None:
        self._queue(stream, QueuedMessage(deque((PREFIX.pack(total), *parts)), total + PREFIX_BYTES))

    def _queue(self, stream: StreamState, message: QueuedMessage) -> None:
        stream.queue.append(message)
        stream.queued_bytes += message.left
        self.queued_bytes += message.left
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
        if stream.waits_for_room and stream.queued_bytes <= LOW_CONTENT_BYTES:
            stream.waits_for_room = False
            self.lowered.append(stream)
        if not message.left:
            stream.queue.popleft()
            self.queued_messages -= 1


class SharedRelease:
    """One `release` for several pieces of a region.

    It is called when the last piece was sent or dropped.
    """

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
    """Move the first `count` bytes of `parts` to `into`, splitting a piece at the border."""
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
    # The bound method's object shows whether this region is itself a piece: then its share is already counted.
    shared = getattr(region.release, "__self__", None)
    if not isinstance(shared, SharedRelease):
        shared = SharedRelease(region.release)
    shared.hold()
    head = replace(region, length=count, release=shared.drop)
    tail = replace(region, position=region.position + count, length=region.length - count, release=shared.drop)
    return head, tail
