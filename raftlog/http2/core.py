"""One HTTP/2 connection, sans I/O: bytes in, events and bytes out.

With `raftlog/http2/h2_setup.py`, it is the only user of `h2`.

Theory of operation. `h2` handles everything but DATA, WINDOW_UPDATE and GOAWAY: SETTINGS, HEADERS with HPACK and their
validation, PING, RST_STREAM, PRIORITY, and each stream's state. It gets single, complete, small frames and never sees a
payload. DATA is validated in `raftlog/http2/inbound.py`, cut into messages in `raftlog/http2/receiving.py` and
`raftlog/http2/messages.py`, and built in `raftlog/http2/sending.py`; windows are counted there and nowhere else. `h2`
is notified when a side of a stream ends, so that its states stay correct.

`received` raises nothing, whatever arrives: a broken rule becomes a GOAWAY with RFC 9113's code in the output and a
`ConnectionFailed` event, after which input is ignored. A rule broken on one stream only resets that stream.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterable, Sequence

from h2.events import Event as H2Event
from h2.events import RemoteSettingsChanged, StreamReset
from h2.events import RequestReceived as H2RequestReceived
from h2.events import ResponseReceived as H2ResponseReceived
from h2.events import StreamEnded as H2StreamEnded
from h2.exceptions import NoAvailableStreamIDError, ProtocolError, StreamClosedError, TooManyStreamsError
from h2.settings import SettingCodes

from raftlog.errors import InvalidRequest, RetriableError
from raftlog.ports import Part

from .events import (
    ConnectionFailed,
    Event,
    GoAwayReceived,
    PeerReady,
    RequestReceived,
    ResponseReceived,
    StreamClosed,
    StreamEnded,
)
from .frames import (
    CONTENT_TYPE,
    DATA,
    DETAIL_HEADER,
    ERROR_HEADER,
    FRAME_HEADER,
    MAX_MESSAGE_HEADER,
    PREFACE,
    ErrorCode,
    Http2Error,
    announced_limit,
    error_name,
    goaway,
    parse_status,
    split_headers,
)
from .h2_setup import MAX_HEADER_TABLE_BYTES, enforce_ourselves, new_h2, peer_ended
from .inbound import Inbound
from .keepalive import Keepalive, Verdict
from .limits import Http2Limits
from .messages import normalize, release_regions
from .sending import Outbox
from .stream_table import StreamState

ENDED = "ended"
"""`StreamClosed.reason` of a stream that both sides ended."""

Headers = Iterable[tuple[str, str]]


class ConnectionCore:
    """Protocol state of one connection, for either role. Times are seconds of any one monotonic clock.

    Invariant: `streams` contains exactly the streams without a `StreamClosed` event so far.
    """

    def __init__(self, *, client: bool, limits: Http2Limits, now: float) -> None:
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
        """Whether the connection is over: nothing is sent except the output."""
        self._inbound = Inbound(self, client=client, limits=limits, now=now)
        self._keepalive = Keepalive(limits, now, serves=not client)
        self._newest_seen = 0
        """The peer's newest stream id at the last check of the deadlines."""
        self._pings = 0
        self._h2 = new_h2(client, limits)
        self._h2.initiate_connection()
        self._flush_h2()
        if not client:
            self._h2.receive_data(PREFACE)  # `Inbound` checks the real one
        enforce_ourselves(self._h2)
        self._write(self._inbound.opening())

    # --- Output ------------------------------------------------------------------------------------------------------

    def take_output(self, room: int) -> list[Part]:
        """Return pieces to send, in order: all control frames, and about `room` bytes of DATA.

        Nothing is returned before the peer's preface: until then it may be an HTTP/1.1 client, which expects an answer
        in HTTP/1.1.
        """
        outbox = self.outbox
        outbox.room = room
        if self._inbound.awaits_preface:
            if self.failed:
                outbox.output.clear()
            return []
        if outbox.queued_bytes and not self.failed:
            outbox.fill()
            while outbox.ended:
                self._end_local(outbox.ended.pop(0))
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
        self._answer(stream, 200, self._own_headers())
        try:
            self._inbound.accepted(stream)
        except Http2Error as error:
            self.fail(error.code, error.detail)

    def refuse(self, stream: StreamState, status: int, text: str, headers: Headers = ()) -> None:
        """Answer with an error that ends the stream, and a line of text."""
        if stream.closed or self.failed:
            return
        if not self._inbound.ration():
            self.fail(ErrorCode.ENHANCE_YOUR_CALM, "too many requests that had to be refused")
            return
        body = text.encode("utf-8", "replace")[:1000] + b"\n"
        plain = [("content-type", "text/plain; charset=utf-8"), ("content-length", str(len(body)))]
        if len(body) > min(self.outbox.window, stream.send_window):
            plain, body = [], b""  # a window shrunk on purpose: the status must suffice
        self._answer(stream, status, [*plain, *headers])
        if body:
            self.outbox.window -= len(body)
            stream.send_window -= len(body)
            self._write(FRAME_HEADER.pack(len(body) << 8 | DATA, 0, stream.id) + body)
        # Content that still arrives is discarded. RFC 9113 section 8.1 allows us to stop it with RST_STREAM, but then
        # some clients (curl 7.88) discard the answer instead.
        self._end_local(stream)
        self._inbound.refused(stream)

    def send(self, stream: StreamState, parts: Sequence[Part]) -> None:
        """Queue one message; drop it if the stream is over. Raises `InvalidRequest` (`body_too_large`)."""
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
        self._inbound.ignore()  # the buffer's content will not be processed: the reader finds it empty

    # --- Input -------------------------------------------------------------------------------------------------------

    def get_buffer(self) -> memoryview:
        """Return the buffer for the next bytes: never empty, and valid until `received`."""
        try:
            return self._inbound.reader.get_buffer()
        except Http2Error as error:
            self.fail(error.code, error.detail)
            return self._inbound.reader.get_buffer()

    @property
    def behind(self) -> bool:
        """Whether input remains because one read brought much work.

        Then call `received(0, now)` after a while, and `get_buffer` only once this is false.
        """
        return self._inbound.reader.behind

    def received(self, count: int, now: float) -> None:
        """Process `count` bytes in the buffer."""
        if self.failed:
            self._inbound.ignore()
            return
        self._keepalive.received(now)
        try:
            self._inbound.received(count, now)
        except Http2Error as error:
            self.fail(error.code, error.detail)

    def on_time(self, now: float, *, reading: bool = True) -> None:
        """Check the deadlines. `reading` is false while the shell has stopped reading on purpose."""
        if self.failed:
            return
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
        return self._keepalive.next_check(now, ready=self.peer_ready, reading=reading)

    # --- For `Inbound` -----------------------------------------------------------------------------------------------

    def is_idle(self, stream_id: int) -> bool:
        ours = self._h2.highest_outbound_stream_id
        theirs = self._h2.highest_inbound_stream_id
        return stream_id > (ours if bool(stream_id % 2) == self.client else theirs)

    def control(self, kind: int, frame: bytes) -> None:
        try:
            events = self._h2.receive_data(frame)
        except ProtocolError as error:
            raise Http2Error(ErrorCode(int(error.error_code)), f"{type(error).__name__} {error}".rstrip()) from error
        self._flush_h2()
        for event in events:
            self._on_h2_event(event)

    def peer_ended(self, stream: StreamState) -> None:
        peer_ended(self._h2, stream.id)
        self._remote_ended(stream)

    def peer_goes_away(self, last_stream_id: int, code: int, reason: str) -> None:
        self.closing = True
        said = f"{error_name(code)} {reason}".rstrip()
        self.events.append(GoAwayReceived(code, said))
        if self.client:
            for stream in [stream for stream in self.streams.values() if stream.id > last_stream_id]:
                self._close_stream(stream, f"the peer sent GOAWAY before it saw the request: {said}")

    # --- Details -----------------------------------------------------------------------------------------------------

    def _on_h2_event(self, event: H2Event) -> None:
        if isinstance(event, H2RequestReceived):
            self._request(event)
        elif isinstance(event, RemoteSettingsChanged):
            self._peer_settings(event)
        elif isinstance(event, H2ResponseReceived):
            self._response(event)
        elif isinstance(event, (H2StreamEnded, StreamReset)):
            stream = self.streams.get(event.stream_id or 0)
            if stream is None:
                return
            if isinstance(event, StreamReset):
                by = "reset by the peer" if event.remote_reset else "reset because of the peer's header block"
                self._close_stream(stream, f"{by}: {error_name(int(event.error_code or 0))}")
            else:
                self._inbound.data_ended(stream)

    def _request(self, event: H2RequestReceived) -> None:
        if self.client:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "a request from the side that answers requests")
        stream = self._add_stream(event.stream_id or 0)
        pseudo, headers = split_headers(event.headers or [])
        if self.closing or len(self.streams) > self.limits.max_concurrent_streams:
            if not self._inbound.ration():
                raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, "too many streams that had to be refused")
            self.reset(stream, ErrorCode.REFUSED_STREAM, "too many streams")
            return
        length = headers.get("content-length", "")
        stream.content_left = int(length) if length.isdecimal() and event.stream_ended is None else None
        stream.peer_max_message_bytes = announced_limit(headers)
        self.events.append(RequestReceived(stream, pseudo.get(":method", ""), pseudo.get(":path", ""), headers))

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
        stream = self.streams[stream_id] = StreamState(
            stream_id,
            self._inbound.new_assembler(),
            receive_window=self.limits.window_bytes,
            send_window=self.outbox.initial_window,
        )
        return stream

    def _close_stream(self, stream: StreamState, reason: str) -> None:
        del self.streams[stream.id]
        stream.closed = True
        self.outbox.drop(stream)
        self._inbound.forget(stream)
        self.events.append(StreamClosed(stream, reason))

    def _flush_h2(self) -> None:
        self._write(self._h2.data_to_send())

    def _write(self, data: bytes) -> None:
        if data:
            self.outbox.output.append(data)
