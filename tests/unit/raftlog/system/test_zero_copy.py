"""Bytes and regions of files to a socket: in order, uncopied, each region released exactly once, whatever happens."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from aiohttp import ClientSession, web

from raftlog.errors import DiskFailed, RetriableError
from raftlog.ports import FileRegion, Part
from raftlog.system import zero_copy
from raftlog.system.zero_copy import SocketWriter, can_send_region, send_region

PATIENCE_S = 10.0


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


class Segment:
    """A real file that counts the releases of its regions."""

    def __init__(self, path: Path, content: bytes) -> None:
        path.write_bytes(content)
        self.content = content
        self._fd = os.open(path, os.O_RDONLY)
        self.released: list[int] = []
        self._regions = 0

    def fileno(self) -> int:
        return self._fd

    def region(self, position: int, length: int) -> FileRegion:
        number = self._regions
        self._regions += 1
        return FileRegion(self, position, length, lambda: self.released.append(number))  # type: ignore[arg-type]

    def close(self) -> None:
        os.close(self._fd)


@pytest.fixture
def segment(tmp_path: Path) -> Iterator[Segment]:
    segment = Segment(tmp_path / "segment", os.urandom(4 << 20))
    yield segment
    segment.close()


class Pair:
    """A `SocketWriter` on one end of a socket pair with small buffers."""

    def __init__(self) -> None:
        self.reader, ours = socket.socketpair()
        self.ours = ours
        self.reader.setblocking(False)
        ours.setblocking(False)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16_384)
        self.failures: list[str] = []
        self.refills: list[Part] = []
        self.writer = SocketWriter(asyncio.get_running_loop(), ours, refill=self.refill, failed=self.failures.append)

    def refill(self) -> None:
        parts, self.refills = self.refills, []
        if parts:
            self.writer.extend(parts)

    async def read(self, count: int, piece: int = 65_536) -> bytes:
        loop, data = asyncio.get_running_loop(), bytearray()
        async with asyncio.timeout(PATIENCE_S):
            while len(data) < count:
                got = await loop.sock_recv(self.reader, min(piece, count - len(data)))
                assert got, "closed too early"
                data += got
        return bytes(data)

    def close(self) -> None:
        self.writer.close()
        self.reader.close()


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    pair = Pair()
    yield pair
    pair.close()


def as_bytes(parts: list[Part], segment: Segment) -> bytes:
    return b"".join(
        segment.content[p.position : p.position + p.length] if isinstance(p, FileRegion) else bytes(p) for p in parts
    )


@pytest.mark.parametrize("seed", range(5))
async def test_parts_of_every_kind_arrive_in_order(pair: Pair, segment: Segment, seed: int) -> None:
    chance = random.Random(seed)
    parts: list[Part] = []
    for _ in range(700):  # more than one `sendmsg` accepts
        kind, size = chance.randrange(4), chance.choice([1, 9, 100, 5_000])
        position = chance.randrange(1 << 20)
        content = segment.content[position : position + size]
        whole: list[Part] = [content, bytearray(content), memoryview(content), segment.region(position, size)]
        parts.append(whole[kind])
    parts.append(segment.region(7, 3 << 20))
    expected = as_bytes(parts, segment)
    regions = sum(isinstance(part, FileRegion) for part in parts)
    pair.writer.extend(parts[:300])
    pair.refills = parts[300:]
    pair.writer.flush()
    assert 0 < pair.writer.backlog < len(expected)
    assert await pair.read(len(expected)) == expected
    assert pair.writer.backlog == 0 and pair.writer.total_sent == len(expected)
    assert segment.released == sorted(set(segment.released)) and len(segment.released) == regions
    assert pair.failures == []


async def test_thousands_of_small_regions_are_sent_in_several_turns(
    pair: Pair, segment: Segment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call costs as much as some kilobytes: no turn of the loop makes ten thousand of them."""
    monkeypatch.setattr(zero_copy, "TURN_BYTES", 50 * zero_copy.CALL_BYTES)
    pair.ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
    parts: list[Part] = [segment.region(number, 1) for number in range(1000)]
    pair.writer.extend(parts)
    pair.writer.flush()
    assert pair.writer.pieces == 950
    assert await pair.read(1000) == as_bytes(parts, segment)
    assert len(segment.released) == 1000 and pair.failures == []


