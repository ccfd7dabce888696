"""One HTTP/2 connection, sans I/O: bytes in, events and bytes out.

With `raftlog/http2/h2_setup.py`, it is the only user of `h2`, apart from the error codes in `frames.py`.

Theory of operation. `h2` handles everything but DATA, WINDOW_UPDATE and GOAWAY: SETTINGS, HEADERS with HPACK and their
validation, PING, RST_STREAM, PRIORITY, and each stream's state. It gets single, complete, small frames and never sees a
payload. DATA is validated here, cut into messages in `raftlog/http2/receiving.py` and `raftlog/http2/messages.py`, and
built in `raftlog/http2/sending.py`; windows are counted here and there, and nowhere else. `h2` is notified when a side
of a stream ends, so that its states stay correct.

Received bytes are validated by every rule that `h2` does not check:

* The preface, and SETTINGS as the first frame (RFC 9113 section 3.4).
* A header block is bounded, and nothing comes between its frames (section 6.10).
* Frames that cause work without content are rate-limited: rapid reset, floods of PING, SETTINGS, PRIORITY,
  CONTINUATION, empty DATA, unknown types. DATA and WINDOW_UPDATE are not: windows limit them, and they need no answer.
* DATA: windows, padding, `content-length`, states of streams (section 5.1), and then messages.

`received` raises nothing, whatever arrives: a broken rule becomes a GOAWAY with RFC 9113's code in the output and a
`ConnectionFailed` event, after which input is ignored. A rule broken on one stream only resets that stream.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from h2.events import Event as H2Event
from h2.events import PingAckReceived, RemoteSettingsChanged, StreamReset
from h2.events import RequestReceived as H2RequestReceived
from h2.events import ResponseReceived as H2ResponseReceived
from h2.events import StreamEnded as H2StreamEnded
from h2.exceptions import NoAvailableStreamIDError, ProtocolError, StreamClosedError, TooManyStreamsError
from h2.settings import SettingCodes

from raftlog.errors import InvalidRequest, RetriableError
from raftlog.ports import Buffer, Part, release_regions
from raftlog.security.secrets import Secret

from .events import (
    ConnectionFailed,
    ContentReceived,
    ContentSent,
    Event,
    GoAwayReceived,
    MessageReceived,
    NotHttp2,
    PeerReady,
    ProbeAnswered,
    RequestReceived,
    ResponseReceived,
    StreamClosed,
    StreamEnded,
)
from .frames import (
    AUTHORIZATION_HEADER,
    CONTENT_TYPE,
    CONTINUATION,
    DETAIL_HEADER,
    ERROR_HEADER,
    FLAG_ACK,
    FLAG_END_HEADERS,
    FLAG_END_STREAM,
    GOAWAY,
    HEADER_BYTES,
    HEADERS,
    MAX_MESSAGE_HEADER,
    PING,
    PREFACE,
    PUSH_PROMISE,
    SETTINGS,
    WINDOW_UPDATE,
    ErrorCode,
    Http2Error,
    announced_limit,
    error_name,
    goaway,
    known_settings,
    parse_goaway,
    parse_status,
    parse_window_update,
    rst_stream,
    split_headers,
    window_update,
)
from .h2_setup import MAX_HEADER_TABLE_BYTES, enforce_ourselves, new_h2, peer_ended
from .keepalive import Keepalive, Verdict
from .limits import DEFAULT_WINDOW, LARGEST_WINDOW, Http2Limits, RateLimit
from .messages import MessageAssembler, PartialBudget, PartialOverflow, PartialPool, normalize
from .receiving import FrameReader
from .sending import Outbox
from .stream_table import StreamState
from .turns import WORK

ENDED = "ended"
"""`StreamClosed.reason` of a stream that both sides ended."""

NOT_HTTP2_BYTES = 256

SETUP_FRAMES = 16
"""Frames without content that a connection may need to begin: SETTINGS, acknowledgements, a PING, and some to spare."""

ENDED_STREAMS = 1024
"""Closed streams that are remembered as ended by the peer."""

MAX_PROBES = 1024
"""PINGs whose answers are awaited; the answer to the oldest is not reported any more."""

Headers = Iterable[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class ConnectionFacts:
    """Counts of a connection, for its status."""

    streams: int
    queued_bytes: int
    """Bytes of messages that are not framed yet."""
    partial_bytes: int
    """Bytes of unfinished messages that have arrived."""
    staging_bytes: int
    """Size of the buffer for received bytes."""
    h2_streams: int
    """Streams that `h2` keeps, open or just closed."""
    h2_closed_streams: int
    """Closed streams that `h2` remembers."""
    h2_peer_settings: int
    """The peer's settings that `h2` keeps."""
    h2_header_table_bytes: int
    """Size of the compression table for sent headers, at most."""


