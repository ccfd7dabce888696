"""Exchanges of a connection: contents as bytes, in windows that follow the reader. The other end is driven by hand."""

from __future__ import annotations

import pytest
from hyperframe.frame import DataFrame, HeadersFrame, PingFrame, RstStreamFrame, WindowUpdateFrame

from raftlog.config import KIB
from raftlog.http2.core import ENDED
from raftlog.http2.events import (
    ContentReceived,
    ContentSent,
    ProbeAnswered,
    RequestReceived,
    StreamClosed,
    StreamEnded,
)
from raftlog.http2.frames import ErrorCode
from raftlog.http2.limits import DEFAULT_WINDOW, Http2Limits
from raftlog.http2.messages import PartialPool
from raftlog.http2.sending import LOW_CONTENT_BYTES
from raftlog.http2.stream_table import StreamState
from tests.support.http.http2_peer import RawPeer, data_frame, only, raw_frame, reset, window_update

WINDOW = 256 * KIB
LIMITS = Http2Limits(unaccepted_window_bytes=DEFAULT_WINDOW, content_window_bytes=WINDOW)


def peer(limits: Http2Limits = LIMITS, pool: PartialPool | None = None) -> RawPeer:
    return RawPeer(limits=limits, pool=pool)


def begin(one: RawPeer, stream_id: int = 1, *, end: bool = False, length: int | None = None) -> StreamState:
    extra = [] if length is None else [("content-length", str(length))]
    one.feed(one.headers(stream_id, one.request("/x", "PUT", extra), end=end))
    (event,) = only(list(one.core.events), RequestReceived)
    one.core.events.remove(event)
    assert (b":method", b"PUT") in event.fields
    one.core.begin_exchange(event.stream)
    return event.stream


def test_content_waits_until_it_is_read_and_is_told_once() -> None:
    one = peer()
    stream = begin(one)
    one.feed(data_frame(1, b"first ") + data_frame(1, b"second"))
    assert one.events() == [ContentReceived(stream)]
    assert one.core.read_content(stream) == b"first second"
    assert one.core.read_content(stream) == b""
    one.feed(data_frame(1, b"third", end=True))
    assert one.events() == [ContentReceived(stream), StreamEnded(stream)]
    assert one.core.read_content(stream) == b"third"


def test_content_that_came_with_the_request_is_content() -> None:
    one = peer()
    one.feed(one.headers(1, one.request()) + data_frame(1, b"\x00\x00\x00\x63no message", end=True))
    (event,) = only(one.events(), RequestReceived)
    one.core.begin_exchange(event.stream)
    assert one.events() == [ContentReceived(event.stream), StreamEnded(event.stream)]
    assert one.core.read_content(event.stream) == b"\x00\x00\x00\x63no message"