async def test_large_buffers_are_neither_joined_nor_copied(pair: Pair) -> None:
    """The queued buffer itself is sent: if it had been copied, the change after the queueing would not be visible."""
    large = bytearray(1 << 20)
    pair.writer.extend([b"head", large])
    pair.writer.flush()
    large[-4:] = b"tail"
    assert (await pair.read(4 + (1 << 20)))[-4:] == b"tail"


async def test_a_peer_that_closes_is_reported_once_and_regions_are_released(pair: Pair, segment: Segment) -> None:
    pair.writer.extend([segment.region(0, 1 << 20), b"x", segment.region(5, 10)])
    pair.writer.flush()
    await pair.read(1000)
    pair.reader.close()
    await until(lambda: bool(pair.failures))
    pair.writer.extend([segment.region(0, 5)])
    pair.writer.flush()
    pair.writer.close()
    assert len(pair.failures) == 1 and pair.writer.backlog == 0
    assert segment.released == [0, 1, 2]


async def test_a_file_that_is_too_short_fails_the_connection(pair: Pair, segment: Segment) -> None:
    pair.writer.extend([segment.region((4 << 20) - 10, 20)])
    pair.writer.flush()
    assert pair.failures == ["disk_failed: the file ends 10 bytes before the region does"]
    assert segment.released == [0]


async def test_unsent_parts_can_be_taken_over_at_any_point(pair: Pair, segment: Segment) -> None:
    for middle in (b"b" * 500_000, None):
        number = len(segment.released)
        part: Part = middle if middle is not None else segment.region(3, 500_000)
        expected = b"a" + (middle or segment.content[3:500_003]) + b"c"
        pair.writer.extend([b"a", part, b"c"])
        pair.writer.flush()
        received = await pair.read(20_001)
        sock, parts = pair.writer.detach()
        assert 0 < len(parts) <= 3 and len(segment.released) == number
        pair.writer = SocketWriter(asyncio.get_running_loop(), sock, refill=pair.refill, failed=pair.failures.append)
        pair.writer.extend(parts)
        pair.writer.flush()
        assert received + await pair.read(len(expected) - len(received)) == expected
    assert segment.released == [0] and pair.failures == []


