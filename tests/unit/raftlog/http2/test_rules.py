"""Rules of RFC 9113: a violation of the connection's gets a GOAWAY with the right code, one of a stream's its reset."""

from __future__ import annotations

import pytest
from hyperframe.frame import (
    DataFrame,
    HeadersFrame,
    PingFrame,
    SettingsFrame,
)

from raftlog.http2.core import ENDED
from raftlog.http2.events import (
    MessageReceived,
    NotHttp2,
    PeerReady,
    RequestReceived,
    StreamClosed,
    StreamEnded,
)
from raftlog.http2.frames import PREFACE, ErrorCode
from raftlog.http2.limits import Http2Limits
from tests.support.http.http2_peer import RawPeer, data_frame, only, parse, prefixed, raw_frame, reset, settings_frame

PROTOCOL_ERROR, FLOW_CONTROL_ERROR, STREAM_CLOSED = 1, 3, 5
FRAME_SIZE_ERROR, REFUSED_STREAM, CANCEL, CALM = 6, 7, 8, 11


def test_own_limits_are_announced_as_initial_settings() -> None:
    """A message of a megabyte is one frame from the start, not after a round trip."""
    for core_dials in (False, True):
        peer = RawPeer(core_dials=core_dials, handshake=False)
        if not core_dials:
            assert peer.output() == b"", "a listener says nothing before the peer has shown what it speaks"
            peer.feed(PREFACE)
        wire = peer.output()
        assert wire.startswith(PREFACE) == core_dials
        settings, update = parse(wire)
        assert isinstance(settings, SettingsFrame)
        assert settings.settings[SettingsFrame.MAX_FRAME_SIZE] == 2**24 - 1
        assert settings.settings[SettingsFrame.INITIAL_WINDOW_SIZE] == 2**31 - 1
        assert settings.settings[SettingsFrame.MAX_CONCURRENT_STREAMS] == 128
        assert settings.settings[SettingsFrame.MAX_HEADER_LIST_SIZE] == 16 * 1024
        assert settings.settings[SettingsFrame.ENABLE_PUSH] == 0
        assert (update.stream_id, update.window_increment) == (0, 2**31 - 1 - 65_535)  # type: ignore[attr-defined]


def test_a_request_with_messages_and_its_answer() -> None:
    peer = RawPeer()
    peer.feed(peer.headers(1, peer.request("/path?q=1", extra=[("raftlog-node", "7"), ("x", "a"), ("x", "b")])))
    (request,) = peer.events()
    assert isinstance(request, RequestReceived)
    assert (request.method, request.path) == ("POST", "/path?q=1")
    assert request.headers == {"raftlog-node": "7", "x": "a, b"}
    peer.core.respond(request.stream)
    peer.feed(data_frame(1, prefixed(b"one")) + data_frame(1, prefixed(b"two", b"three"), end=True))
    *messages, ended = peer.events()
    assert [bytes(m.message) for m in only(messages, MessageReceived)] == [b"one", b"two", b"three"]
    assert isinstance(ended, StreamEnded)
    peer.core.send(request.stream, [b"fo", memoryview(b"ur")])
    peer.core.end(request.stream)
    headers, data, end = peer.frames()
    assert isinstance(headers, HeadersFrame) and "END_STREAM" not in headers.flags
    assert isinstance(data, DataFrame) and data.data == prefixed(b"four")
    assert isinstance(end, DataFrame) and end.data == b"" and "END_STREAM" in end.flags
    (closed,) = peer.events()
    assert isinstance(closed, StreamClosed) and closed.reason == ENDED


@pytest.mark.parametrize("piece", [1, 7, 9, 13, 100])
def test_frame_boundaries_and_pieces_have_no_meaning(piece: int) -> None:
    sent = [b"", b"x" * 5, b"y" * 3000, b"", b"z" * 100_000]
    wire = prefixed(*sent)
    peer = RawPeer()
    peer.open()
    peer.frames()
    for start in range(0, len(wire), 1000):
        padding = start // 1000 % 7 if start % 3 else None
        peer.feed(data_frame(1, wire[start : start + 1000], padding=padding), piece)
    assert peer.messages() == sent


