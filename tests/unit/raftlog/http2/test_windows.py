"""The peer's frame size and windows are respected; the own ones are counted and returned by one owner."""

from __future__ import annotations

import pytest
from hyperframe.frame import DataFrame, RstStreamFrame, WindowUpdateFrame

from raftlog.http2.frames import ErrorCode
from raftlog.http2.limits import Http2Limits
from raftlog.http2.sending import JOIN_BYTES
from raftlog.ports import FileRegion
from tests.support.http.http2_peer import RawPeer, data_frame, only, prefixed, reset, settings_frame, window_update

MESSAGE = bytes(range(256)) * 1200  # 300 KB
OURS = {5: 2**24 - 1, 4: 2**31 - 1}  # raftlog announces: MAX_FRAME_SIZE, INITIAL_WINDOW_SIZE


class OneFile:
    """A file with known bytes that counts releases."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.released = 0

    def pread(self, length: int, position: int) -> bytes:
        assert not self.released, "read after release"
        return self.content[position : position + length]

    def region(self, position: int, length: int) -> FileRegion:
        def release() -> None:
            self.released += 1

        return FileRegion(self, position, length, release)  # type: ignore[arg-type]


def sent(peer: RawPeer, room: int = 2**40) -> tuple[bytes, list[int]]:
    """Content of the DATA frames that the core sends now, and their sizes."""
    frames = only(peer.frames(room), DataFrame)
    return b"".join(frame.data for frame in frames), [len(frame.data) for frame in frames]


def test_to_a_raftlog_peer_a_message_is_one_frame_of_the_callers_buffers() -> None:
    peer = RawPeer(settings=OURS)
    stream = peer.open()
    peer.feed(window_update(0, 2**31 - 1 - 65_535))
    peer.frames()
    head, body = b"16 stamped bytes", memoryview(MESSAGE)
    peer.core.outbox.room = 1
    peer.core.send(stream, [head, body])
    header, first, second = peer.core.take_output(1)
    assert first is head and second is body, "neither joined nor copied"
    assert isinstance(header, bytes) and len(header) == 9 + 4
    assert int.from_bytes(header[:3], "big") == 4 + len(head) + len(body)


def test_a_small_message_is_one_piece() -> None:
    peer = RawPeer()
    stream = peer.open()
    peer.frames()
    peer.core.outbox.room = 1
    peer.core.send(stream, [b"a" * 100, b"b" * 100])
    (piece,) = peer.core.take_output(1)
    assert isinstance(piece, bytes) and len(piece) < JOIN_BYTES


def test_to_a_peer_with_small_frames_and_windows_it_is_split_and_waits() -> None:
    peer = RawPeer()  # 16 KiB frames, 64 KiB windows: the defaults of RFC 9113 for a peer that announces nothing
    stream = peer.open()
    peer.frames()
    peer.core.send(stream, [MESSAGE[:16], memoryview(MESSAGE)[16:]])
    content, sizes = sent(peer)
    assert sizes == [16384, 16384, 16384, 16383], "full frames, and no more than the window"
    assert stream.queued_bytes == 4 + len(MESSAGE) - 65_535
    peer.feed(window_update(0, 10_000))
    assert sent(peer) == (b"", []), "the stream's own window is empty"
    peer.feed(window_update(1, 30_000))
    more, sizes = sent(peer)
    assert sizes == [10_000], "the connection's window is smaller"
    content += more
    while stream.queued_bytes:
        peer.feed(window_update(0, 50_000) + window_update(1, 50_000))
        more, sizes = sent(peer)
        assert sizes and max(sizes) <= 16384 and sum(sizes) <= 50_000 + 20_000
        content += more
    assert content == prefixed(MESSAGE)


@pytest.mark.parametrize("which", [0, 1])
def test_each_of_the_two_windows_holds_a_message_back(which: int) -> None:
    """Although the frame would be small enough."""
    peer = RawPeer(settings={5: 2**24 - 1})
    stream = peer.open()
    peer.feed(window_update(1 - which, 2**20))
    peer.frames()  # leaves room for more, so that a message would be sent at once
    peer.core.send(stream, [MESSAGE])
    assert sent(peer)[1] == [65_535]
    peer.feed(window_update(which, 2**20))
    assert sent(peer)[1] == [4 + len(MESSAGE) - 65_535]


def test_the_end_waits_for_the_queue() -> None:
    peer = RawPeer()
    stream = peer.open()
    peer.frames()
    peer.core.send(stream, [MESSAGE])
    peer.core.end(stream)
    peer.core.send(stream, [b"too late"])
    frames = only(peer.frames(), DataFrame)
    assert not any("END_STREAM" in frame.flags for frame in frames)
    peer.feed(window_update(0, 2**20) + window_update(1, 2**20))
    frames += only(peer.frames(), DataFrame)
    assert b"".join(frame.data for frame in frames) == prefixed(MESSAGE)
    assert ["END_STREAM" in frame.flags for frame in frames] == [False] * (len(frames) - 1) + [True]


def test_streams_take_turns() -> None:
    peer = RawPeer(settings={4: 2**20})
    bulk, other = peer.open(1), peer.open(3)
    peer.frames(room=0)
    peer.core.send(bulk, [MESSAGE])
    peer.core.send(other, [b"heartbeat"])
    frames = only(peer.frames(), DataFrame)
    assert [frame.stream_id for frame in frames[:2]] == [1, 3]
    assert frames[1].data == prefixed(b"heartbeat")


def test_a_stream_without_window_does_not_hold_up_the_others() -> None:
    peer = RawPeer()
    stuck, other = peer.open(1), peer.open(3)
    peer.feed(window_update(0, 2**20))
    peer.frames()
    peer.core.send(stuck, [MESSAGE])
    assert sum(sent(peer)[1]) == 65_535
    peer.core.send(other, [b"x" * 60_000])
    assert sent(peer)[0] == prefixed(b"x" * 60_000)


def test_settings_change_the_windows_of_open_streams_too() -> None:
    peer = RawPeer()
    stream = peer.open()
    peer.feed(window_update(0, 2**20))
    peer.frames()
    peer.core.send(stream, [MESSAGE])
    assert sum(sent(peer)[1]) == 65_535
    peer.feed(settings_frame({4: 10_000}))  # 55,535 below zero now
    peer.feed(window_update(1, 55_535))
    assert sent(peer)[1] == []
    peer.feed(settings_frame({4: 10_005, 5: 2**20}))
    assert sent(peer)[1] == [5]
    peer.feed(settings_frame({4: 2**20}))
    assert sent(peer)[1] == [4 + len(MESSAGE) - 65_535 - 5], "one frame: the frame size was raised, too"


def test_settings_that_overflow_a_window_end_the_connection() -> None:
    peer = RawPeer()
    peer.open()
    peer.feed(window_update(1, 2**31 - 1 - 65_535))
    peer.frames()
    peer.feed(settings_frame({4: 65_536}))
    assert peer.goaway()[0] == ErrorCode.FLOW_CONTROL_ERROR


def test_only_as_much_is_framed_as_the_socket_accepts() -> None:
    """Unframed data can still be dropped, and lets control frames and other streams pass."""
    peer = RawPeer(settings=OURS)
    stream = peer.open()
    peer.feed(window_update(0, 2**30))
    peer.frames(room=0)
    for _ in range(10):
        peer.core.send(stream, [MESSAGE])
    assert len(sent(peer, room=1)[1]) <= 2
    before = stream.queued_bytes
    assert sent(peer, room=0)[1] == [] and stream.queued_bytes == before
    peer.core.reset(stream, ErrorCode.CANCEL, "enough")
    assert [type(frame) for frame in peer.frames()] == [RstStreamFrame]
    assert peer.core.outbox.queued_bytes == 0


def test_directly_sent_messages_use_up_the_sockets_room() -> None:
    """Messages that fit are framed while they are sent, and count like those that waited in a queue."""
    peer = RawPeer(settings=OURS)
    stream = peer.open()
    peer.feed(window_update(0, 2**30))
    peer.frames(room=0)
    message = b"x" * 96  # 100 bytes of DATA with its prefix
    peer.core.outbox.room = 250
    for _ in range(10):
        peer.core.send(stream, [message])
    assert peer.core.outbox.room == -50, "the third frame still began within the room"
    assert stream.queued_bytes == peer.core.outbox.queued_bytes == 7 * 100
    assert sent(peer, room=0) == (prefixed(message) * 3, [100] * 3)
    assert sent(peer, room=101) == (prefixed(message) * 2, [100] * 2)
    assert sent(peer) == (prefixed(message) * 5, [100] * 5)


# --- Regions of files ------------------------------------------------------------------------------------------------


def test_a_region_that_is_split_is_released_once_after_its_last_piece() -> None:
    file = OneFile(MESSAGE)
    peer = RawPeer()
    stream = peer.open()
    peer.frames()
    peer.core.send(stream, [b"head", file.region(1000, 200_000)])
    content, _ = sent(peer)
    while stream.queued_bytes:
        assert not file.released
        peer.feed(window_update(0, 30_000) + window_update(1, 30_000))
        content += sent(peer)[0]
    assert content == prefixed(b"head" + MESSAGE[1000:201_000])
    assert file.released == 1


def test_a_region_is_released_once_when_the_stream_is_reset_while_pieces_wait_in_the_socket() -> None:
    file = OneFile(MESSAGE)
    peer = RawPeer()
    stream = peer.open()
    peer.frames()
    peer.core.send(stream, [file.region(0, 200_000)])
    parts = peer.core.take_output(2**40)  # in the writer now, not sent
    peer.feed(reset(1))
    regions = only(parts, FileRegion)
    assert len(regions) == 4 and not file.released, "its pieces are still to be sent"
    for region in regions:
        region.release()
    assert file.released == 1


@pytest.mark.parametrize("way", ["closed", "ended", "too large", "reset", "connection"])
def test_a_region_that_is_never_sent_is_released_once(way: str) -> None:
    file = OneFile(MESSAGE)
    peer = RawPeer()
    stream = peer.open(extra=[("raftlog-max-message-bytes", "100")] if way == "too large" else [])
    peer.frames(room=0)
    if way == "closed":
        peer.feed(reset(1))
    elif way == "ended":
        peer.core.end(stream)
    try:
        peer.core.send(stream, [b"head", file.region(0, 1000)])
    except Exception as error:
        assert way == "too large", error
    if way == "reset":
        peer.core.reset(stream, ErrorCode.CANCEL, "")
    elif way == "connection":
        peer.core.abandon("gone")
    assert file.released == 1


# --- The own windows -------------------------------------------------------------------------------------------------


def test_windows_are_returned_by_half() -> None:
    peer = RawPeer(limits=Http2Limits(window_bytes=100_000))
    peer.open()
    peer.frames()
    given: dict[int, int] = {0: 0, 1: 0}
    for _ in range(100):
        peer.feed(data_frame(1, prefixed(b"x" * 9_996)))
        for frame in peer.frames():
            assert isinstance(frame, WindowUpdateFrame)
            assert frame.window_increment > 50_000
            given[frame.stream_id] += frame.window_increment
    assert len(peer.messages()) == 100
    assert all(900_000 < total <= 1_000_000 for total in given.values()), given


def test_padding_and_discarded_data_count_too() -> None:
    peer = RawPeer(limits=Http2Limits(window_bytes=65_535))
    peer.open()
    peer.frames()
    peer.feed(reset(1))
    given = 0
    for _ in range(20):
        peer.feed(data_frame(1, b"x" * 8_000, padding=200))
        given += sum(frame.window_increment for frame in only(peer.frames(), WindowUpdateFrame))
    assert given > 20 * 8_201 - 65_535, "or the connection would come to a halt"


def test_an_ended_stream_gets_no_window() -> None:
    peer = RawPeer(limits=Http2Limits(window_bytes=65_535))
    peer.open()
    peer.frames()
    peer.feed(data_frame(1, prefixed(b"x" * 60_000), end=True))
    assert [frame.stream_id for frame in peer.frames()] == [0]


@pytest.mark.parametrize("connection", [True, False])
def test_a_peer_that_exceeds_the_window_is_cut_off(connection: bool) -> None:
    peer = RawPeer(limits=Http2Limits(window_bytes=65_535))
    stream = peer.open()
    peer.frames()
    if not connection:
        stream.receive_window = 10
    peer.feed(data_frame(1, b"x" * (65_536 if connection else 11)))
    assert peer.goaway()[0] == ErrorCode.FLOW_CONTROL_ERROR
