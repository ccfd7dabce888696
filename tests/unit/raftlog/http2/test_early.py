"""Data that follows a request before its answer: messages if it is accepted, nothing if it is refused."""

from __future__ import annotations

import pytest

from raftlog.http2.events import ConnectionFailed, MessageReceived, RequestReceived, StreamClosed, StreamEnded
from raftlog.http2.frames import ErrorCode
from raftlog.http2.limits import Http2Limits
from tests.support.http.http2_peer import RawPeer, data_frame, only, prefixed, reset


def arrive(peer: RawPeer, *frames: bytes) -> RequestReceived:
    """A request with the following data, all in one read."""
    peer.feed(peer.headers(1, peer.request()) + b"".join(frames))
    (event,) = peer.events()
    assert isinstance(event, RequestReceived)
    return event


def test_early_messages_are_delivered_after_the_answer() -> None:
    peer = RawPeer()
    request = arrive(peer, data_frame(1, prefixed(b"a", b"b") + b"\0\0\0\2c"))
    peer.core.respond(request.stream)
    peer.feed(data_frame(1, b"d" + prefixed(b"e")))
    assert peer.messages() == [b"a", b"b", b"cd", b"e"]
    assert peer.core.facts().partial_bytes == 0


@pytest.mark.parametrize("trailers", [True, False])
def test_an_early_end_is_delivered_after_early_messages(trailers: bool) -> None:
    peer = RawPeer()
    data = data_frame(1, prefixed(b"a"), end=not trailers)
    request = arrive(peer, data + (peer.headers(1, [("x", "y")], end=True) if trailers else b""))
    peer.core.respond(request.stream)
    assert [type(event) for event in peer.events()] == [MessageReceived, StreamEnded]
    peer.core.end(request.stream)
    assert [type(event) for event in peer.events()] == [StreamClosed]


def test_early_bytes_are_parsed_only_when_the_request_is_accepted() -> None:
    wire = data_frame(1, b'{"json": true}', end=True)
    peer = RawPeer()
    peer.core.refuse(arrive(peer, wire).stream, 404, "not here")
    assert [type(event) for event in peer.events()] == [StreamEnded, StreamClosed]
    assert not peer.core.failed and peer.core.facts().partial_bytes == 0
    peer = RawPeer()
    peer.core.respond(arrive(peer, wire).stream)
    (failed, _) = peer.events()
    assert isinstance(failed, ConnectionFailed) and failed.code == ErrorCode.ENHANCE_YOUR_CALM


def test_early_bytes_are_bounded() -> None:
    peer = RawPeer(limits=Http2Limits(max_message_bytes=1000, max_partial_bytes=10_000))
    peer.frames()
    arrive(peer, *[data_frame(1, b"x" * 900) for _ in range(11)])
    assert peer.core.facts().partial_bytes <= 10_000
    peer.feed(data_frame(1, b"x" * 900))
    assert peer.reset_code() == ErrorCode.ENHANCE_YOUR_CALM
    assert peer.core.facts().partial_bytes == 0


def test_data_after_an_early_end() -> None:
    peer = RawPeer()
    arrive(peer, data_frame(1, prefixed(b"a"), end=True))
    peer.frames()
    peer.feed(data_frame(1, prefixed(b"b")))
    assert peer.reset_code() == ErrorCode.STREAM_CLOSED


def test_a_reset_before_the_answer() -> None:
    peer = RawPeer()
    peer.feed(peer.headers(1, peer.request()) + data_frame(1, prefixed(b"a"), end=True) + reset(1))
    request, closed = peer.events()
    assert isinstance(request, RequestReceived) and isinstance(closed, StreamClosed)
    peer.core.respond(request.stream)
    peer.core.refuse(request.stream, 404, "")
    assert peer.events() == [] and not peer.core.failed
    assert only(peer.frames(), type(None)) == []