def test_the_window_follows_what_is_read() -> None:
    one = peer()
    stream = begin(one)
    for _ in range(3):
        one.feed(data_frame(1, bytes(16 * KIB)))
    assert only(one.frames(), WindowUpdateFrame) == [], "nobody has read"
    assert len(one.core.read_content(stream)) == 48 * KIB
    (opened,) = only(one.frames(), WindowUpdateFrame)
    assert (opened.stream_id, opened.window_increment) == (1, WINDOW - (DEFAULT_WINDOW - 48 * KIB))
    for _ in range(WINDOW // (16 * KIB)):
        one.feed(data_frame(1, bytes(16 * KIB)))
    assert not one.core.failed
    one.feed(data_frame(1, b"x"))
    assert one.goaway()[0] == ErrorCode.FLOW_CONTROL_ERROR


def test_padding_is_given_back_with_what_is_read() -> None:
    one = peer()
    stream = begin(one)
    for _ in range(300):
        one.feed(data_frame(1, b"x", padding=200))
    one.core.read_content(stream)
    (opened,) = only(one.frames(), WindowUpdateFrame)
    assert opened.window_increment == WINDOW - (DEFAULT_WINDOW - 300 * 202)


def test_unread_contents_of_all_connections_share_a_pool_in_which_the_oldest_gives_way() -> None:
    pool = PartialPool(4 * 40 * KIB)
    first, second = peer(pool=pool), peer(pool=pool)
    begin(first)
    first.feed(data_frame(1, bytes(16 * KIB)) * 2)
    stream = begin(second)
    second.feed(data_frame(1, bytes(16 * KIB)))
    assert first.reset_code() == ErrorCode.ENHANCE_YOUR_CALM
    assert len(second.core.read_content(stream)) == 16 * KIB
    assert pool.early.used == 0


def test_the_answer_is_framed_and_ends_the_stream() -> None:
    one = peer()
    stream = begin(one, end=True)
    one.core.answer(stream, 100, ())
    one.core.answer(stream, 200, [("content-type", "text/plain")])
    one.core.send_content(stream, b"hello")
    one.core.end_exchange(stream, takes_rest=True)
    frames = one.frames()
    assert len(only(frames, HeadersFrame)) == 2, "an interim answer, and the answer"
    assert b"".join(frame.data for frame in only(frames, DataFrame)) == b"hello"
    assert "END_STREAM" in only(frames, DataFrame)[-1].flags
    assert one.events() == [StreamEnded(stream), StreamClosed(stream, ENDED)]


def test_a_large_answer_waits_for_windows_and_tells_when_there_is_room() -> None:
    one = peer()
    stream = begin(one, end=True)
    one.events()
    one.core.answer(stream, 200, ())
    content = bytes(range(256)) * 1_000
    one.core.send_content(stream, content)
    one.core.send_content(stream, b"the end")
    stream.waits_for_room = True
    sent = b"".join(frame.data for frame in only(one.frames(), DataFrame))
    assert len(sent) == DEFAULT_WINDOW and one.events() == []
    one.feed(window_update(0, 10**6) + window_update(1, len(content) - DEFAULT_WINDOW - LOW_CONTENT_BYTES // 2))
    sent += b"".join(frame.data for frame in only(one.frames(), DataFrame))
    assert one.events() == [ContentSent(stream)] and stream.queued_bytes <= LOW_CONTENT_BYTES
    one.feed(window_update(1, 10**6))
    sent += b"".join(frame.data for frame in only(one.frames(), DataFrame))
    assert sent == content + b"the end"


@pytest.mark.parametrize("takes_rest", [True, False])
def test_the_rest_of_a_content_is_discarded_after_the_answer(takes_rest: bool) -> None:
    one = peer()
    stream = begin(one)
    one.core.answer(stream, 413, ())
    one.core.end_exchange(stream, takes_rest=takes_rest)
    assert bool(only(one.frames(), WindowUpdateFrame)) is takes_rest
    one.feed(data_frame(1, bytes(16 * KIB)) * 3)
    assert one.core.facts().partial_bytes == 0 and one.events() == []
    one.feed(data_frame(1, b"", end=True))
    assert one.events() == [StreamEnded(stream), StreamClosed(stream, ENDED)]


def test_a_content_that_differs_from_its_length_resets_the_stream() -> None:
    one = peer()
    begin(one, length=3)
    one.feed(data_frame(1, b"four"))
    assert one.reset_code() == ErrorCode.PROTOCOL_ERROR
    begin(one, 3, length=5)
    one.feed(data_frame(3, b"four", end=True))
    assert [frame.error_code for frame in only(one.frames(), RstStreamFrame)] == [ErrorCode.PROTOCOL_ERROR]


def test_a_reset_drops_what_is_unread_and_unsent() -> None:
    one = peer()
    stream = begin(one)
    one.feed(data_frame(1, b"x" * 1_000))
    one.core.answer(stream, 200, ())
    one.core.send_content(stream, bytes(100_000))
    one.frames()
    one.events()
    one.feed(reset(1))
    (closed,) = only(one.events(), StreamClosed)
    assert closed.reason != ENDED and one.core.read_content(stream) == b""
    assert one.core.facts().partial_bytes == one.core.facts().queued_bytes == 0
    one.core.send_content(stream, b"late")
    one.core.end_exchange(stream, takes_rest=True)
    assert one.frames() == []


def test_the_answer_to_a_probe_is_told_and_costs_its_sender_nothing() -> None:
    one = peer(Http2Limits(control_frames_burst=40, control_frames_per_second=1e-9))
    for _ in range(100):
        number = one.core.probe()
        (ping,) = only(one.frames(), PingFrame)
        one.feed(raw_frame(6, 1, 0, ping.opaque_data))
        assert one.events() == [ProbeAnswered(number)]
    for _ in range(40):
        one.feed(raw_frame(6, 1, 0, b"unasked!"))
    assert one.goaway()[0] == ErrorCode.ENHANCE_YOUR_CALM