@pytest.mark.parametrize(
    "wire",
    [
        data_frame(1, (50_000).to_bytes(4, "big")) + data_frame(1, b"x") * 3_000,
        data_frame(1, prefixed(*[b""] * 7_000)),
        data_frame(1, prefixed(b"")) * 2_400,
        raw_frame(8, 0, 1, b"\0\0\0\1") * 2_400,
        raw_frame(6, 0, 0, b"8 bytes!") * 100,
    ],
    ids=["bytes", "messages", "frames", "windows", "PING"],
)
def test_a_buffer_of_small_frames_is_processed_in_slices(wire: bytes) -> None:
    peer = RawPeer()
    stream = peer.open()
    peer.core.get_buffer()[: len(wire)] = wire
    peer.core.received(len(wire), peer.now)
    assert peer.core.behind
    slices = 1
    while peer.core.behind:
        assert len(peer.core.events) <= 5_000 * slices
        peer.core.received(0, peer.now)
        slices += 1
    assert slices >= 2 and not peer.core.failed and stream.id == 1
    peer.feed(raw_frame(6, 0, 0, b"the end!"))
    assert only(peer.frames(), PingFrame)[-1].opaque_data == b"the end!"


@pytest.mark.parametrize("last", [data_frame(1, b""), data_frame(1, b"\0\0"), data_frame(1, b"", end=True)])
def test_a_short_frame_at_the_very_end_of_the_buffer(last: bytes) -> None:
    peer = RawPeer()
    peer.open()
    room = len(peer.core.get_buffer()) - len(last)
    peer.feed(data_frame(1, prefixed(b"x" * (room - 13))) + last)
    assert only(peer.events(), MessageReceived)[0].message == b"x" * (room - 13) and not peer.core.failed


