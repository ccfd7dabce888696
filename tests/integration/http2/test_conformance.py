"""Rules of RFC 9113 that h2spec checks, as raw frames over real sockets; `.ci/run` runs h2spec itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from hyperframe.frame import DataFrame, Frame, GoAwayFrame, HeadersFrame, RstStreamFrame

from raftlog.http2 import Http2Limits
from raftlog.http2.frames import PREFACE, ErrorCode
from tests.support.http.http2_peer import (
    RawPeer,
    data_frame,
    parse,
    raw_frame,
    reset,
    settings_frame,
    window_update,
)
from tests.support.http.http2_server import PATIENCE_S, Server, raw

pytestmark = pytest.mark.integration

NO_WINDOW = settings_frame({4: 0})
SMALL_FRAMES = Http2Limits(max_frame_bytes=2**14)


class Peer:
    """A client that sends raw frames to a listener with a path that does not exist, and one that echoes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._hpack = RawPeer()

    def send(self, *frames: bytes) -> None:
        self._writer.write(b"".join(frames))

    def request(self, stream_id: int, *, path: str = "/nothing", method: str = "GET", end: bool = True) -> bytes:
        return self._hpack.headers(stream_id, self._hpack.request(path, method), end=end)

    async def next(self, *kinds: type[Frame]) -> Frame:
        """Return the next frame of one of these kinds, and skip others."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                head = await self._reader.readexactly(9)
                body = await self._reader.readexactly(int.from_bytes(head[:3], "big"))
                (frame,) = parse(head + body)
                if isinstance(frame, kinds):
                    return frame

    async def content(self, length: int) -> list[DataFrame]:
        """Return the DATA frames of the next `length` bytes of content."""
        frames: list[DataFrame] = []
        while sum(len(frame.data) for frame in frames) < length:
            frame = await self.next(DataFrame)
            assert isinstance(frame, DataFrame)
            frames.append(frame)
        return frames

    async def is_quiet(self) -> bool:
        """Return whether nothing but the answer to a PING comes: everything sent before was handled without DATA."""
        self.send(raw_frame(6, 0, 0, b"8 bytes!"))
        async with asyncio.timeout(PATIENCE_S):
            while True:
                head = await self._reader.readexactly(9)
                await self._reader.readexactly(int.from_bytes(head[:3], "big"))
                if head[3] == 0:
                    return False
                if head[3] == 6:
                    return True


@pytest.fixture
async def peer() -> AsyncIterator[Peer]:
    async with Server(SMALL_FRAMES) as server, raw(server.port) as (reader, writer):
        yield Peer(reader, writer)


async def test_an_invalid_preface_that_is_not_http_1_ends_the_connection(peer: Peer) -> None:
    """Section 3.4: a connection error; bytes that are not HTTP/1.1 either are not answered in HTTP/1.1."""
    peer.send(b"INVALID CONNECTION PREFACE\r\n\r\n")
    with pytest.raises(asyncio.IncompleteReadError) as error:
        await peer.next(Frame)
    assert error.value.partial == b""


async def test_data_beyond_the_frame_size_is_refused(peer: Peer) -> None:
    """Section 4.2: FRAME_SIZE_ERROR."""
    peer.send(PREFACE, settings_frame(), peer.request(1, path="/echo", method="POST", end=False))
    peer.send(data_frame(1, bytes(2**14 + 1)))
    goaway = await peer.next(GoAwayFrame)
    assert isinstance(goaway, GoAwayFrame) and goaway.error_code == ErrorCode.FRAME_SIZE_ERROR


async def test_data_after_the_peers_own_reset_is_a_stream_error(peer: Peer) -> None:
    """Section 5.1, "closed": STREAM_CLOSED. Only after this side's own reset may DATA be on its way."""
    peer.send(PREFACE, settings_frame(), peer.request(1, path="/echo", method="POST", end=False))
    peer.send(reset(1), data_frame(1, b"late"))
    answer = await peer.next(RstStreamFrame, GoAwayFrame)
    assert isinstance(answer, RstStreamFrame)
    assert (answer.stream_id, answer.error_code) == (1, ErrorCode.STREAM_CLOSED)


