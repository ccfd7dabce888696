"""The limits: their consistency, and the accounting of rates and deadlines."""

from __future__ import annotations

import pytest

from raftlog.http2.keepalive import Keepalive, Verdict
from raftlog.http2.limits import Http2Limits, RateLimit
from tests.support.http.http2_peer import RawPeer, raw_frame


@pytest.mark.parametrize(
    "broken",
    [
        {"max_frame_bytes": 2**14 - 1},
        {"max_frame_bytes": 2**24},
        {"window_bytes": 65_534},
        {"window_bytes": 2**31},
        {"unaccepted_window_bytes": 65_534},
        {"max_partial_bytes": 1},
        {"max_message_bytes": 0},
        {"max_control_frame_bytes": 100},
        {"max_control_frame_bytes": 2**17},
        {"max_header_block_bytes": 100},
        {"max_concurrent_streams": 0},
        {"ping_timeout_s": 0},
    ],
)
def test_impossible_limits_are_refused(broken: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="limits must keep"):
        Http2Limits(**broken)  # type: ignore[arg-type]


def test_a_bucket_gives_its_burst_and_then_its_rate() -> None:
    bucket = RateLimit(10.0, 5, now=100.0)
    assert [bucket.allow(100.0) for _ in range(6)] == [True] * 5 + [False]
    bucket = RateLimit(10.0, 5, now=100.0)
    assert all(bucket.allow(100.0 + i / 10) for i in range(1000))
    assert [bucket.allow(1e6) for _ in range(6)] == [True] * 5 + [False]  # a long pause saves no more than the burst
    assert not bucket.allow(99.0)  # a clock that goes back gives nothing


def test_a_flood_of_what_is_refused_does_not_outlast_itself() -> None:
    """Otherwise a stranger could silence the log of refusals, or shut the way to the quorum's thread, for days."""
    bucket = RateLimit(10.0, 5, now=0.0)
    assert sum(bucket.allow(i / 1000) for i in range(10_000)) == pytest.approx(5 + 10 * 10, abs=2)
    assert [bucket.allow(10.5) for _ in range(6)] == [True] * 5 + [False]


LIMITS = Http2Limits(handshake_timeout_s=5, ping_interval_s=10, ping_timeout_s=3, idle_timeout_s=60)


def check(keepalive: Keepalive, now: float, *, ready: bool = True, streams: int = 1, reading: bool = True) -> Verdict:
    return keepalive.check(now, ready=ready, used=streams > 0, reading=reading)


def test_a_half_open_connection_has_a_deadline() -> None:
    keepalive = Keepalive(LIMITS, 0.0, serves=True)
    keepalive.received(4.9)  # bytes alone do not count: SETTINGS must arrive
    assert check(keepalive, 4.9, ready=False) is Verdict.NOTHING
    assert check(keepalive, 5.0, ready=False) is Verdict.HALF_OPEN


def test_a_silent_peer_is_pinged_and_then_given_up() -> None:
    keepalive = Keepalive(LIMITS, 0.0, serves=False)
    assert check(keepalive, 9.9) is Verdict.NOTHING
    assert check(keepalive, 10.0) is Verdict.PING
    assert check(keepalive, 12.9) is Verdict.NOTHING
    assert check(keepalive, 13.0) is Verdict.SILENT


def test_a_silent_peer_is_given_up_if_pings_are_due_before_their_answers() -> None:
    limits = Http2Limits(ping_interval_s=1.0, ping_timeout_s=1.5)
    keepalive = Keepalive(limits, 0.0, serves=False)
    assert [check(keepalive, now) for now in (1.0, 2.0, 2.4)] == [Verdict.PING, Verdict.NOTHING, Verdict.NOTHING]
    assert check(keepalive, 2.5) is Verdict.SILENT


