"""Bytes into frames: DATA goes to its stream's messages, everything else goes whole to the core.

Bytes arrive in a staging buffer, many small frames at a time. While a large message is being received, `get_buffer`
returns the message's own buffer instead, and the kernel writes into it: no copy in Python. Other frames than DATA are
small (`max_control_frame_bytes`) and wait in the staging buffer until they are complete. Work on one buffer is bounded
(`turns.py`): the rest waits there for the next call of `received` (`behind`).
"""

from __future__ import annotations

from typing import Protocol

from .frames import (
    DATA,
    FLAG_END_STREAM,
    FLAG_PADDED,
    FRAME_HEADER,
    HEADER_BYTES,
    PREFIX,
    PREFIX_BYTES,
    STREAM_ID_MASK,
    WINDOW_UPDATE,
    ErrorCode,
    Http2Error,
)
from .limits import Http2Limits
from .messages import PartialOverflow
from .stream_table import StreamState
from .turns import WORK

FIRST_STAGING_BYTES = 32 * 1024
STAGING_BYTES = 128 * 1024
"""Size of the staging buffer once a read has filled the first one: idle connections do not need as much."""
CONTROL_WORK = 25
"""Work of a frame that goes to `h2`, in units of `turns.WORK`."""
PIECE_BYTES = 8 * 1024
"""Bytes of a DATA frame in the staging buffer that are processed at once, since they may be 2,000 messages.

All bytes of a single message are processed at once, which only costs a copy.
"""
DIRECT_BYTES = 32 * 1024
"""Missing bytes from which on the kernel writes into the message's own buffer.

Below it, one more call costs more than the copy.
"""


class FrameSink(Protocol):
    """Receives the frames. All methods but `message` may raise `Http2Error`."""

    def data_begins(self, stream_id: int, length: int, flags: int) -> StreamState | None:
        """Handle a DATA frame's header: return the stream of its payload, or None to discard it."""
        ...

    def data_counted(self, stream: StreamState, length: int, ends: bool) -> bool:
        """Handle `length` bytes of content, the last ones if `ends`; return False to discard them."""
        ...

    def data_received(self, stream: StreamState, data: memoryview) -> bool:
        """Handle a part of the payload; return False to discard the rest."""
        ...

    def message(self, stream: StreamState, message: memoryview) -> None: ...

    def overflow(self, stream: StreamState) -> None:
        """Handle a lack of memory for this stream's message: end the stream, and forget it."""
        ...

    def data_ended(self, stream: StreamState) -> None:
        """Handle END_STREAM, after all of the payload."""
        ...

    def frame(self, kind: int, flags: int, stream_id: int, frame: bytes) -> None:
        """Handle a whole frame other than DATA, header included."""
        ...