@pytest.mark.parametrize("length", [13, 1_000, 8_191])
def test_a_frame_that_reaches_beyond_the_buffers_end_is_moved_to_its_front(length: int) -> None:
    """Frames that are kept whole in the staging buffer, and headers of DATA: several buffers of either, read as a fast
    peer allows, each as long as there is room."""
    peer = RawPeer()
    peer.open()
    unknown = raw_frame(0xBE, 0, 0, b"?" * length)
    messages = [bytes([number % 256]) * length for number in range(3 * 128 * 1024 // length)]
    wire = b"".join(unknown + data_frame(1, prefixed(message)) for message in messages)
    told: list[bytes] = []
    for position in range(0, len(wire), 50 * length):
        peer.now += 1.0  # frames without content are rate limited by time
        peer.feed(wire[position : position + 50 * length])
        told += peer.messages()
    assert told == messages and not peer.core.failed


def test_a_large_message_is_received_into_its_own_buffer() -> None:
    peer = RawPeer()
    peer.open()
    body = bytes(range(256)) * 16_000
    wire = data_frame(1, prefixed(body))
    view, calls = memoryview(wire), 0
    while len(view):
        buffer = peer.core.get_buffer()
        count = min(len(buffer), len(view))
        buffer[:count] = view[:count]
        peer.core.received(count, 0.0)
        view, calls = view[count:], calls + 1
    assert peer.messages() == [body]
    assert calls <= 8, "one large read after another, not one staging buffer after another"


@pytest.mark.parametrize(
    ("name", "wire", "code"),
    [
        ("first frame is no SETTINGS", raw_frame(6, 0, 0, b"8 bytes!"), PROTOCOL_ERROR),
        ("first frame is an ACK", settings_frame(ack=True), PROTOCOL_ERROR),
        ("DATA comes first", data_frame(1, b"x"), PROTOCOL_ERROR),
    ],
)
def test_settings_come_first(name: str, wire: bytes, code: int) -> None:
    peer = RawPeer(handshake=False)
    peer.feed(PREFACE + wire)
    assert peer.goaway()[0] == code


@pytest.mark.parametrize(
    ("name", "wire", "code"),
    [
        ("DATA on stream 0", raw_frame(0, 0, 0, b"x"), PROTOCOL_ERROR),
        ("DATA on an idle stream", data_frame(5, b"x"), PROTOCOL_ERROR),
        ("DATA on a stream of the other side", data_frame(2, b"x"), PROTOCOL_ERROR),
        ("more padding than frame", raw_frame(0, 8, 1, b"\x05abcd"), PROTOCOL_ERROR),
        ("padded without the length", raw_frame(0, 8, 1, b""), PROTOCOL_ERROR),
        ("HEADERS on stream 0", raw_frame(1, 4, 0, b""), PROTOCOL_ERROR),
        ("HEADERS on an even stream", raw_frame(1, 4, 2, b"\x82"), PROTOCOL_ERROR),
        ("HPACK that is none", raw_frame(1, 4, 3, b"\xff\xff\xff\xff\xff\xff\xff\xff"), PROTOCOL_ERROR),
        ("request without pseudo fields", raw_frame(1, 4, 3, b""), PROTOCOL_ERROR),
        ("CONTINUATION without HEADERS", raw_frame(9, 4, 1, b""), PROTOCOL_ERROR),
        ("PRIORITY on itself", raw_frame(2, 0, 3, b"\0\0\0\3\0"), PROTOCOL_ERROR),
        ("PRIORITY of a wrong length", raw_frame(2, 0, 3, b"\0\0\0"), FRAME_SIZE_ERROR),
        ("RST_STREAM on stream 0", raw_frame(3, 0, 0, b"\0\0\0\0"), PROTOCOL_ERROR),
        ("RST_STREAM of a wrong length", raw_frame(3, 0, 1, b"\0\0\0"), FRAME_SIZE_ERROR),
        ("SETTINGS on a stream", raw_frame(4, 0, 1, b""), PROTOCOL_ERROR),
        ("SETTINGS of a wrong length", raw_frame(4, 0, 0, b"\0\0\0\0\0"), FRAME_SIZE_ERROR),
        ("SETTINGS window above 2^31-1", settings_frame({4: 2**31}), FLOW_CONTROL_ERROR),
        ("SETTINGS frame size below 2^14", settings_frame({5: 100}), PROTOCOL_ERROR),
        ("PUSH_PROMISE", raw_frame(5, 4, 1, b"\0\0\0\2"), PROTOCOL_ERROR),
        ("PING on a stream", raw_frame(6, 0, 1, b"8 bytes!"), PROTOCOL_ERROR),
        ("PING of a wrong length", raw_frame(6, 0, 0, b"7 bytes"), FRAME_SIZE_ERROR),
        ("GOAWAY on a stream", raw_frame(7, 0, 1, b"\0" * 8), PROTOCOL_ERROR),
        ("GOAWAY of a wrong length", raw_frame(7, 0, 0, b"\0" * 7), FRAME_SIZE_ERROR),
        ("WINDOW_UPDATE of 0", raw_frame(8, 0, 0, b"\0\0\0\0"), PROTOCOL_ERROR),
        ("WINDOW_UPDATE of a wrong length", raw_frame(8, 0, 0, b"\0\0\0\0\1"), FRAME_SIZE_ERROR),
        ("WINDOW_UPDATE on an idle stream", raw_frame(8, 0, 5, b"\0\0\0\1"), PROTOCOL_ERROR),
        ("window above 2^31-1", raw_frame(8, 0, 0, b"\x7f\xff\xff\xff"), FLOW_CONTROL_ERROR),
        ("a control frame too large", raw_frame(6, 0, 0, b"x" * 20_000), CALM),
        ("HEADERS too large", raw_frame(1, 4, 3, b"x" * 20_000), CALM),
        ("a message above the limit", data_frame(1, b"\xff\xff\xff\xff"), CALM),
    ],
)
@pytest.mark.parametrize("piece", [1, 2**20])
def test_a_protocol_violation_ends_the_connection(name: str, wire: bytes, code: int, piece: int) -> None:
    peer = RawPeer()
    peer.open()
    peer.frames()
    peer.feed(wire, piece)
    told, text = peer.goaway()
    assert (told, bool(text)) == (code, True), name
    peer.feed(settings_frame() * 10_000)  # later bytes are ignored
    assert peer.output() == b"" and peer.events() == []


def test_a_frame_larger_than_announced_is_refused_by_its_header() -> None:
    peer = RawPeer(limits=Http2Limits(max_frame_bytes=2**14))
    peer.open()
    peer.frames()
    peer.feed(raw_frame(0, 0, 1, b"x" * (2**14 + 1))[:9])
    assert peer.goaway()[0] == FRAME_SIZE_ERROR


def test_nothing_comes_between_the_frames_of_a_header_block() -> None:
    for intruder in (data_frame(1, b""), raw_frame(8, 0, 0, b"\0\0\0\1"), raw_frame(9, 4, 5, b""), settings_frame()):
        peer = RawPeer()
        peer.open()
        peer.frames()
        block = peer.headers(3, peer.request(), split=2)
        peer.feed(block[:11] + intruder)
        assert peer.goaway()[0] == PROTOCOL_ERROR


def test_header_blocks_are_bounded_compressed_and_uncompressed() -> None:
    peer = RawPeer()
    peer.feed(raw_frame(1, 0, 1, b"x" * 16_000) + raw_frame(9, 0, 1, b"x" * 16_000) + raw_frame(9, 0, 1, b"x" * 1000))
    assert peer.goaway() == (CALM, "the header block is too large")
    peer = RawPeer()  # a header bomb: one table entry of 4 KB, named repeatedly in a byte each
    bomb = [("bomb", "x" * 3_900)] * 5
    peer.feed(peer.headers(1, peer.request(extra=bomb), split=16_000))
    assert peer.goaway()[0] == CALM


def test_a_peer_with_another_protocol_is_recognized_by_its_first_bytes() -> None:
    for said in (b"GET / HTTP/1.1\r\n", b"P", b"PRI * HTTP/2.0\r\n\r\nSMxxxxxx", b"\x16\x03\x01", b"PUT "):
        peer = RawPeer(handshake=False)
        peer.feed(said, 1)
        events = peer.events()
        if PREFACE.startswith(said):
            assert events == [] and not peer.core.failed
            continue
        (event,) = events
        assert isinstance(event, NotHttp2) and said.startswith(event.first_bytes) and peer.core.failed
        assert peer.output() == b"", "not a byte of HTTP/2 to somebody who does not speak it"


def test_the_preface_may_arrive_byte_by_byte() -> None:
    peer = RawPeer(handshake=False)
    peer.feed(PREFACE + settings_frame(), 1)
    assert [type(event) for event in peer.events()] == [PeerReady]
    assert [type(frame).__name__ for frame in peer.frames()] == ["SettingsFrame", "WindowUpdateFrame", "SettingsFrame"]


def test_pings_are_answered_and_unknown_frames_ignored() -> None:
    peer = RawPeer()
    peer.feed(raw_frame(77, 255, 3, b"whatever") + raw_frame(6, 0, 0, b"8 bytes!"))
    (ping,) = peer.frames()
    assert isinstance(ping, PingFrame) and "ACK" in ping.flags and ping.opaque_data == b"8 bytes!"
    assert not peer.core.failed


# --- Rules of one stream ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "extra", "wire", "code"),
    [
        ("ends within a message", [], data_frame(1, b"\0\0\0\5abc", end=True), PROTOCOL_ERROR),
        ("ends within a prefix", [], data_frame(1, b"\0\0", end=True), PROTOCOL_ERROR),
        ("more than content-length", [("content-length", "4")], data_frame(1, prefixed(b"a")), PROTOCOL_ERROR),
        (
            "less than content-length",
            [("content-length", "9")],
            data_frame(1, prefixed(b"a"), end=True),
            PROTOCOL_ERROR,
        ),
        ("WINDOW_UPDATE of 0", [], raw_frame(8, 0, 1, b"\0\0\0\0"), PROTOCOL_ERROR),
        ("window above 2^31-1", [], raw_frame(8, 0, 1, b"\x7f\xff\xff\xff"), FLOW_CONTROL_ERROR),
        ("DATA after the end", [], data_frame(1, b"", end=True) + data_frame(1, b"x"), STREAM_CLOSED),
    ],
)
def test_a_violation_of_a_stream_resets_only_that_stream(
    name: str, extra: list[tuple[str, str]], wire: bytes, code: int
) -> None:
    peer = RawPeer()
    peer.open(1, extra=extra)
    peer.open(3)
    peer.frames()
    peer.feed(wire)
    assert peer.reset_code() == code, name
    peer.feed(data_frame(1, b"still under way") + data_frame(3, prefixed(b"fine")))
    assert peer.messages() == [b"fine"]


def test_a_correct_content_length_is_accepted() -> None:
    peer = RawPeer()
    peer.open(extra=[("content-length", "5")])
    peer.feed(data_frame(1, prefixed(b"a"), end=True))
    assert [type(event) for event in peer.events()] == [MessageReceived, StreamEnded]


def test_trailers_end_a_stream() -> None:
    peer = RawPeer()
    peer.open()
    peer.feed(data_frame(1, prefixed(b"a")) + peer.headers(1, [("checksum", "1")], end=True))
    assert [type(event) for event in peer.events()] == [MessageReceived, StreamEnded]
    peer = RawPeer()
    peer.open()
    peer.frames()
    peer.feed(data_frame(1, b"\0\0") + peer.headers(1, [("checksum", "1")], end=True))
    assert peer.reset_code() == PROTOCOL_ERROR


@pytest.mark.parametrize("sent", [b"\0\0", b"\0\0\0\5abc"])
def test_trailers_within_a_message_after_the_own_end(sent: bytes) -> None:
    """Both sides have ended the stream then: nothing is left to reset, but the peer's end was not valid."""
    peer = RawPeer()
    peer.core.end(peer.open())
    peer.frames()
    peer.feed(data_frame(1, sent) + peer.headers(1, [("checksum", "1")], end=True))
    (closed,) = peer.events()
    assert isinstance(closed, StreamClosed) and "in the middle of a message" in closed.reason
    assert peer.output() == b"" and not peer.core.failed and peer.core.facts().partial_bytes == 0


def test_a_stream_too_many_is_refused_alone() -> None:
    peer = RawPeer(limits=Http2Limits(max_concurrent_streams=2))
    peer.open(1)
    peer.open(3)
    peer.frames()
    peer.feed(peer.headers(5, peer.request()))
    assert peer.reset_code() == REFUSED_STREAM
    peer.feed(reset(1))
    peer.events()
    assert peer.open(7).id == 7


def test_a_reset_by_the_peer_ends_the_stream_in_both_directions() -> None:
    peer = RawPeer()
    stream = peer.open()
    peer.frames()
    peer.feed(data_frame(1, prefixed(b"a") + b"\0\0\0\7half") + reset(1, CANCEL))
    message, closed = peer.events()
    assert isinstance(message, MessageReceived)
    assert isinstance(closed, StreamClosed) and closed.reason == "reset by the peer: CANCEL"
    peer.core.send(stream, [b"dropped"])
    peer.core.end(stream)
    peer.core.reset(stream, ErrorCode.CANCEL, "")
    assert peer.output() == b"" and peer.events() == []
    assert peer.core.facts().partial_bytes == 0


@pytest.mark.parametrize("rest_in_same_frame", [True, False])
def test_the_data_of_a_refused_request_is_discarded_to_its_end(rest_in_same_frame: bool) -> None:
    """Without a RST_STREAM: curl 7.88 would discard the answer instead."""
    peer = RawPeer()
    peer.feed(peer.headers(1, peer.request()))
    body = data_frame(1, b"\0\1\0\0" + b"no messages at all" * 1000, end=rest_in_same_frame)
    peer.feed(body[:1000])
    (request,) = only(peer.events(), RequestReceived)
    peer.core.refuse(request.stream, 404, "not here", [("raftlog-error", "not_found")])
    headers, data, end = peer.frames()
    assert isinstance(headers, HeadersFrame) and isinstance(data, DataFrame) and data.data == b"not here\n"
    assert "END_STREAM" in end.flags
    peer.feed(body[1000:])
    if not rest_in_same_frame:
        assert not request.stream.closed
        peer.feed(data_frame(1, b"more of it", end=True))
    assert [type(event) for event in peer.events()] == [StreamEnded, StreamClosed]
    assert peer.output() == b"" and not peer.core.failed and peer.core.facts().partial_bytes == 0