def test_it_returns_the_time_of_the_next_check() -> None:
    keepalive = Keepalive(LIMITS, 0.0, serves=False)
    assert keepalive.next_check(0.0, ready=False, reading=True) == 5.0  # the handshake's deadline
    assert keepalive.next_check(0.0, ready=True, reading=True) == 10.0  # a PING
    assert check(keepalive, 10.0) is Verdict.PING
    assert keepalive.next_check(10.0, ready=True, reading=True) == 13.0  # its answer
    keepalive.received(11.0)
    assert keepalive.next_check(13.0, ready=True, reading=True) == 20.0
    assert keepalive.next_check(21.0, ready=True, reading=False) > 21.0  # a PING that is due waits for the reading
    assert Keepalive(LIMITS, 0.0, serves=True).next_check(0.0, ready=True, reading=True) == 10.0
    often = Http2Limits(idle_timeout_s=8)
    assert Keepalive(often, 0.0, serves=True).next_check(1.0, ready=True, reading=True) == 3.0


def test_any_bytes_prove_that_the_peer_is_alive() -> None:
    keepalive = Keepalive(LIMITS, 0.0, serves=False)
    for second in range(10, 200, 10):
        assert check(keepalive, float(second)) is Verdict.PING
        keepalive.received(second + 2.0)
        assert check(keepalive, second + 4.0) is Verdict.NOTHING


def test_no_peer_is_given_up_while_reading_is_paused() -> None:
    keepalive = Keepalive(LIMITS, 0.0, serves=False)
    assert check(keepalive, 10.0) is Verdict.PING
    assert check(keepalive, 20.0, reading=False) is Verdict.NOTHING
    assert check(keepalive, 20.1) is Verdict.PING
    assert check(keepalive, 23.1) is Verdict.SILENT


@pytest.mark.parametrize(("serves", "verdict"), [(True, Verdict.IDLE), (False, Verdict.NOTHING)])
def test_only_a_listener_ends_idle_connections(serves: bool, verdict: Verdict) -> None:
    keepalive = Keepalive(LIMITS, 0.0, serves=serves)
    keepalive.is_stranger = False
    for second in range(10, 60, 10):
        assert check(keepalive, float(second), streams=0) is Verdict.PING
        keepalive.received(second + 0.1)
    assert check(keepalive, 59.9, streams=0) is Verdict.NOTHING
    keepalive._ping_due = 1e9
    assert check(keepalive, 60.0, streams=0) is verdict
    assert check(keepalive, 61.0, streams=1) is Verdict.NOTHING
    assert check(keepalive, 61.1, streams=0) is Verdict.NOTHING


@pytest.mark.parametrize("used", [True, False])
def test_short_requests_between_two_checks_keep_a_connection(used: bool) -> None:
    """None of them is open when the deadlines are checked."""
    peer = RawPeer(limits=LIMITS)
    for number in range(20):
        if used:
            stream = peer.open(2 * number + 1, end=True)
            peer.core.end(stream)
        else:
            peer.feed(raw_frame(6, 1, 0, bytes(8)))  # a PING's answer
        peer.output()
        assert not peer.core.streams
        peer.now += 9.0
        peer.core.on_time(peer.now)
    assert peer.core.failed is not used


def test_a_listener_closes_a_connection_without_an_accepted_stream_in_time() -> None:
    limits = Http2Limits(stranger_timeout_s=20.0)
    keepalive = Keepalive(limits, 0.0, serves=True)
    keepalive.received(19.0)
    assert keepalive.next_check(19.0, ready=True, reading=True) <= 20.0
    assert keepalive.check(20.0, ready=True, used=True, reading=False) is Verdict.STRANGER
    keepalive.is_stranger = False
    assert keepalive.check(20.0, ready=True, used=True, reading=True) is not Verdict.STRANGER
    dialed = Keepalive(limits, 0.0, serves=False)
    dialed.received(19.0)
    assert dialed.check(20.0, ready=True, used=False, reading=True) is not Verdict.STRANGER
