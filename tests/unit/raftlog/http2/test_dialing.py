"""The dialing side: requests, refusals, violations of a listener; and closing, by either side."""

from __future__ import annotations

import pytest
from hyperframe.frame import (
    DataFrame,
    GoAwayFrame,
    HeadersFrame,
    PushPromiseFrame,
    RstStreamFrame,
)

from raftlog.errors import InvalidRequest, RetriableError
from raftlog.http2.events import (
    GoAwayReceived,
    MessageReceived,
    ResponseReceived,
    StreamClosed,
    StreamEnded,
)
from raftlog.http2.frames import ErrorCode
from tests.support.http.http2_peer import RawPeer, data_frame, only, prefixed

PROTOCOL_ERROR, FLOW_CONTROL_ERROR, STREAM_CLOSED = 1, 3, 5
FRAME_SIZE_ERROR, REFUSED_STREAM, CANCEL, CALM = 6, 7, 8, 11


def test_a_dialed_stream() -> None:
    peer = RawPeer(core_dials=True)
    stream = peer.core.open_stream("/x", "host:1", "http", [("raftlog-node", "3")])
    peer.core.send(stream, [b"early"])
    headers, data = peer.frames()
    assert isinstance(headers, HeadersFrame) and isinstance(data, DataFrame)
    peer.feed(peer.headers(1, [(":status", "103")]) + peer.headers(1, [(":status", "200")]))
    (response,) = peer.events()
    assert isinstance(response, ResponseReceived) and response.status == 200
    peer.feed(data_frame(1, prefixed(b"answer"), end=True))
    peer.core.end(stream)
    assert [type(event) for event in peer.events()] == [MessageReceived, StreamEnded, StreamClosed]


def test_a_refusal_closes_the_dialed_stream_with_its_reason() -> None:
    peer = RawPeer(core_dials=True)
    stream = peer.core.open_stream("/x", "a", "http", [])
    peer.frames()
    fields = [(":status", "503"), ("raftlog-error", "shutting_down"), ("raftlog-detail", "come back later")]
    peer.feed(peer.headers(1, fields) + data_frame(1, b"text, not messages"))
    response, closed = peer.events()
    assert isinstance(response, ResponseReceived) and response.status == 503
    assert isinstance(closed, StreamClosed)
    assert closed.reason == "refused with 503 shutting_down: come back later"
    assert stream.closed and only(peer.frames(), RstStreamFrame)


def test_a_listener_cannot_open_a_request() -> None:
    peer = RawPeer(core_dials=True)
    peer.feed(peer.headers(2, peer.request()))
    assert peer.goaway()[0] == PROTOCOL_ERROR
    peer = RawPeer(core_dials=True)
    peer.dialed()
    push = PushPromiseFrame(1, promised_stream_id=2, data=peer.hpack.encode(peer.request()), flags=["END_HEADERS"])
    peer.feed(push.serialize())
    assert peer.goaway()[0] == PROTOCOL_ERROR


@pytest.mark.parametrize("status", ["abc", "", "+20", "20", "-1", "2" * 5000])
def test_a_response_with_an_invalid_status(status: str) -> None:
    peer = RawPeer(core_dials=True)
    peer.dialed(answered=False)
    peer.frames()
    peer.feed(peer.headers(1, [(":status", status)]))
    code, text = peer.goaway()
    assert code == PROTOCOL_ERROR and "status" in text


def test_a_refusal_may_end_the_stream_at_once() -> None:
    peer = RawPeer(core_dials=True)
    stream = peer.dialed(answered=False)
    peer.core.end(stream)
    peer.feed(peer.headers(1, [(":status", "404")], end=True))
    assert [type(event) for event in peer.events()] == [ResponseReceived, StreamClosed] and not peer.core.failed


def test_data_before_the_responses_headers() -> None:
    peer = RawPeer(core_dials=True)
    peer.dialed(answered=False)
    peer.frames()
    peer.feed(data_frame(1, prefixed(b"x")))
    assert peer.reset_code() == PROTOCOL_ERROR


def test_streams_that_the_peer_does_not_accept() -> None:
    peer = RawPeer(core_dials=True, settings={3: 1})
    peer.dialed()
    with pytest.raises(RetriableError) as caught:
        peer.core.open_stream("/x", "a", "http", [])
    assert caught.value.code == "overloaded"
    with pytest.raises(InvalidRequest):
        RawPeer(core_dials=True).core.open_stream("/x", "a", "http", [("te", "gzip")])


def test_a_message_longer_than_the_peers_limit_is_the_callers_error() -> None:
    peer = RawPeer(core_dials=True)
    stream = peer.dialed(extra=[("raftlog-max-message-bytes", "10")])
    peer.frames()
    peer.core.send(stream, [b"x" * 10])
    with pytest.raises(InvalidRequest) as caught:
        peer.core.send(stream, [b"x" * 11])
    assert caught.value.code == "body_too_large"
    assert len(peer.frames()) == 1


# --- Closing ---------------------------------------------------------------------------------------------------------


def test_open_streams_finish_after_an_own_goaway_and_new_ones_are_refused() -> None:
    peer = RawPeer()
    stream = peer.open(1)
    peer.frames()
    peer.core.go_away(ErrorCode.NO_ERROR, "bye")
    (goaway,) = peer.frames()
    assert isinstance(goaway, GoAwayFrame) and goaway.last_stream_id == 1 and goaway.error_code == 0
    peer.feed(peer.headers(3, peer.request()))
    assert peer.reset_code() == REFUSED_STREAM
    peer.feed(data_frame(1, prefixed(b"still here")))
    assert peer.messages() == [b"still here"]
    peer.core.send(stream, [b"me too"])
    assert len(peer.frames()) == 1


def test_the_peers_goaway_closes_streams_that_it_never_saw() -> None:
    peer = RawPeer(core_dials=True)
    first, second = peer.dialed(), peer.dialed(answered=False)
    peer.frames()
    peer.feed(GoAwayFrame(0, last_stream_id=1, error_code=0, additional_data=b"moving").serialize())
    goaway, closed = peer.events()
    assert isinstance(goaway, GoAwayReceived) and goaway.reason == "NO_ERROR moving"
    assert isinstance(closed, StreamClosed) and closed.stream is second
    assert closed.reason == "the peer sent GOAWAY before it saw the request: NO_ERROR moving"
    with pytest.raises(RetriableError):
        peer.core.open_stream("/x", "a", "http", [])
    peer.feed(data_frame(1, prefixed(b"last words")))
    assert peer.messages() == [b"last words"] and not first.closed


def test_failing_twice_sends_goaway_once() -> None:
    peer = RawPeer()
    peer.core.fail(ErrorCode.INTERNAL_ERROR, "first")
    peer.core.fail(ErrorCode.NO_ERROR, "second")
    assert peer.goaway() == (2, "first")