# --- For foreign transports ------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def server(
    serve: Callable[[asyncio.Transport], object],
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A client's end of a connection whose other end is a plain transport given to `serve`."""
    loop = asyncio.get_running_loop()
    tasks: list[asyncio.Task[object]] = []

    class Protocol(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            assert isinstance(transport, asyncio.Transport)

            async def run() -> object:
                try:
                    return await serve(transport)  # type: ignore[misc]
                finally:
                    transport.close()

            tasks.append(loop.create_task(run()))

    listening = await loop.create_server(Protocol, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*listening.sockets[0].getsockname())
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        listening.close()
        await asyncio.wait_for(asyncio.gather(*tasks), PATIENCE_S)
        await asyncio.sleep(0)


async def test_a_region_follows_the_transports_buffered_bytes(segment: Segment) -> None:
    before, after = os.urandom(20 << 20), os.urandom(1 << 20)

    async def serve(transport: asyncio.Transport) -> None:
        transport.write(before)
        assert transport.get_write_buffer_size() > 0
        await send_region(transport, segment.region(5, 2 << 20), timeout=PATIENCE_S)
        transport.write(after)
        await send_region(transport, segment.region(0, 0), timeout=PATIENCE_S)
        await send_region(transport, segment.region(9, 100), timeout=PATIENCE_S)

    async with server(serve) as (reader, _):
        got = await asyncio.wait_for(reader.read(-1), PATIENCE_S)
    assert got == before + segment.content[5 : 5 + (2 << 20)] + after + segment.content[9:109]
    assert segment.released == [0, 1, 2]


async def test_a_reader_that_stops_has_a_deadline(segment: Segment) -> None:
    outcome: list[RetriableError] = []

    async def serve(transport: asyncio.Transport) -> None:
        transport.write(bytes(8 << 20))
        with pytest.raises(RetriableError) as caught:
            await send_region(transport, segment.region(0, 4 << 20), timeout=0.1)
        outcome.append(caught.value)
        assert transport.is_closing()

    async with server(serve):
        await until(lambda: bool(outcome))
    assert outcome[0].code == "slow_request" and segment.released == [0]


async def test_a_reader_that_closes(segment: Segment) -> None:
    outcome: list[RetriableError] = []

    async def serve(transport: asyncio.Transport) -> None:
        with pytest.raises(RetriableError) as caught:
            for _ in range(100):
                await send_region(transport, segment.region(0, 4 << 20), timeout=PATIENCE_S)
        outcome.append(caught.value)

    async with server(serve) as (reader, writer):
        await reader.readexactly(1000)
        writer.transport.abort()
        await until(lambda: bool(outcome))
    assert outcome[0].code == "connection_lost"
    assert segment.released == list(range(len(segment.released)))


async def test_a_file_that_is_too_short_cuts_the_answer_off(segment: Segment) -> None:
    async def serve(transport: asyncio.Transport) -> None:
        with pytest.raises(DiskFailed):
            await send_region(transport, segment.region((4 << 20) - 10, 20), timeout=PATIENCE_S)
        assert transport.is_closing()

    async with server(serve) as (reader, _):
        with contextlib.suppress(ConnectionError):
            await asyncio.wait_for(reader.read(-1), PATIENCE_S)
    assert segment.released == [0]


async def test_a_cancelled_sender_releases_and_cuts_off(segment: Segment) -> None:
    async def serve(transport: asyncio.Transport) -> None:
        transport.write(bytes(8 << 20))
        task = asyncio.get_running_loop().create_task(
            send_region(transport, segment.region(0, 100), timeout=PATIENCE_S)
        )
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert transport.is_closing()

    async with server(serve):
        await until(lambda: bool(segment.released))
    assert segment.released == [0]


async def test_an_aiohttp_answer_with_regions_in_between(segment: Segment) -> None:
    """The transport is aiohttp's: its head and chunks before and after must keep their places."""

    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": str(5 + (3 << 20) + 3)})
        await response.prepare(request)
        await response.write(b"first")
        assert request.transport is not None
        region = segment.region(11, 3 << 20)
        assert can_send_region(request.transport, region)
        assert isinstance(request.transport, asyncio.Transport)
        await send_region(request.transport, region, timeout=PATIENCE_S)
        await response.write(b"end")
        await response.write_eof()
        return response

    app = web.Application()
    app.router.add_get("/", handler)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    async with ClientSession() as session:
        for _ in range(2):  # the connection is kept alive
            async with session.get(f"http://127.0.0.1:{port}/") as response:
                assert await response.read() == b"first" + segment.content[11 : 11 + (3 << 20)] + b"end"
    await runner.cleanup()
    assert segment.released == [0, 1]


def test_if_sendfile_cannot_work(segment: Segment) -> None:
    class Transport(asyncio.BaseTransport):
        def __init__(self, **info: object) -> None:
            super().__init__(info)

    region = segment.region(0, 1)
    assert can_send_region(Transport(socket=object()), region)
    assert not can_send_region(Transport(socket=object(), sslcontext=object()), region)
    assert not can_send_region(Transport(), region)

    class Simulated:
        def fileno(self) -> int:
            return -1

    simulated = FileRegion(Simulated(), 0, 1, lambda: None)  # type: ignore[arg-type]
    assert not can_send_region(Transport(socket=object()), simulated)
