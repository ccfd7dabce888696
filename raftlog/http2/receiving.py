"""Bytes → frames. DATA goes to its stream's messages, everything else whole to the core.

Bytes arrive in a staging buffer, many small frames at a time. When a large message is under way, `get_buffer` names
the place in the message's own buffer instead, and the kernel writes it there: no copy in Python. Frames that are not
DATA are small (`max_control_frame_bytes`) and wait in the staging buffer until they are complete. Work on one buffer
is bounded (`WORK`): what is `behind` waits there for the next call of `received`.
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

FIRST_STAGING_BYTES = 32 * 1024
STAGING_BYTES = 128 * 1024
"""Once a read has filled the first one: an idle connection need not hold as much."""
WORK = 1000
"""What is done before the loop's other callbacks have their turn, in units of some 10 us: a frame that is handled by
hand, a message. A full buffer of the smallest frames would hold the loop for a tenth of a second."""
CONTROL_WORK = 25
"""Of a frame that goes to `h2`."""
PIECE_BYTES = 8 * 1024
"""So much of a DATA frame in the staging buffer is looked at at once, since it may be 2,000 messages; but all of one
message, which costs nothing but a copy."""
DIRECT_BYTES = 32 * 1024
"""From this many missing bytes on, the kernel writes into the message's own buffer: below, one more call costs more
than the copy."""


class FrameSink(Protocol):
    """What the core does with frames. All methods but `message` may raise `Http2Error`."""

    def data_begins(self, stream_id: int, length: int, flags: int) -> StreamState | None:
        """A DATA frame's header: the stream that its payload is for, or None to throw it away."""
        ...

    def data_counted(self, stream: StreamState, length: int, ends: bool) -> bool:
        """So many bytes of it are content, perhaps the last. False: throw them away."""
        ...

    def data_received(self, stream: StreamState, data: memoryview) -> bool:
        """Some of the payload. False: throw the rest away."""
        ...

    def message(self, stream: StreamState, message: memoryview) -> None: ...

    def overflow(self, stream: StreamState) -> None:
        """There is no memory left for this stream's message: the stream must end, and be forgotten."""
        ...

    def data_ended(self, stream: StreamState) -> None:
        """END_STREAM, after all of the payload."""
        ...

    def frame(self, kind: int, flags: int, stream_id: int, frame: bytes) -> None:
        """A whole frame that is not DATA, header included."""
        ...


class FrameReader:
    """Cuts what was received into frames.

    Invariant: `_start <= _end <= STAGING_BYTES`; outside of `received`, at most one incomplete control frame or
    header lies between them, unless the reader is `behind`.
    """

    def __init__(self, limits: Http2Limits, sink: FrameSink) -> None:
        self._limits = limits
        self._sink = sink
        self._staging = bytearray(FIRST_STAGING_BYTES)
        self._view = memoryview(self._staging)
        self._start = self._end = 0
        self._stream: StreamState | None = None
        self._data_left = 0
        """Content of the current DATA frame that has not arrived."""
        self._skip_left = 0
        """Padding, or payload that nobody wants."""
        self._ends_stream = False
        self._direct = False
        self._work_left = WORK
        self.behind = False
        """There is more in the buffer to be looked at: call `received(0)`, and no `get_buffer` before."""

    def get_buffer(self) -> memoryview:
        """Where the next bytes go; then call `received`, or this again when there were none. Never empty."""
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

    def received(self, count: int) -> None:
        """`count` bytes were put where `get_buffer` said. Raises `Http2Error`."""
        self._work_left = WORK
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

    def worked(self, units: int) -> None:
        """The sink did more than a frame's work."""
        self._work_left -= units

    def stage(self, count: int) -> None:
        """`count` bytes were put where `get_buffer` said, and are not to be looked at yet."""
        self._end += count

    def staged(self) -> memoryview:
        """What was received and not understood yet."""
        return self._view[self._start : self._end]

    def drop_staged(self, count: int) -> None:
        """The first bytes of `staged` were dealt with otherwise (the preface)."""
        self._start += count

    def drop_all(self) -> None:
        """Nobody is interested any more."""
        self._start = self._end = self._data_left = self._skip_left = 0
        self._stream = None
        self._direct = False
        self._ends_stream = False
        self.behind = False

    def forget(self, stream: StreamState) -> None:
        """The stream is over: the rest of its frame is of no use. Not to be called between `get_buffer` and
        `received`."""
        if self._stream is stream:
            self._skip_left += self._data_left
            self._stream = None
            self._data_left = 0
            self._ends_stream = False

    def _compact(self, into: bytearray | None = None) -> None:
        """Move what is incomplete to the front, of a larger buffer if one is given."""
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
                self._work_left = WORK  # the rest of a frame is missing, not work
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
        """One frame, or the beginning of one. False: more bytes are needed."""
        start = self._start
        available = self._end - self._start
        if available < HEADER_BYTES:
            return False
        word, flags, stream_id = FRAME_HEADER.unpack_from(self._staging, start)
        length, kind = word >> 8, word & 0xFF
        stream_id &= STREAM_ID_MASK
        if kind == DATA:
            if length > self._limits.max_frame_bytes:
                raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, f"DATA frame of {length} bytes")
            if not flags and PREFIX_BYTES <= length <= available - HEADER_BYTES:
                return self._plain_frame(stream_id, length)
            return self._data_frame(stream_id, length, flags, available)
        if length > self._limits.max_control_frame_bytes:
            raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, f"frame of type {kind} with {length} bytes")
        end = start + HEADER_BYTES + length
        if end > self._end:
            return False
        self._start = end
        if kind != WINDOW_UPDATE:
            self._work_left -= CONTROL_WORK + length // 64
        self._sink.frame(kind, flags, stream_id, bytes(self._view[start:end]))
        return True

    def _plain_frame(self, stream_id: int, length: int) -> bool:
        """A whole DATA frame without flags: mostly just one message."""
        sink = self._sink
        start = self._start + HEADER_BYTES
        stream = sink.data_begins(stream_id, length, 0)
        self._start = start
        if stream is None or (stream.content_left is not None and not sink.data_counted(stream, length, False)):
            self._skip_left = length
            return True
        if stream.answered and stream.assembler.at_boundary:
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
            return False  # the padding's length must be there to know what is content
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