async def test_data_after_the_peers_own_end_is_a_stream_error(peer: Peer) -> None:
    """Section 5.1, "closed": STREAM_CLOSED, after both sides have ended."""
    peer.send(PREFACE, settings_frame(), peer.request(1))
    await peer.next(DataFrame)
    peer.send(data_frame(1, b"late"))
    answer = await peer.next(RstStreamFrame, GoAwayFrame)
    assert isinstance(answer, RstStreamFrame)
    assert (answer.stream_id, answer.error_code) == (1, ErrorCode.STREAM_CLOSED)


async def test_late_data_is_rationed(peer: Peer) -> None:
    """Each answer is work without content, like a reset of the peer's."""
    peer.send(PREFACE, settings_frame(), peer.request(1, path="/echo", method="POST", end=False), reset(1))
    peer.send(data_frame(1, b"late") * 3_000)
    goaway = await peer.next(GoAwayFrame)
    assert isinstance(goaway, GoAwayFrame) and goaway.error_code == ErrorCode.ENHANCE_YOUR_CALM


async def test_data_after_this_sides_reset_is_discarded() -> None:
    """Section 5.1: the peer may have sent it before it saw the reset."""
    peer = RawPeer()
    stream = peer.open()
    peer.core.reset(stream, ErrorCode.CANCEL, "over")
    peer.frames()
    peer.feed(data_frame(1, b"on its way", end=True))
    assert peer.frames() == [] and not peer.core.failed


async def test_streams_beyond_the_limit_are_refused_while_answers_wait(peer: Peer) -> None:
    """Section 5.1.2: a stream whose answer waits for a window is open, and counts."""
    most = Http2Limits().max_concurrent_streams
    peer.send(PREFACE, NO_WINDOW, *(peer.request(2 * number + 1) for number in range(most + 1)))
    refused = await peer.next(RstStreamFrame)
    assert isinstance(refused, RstStreamFrame)
    assert (refused.stream_id, refused.error_code) == (2 * most + 1, ErrorCode.REFUSED_STREAM)


async def test_the_text_of_a_refusal_waits_for_the_window(peer: Peer) -> None:
    """Sections 6.5.3 and 6.9.1: the values of one SETTINGS frame apply in order; no frame is larger than the window."""
    peer.send(PREFACE, raw_frame(4, 0, 0, bytes([0, 4, 0, 0, 0, 100, 0, 4, 0, 0, 0, 1])), peer.request(1))
    assert [len(frame.data) for frame in await peer.content(1)] == [1]
    assert await peer.is_quiet()
    peer.send(window_update(1, 1000))
    rest = b"othing is served at '/nothing'\n"
    assert b"".join(frame.data for frame in await peer.content(len(rest))) == rest
    assert "END_STREAM" in (await peer.next(DataFrame)).flags


async def test_a_window_that_settings_open_is_used(peer: Peer) -> None:
    """Section 6.9.2: INITIAL_WINDOW_SIZE changes the windows of open streams."""
    peer.send(PREFACE, NO_WINDOW, peer.request(1))
    assert isinstance(await peer.next(HeadersFrame), HeadersFrame)
    assert await peer.is_quiet()
    peer.send(settings_frame({4: 1}))
    assert [len(frame.data) for frame in await peer.content(1)] == [1]


async def test_a_window_below_zero_is_tracked(peer: Peer) -> None:
    """Section 6.9.2: nothing is sent until updates have raised it above zero."""
    peer.send(PREFACE, settings_frame({4: 3}), peer.request(1))
    assert [len(frame.data) for frame in await peer.content(3)] == [3]
    peer.send(settings_frame({4: 2}), window_update(1, 1))  # -1, then 0
    assert await peer.is_quiet()
    peer.send(window_update(1, 1))
    assert [len(frame.data) for frame in await peer.content(1)] == [1]


async def test_the_answer_to_head_has_no_content(peer: Peer) -> None:
    """RFC 9110 section 9.3.2."""
    peer.send(PREFACE, settings_frame(), peer.request(1, path="/echo", method="HEAD"))
    await peer.next(HeadersFrame)
    end = await peer.next(DataFrame)
    assert isinstance(end, DataFrame) and end.data == b"" and "END_STREAM" in end.flags
