"""Peers over real sockets that speak something else, break a rule, fall silent or do not read."""

from __future__ import annotations

import asyncio

import pytest

from raftlog.http2 import Http2Limits, Http2Stream
from raftlog.http2.frames import PREFACE
from tests.support.http2_peer import parse, raw_frame, settings_frame
from tests.support.http2_server import PATIENCE_S, Recorder, Server, raw, until

pytestmark = pytest.mark.integration

TINY = Http2Limits(max_frame_bytes=2**14, window_bytes=65_535)
QUICK = Http2Limits(
    connect_timeout_s=2.0,
    handshake_timeout_s=0.2,
    ping_interval_s=0.1,
    ping_timeout_s=0.1,
    idle_timeout_s=30.0,
    stall_timeout_s=0.3,
    linger_s=0.3,
)


async def test_http_1_1_is_answered_in_kind() -> None:
    async with Server() as server, raw(server.port) as (reader, writer):
        writer.write(b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc")
        answer = await asyncio.wait_for(reader.read(), PATIENCE_S)
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400 Bad Request\r\n")
        assert f"Content-Length: {len(body)}".encode() in head and b"HTTP/2 only" in body
        writer.close()
        await until(lambda: server.listener.connection_count == 0)


async def test_other_bytes_are_just_closed() -> None:
    async with Server() as server, raw(server.port) as (reader, writer):
        writer.write(b"\x16\x03\x01\x02\x00\x01\x00\x01")
        assert await asyncio.wait_for(reader.read(), PATIENCE_S) == b""


async def test_a_broken_rule_is_told_before_the_connection_closes() -> None:
    """Even though the peer has sent more, which would make the kernel send a RST if we closed at once."""
    async with Server() as server, raw(server.port) as (reader, writer):
        writer.write(PREFACE + settings_frame() + raw_frame(6, 0, 1, b"8 bytes!") + b"x" * 500_000)
        answer = await asyncio.wait_for(reader.read(), PATIENCE_S)
        assert parse(answer)[-1].error_code == 1  # type: ignore[attr-defined]


async def test_half_open_silent_and_idle_connections_end() -> None:
    async with Server(QUICK) as server:
        async with raw(server.port) as (reader, _):
            assert await asyncio.wait_for(reader.read(), PATIENCE_S) == b"", "no preface"
        async with raw(server.port) as (reader, writer):
            writer.write(PREFACE)
            *_, goaway = parse(await asyncio.wait_for(reader.read(), PATIENCE_S))
            assert goaway.error_code == 4, "no SETTINGS"  # type: ignore[attr-defined]
        async with raw(server.port) as (reader, writer):
            writer.write(PREFACE + settings_frame())
            *_, ping, goaway = parse(await asyncio.wait_for(reader.read(), PATIENCE_S))
            assert ping.type == 6 and goaway.type == 7, "no answer to a PING"
        await until(lambda: server.listener.connection_count == 0)


async def test_pings_keep_a_quiet_connection_alive() -> None:
    async with Server(QUICK) as server:
        connection = await server.dial(limits=QUICK)
        handler = Recorder()
        stream = connection.open_stream("/echo", {}, handler)
        await asyncio.sleep(5 * QUICK.ping_interval_s)  # only time can show it
        stream.send([b"still there"])
        await handler.wait(1)
        connection.close()


@pytest.mark.parametrize(
    ("limits", "megabytes", "reason"),
    [
        (Http2Limits(max_queued_bytes=20 << 20), 1000, "the peer reads too slowly"),
        (Http2Limits(stall_timeout_s=0.3), 16, "the peer took nothing for 0.3 s"),
    ],
    ids=["bytes", "time"],
)
async def test_a_peer_that_does_not_read_is_cut_off(limits: Http2Limits, megabytes: int, reason: str) -> None:
    """What waits for it is bounded in bytes and in time, though it may send us bytes all the while."""
    async with Server(limits) as server:

        def flood(stream: Http2Stream, message: memoryview) -> None:
            for _ in range(megabytes if bytes(message) == b"go" else 0):
                if not stream.closed:
                    stream.send([bytes(1 << 20)])
                assert stream.connection.queued_bytes <= 22 << 20

        server.acceptors["/flood"] = lambda stream: server.accepted.append(r := Recorder(flood)) or r  # type: ignore[func-returns-value]
        connection = await server.dial()
        stream = connection.open_stream("/flood", {}, Recorder())
        await until(lambda: len(server.accepted) == 1)
        connection.pause_reading()
        stream.send([b"go"])
        async with asyncio.timeout(PATIENCE_S):
            while not server.accepted[0].closed.done():
                stream.send([b"still alive"])
                await asyncio.sleep(0.02)
        assert reason in await server.accepted[0].reason()
