"""A failed connection still receives and discards the peer's bytes: the loop continues to read."""

from __future__ import annotations

import pytest

from raftlog.http2.frames import PREFACE, ErrorCode
from raftlog.http2.limits import Http2Limits
from raftlog.http2.messages import FIRST_BYTES
from tests.support.http.http2_peer import RawPeer, data_frame, prefixed, raw_frame, settings_frame

MUCH = bytes(1 << 20)


@pytest.mark.parametrize(
    "sent",
    [
        b"\xff" * 100,
        b"\xff" * 200_000,
        PREFACE[:-1] + b"!",
        PREFACE + raw_frame(0, 0, 0, b"x" * 100),
        # The frame is refused by its header, and the following bytes fill the buffer completely.
        PREFACE + settings_frame() + b"\xff\xff\xff\x01" + bytes(200_000),
    ],
    ids=lambda sent: f"{sent[:12]!r} and so on, {len(sent)} bytes",
)
def test_more_bytes_are_discarded(sent: bytes) -> None:
    peer = RawPeer(handshake=False)
    peer.feed(sent)
    assert peer.core.failed
    peer.feed(MUCH)
    assert peer.core.failed and len(peer.core.get_buffer()) > 0


def test_a_refused_frame_at_the_beginning_of_a_full_buffer() -> None:
    peer = RawPeer()
    peer.feed(b"\xff\xff\xff\x01" + bytes(200_000))
    assert "type 1" in peer.goaway()[1]
    peer.feed(MUCH)


def test_a_requested_buffer_that_is_not_used() -> None:
    """Under TLS a buffer is requested before it is known whether there are bytes; meanwhile its stream may end."""
    peer = RawPeer()
    stream = peer.open(1)
    peer.open(3)
    frame = data_frame(1, (1 << 20).to_bytes(4, "big") + bytes(1 << 20))
    peer.feed(frame[:1000])
    assert len(peer.core.get_buffer()) > 900_000, "the message's own buffer"
    peer.core.reset(stream, ErrorCode.CANCEL, "given up")
    peer.events()
    peer.feed(frame[1000:] + data_frame(3, prefixed(b"fine")))
    assert peer.messages() == [b"fine"]


def test_memory_and_patience_run_out_while_a_buffer_is_requested() -> None:
    """A message exceeds the remaining memory when its buffer is requested; one stream too many ends that way."""
    mib = 1 << 20
    limits = Http2Limits(
        max_message_bytes=4 * mib, max_partial_bytes=4 * mib, control_frames_per_second=0.001, control_frames_burst=6
    )
    peer = RawPeer(limits=limits)
    begun: list[int] = []
    for number in range(1, 40, 2):
        if peer.core.failed:
            break
        peer.open(number)
        peer.feed(data_frame(number, (4 * mib).to_bytes(4, "big") + bytes(FIRST_BYTES)))
        begun.append(number)
        if len(begun) == 3:
            frame = data_frame(begun.pop(0), bytes(mib))
            peer.feed(frame[:9])
            peer.feed(frame[9:])
    assert "stream errors" in peer.goaway()[1]
    peer.feed(MUCH)