class FrameReader:
    """Cuts received bytes into frames.

    Invariant: `_start <= _end <= STAGING_BYTES`; outside of `received`, at most one incomplete control frame or header
    lies between them, unless the reader is `behind`.
    """

    def __init__(self, limits: Http2Limits, sink: FrameSink) -> None:
        self._limits = limits
        self._sink = sink
        self._staging = bytearray(FIRST_STAGING_BYTES)
        self._view = memoryview(self._staging)
        self._start = self._end = 0
        self._stream: StreamState | None = None
        self._data_left = 0
        """Bytes of the current DATA frame's content that have not arrived."""
        self._skip_left = 0
        """Bytes of padding or unwanted payload to skip."""
        self._ends_stream = False
        self._direct = False
        self._work_left = self._work = WORK
        self.behind = False
        """Whether the buffer has unprocessed bytes: call `received(0)` before `get_buffer`."""

    def get_buffer(self) -> memoryview:
        """Return the buffer for the next bytes, which is never empty.

        Then call `received`, or this again if there were none.
        """
        self._direct = False
        stream = self._stream
        if stream is not None and self._data_left >= DIRECT_BYTES and self._start == self._end:
            wanted = min(stream.assembler.wanted(), self._data_left)
            if wanted >= DIRECT_BYTES:
                try:
                    room = stream.assembler.room(wanted)
                except PartialOverflow:
                    self._sink.overflow(stream)
                else:
                    self._direct = True
                    return room
        if self._start == self._end:
            self._start = self._end = 0
            return self._view
        if self._start:
            self._compact()
        return self._view[self._end :]

    def received(self, count: int, work: int = WORK) -> None:
        """Process `count` bytes in the buffer, as far as `work` suffices. Raises `Http2Error`."""
        self._work_left = self._work = work
        if not self._direct:
            self._end += count
            full = self._end == len(self._staging)
            self._parse()
            self.behind = self._work_left <= 0 and self._start < self._end
            if full and len(self._staging) < STAGING_BYTES:
                self._compact(bytearray(STAGING_BYTES))
            return
        self._direct = False
        stream = self._stream
        assert stream is not None
        self._data_left -= count
        message = stream.assembler.filled(count)
        if message is not None:
            self._sink.message(stream, message)
        if not self._data_left:
            self._data_done()

    @property
    def staging_bytes(self) -> int:
        """Size of the staging buffer."""
        return len(self._staging)

    def worked(self, units: int) -> None:
        """Count additional work of the sink."""
        self._work_left -= units

    def stage(self, count: int) -> None:
        """Add `count` bytes in the buffer without processing them yet."""
        self._end += count

    def staged(self) -> memoryview:
        """Return the received bytes that are not processed yet."""
        return self._view[self._start : self._end]

    def drop_staged(self, count: int) -> None:
        """Drop the first of the `staged` bytes, which were processed elsewhere (the preface)."""
        self._start += count

    def drop_all(self) -> None:
        """Drop everything."""
        self._start = self._end = self._data_left = self._skip_left = 0
        self._stream = None
        self._direct = False
        self._ends_stream = False
        self.behind = False

    def forget(self, stream: StreamState) -> None:
        """Skip the rest of the frame of a stream that has ended.

        Not to be called between `get_buffer` and `received`.
        """
        if self._stream is stream:
            self._skip_left += self._data_left
            self._stream = None
            self._data_left = 0
            self._ends_stream = False

    def _compact(self, into: bytearray | None = None) -> None:
        """Move the incomplete rest to the front, of a larger buffer if one is given."""
        rest = self.staged()
        self._end -= self._start
        self._start = 0
        if into is not None:
            self._staging, self._view = into, memoryview(into)
        if self._end:
            self._view[: self._end] = rest

    def _parse(self) -> None:
        while self._start < self._end and self._work_left > 0:
            self._work_left -= 1
            if self._data_left:
                self._take_content()
            elif self._skip_left:
                count = min(self._skip_left, self._end - self._start)
                self._skip_left -= count
                self._start += count
            elif not self._next_frame():
                self._work_left = self._work  # the rest of a frame is missing, so there is no work left
                return

    def _take_content(self) -> None:
        stream = self._stream
        assert stream is not None
        piece = max(PIECE_BYTES, stream.assembler.wanted())
        count = min(self._data_left, self._end - self._start, piece)
        start = self._start
        self._start += count
        self._data_left -= count
        if not self._sink.data_received(stream, self._view[start : start + count]):
            assert self._stream is not stream  # `forget` was called
        elif not self._data_left:
            self._data_done()

    def _data_done(self) -> None:
        stream, ends = self._stream, self._ends_stream
        self._stream, self._ends_stream = None, False
        if ends and stream is not None and not stream.closed:
            self._sink.data_ended(stream)

    def _next_frame(self) -> bool:
        """Process one frame or its beginning; return False if more bytes are needed."""
        start = self._start
        available = self._end - self._start
        if available < HEADER_BYTES:
            return False
        word, flags, stream_id = FRAME_HEADER.unpack_from(self._staging, start)
        length, kind = word >> 8, word & 0xFF
        stream_id &= STREAM_ID_MASK
        if kind == DATA:
            if length > self._limits.max_frame_bytes:
                raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, f"a DATA frame of {length} bytes")
            if not flags and PREFIX_BYTES <= length <= available - HEADER_BYTES:
                return self._plain_frame(stream_id, length)
            return self._data_frame(stream_id, length, flags, available)
        if length > self._limits.max_control_frame_bytes:
            raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, f"a frame of type {kind} with {length} bytes")
        end = start + HEADER_BYTES + length
        if end > self._end:
            return False
        self._start = end
        if kind != WINDOW_UPDATE:
            self._work_left -= CONTROL_WORK + length // 64
        self._sink.frame(kind, flags, stream_id, bytes(self._view[start:end]))
        return True

    def _plain_frame(self, stream_id: int, length: int) -> bool:
        """Process a whole DATA frame without flags: usually exactly one message."""
        sink = self._sink
        start = self._start + HEADER_BYTES
        stream = sink.data_begins(stream_id, length, 0)
        self._start = start
        if stream is None or (stream.content_left is not None and not sink.data_counted(stream, length, False)):
            self._skip_left = length
            return True
        if stream.answered and not stream.is_exchange and stream.assembler.at_boundary:
            (prefix,) = PREFIX.unpack_from(self._staging, start)
            if prefix == length - PREFIX_BYTES:
                if prefix > self._limits.max_message_bytes:
                    stream.assembler.check_length(prefix)
                self._start = start + length
                sink.message(stream, memoryview(bytes(self._view[start + PREFIX_BYTES : self._start])))
                return True
        self._stream = stream
        self._data_left = length
        self._ends_stream = False
        return True

    def _data_frame(self, stream_id: int, length: int, flags: int, available: int) -> bool:
        padded = bool(flags & FLAG_PADDED)
        if padded and length and available == HEADER_BYTES:
            return False  # the length of the padding must be there to know the content
        content = length
        padding = 0
        start = self._start + HEADER_BYTES
        if padded:
            padding = self._staging[start] + 1 if length else 1
            if padding > length:
                raise Http2Error(ErrorCode.PROTOCOL_ERROR, "more padding than frame")
            content -= padding
        ends = bool(flags & FLAG_END_STREAM)
        stream = self._sink.data_begins(stream_id, length, flags)
        self._start = start
        if stream is None or not self._sink.data_counted(stream, content, ends):
            self._skip_left = length
            return True
        if padded:
            self._start += 1
            self._skip_left = padding - 1
        self._stream, self._data_left = stream, content
        self._ends_stream = ends
        if not content:
            self._data_done()
        return True
