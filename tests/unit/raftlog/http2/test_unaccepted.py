"""A peer sends no more than a small window before its request is accepted; then the window opens (S12)."""

from __future__ import annotations

from hyperframe.frame import SettingsFrame, WindowUpdateFrame

from raftlog.http2.events import ConnectionFailed, RequestReceived
from raftlog.http2.frames import ErrorCode
from raftlog.http2.limits import DEFAULT_WINDOW, LARGEST_WINDOW, Http2Limits
from tests.support.http.http2_peer import RawPeer, data_frame, only, prefixed

CAREFUL = Http2Limits(unaccepted_window_bytes=DEFAULT_WINDOW)
INITIAL_WINDOW_SIZE = 4


def ask(peer: RawPeer, stream_id: int = 1) -> RequestReceived:
    peer.feed(peer.headers(stream_id, peer.request(extra=[("authorization", "Bearer rlt_secret")])))
    event = peer.core.events.pop()
    assert isinstance(event, RequestReceived)
    return event


def test_the_window_is_small_until_the_stream_is_accepted() -> None:
    peer = RawPeer(limits=CAREFUL)
    announced = [frame.settings for frame in only(peer.handshake, SettingsFrame) if frame.settings]
    assert announced[0][INITIAL_WINDOW_SIZE] == DEFAULT_WINDOW
    request = ask(peer)
    peer.feed(data_frame(1, prefixed(b"x" * 10_000)))
    assert only(peer.frames(), WindowUpdateFrame) == []
    peer.core.respond(request.stream)
    (opened,) = only(peer.frames(), WindowUpdateFrame)
    assert (opened.stream_id, opened.window_increment) == (1, LARGEST_WINDOW - DEFAULT_WINDOW + 10_004)
    assert peer.messages() == [b"x" * 10_000]


def test_more_than_the_window_before_the_acceptance_ends_the_connection() -> None:
    peer = RawPeer(limits=CAREFUL)
    ask(peer)
    peer.feed(data_frame(1, b"x" * DEFAULT_WINDOW))
    assert peer.core.facts().partial_bytes == DEFAULT_WINDOW
    peer.feed(data_frame(1, b"x"))
    failed = peer.core.events.popleft()
    while not isinstance(failed, ConnectionFailed):
        failed = peer.core.events.popleft()
    assert failed.code == ErrorCode.FLOW_CONTROL_ERROR
    assert peer.core.facts().partial_bytes == 0


def test_the_window_of_a_refused_stream_stays_as_it_is() -> None:
    peer = RawPeer(limits=CAREFUL)
    request = ask(peer)
    peer.core.refuse(request.stream, 401, "no")
    peer.feed(data_frame(1, b"x" * 60_000))
    assert only(peer.frames(), WindowUpdateFrame) == []
    assert peer.core.facts().partial_bytes == 0


def test_no_window_opens_with_the_acceptance_of_a_stream_that_was_never_small() -> None:
    peer = RawPeer()
    request = ask(peer)
    peer.core.respond(request.stream)
    assert only(peer.frames(), WindowUpdateFrame) == []


def test_the_credential_of_a_request_is_shown_nowhere() -> None:
    request = ask(RawPeer())
    assert request.authorization is not None and request.authorization.reveal() == "Bearer rlt_secret"
    assert "authorization" not in request.headers and "secret" not in repr(request)
