"""Validation of received bytes: every rule that `h2` does not check, and all of DATA.

* The preface, and SETTINGS as the first frame (RFC 9113 section 3.4).
* A header block is bounded, and nothing comes between its frames (section 6.10).
* Frames that cause work without content are rate-limited: rapid reset, floods of PING, SETTINGS, PRIORITY,
  CONTINUATION, empty DATA, unknown types. DATA and WINDOW_UPDATE are not: windows limit them, and they need no answer.
* DATA: windows, padding, `content-length`, states of streams (section 5.1), and then messages.

A violated rule of the connection raises `Http2Error` (which `ConnectionCore.received` turns into a GOAWAY); a violated
rule of one stream resets that stream.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

from .events import Event, MessageReceived, NotHttp2
from .frames import (
    CONTINUATION,
    FLAG_ACK,
    FLAG_END_HEADERS,
    FLAG_END_STREAM,
    GOAWAY,
    HEADER_BYTES,
    HEADERS,
    PREFACE,
    PUSH_PROMISE,
    SETTINGS,
    WINDOW_UPDATE,
    ErrorCode,
    Http2Error,
    known_settings,
    parse_goaway,
    parse_window_update,
    window_update,
)
from .limits import DEFAULT_WINDOW, LARGEST_WINDOW, Http2Limits, RateLimit
from .messages import MessageAssembler, PartialBudget, PartialOverflow
from .receiving import FrameReader
from .sending import Outbox
from .stream_table import StreamState

NOT_HTTP2_BYTES = 256


class InboundOwner(Protocol):
    """The interface of the connection to `Inbound`."""

    events: deque[Event]
    streams: dict[int, StreamState]
    outbox: Outbox

    def is_idle(self, stream_id: int) -> bool:
        """Whether no stream with this number has been opened yet."""
        ...

    def control(self, kind: int, frame: bytes) -> None:
        """Pass a frame to `h2`. Raises `Http2Error`."""
        ...

    def peer_ended(self, stream: StreamState) -> None:
        """Handle END_STREAM after valid content."""
        ...

    def peer_goes_away(self, last_stream_id: int, code: int, reason: str) -> None: ...

    def reset(self, stream: StreamState, code: ErrorCode, reason: str) -> None: ...

    def abandon(self, reason: str) -> None: ...


class Inbound:
    """The receiving half of one connection.

    Invariant: `_window` + what the peer used of it since the last WINDOW_UPDATE = `limits.window_bytes`.
    """

    def __init__(self, owner: InboundOwner, *, client: bool, limits: Http2Limits, now: float) -> None:
        self._owner = owner
        self._client = client
        self._limits = limits
        self.reader = FrameReader(limits, self)
        self._budget = PartialBudget(limits.max_partial_bytes)
        self._control = RateLimit(limits.control_frames_per_second, limits.control_frames_burst, now)
        self._now = now
        self._preface = b"" if client else PREFACE
        """Bytes that the peer must send before any frame."""
        self.awaits_preface = bool(self._preface)
        """Whether it is still unknown if the peer speaks HTTP/2."""
        self._settings_seen = False
        self._header_stream = 0
        """Id of the stream whose header block is being received; 0: none."""
        self._header_block_bytes = 0
        self._window = limits.window_bytes
        self._low_window = limits.window_bytes // 2

    def opening(self) -> bytes:
        """Return the frame that raises the connection's window from RFC 9113's default to ours."""
        increment = self._limits.window_bytes - DEFAULT_WINDOW
        return window_update(0, increment) if increment else b""

    def new_assembler(self) -> MessageAssembler:
        return MessageAssembler(self._limits.max_message_bytes, self._budget)

    def received(self, count: int, now: float) -> None:
        """Process received bytes. Raises `Http2Error`."""
        self._now = now
        if self._preface:
            self.reader.stage(count)
            if not self._take_preface():
                return
            count = 0
        elif self._client and not self._settings_seen:
            self.reader.stage(count)
            self._check_first_frame()
            count = 0
        self.reader.received(count)

    def ignore(self) -> None:
        """Discard the buffer after the end of the connection."""
        self.reader.drop_all()

    def forget(self, stream: StreamState) -> None:
        """Forget a stream that is over."""
        self._drop_early(stream)
        stream.assembler.discard()
        self.reader.forget(stream)

    def accepted(self, stream: StreamState) -> None:
        """Deliver the messages that came with a request, after it was accepted. Raises `Http2Error`."""
        if not stream.closed and (stream.early or stream.early_end):
            early = bytes(stream.early)
            self._drop_early(stream)
            if self.data_received(stream, memoryview(early)) and stream.early_end:
                self.data_ended(stream)

    def refused(self, stream: StreamState) -> None:
        """Discard the content of a request that was answered with an error."""
        self._drop_early(stream)
        stream.refused = True
        if stream.early_end and not stream.closed:
            self._owner.peer_ended(stream)

    def ration(self) -> bool:
        """Count one frame that caused work without content; return False if there were too many."""
        return self._control.allow(self._now)

    # --- For the frame reader ----------------------------------------------------------------------------------------

    def data_begins(self, stream_id: int, length: int, flags: int) -> StreamState | None:
        if not self._settings_seen or self._header_stream:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "DATA before SETTINGS, or within a header block")
        if not stream_id:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "DATA on stream 0")
        owner = self._owner
        ends = flags & FLAG_END_STREAM
        self._window -= length
        if self._window < self._low_window:
            self._reopen_connection()
        stream = owner.streams.get(stream_id)
        if stream is None:
            if owner.is_idle(stream_id):
                raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"DATA on idle stream {stream_id}")
            self._ration_empty(length)
            return None  # it was closed while this frame was in flight
        stream.receive_window -= length
        if stream.receive_window < self._low_window:
            self._reopen_stream(stream, bool(ends))
        if stream.remote_ended or stream.early_end:
            self._stream_error(stream, ErrorCode.STREAM_CLOSED, "DATA after the end of the stream")
            return None
        if self._client and not stream.answered:
            self._stream_error(stream, ErrorCode.PROTOCOL_ERROR, "DATA before the response's headers")
            return None
        if stream.refused:
            self._ration_empty(length or ends)
            if ends:
                owner.peer_ended(stream)
            return None
        return stream

    def data_counted(self, stream: StreamState, length: int, ends: bool) -> bool:
        self._ration_empty(length or ends)
        if stream.content_left is not None:
            stream.content_left -= length
            if stream.content_left < 0:
                self._stream_error(stream, ErrorCode.PROTOCOL_ERROR, "more content than content-length announces")
                return False
        return True

    def data_received(self, stream: StreamState, data: memoryview) -> bool:
        if stream.refused:
            return True
        try:
            if not stream.answered:
                self._budget.take(len(data))
                stream.early += data
                return True
            messages = stream.assembler.feed(data)
        except PartialOverflow:
            self.overflow(stream)
            return False
        self.reader.worked(len(messages))
        for message in messages:
            self._owner.events.append(MessageReceived(stream, message))
        return True

    def message(self, stream: StreamState, message: memoryview) -> None:
        self._owner.events.append(MessageReceived(stream, message))

    def overflow(self, stream: StreamState) -> None:
        self._stream_error(stream, ErrorCode.ENHANCE_YOUR_CALM, "too many unfinished messages on the connection")

    def data_ended(self, stream: StreamState) -> None:
        if not stream.answered:
            stream.early_end = True
        elif stream.refused:
            self._owner.peer_ended(stream)
        elif not stream.assembler.at_boundary:
            self._stream_error(stream, ErrorCode.PROTOCOL_ERROR, "the stream ended in the middle of a message")
        elif stream.content_left:
            self._stream_error(stream, ErrorCode.PROTOCOL_ERROR, "less content than content-length announces")
        else:
            self._owner.peer_ended(stream)

    def frame(self, kind: int, flags: int, stream_id: int, frame: bytes) -> None:
        if not self._settings_seen:
            if kind != SETTINGS or flags & FLAG_ACK:
                raise Http2Error(ErrorCode.PROTOCOL_ERROR, "the first frame is not SETTINGS")
            self._settings_seen = True
        if self._header_stream and (kind != CONTINUATION or stream_id != self._header_stream):
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "a frame within a header block")
        if kind == WINDOW_UPDATE:
            self._window_update(stream_id, parse_window_update(frame[HEADER_BYTES:]))
        elif kind == GOAWAY:
            if stream_id:
                raise Http2Error(ErrorCode.PROTOCOL_ERROR, "GOAWAY on a stream")
            self._ration("GOAWAY")
            self._owner.peer_goes_away(*parse_goaway(frame[HEADER_BYTES:]))
        elif kind in (HEADERS, CONTINUATION, PUSH_PROMISE):
            self._header_frame(kind, flags, stream_id, frame)
        else:
            self._ration("control frames")
            if kind == SETTINGS:
                frame = known_settings(frame)
            if kind < CONTINUATION:  # unknown types are ignored (RFC 9113 section 4.1)
                self._owner.control(kind, frame)

    def _drop_early(self, stream: StreamState) -> None:
        self._budget.give_back(len(stream.early))
        stream.early = bytearray()

    # --- Details -----------------------------------------------------------------------------------------------------

    def _take_preface(self) -> bool:
        staged = bytes(self.reader.staged()[:NOT_HTTP2_BYTES])
        if staged[: len(self._preface)] != self._preface[: len(staged)]:
            self._owner.events.append(NotHttp2(staged))
            self._owner.abandon("the peer does not speak HTTP/2")
            return False
        if len(staged) < len(self._preface):
            return False
        self.reader.drop_staged(len(self._preface))
        self._preface = b""
        self.awaits_preface = False
        return True

    def _check_first_frame(self) -> None:
        """Report a peer that is no HTTP/2 server as such, rather than its bytes misread as frames."""
        staged = bytes(self.reader.staged()[:NOT_HTTP2_BYTES])
        if len(staged) >= HEADER_BYTES and staged[3] != SETTINGS:
            said = f"the peer does not speak HTTP/2, its first bytes are {staged[:60]!r}"
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, said)

    def _header_frame(self, kind: int, flags: int, stream_id: int, frame: bytes) -> None:
        if kind == CONTINUATION:
            self._ration("CONTINUATION frames")
        else:
            self._header_block_bytes = 0
            self._ration_headers(stream_id)
        self._header_block_bytes += len(frame) - HEADER_BYTES
        if self._header_block_bytes > self._limits.max_header_block_bytes:
            raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, "the header block is too large")
        self._header_stream = 0 if flags & FLAG_END_HEADERS else stream_id
        self._owner.control(kind, frame)

    def _ration_headers(self, stream_id: int) -> None:
        """Rate-limit header blocks on ended or closed streams: each makes `h2` reset the stream."""
        stream = self._owner.streams.get(stream_id)
        over = not self._owner.is_idle(stream_id) if stream is None else stream.remote_ended or stream.early_end
        if over:
            self._ration("header blocks on streams that are over")

    def _window_update(self, stream_id: int, increment: int) -> None:
        owner = self._owner
        if not stream_id:
            owner.outbox.connection_window_opened(increment)
            return
        stream = owner.streams.get(stream_id)
        if stream is None:
            if owner.is_idle(stream_id):
                raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"WINDOW_UPDATE on idle stream {stream_id}")
        elif not increment:
            self._stream_error(stream, ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE of 0")
        else:
            stream.send_window += increment
            if stream.send_window > LARGEST_WINDOW:
                self._stream_error(stream, ErrorCode.FLOW_CONTROL_ERROR, "the window grew beyond 2^31-1")

    def _reopen_connection(self) -> None:
        if self._window < 0:
            raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, "more DATA than the connection's window")
        self._owner.outbox.output.append(window_update(0, self._limits.window_bytes - self._window))
        self._window = self._limits.window_bytes

    def _reopen_stream(self, stream: StreamState, ends: bool) -> None:
        if stream.receive_window < 0:
            raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, f"more DATA than the window of stream {stream.id}")
        if not ends and not stream.remote_ended:
            increment = self._limits.window_bytes - stream.receive_window
            self._owner.outbox.output.append(window_update(stream.id, increment))
            stream.receive_window = self._limits.window_bytes

    def _stream_error(self, stream: StreamState, code: ErrorCode, reason: str) -> None:
        self._ration("stream errors")
        self._owner.reset(stream, code, reason)

    def _ration_empty(self, of_use: int) -> None:
        if not of_use:
            self._ration("empty DATA frames")

    def _ration(self, what: str) -> None:
        if not self._control.allow(self._now):
            raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, f"too many {what} a second")
