"""All work and memory that a peer can cause is bounded, and ordinary traffic stays below the bounds."""

from __future__ import annotations

import pytest
from hyperframe.frame import GoAwayFrame, PingFrame, RstStreamFrame

from raftlog.http2.events import RequestReceived, StreamClosed
from raftlog.http2.frames import ErrorCode
from raftlog.http2.limits import DEFAULT_WINDOW, Http2Limits
from raftlog.http2.messages import FIRST_BYTES, PartialPool
from tests.support.http.http2_peer import (
    RawPeer,
    data_frame,
    only,
    prefixed,
    raw_frame,
    reset,
    settings_frame,
    window_update,
)

LIMITS = Http2Limits(control_frames_per_second=100, control_frames_burst=200)

FLOODS = {
    "PING": lambda number: raw_frame(6, 0, 0, b"8 bytes!"),
    "PING answers": lambda number: raw_frame(6, 1, 0, b"8 bytes!"),
    "SETTINGS": lambda number: settings_frame(),
    "SETTINGS answers": lambda number: settings_frame(ack=True),
    "PRIORITY": lambda number: raw_frame(2, 0, 2 * number + 1, b"\0\0\0\0\0"),
    "RST_STREAM of closed streams": lambda number: reset(1),
    "empty DATA": lambda number: data_frame(3, b""),
    "empty DATA of closed streams": lambda number: data_frame(1, b""),
    "header blocks on closed streams": lambda number: raw_frame(1, 4, 1, b"\x82\x84\x86\x41\x01a"),
    "nothing but padding": lambda number: data_frame(3, b"", padding=100),
    "unknown frames": lambda number: raw_frame(200, 0, 0),
    "GOAWAY": lambda number: raw_frame(7, 0, 0, b"\0" * 8),
    "stream errors": lambda number: raw_frame(8, 0, 3, b"\0\0\0\0") if number == 0 else raw_frame(6, 0, 0, b"8 bytes!"),
}


@pytest.mark.parametrize("flood", FLOODS)
def test_frames_without_content_are_rate_limited(flood: str) -> None:
    peer = RawPeer(limits=LIMITS)
    peer.open(1)
    peer.feed(reset(1))
    peer.open(3)
    peer.frames()
    for number in range(150):
        peer.feed(FLOODS[flood](number))
    assert not peer.core.failed, "a burst is nobody's fault"
    for number in range(150, 1000):
        peer.feed(FLOODS[flood](number))
    code, text = peer.goaway()
    assert code == ErrorCode.ENHANCE_YOUR_CALM and "too many" in text


def test_the_same_frames_over_some_time_are_accepted() -> None:
    peer = RawPeer(limits=LIMITS)
    for _ in range(1000):
        peer.now += 0.02
        peer.feed(raw_frame(6, 0, 0, b"8 bytes!"))
    assert len(only(peer.frames(), PingFrame)) == 1000


def test_rapid_reset() -> None:
    """CVE-2023-44487: streams opened and reset at once stay below the bound on open streams, and cost work."""
    peer = RawPeer(limits=LIMITS)
    peer.frames()
    opened = 0
    while not peer.core.failed:
        stream_id = 2 * opened + 1
        peer.feed(peer.headers(stream_id, peer.request()) + reset(stream_id))
        opened += 1
        assert opened < 1000
    assert 150 < opened < 250
    assert peer.goaway()[0] == ErrorCode.ENHANCE_YOUR_CALM


def test_made_you_reset() -> None:
    """CVE-2025-8671: the same, with resets that the victim is made to send."""
    peer = RawPeer(limits=LIMITS)
    opened = 0
    while not peer.core.failed:
        stream_id = 2 * opened + 1
        peer.feed(peer.headers(stream_id, peer.request()) + raw_frame(8, 0, stream_id, b"\0\0\0\0"))
        opened += 1
        assert opened < 1000
    assert peer.goaway()[0] == ErrorCode.ENHANCE_YOUR_CALM


def test_made_you_reset_by_a_second_header_block() -> None:
    peer = RawPeer(limits=LIMITS)
    opened = 0
    while not peer.core.failed:
        peer.feed(peer.headers(2 * opened + 1, peer.request(), end=True) * 2)
        opened += 1
        assert opened < 1000
    assert peer.goaway()[0] == ErrorCode.ENHANCE_YOUR_CALM


def test_a_header_block_after_the_end_resets_its_stream() -> None:
    peer = RawPeer()
    peer.open(1, end=True)
    peer.open(3)
    peer.events()
    peer.frames()
    peer.feed(peer.headers(1, [("x", "y")], end=True))
    (closed,) = peer.events()
    assert isinstance(closed, StreamClosed)
    assert closed.reason == "reset because of the peer's header block: STREAM_CLOSED"
    assert len(only(peer.frames(), RstStreamFrame)) == 1 and not peer.core.failed


