"""A request waits while the answers of its connection are not read (S11)."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import pytest
from hyperframe.frame import DataFrame, Frame, RstStreamFrame

from raftlog.config import MIB
from raftlog.http2 import Http2Limits, Http2Stream
from raftlog.http2.frames import PREFACE, ErrorCode
from raftlog.http2.transport import HIGH_WATER_BYTES
from tests.support.http.http2_peer import RawPeer, data_frame, parse, prefixed, raw_frame, settings_frame, window_update
from tests.support.http.http2_server import PATIENCE_S, Recorder, Server, until

pytestmark = pytest.mark.integration

LIMITS = Http2Limits(max_unread_bytes=2 * MIB)
ANSWER = 256 * 1024
OPEN = RawPeer().headers(1, RawPeer().request("/answers"))
WIDE = settings_frame({4: 2**31 - 1}) + window_update(0, 2**31 - 1 - 65_535)


class Asked:
    """A server whose answers are large, and a raw connection to it that reads when the test does."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.requests = 0

        def answer(stream: Http2Stream, message: memoryview) -> None:
            self.requests += 1
            stream.send([bytes(message).ljust(ANSWER, b".")])

        server.acceptors["/answers"] = lambda stream: Recorder(answer)
        self.sock = socket.socket()
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        self.sock.connect(("127.0.0.1", server.port))
        self.sock.setblocking(False)
        self._received = b""

    async def send(self, *frames: bytes) -> None:
        await asyncio.wait_for(asyncio.get_running_loop().sock_sendall(self.sock, b"".join(frames)), PATIENCE_S)

    async def frame(self) -> Frame:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(PATIENCE_S):
            while len(self._received) < 9 or len(self._received) < 9 + int.from_bytes(self._received[:3], "big"):
                piece = await loop.sock_recv(self.sock, 2**20)
                assert piece, "the connection ended"
                self._received += piece
        end = 9 + int.from_bytes(self._received[:3], "big")
        (frame,) = parse(self._received[:end])
        self._received = self._received[end:]
        return frame

    async def answers(self, count: int) -> list[bytes]:
        """Return the beginnings of the next answers, in their order."""
        content, found = b"", []
        while len(found) < count:
            frame = await self.frame()
            if isinstance(frame, DataFrame):
                content += frame.data
            while len(content) >= 4 + ANSWER:
                found.append(content[4 : 4 + ANSWER].rstrip(b"."))
                content = content[4 + ANSWER :]
        return found

    def __enter__(self) -> Asked:
        return self

    def __exit__(self, *error: object) -> None:
        self.sock.close()


async def settled(asked: Asked) -> int:
    """Return the number of served requests once it does not change any more."""
    seen = -1
    while seen != asked.requests:
        seen = asked.requests
        await asyncio.sleep(0.2)  # only time can show it
    return seen


NAMES = [b"%d" % number for number in range(200)]
REQUESTS = [data_frame(1, prefixed(name)) for name in NAMES]


async def test_behind_a_full_socket_requests_wait_and_are_served_in_order_later() -> None:
    async with Server(LIMITS) as server:
        with Asked(server) as asked:
            await asked.send(PREFACE, WIDE, OPEN, *REQUESTS)
            served = await settled(asked)
            most = LIMITS.max_unread_bytes + HIGH_WATER_BYTES + 8 * MIB  # and the kernel's buffers
            assert 0 < served * ANSWER <= most < len(NAMES) * ANSWER
            assert await asked.answers(len(NAMES)) == NAMES


async def test_behind_shut_windows_requests_wait_and_other_frames_are_handled() -> None:
    async with Server(LIMITS) as server:
        with Asked(server) as asked:
            await asked.send(PREFACE, settings_frame({4: 0}), OPEN, *REQUESTS)
            served = await settled(asked)
            assert 0 < served * ANSWER <= LIMITS.max_unread_bytes + HIGH_WATER_BYTES + ANSWER
            await asked.send(raw_frame(6, 0, 0, b"8 bytes!"))
            while (await asked.frame()).type != 6:
                pass
            await asked.send(WIDE)
            assert await asked.answers(len(NAMES)) == NAMES


async def test_too_many_requests_behind_shut_windows_end_their_stream() -> None:
    async with Server(LIMITS) as server:
        with Asked(server) as asked:
            await asked.send(PREFACE, settings_frame({4: 0}), OPEN, *REQUESTS)
            await settled(asked)
            await asked.send(*[data_frame(1, prefixed(bytes(100_000)))] * 30)
            while not isinstance(frame := await asked.frame(), RstStreamFrame):
                pass
            assert frame.error_code == ErrorCode.ENHANCE_YOUR_CALM
            assert asked.requests * ANSWER <= LIMITS.max_unread_bytes + HIGH_WATER_BYTES + ANSWER


async def test_beyond_the_listeners_budget_the_slowest_readers_give_way() -> None:
    """An honest reader on the same listener gets all of its answers meanwhile."""
    budget = 8 * MIB
    limits = Http2Limits(max_unread_bytes=2 * MIB, max_listener_unread_bytes=budget)
    async with Server(limits) as server:
        with contextlib.ExitStack() as stack:
            idle = [stack.enter_context(Asked(server)) for _ in range(20)]
            honest = stack.enter_context(Asked(server))
            await honest.send(PREFACE, WIDE, OPEN)
            for one in idle:
                await one.send(PREFACE, WIDE, OPEN, *REQUESTS[:40])
                await honest.send(REQUESTS[0])
                assert await honest.answers(1) == [NAMES[0]]
                assert server.listener.unread_bytes <= budget
            await until(lambda: server.listener.connection_count <= 1 + budget // MIB)
        await until(lambda: server.listener.connection_count == 0)
        assert server.listener.unread_bytes == 0