class ConnectionCore:
    """Protocol state of one connection, for either role. Times are seconds of any one monotonic clock.

    Invariant: `streams` contains exactly the streams without a `StreamClosed` event so far.

    Invariant: `_window` + what the peer used of it since the last WINDOW_UPDATE = `limits.window_bytes`.
    """

    def __init__(self, *, client: bool, limits: Http2Limits, now: float, pool: PartialPool | None = None) -> None:
        """`pool`: the bytes for unfinished messages, shared with other connections; None: its own."""
        self.limits = limits
        self.client = client
        self.events: deque[Event] = deque()
        """Events that were not handled yet, oldest first."""
        self.streams: dict[int, StreamState] = {}
        self.outbox = Outbox()
        self.peer_ready = False
        """Whether the peer's SETTINGS have arrived."""
        self.closing = False
        """Whether a GOAWAY was sent or received: no new streams."""
        self.failed = False
        """Whether the connection has ended: nothing is sent except the remaining output."""
        self._reader = FrameReader(limits, self)
        self._budget = PartialBudget(limits.max_partial_bytes, pool)
        self.on_evicted: Callable[[], None] = _nothing
        """Called when a stream has ended because another connection needs the memory: there is output."""
        self._read_since = now
        """The time from which on this side has been reading."""
        self._control_rate = RateLimit(limits.control_frames_per_second, limits.control_frames_burst, now)
        self._control_frames = 0
        self.address_rate: RateLimit | None = None
        """The rate of all connections from the peer's address; None: it has none."""
        self._now = now
        self._preface = b"" if client else PREFACE
        """Bytes that the peer must send before any frame."""
        self.awaits_preface = bool(self._preface)
        """Whether it is still unknown if the peer speaks HTTP/2."""
        self._settings_seen = False
        self._header_stream = 0
        """Id of the stream whose header block is being received; 0: none."""
        self._header_block_bytes = 0
        self._ended_by_peer: dict[int, None] = {}
        """The last closed streams of which the peer ended its side: it sends nothing more on them."""
        self._window = limits.window_bytes
        self._low_window = limits.window_bytes // 2
        self._first_window = limits.window_bytes if client else limits.first_window_bytes
        self._keepalive = Keepalive(limits, now, serves=not client)
        self._newest_seen = 0
        """The peer's newest stream id at the last check of the deadlines."""
        self._pings = 0
        self._probes: dict[bytes, int] = {}
        """Content and numbers of the PINGs whose answers the user awaits, the oldest first."""
        self._h2 = new_h2(client, limits)
        self._h2.initiate_connection()
        self._flush_h2()
        if not client:
            self._h2.receive_data(PREFACE)  # `_take_preface` checks the real one
        enforce_ourselves(self._h2)
        if increment := limits.window_bytes - DEFAULT_WINDOW:  # RFC 9113's default is raised to ours
            self._write(window_update(0, increment))

    def facts(self) -> ConnectionFacts:
        """Return what the connection holds now."""
        return ConnectionFacts(
            streams=len(self.streams),
            queued_bytes=self.outbox.queued_bytes,
            partial_bytes=self._budget.used,
            staging_bytes=self._reader.staging_bytes,
            h2_streams=len(self._h2.streams),
            h2_closed_streams=len(self._h2._closed_streams),
            h2_peer_settings=len(self._h2.remote_settings),
            h2_header_table_bytes=self._h2.encoder.header_table_size,
        )

    # --- Output ------------------------------------------------------------------------------------------------------

    def take_output(self, room: int) -> list[Part]:
        """Return pieces to send, in order: all control frames, and about `room` bytes of DATA.

        Nothing is returned before the peer's preface: until then it may be an HTTP/1.1 client, which expects an answer
        in HTTP/1.1.
        """
        outbox = self.outbox
        outbox.room = room
        if self.awaits_preface:
            if self.failed:
                outbox.output.clear()
            return []
        if outbox.queued_bytes and not self.failed:
            outbox.fill()
            while outbox.ended:
                self._end_local(outbox.ended.pop(0))
            while outbox.lowered:
                self.events.append(ContentSent(outbox.lowered.pop()))
        output, outbox.output = outbox.output, []
        return output

    def open_stream(self, path: str, authority: str, scheme: str, headers: Headers) -> StreamState:
        """Open a stream with a POST request.

        Raises `RetriableError` (`connection_lost`, `overloaded`) if the connection accepts no more streams, and
        `InvalidRequest` for headers that HTTP/2 forbids.
        """
        assert self.client
        if self.failed or self.closing:
            raise RetriableError("connection_lost", "the connection is closing")
        request = [(":method", "POST"), (":scheme", scheme), (":authority", authority), (":path", path)]
        try:
            stream_id = self._h2.get_next_available_stream_id()
            self._h2.send_headers(stream_id, [*request, *self._own_headers(), *headers])
        except TooManyStreamsError as error:
            raise RetriableError("overloaded", f"the peer accepts no more streams: {error}") from None
        except NoAvailableStreamIDError:
            raise RetriableError("connection_lost", "the connection has used up its stream ids") from None
        except ProtocolError as error:
            self.fail(ErrorCode.INTERNAL_ERROR, "request headers that HTTP/2 forbids")
            raise InvalidRequest("invalid_request", f"request headers: {error}") from None
        self._flush_h2()
        return self._add_stream(stream_id)

    def respond(self, stream: StreamState) -> None:
        """Answer 200: messages may flow. Those that came with the request are delivered now."""
        self._keepalive.is_stranger = False
        self._answer(stream, 200, self._own_headers())
        if stream.closed:
            return
        if self._first_window < self.limits.window_bytes and not (stream.early_end or stream.remote_ended):
            self._open_window(stream)
        if not (stream.early or stream.early_end):
            return
        early = bytes(stream.early)
        self._drop_early(stream)
        try:
            if self.data_received(stream, memoryview(early)) and stream.early_end:
                self.data_ended(stream)
        except Http2Error as error:
            self.fail(error.code, error.detail)

    def refuse(self, stream: StreamState, status: int, text: str, headers: Headers = ()) -> None:
        """Answer with an error that ends the stream, and a line of text, if there is any."""
        if stream.closed or self.failed:
            return
        if not self._may_cost():
            self.fail(ErrorCode.ENHANCE_YOUR_CALM, "too many requests that had to be refused")
            return
        body = text.encode("utf-8", "replace")[:1000] + b"\n" if text else b""
        plain = [("content-type", "text/plain; charset=utf-8"), ("content-length", str(len(body)))] if body else []
        self._answer(stream, status, [*plain, *headers])
        # Content that still arrives is discarded. RFC 9113 section 8.1 allows us to stop it with RST_STREAM, but then
        # some clients (curl 7.88) discard the answer instead.
        if body:
            self.outbox.send_content(stream, body)
        stream.end_wanted = True
        if not stream.queue:
            self._end_local(stream)
        self._drop_early(stream)
        stream.refused = True
        if stream.early_end and not stream.closed:
            self._peer_ended(stream)

    def send(self, stream: StreamState, parts: Sequence[Part]) -> None:
        """Queue one message; drop it if the stream has ended. Raises `InvalidRequest` (`body_too_large`)."""
        normal, total = normalize(parts)
        if stream.closed or stream.local_ended or stream.end_wanted or self.failed:
            release_regions(normal)
            return
        assert self.client or stream.answered, "a message before the response's headers"
        if total > stream.peer_max_message_bytes:
            release_regions(normal)
            raise InvalidRequest("body_too_large", f"a message of {total} bytes exceeds the peer's limit")
        self.outbox.send(stream, normal, total)

    def end(self, stream: StreamState) -> None:
        """End this side of the stream once its queue is sent."""
        if stream.closed or stream.end_wanted or self.failed:
            return
        stream.end_wanted = True
        if not stream.queue:
            self._end_local(stream)

    # --- Exchanges ---------------------------------------------------------------------------------------------------

    def begin_exchange(self, stream: StreamState) -> None:
        """Serve a request whose content is bytes, which wait until they are read, instead of messages."""
        stream.is_exchange = True
        if stream.early:
            self._tell_content(stream)
        if stream.early_end:
            self._content_ended(stream)

    def admit(self) -> None:
        """Note that the peer's right to this connection is known, as with an accepted stream."""
        self._keepalive.is_stranger = False

    def read_content(self, stream: StreamState) -> bytes:
        """Return the content of an exchange that has arrived, and let the peer send as much again."""
        stream.content_told = False
        if stream.closed or not stream.early:
            return b""
        content = bytes(stream.early)
        self._drop_early(stream)
        self._refresh_window(stream)
        return content

    def answer(self, stream: StreamState, status: int, headers: Headers) -> None:
        """Begin the answer of an exchange, or send an interim one (1xx)."""
        if stream.closed or stream.local_ended or self.failed:
            return
        stream.answered = status >= 200
        self._h2.send_headers(stream.id, [(":status", str(status)), *headers])
        self._flush_h2()

    def send_content(self, stream: StreamState, content: Buffer) -> None:
        """Queue content of an exchange's answer; drop it if the stream has ended."""
        if not (stream.closed or stream.local_ended or stream.end_wanted or self.failed):
            self.outbox.send_content(stream, content)

    def end_exchange(self, stream: StreamState, *, takes_rest: bool) -> None:
        """End the answer once its content is sent. The rest of the request's content is discarded; `takes_rest`: more
        of it than the peer may send already."""
        self.end(stream)
        if not stream.closed:
            stream.refused, stream.takes_rest = True, takes_rest
            self._drop_early(stream)
            if takes_rest:
                self._refresh_window(stream)

    def probe(self) -> int:
        """Send a PING, whose answer proves that the peer has received what was sent before; return its number."""
        self._pings += 1
        content = self._pings.to_bytes(8, "big")
        self._probes[content] = self._pings
        if len(self._probes) > MAX_PROBES:
            del self._probes[next(iter(self._probes))]
        self._h2.ping(content)
        self._flush_h2()
        return self._pings

    def reset(self, stream: StreamState, code: ErrorCode, reason: str) -> None:
        """End both sides at once, and drop what is queued."""
        if stream.closed or self.failed:
            return
        with contextlib.suppress(StreamClosedError):  # `h2` saw both ends already: the peer needs no RST_STREAM
            self._h2.reset_stream(stream.id, int(code))
        self._flush_h2()
        self._close_stream(stream, reason)

    def go_away(self, code: ErrorCode, reason: str) -> None:
        """Announce that no new streams are accepted; open ones may finish."""
        if not self.closing:
            self.closing = True
            self._write(goaway(self._h2.highest_inbound_stream_id, code, reason))

    def fail(self, code: ErrorCode, reason: str) -> None:
        """Send GOAWAY and end everything. The shell closes the socket once the output is sent."""
        if self.failed:
            return
        self._write(goaway(self._h2.highest_inbound_stream_id, code, reason))
        self.events.append(ConnectionFailed(code, reason))
        self.abandon(reason)

    def abandon(self, reason: str) -> None:
        """End all streams after the loss of the connection; nothing more is sent."""
        self.failed = self.closing = True
        for stream in list(self.streams.values()):
            self._close_stream(stream, reason)
        self._reader.drop_all()  # the buffer's content will not be processed: the reader finds it empty

    # --- Input -------------------------------------------------------------------------------------------------------

    def get_buffer(self) -> memoryview:
        """Return the buffer for the next bytes: never empty, and valid until `received`."""
        try:
            return self._reader.get_buffer()
        except Http2Error as error:
            self.fail(error.code, error.detail)
            return self._reader.get_buffer()

    @property
    def behind(self) -> bool:
        """Whether input remains because one read brought much work.

        Then call `received(0, now)` after a while, and `get_buffer` only once this is false.
        """
        return self._reader.behind

    def received(self, count: int, now: float, work: int = WORK) -> None:
        """Process `count` bytes in the buffer, as far as `work` suffices (`turns.py`)."""
        if self.failed:
            self._reader.drop_all()
            return
        self._keepalive.received(now)
        self._budget.now = now
        try:
            self._received(count, now, work)
        except Http2Error as error:
            self.fail(error.code, error.detail)

    def on_time(self, now: float, *, reading: bool = True) -> None:
        """Check the deadlines. `reading` is false while the shell has stopped reading on purpose."""
        if self.failed:
            return
        if not reading:
            self._read_since = now
        elif self._budget.used:
            self._end_late_messages(now)
        newest, self._newest_seen = self._newest_seen, self._h2.highest_inbound_stream_id
        used = bool(self.streams) or newest != self._newest_seen
        verdict = self._keepalive.check(now, ready=self.peer_ready, used=used, reading=reading)
        if verdict is Verdict.PING:
            self._pings += 1
            self._h2.ping(self._pings.to_bytes(8, "big"))
            self._flush_h2()
        elif verdict is Verdict.HALF_OPEN:
            self.fail(ErrorCode.SETTINGS_TIMEOUT, verdict.value)
        elif verdict is not Verdict.NOTHING:
            self.fail(ErrorCode.NO_ERROR, verdict.value)

    def next_time(self, now: float, *, reading: bool) -> float:
        """Return the time of the next `on_time` call."""
        due = self._keepalive.next_check(now, ready=self.peer_ready, reading=reading)
        return min(due, now + self.limits.message_timeout_s / 4) if self._budget.used else due

    def change_pool(self, pool: PartialPool) -> None:
        """Share the bytes for unfinished messages with other connections from now on: those of another loop."""
        self._budget.change_pool(pool)

    # --- For the frame reader ----------------------------------------------------------------------------------------

    def data_begins(self, stream_id: int, length: int, flags: int) -> StreamState | None:
        if not self._settings_seen or self._header_stream:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "DATA before SETTINGS, or within a header block")
        if not stream_id:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "DATA on stream 0")
        ends = flags & FLAG_END_STREAM
        self._window -= length
        if self._window < self._low_window:
            self._reopen_connection()
        stream = self.streams.get(stream_id)
        if stream is None:
            if self._is_idle(stream_id):
                raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"DATA on idle stream {stream_id}")
            if stream_id in self._ended_by_peer:
                self._ration("DATA frames on streams that the peer has ended")
                self._write(rst_stream(stream_id, ErrorCode.STREAM_CLOSED))
            else:
                self._ration_empty(length)  # this side closed it while the frame was on its way
            return None
        stream.receive_window -= length
        if stream.receive_window < self._low_window:
            self._reopen_stream(stream, bool(ends))
        if stream.remote_ended or stream.early_end:
            self._stream_error(stream, ErrorCode.STREAM_CLOSED, "DATA after the end of the stream")
            return None
        if self.client and not stream.answered:
            self._stream_error(stream, ErrorCode.PROTOCOL_ERROR, "DATA before the response's headers")
            return None
        if stream.refused:
            self._ration_empty(length or ends)
            if ends:
                self._peer_ended(stream)
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
            if stream.is_exchange or not stream.answered:
                self._budget.take_early(len(data), stream.assembler)
                stream.early += data
                if stream.is_exchange:
                    self._tell_content(stream)
                return True
            messages = stream.assembler.feed(data)
        except PartialOverflow:
            self.overflow(stream)
            return False
        self._reader.worked(len(messages))
        for message in messages:
            self.events.append(MessageReceived(stream, message))
        return True

    def message(self, stream: StreamState, message: memoryview) -> None:
        self.events.append(MessageReceived(stream, message))

    def overflow(self, stream: StreamState) -> None:
        self._stream_error(stream, ErrorCode.ENHANCE_YOUR_CALM, "too many unfinished messages on the connection")

    def data_ended(self, stream: StreamState) -> None:
        if stream.refused and stream.answered:
            self._peer_ended(stream)
        elif stream.is_exchange:
            self._content_ended(stream)
        elif not stream.answered:
            stream.early_end = True
        elif not stream.assembler.at_boundary:
            self._stream_error(stream, ErrorCode.PROTOCOL_ERROR, "the stream ended in the middle of a message")
        elif stream.content_left:
            self._stream_error(stream, ErrorCode.PROTOCOL_ERROR, "less content than content-length announces")
        else:
            self._peer_ended(stream)

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
            self._peer_goes_away(*parse_goaway(frame[HEADER_BYTES:]))
        elif kind in (HEADERS, CONTINUATION, PUSH_PROMISE):
            self._header_frame(kind, flags, stream_id, frame)
        else:
            if not (kind == PING and flags & FLAG_ACK and frame[HEADER_BYTES:] in self._probes):
                self._ration("control frames")
            if kind == SETTINGS:
                frame = known_settings(frame)
            if kind < CONTINUATION:  # unknown types are ignored (RFC 9113 section 4.1)
                self._control(kind, frame)

    # --- Details -----------------------------------------------------------------------------------------------------

    def _received(self, count: int, now: float, work: int) -> None:
        self._now = now
        if self._preface:
            self._reader.stage(count)
            if not self._take_preface():
                return
            count = 0
        elif self.client and not self._settings_seen:
            self._reader.stage(count)
            self._check_first_frame()
            count = 0
        self._reader.received(count, work)

    def _end_late_messages(self, now: float) -> None:
        latest = now - self.limits.message_timeout_s
        if self._read_since > latest:
            return
        for stream in list(self.streams.values()):
            if stream.assembler.holds and stream.assembler.began <= latest and not self.failed:
                self.reset(stream, ErrorCode.ENHANCE_YOUR_CALM, "a message was not complete in time")

    def _evict(self, stream: StreamState) -> None:
        self.reset(stream, ErrorCode.ENHANCE_YOUR_CALM, "others need the memory of an unfinished message")
        self.on_evicted()

    def _drop_early(self, stream: StreamState) -> None:
        self._budget.give_back_early(stream.assembler)
        stream.early = bytearray()

    def _take_preface(self) -> bool:
        staged = bytes(self._reader.staged()[:NOT_HTTP2_BYTES])
        if staged[: len(self._preface)] != self._preface[: len(staged)]:
            self.events.append(NotHttp2(staged))
            self.abandon("the peer does not speak HTTP/2")
            return False
        if len(staged) < len(self._preface):
            return False
        self._reader.drop_staged(len(self._preface))
        self._preface = b""
        self.awaits_preface = False
        return True

    def _check_first_frame(self) -> None:
        """Report a peer that is no HTTP/2 server as such, rather than its bytes misread as frames."""
        staged = bytes(self._reader.staged()[:NOT_HTTP2_BYTES])
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
        if self._header_block_bytes > self.limits.max_header_block_bytes:
            raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, "the header block is too large")
        self._header_stream = 0 if flags & FLAG_END_HEADERS else stream_id
        self._control(kind, frame)

    def _ration_headers(self, stream_id: int) -> None:
        """Rate-limit header blocks on ended or closed streams: each makes `h2` reset the stream."""
        stream = self.streams.get(stream_id)
        over = not self._is_idle(stream_id) if stream is None else stream.remote_ended or stream.early_end
        if over:
            self._ration("header blocks on streams that are over")

    def _window_update(self, stream_id: int, increment: int) -> None:
        if not stream_id:
            self.outbox.connection_window_opened(increment)
            return
        stream = self.streams.get(stream_id)
        if stream is None:
            if self._is_idle(stream_id):
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
        self.outbox.output.append(window_update(0, self.limits.window_bytes - self._window))
        self._window = self.limits.window_bytes

    def _reopen_stream(self, stream: StreamState, ends: bool) -> None:
        if stream.receive_window < 0:
            raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, f"more DATA than the window of stream {stream.id}")
        if stream.is_exchange:
            if stream.takes_rest and not ends:
                self._refresh_window(stream)
            return
        accepted = stream.answered and not stream.refused
        if not ends and not stream.remote_ended and (accepted or self._first_window == self.limits.window_bytes):
            self._open_window(stream)

    def _open_window(self, stream: StreamState) -> None:
        self.outbox.output.append(window_update(stream.id, self.limits.window_bytes - stream.receive_window))
        stream.receive_window = self.limits.window_bytes

    def _refresh_window(self, stream: StreamState) -> None:
        """Let the peer send an exchange's content, as much as may wait for its user."""
        if stream.remote_ended or stream.closed:
            return
        most = self.limits.content_window_bytes
        increment = most - len(stream.early) - stream.receive_window
        if increment >= most // 2:
            self._write(window_update(stream.id, increment))
            stream.receive_window += increment

    def _tell_content(self, stream: StreamState) -> None:
        if not stream.content_told:
            stream.content_told = True
            self.events.append(ContentReceived(stream))

    def _content_ended(self, stream: StreamState) -> None:
        if stream.content_left:
            self._stream_error(stream, ErrorCode.PROTOCOL_ERROR, "less content than content-length announces")
        else:
            self._peer_ended(stream)

    def _stream_error(self, stream: StreamState, code: ErrorCode, reason: str) -> None:
        self._ration("stream errors")
        self.reset(stream, code, reason)

    def _ration_empty(self, of_use: int) -> None:
        if not of_use:
            self._ration("empty DATA frames")

    def _ration(self, what: str) -> None:
        if not self._may_cost():
            raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, f"too many {what} a second")

    def _may_cost(self) -> bool:
        """Count a frame that causes work without content; return whether its peer may send it now.

        The first ones count for the connection alone: others of its address must not prevent its setup.
        """
        self._control_frames += 1
        if not self._control_rate.allow(self._now):
            return False
        rate = self.address_rate
        return rate is None or self._control_frames <= SETUP_FRAMES or rate.allow(self._now)

    def _is_idle(self, stream_id: int) -> bool:
        ours = self._h2.highest_outbound_stream_id
        theirs = self._h2.highest_inbound_stream_id
        return stream_id > (ours if bool(stream_id % 2) == self.client else theirs)

    def _control(self, kind: int, frame: bytes) -> None:
        try:
            events = self._h2.receive_data(frame)
        except ProtocolError as error:
            raise Http2Error(ErrorCode(int(error.error_code)), f"{type(error).__name__} {error}".rstrip()) from error
        self._flush_h2()
        for event in events:
            self._on_h2_event(event)

    def _peer_ended(self, stream: StreamState) -> None:
        peer_ended(self._h2, stream.id)
        self._remote_ended(stream)

    def _peer_goes_away(self, last_stream_id: int, code: int, reason: str) -> None:
        self.closing = True
        said = f"{error_name(code)} {reason}".rstrip()
        self.events.append(GoAwayReceived(code, said))
        if self.client:
            for stream in [stream for stream in self.streams.values() if stream.id > last_stream_id]:
                self._close_stream(stream, f"the peer sent GOAWAY before it saw the request: {said}")

    def _on_h2_event(self, event: H2Event) -> None:
        if isinstance(event, H2RequestReceived):
            self._request(event)
        elif isinstance(event, PingAckReceived):
            number = self._probes.pop(bytes(event.ping_data or b""), None)
            if number is not None:
                self.events.append(ProbeAnswered(number))
        elif isinstance(event, RemoteSettingsChanged):
            self._peer_settings(event)
        elif isinstance(event, H2ResponseReceived):
            self._response(event)
        elif isinstance(event, (H2StreamEnded, StreamReset)):
            stream = self.streams.get(event.stream_id or 0)
            if stream is None:
                return
            if isinstance(event, StreamReset):
                stream.remote_ended = stream.remote_ended or bool(event.remote_reset)
                by = "reset by the peer" if event.remote_reset else "reset because of the peer's header block"
                self._close_stream(stream, f"{by}: {error_name(int(event.error_code or 0))}")
            else:
                self.data_ended(stream)

    def _request(self, event: H2RequestReceived) -> None:
        if self.client:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "a request from the side that answers requests")
        stream = self._add_stream(event.stream_id or 0)
        pseudo, headers = split_headers(event.headers or [])
        if self.closing or len(self.streams) > self.limits.max_concurrent_streams:
            if not self._may_cost():
                raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, "too many streams that had to be refused")
            self.reset(stream, ErrorCode.REFUSED_STREAM, "too many streams")
            return
        length = headers.get("content-length", "")
        stream.content_left = int(length) if length.isdecimal() and event.stream_ended is None else None
        stream.peer_max_message_bytes = announced_limit(headers)
        secret = headers.pop(AUTHORIZATION_HEADER, None)
        authorization = None if secret is None else Secret(secret)
        method, path = pseudo.get(":method", ""), pseudo.get(":path", "")
        self.events.append(RequestReceived(stream, method, path, headers, authorization, event.headers or ()))

    def _response(self, event: H2ResponseReceived) -> None:
        stream = self.streams.get(event.stream_id or 0)
        if stream is None:
            return
        pseudo, headers = split_headers(event.headers or [])
        status = parse_status(pseudo.get(":status", ""))
        stream.answered = True
        stream.peer_max_message_bytes = announced_limit(headers)
        self.events.append(ResponseReceived(stream, status, headers))
        if status != 200:
            told = f"{headers.get(ERROR_HEADER, '')}: {headers.get(DETAIL_HEADER, '')}".strip(": ")
            self.reset(stream, ErrorCode.CANCEL, f"refused with {status} {told}".rstrip())

    def _peer_settings(self, event: RemoteSettingsChanged) -> None:
        changed = {code: setting.new_value for code, setting in event.changed_settings.items()}
        frame_bytes = changed.get(SettingCodes.MAX_FRAME_SIZE)
        if frame_bytes is not None:
            self.outbox.max_frame_bytes = frame_bytes
        if SettingCodes.HEADER_TABLE_SIZE in changed:  # bounded: it is this side's memory
            self._h2.encoder.header_table_size = min(changed[SettingCodes.HEADER_TABLE_SIZE], MAX_HEADER_TABLE_BYTES)
        window = changed.get(SettingCodes.INITIAL_WINDOW_SIZE)
        if window is not None:
            self.outbox.initial_window_changed(window, list(self.streams.values()))
        if not self.peer_ready:
            self.peer_ready = True
            self.events.append(PeerReady())

    def _remote_ended(self, stream: StreamState) -> None:
        stream.remote_ended = True
        self.events.append(StreamEnded(stream))
        if stream.local_ended:
            self._close_stream(stream, ENDED)

    def _end_local(self, stream: StreamState) -> None:
        self._h2.end_stream(stream.id)
        self._flush_h2()
        stream.local_ended = stream.end_wanted = True
        if stream.remote_ended:
            self._close_stream(stream, ENDED)

    def _answer(self, stream: StreamState, status: int, headers: Headers) -> None:
        if stream.closed or self.failed:
            return
        stream.answered = True
        self._h2.send_headers(stream.id, [(":status", str(status)), *headers])
        self._flush_h2()

    def _own_headers(self) -> list[tuple[str, str]]:
        return [("content-type", CONTENT_TYPE), (MAX_MESSAGE_HEADER, str(self.limits.max_message_bytes))]

    def _add_stream(self, stream_id: int) -> StreamState:
        assembler = MessageAssembler(self.limits.max_message_bytes, self._budget, lambda: self._evict(stream))
        stream = self.streams[stream_id] = StreamState(
            stream_id,
            assembler,
            receive_window=self._first_window,
            send_window=self.outbox.initial_window,
        )
        return stream

    def _close_stream(self, stream: StreamState, reason: str) -> None:
        del self.streams[stream.id]
        stream.closed = True
        if stream.remote_ended:
            self._ended_by_peer[stream.id] = None
            if len(self._ended_by_peer) > ENDED_STREAMS:
                del self._ended_by_peer[next(iter(self._ended_by_peer))]
        self.outbox.drop(stream)
        self._drop_early(stream)
        stream.assembler.discard()
        stream.assembler.give_way = _nothing  # it holds the stream, which is to be freed without the garbage collector
        self._reader.forget(stream)
        self.events.append(StreamClosed(stream, reason))

    def _flush_h2(self) -> None:
        self._write(self._h2.data_to_send())

    def _write(self, data: bytes) -> None:
        if data:
            self.outbox.output.append(data)


def _nothing() -> None:
    """Do nothing: the stream is over."""