def test_the_memory_for_closed_streams_is_bounded() -> None:
    peer = RawPeer()
    for number in range(1_100):
        stream = peer.open(2 * number + 1, end=True)
        peer.core.end(stream)
    facts = peer.core.facts()
    assert facts.h2_closed_streams <= 1024 and facts.h2_streams <= 2
    peer.feed(reset(1) + window_update(1, 5) + data_frame(1, b"late"))
    assert not peer.core.failed, "what was under way to a forgotten stream is no fault"


def test_unknown_settings_are_not_kept() -> None:
    """`h2` would keep each of them, 700 bytes apiece, and walk through all with every SETTINGS frame."""
    peer = RawPeer()
    known = peer.core.facts().h2_peer_settings
    for first in range(7, 60_000, 2_000):
        unknown = b"".join(number.to_bytes(2, "big") + bytes(4) for number in range(first, first + 2_000))
        peer.feed(raw_frame(4, 0, 0, unknown + b"\0\4\0\1\0\0"))
    assert peer.core.facts().h2_peer_settings == known
    assert peer.core.outbox.initial_window == 65_536 and not peer.core.failed


def test_requests_that_must_be_refused_are_rate_limited() -> None:
    peer = RawPeer(limits=LIMITS)
    opened = 0
    while not peer.core.failed:
        peer.feed(peer.headers(2 * opened + 1, peer.request(), end=True))
        for event in only(peer.events(), RequestReceived):
            peer.core.refuse(event.stream, 404, "not here")
        opened += 1
        assert opened < 1000
    assert peer.goaway()[0] == ErrorCode.ENHANCE_YOUR_CALM


def test_streams_beyond_the_bound_are_rate_limited() -> None:
    peer = RawPeer(limits=Http2Limits(max_concurrent_streams=1, control_frames_burst=200))
    for number in range(1000):
        peer.feed(peer.headers(2 * number + 1, peer.request()))
    assert peer.goaway()[0] == ErrorCode.ENHANCE_YOUR_CALM


def test_continuation_flood() -> None:
    """CVE-2024-27316: an endless header block."""
    peer = RawPeer()
    peer.feed(raw_frame(1, 0, 1, b""))
    for _ in range(1000):
        peer.feed(raw_frame(9, 0, 1, b""))
    assert peer.core.failed


def test_continuations_of_many_header_blocks_are_rate_limited_together() -> None:
    peer = RawPeer(limits=LIMITS)
    opened = 0
    while not peer.core.failed:
        block = peer.headers(2 * opened + 1, peer.request(extra=[("x", f"{opened:0200}")]), end=True, split=10)
        peer.feed(block)
        for event in only(peer.events(), RequestReceived):
            peer.core.respond(event.stream)
            peer.core.end(event.stream)
        opened += 1
        assert opened < 1000
    assert only(peer.frames(), GoAwayFrame)[0].error_code == ErrorCode.ENHANCE_YOUR_CALM
    assert opened < 50


def test_data_and_windows_of_a_correct_peer_are_not_rate_limited() -> None:
    peer = RawPeer(limits=LIMITS)
    stream = peer.open()
    peer.frames()
    for _ in range(5_000):
        peer.feed(data_frame(1, prefixed(b"x")) + window_update(0, 1) + window_update(1, 1))
    assert len(peer.messages()) == 5_000
    assert stream.send_window == 65_535 + 5_000


def test_many_unfinished_messages_reset_the_stream_that_asks_for_too_much() -> None:
    peer = RawPeer(limits=Http2Limits(max_message_bytes=1 << 20, max_partial_bytes=3 << 20))
    announced = (1 << 20).to_bytes(4, "big")
    for number in range(3):
        peer.open(2 * number + 1)
        peer.feed(data_frame(2 * number + 1, announced))
    peer.open(7)
    peer.frames()
    peer.feed(data_frame(7, announced))
    assert peer.reset_code() == ErrorCode.ENHANCE_YOUR_CALM
    peer.feed(data_frame(7, b"still under way") + reset(1))
    peer.events()
    peer.open(9)
    peer.feed(data_frame(9, announced))
    assert 9 in peer.core.streams, "there is room again"


def test_a_message_that_exceeds_the_budget_while_it_is_received_resets_its_stream() -> None:
    room = 2 * FIRST_BYTES + 1000
    peer = RawPeer(limits=Http2Limits(max_message_bytes=room, max_partial_bytes=room))
    for stream_id in (1, 3):
        peer.open(stream_id)
        peer.feed(data_frame(stream_id, room.to_bytes(4, "big") + b"x" * 1000))
    peer.frames()
    wire = raw_frame(0, 0, 3, b"y" * FIRST_BYTES)
    peer.feed(wire)
    assert peer.reset_code() == ErrorCode.ENHANCE_YOUR_CALM
    peer.feed(raw_frame(6, 0, 0, b"8 bytes!"))
    assert len(peer.frames()) == 1, "the rest of the frame was skipped to its end"


def test_hpack_state_for_sent_headers_is_bounded() -> None:
    peer = RawPeer(settings={1: 2**31})
    peer.open()
    assert peer.core.facts().h2_header_table_bytes == 4096


@pytest.mark.parametrize("arrived", [13, 9 + 4 + 1001])
def test_a_message_announced_above_the_limit_ends_the_connection_before_it_is_buffered(arrived: int) -> None:
    peer = RawPeer(limits=Http2Limits(max_message_bytes=1000, max_partial_bytes=1000))
    peer.open()
    peer.frames()
    peer.feed(data_frame(1, (1001).to_bytes(4, "big") + b"x" * 1001)[:arrived])
    assert peer.goaway() == (ErrorCode.ENHANCE_YOUR_CALM, "message of 1001 bytes announced, the limit is 1000")
    assert peer.core.facts().partial_bytes == 0


def unfinished(pool: PartialPool, limits: Http2Limits) -> RawPeer:
    """A peer of a listener's core with as many unfinished messages as it may have streams, in a few bytes each."""
    peer = RawPeer(limits=limits, pool=pool)
    for number in range(limits.max_concurrent_streams):
        peer.open(2 * number + 1)
        peer.feed(data_frame(2 * number + 1, (32 << 20).to_bytes(4, "big")))
    return peer


def test_unfinished_messages_of_many_connections_share_one_bound_and_the_newest_is_served() -> None:
    """150 KB in pieces over 80 connections would otherwise hold 3.4 GB."""
    limits = Http2Limits()
    pool = PartialPool(limits.max_listener_partial_bytes)
    strangers = [unfinished(pool, limits) for _ in range(80)]
    assert sum(peer.core.facts().partial_bytes for peer in strangers) == pool.used <= 256 << 20
    honest = RawPeer(limits=limits, pool=pool)
    honest.open()
    message = bytes(5 << 20)
    honest.feed(data_frame(1, prefixed(message)), piece=100_000)
    assert honest.messages() == [message]
    for peer in strangers:
        peer.core.abandon("the test is over")
    assert pool.used == 0, "every byte is given back"


def early(pool: PartialPool, limits: Http2Limits) -> RawPeer:
    """A peer of a listener's core whose requests wait for the check of a credential, each with all of its window."""
    peer = RawPeer(limits=limits, pool=pool)
    for number in range(limits.max_concurrent_streams):
        stream_id = 2 * number + 1
        peer.feed(peer.headers(stream_id, peer.request()) + data_frame(stream_id, bytes(DEFAULT_WINDOW)))
    return peer


def test_content_before_an_answer_costs_nobody_an_accepted_message_s12() -> None:
    """Strangers whose passwords waited for their checks pushed the messages of authenticated peers out."""
    limits = Http2Limits(
        max_message_bytes=8 << 20, max_listener_partial_bytes=32 << 20, unaccepted_window_bytes=DEFAULT_WINDOW
    )
    pool = PartialPool(limits.max_listener_partial_bytes)
    honest = RawPeer(limits=limits, pool=pool)
    honest.open()
    message = bytes(5 << 20)
    wire = data_frame(1, prefixed(message))
    honest.feed(wire[:100])
    strangers = [early(pool, limits) for _ in range(5)]
    honest.feed(wire[100:], piece=100_000)
    assert honest.messages() == [message]
    held = sum(peer.core.facts().partial_bytes for peer in strangers)
    assert 7 << 20 < held == pool.early.used <= 8 << 20, "they are bounded"
    assert len(strangers[0].core.streams) == 0 and len(strangers[-1].core.streams) > 100, "the oldest gives way"
    for peer in strangers:
        peer.core.abandon("the test is over")
    assert pool.early.used == pool.used == 0, "every byte is given back"


def test_the_stream_of_a_message_that_is_not_complete_in_time_is_reset() -> None:
    peer = RawPeer(limits=Http2Limits(message_timeout_s=60.0))
    peer.open(1)
    peer.open(3)
    peer.feed(data_frame(1, (1 << 20).to_bytes(4, "big")))
    assert peer.core.next_time(peer.now, reading=True) <= peer.now + 15.0
    peer.now += 59.0
    peer.feed(data_frame(1, b"a little") + data_frame(3, (1 << 20).to_bytes(4, "big")))
    peer.core.on_time(peer.now)
    peer.frames()
    assert sorted(peer.core.streams) == [1, 3]
    peer.now += 1.0
    peer.core.on_time(peer.now)
    assert sorted(peer.core.streams) == [3]
    assert peer.reset_code() == ErrorCode.ENHANCE_YOUR_CALM


def test_a_message_is_not_late_because_this_side_did_not_read() -> None:
    peer = RawPeer(limits=Http2Limits(message_timeout_s=60.0))
    peer.open(1)
    peer.feed(data_frame(1, (1 << 20).to_bytes(4, "big")))
    peer.now += 70.0
    peer.core.on_time(peer.now, reading=False)
    peer.now += 59.0
    peer.core.on_time(peer.now)
    assert sorted(peer.core.streams) == [1]
