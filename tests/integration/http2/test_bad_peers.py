"""Peers over real sockets that speak another protocol, break a rule, fall silent or do not read."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
import time

import pytest

from raftlog.errors import RetriableError
from raftlog.http2 import Http2Limits, Http2Stream
from raftlog.http2.frames import PREFACE
from raftlog.http2.turns import TURN_S
from tests.support.http.http2_peer import RawPeer, data_frame, parse, prefixed, raw_frame, settings_frame
from tests.support.http.http2_server import PATIENCE_S, Recorder, Server, raw, until

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


async def test_other_bytes_close_the_connection() -> None:
    async with Server() as server, raw(server.port) as (reader, writer):
        writer.write(b"\x80\x03\x01\x02\x00\x01\x00\x01")
        assert await asyncio.wait_for(reader.read(), PATIENCE_S) == b""


async def test_a_broken_rule_is_reported_before_the_connection_closes() -> None:
    """Even if the peer has sent more, for which the kernel would send a RST after an immediate close."""
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
        (Http2Limits(stall_timeout_s=0.3), 16, "the peer accepted no data for 0.3 s"),
    ],
    ids=["bytes", "time"],
)
async def test_a_peer_that_does_not_read_is_cut_off(limits: Http2Limits, megabytes: int, reason: str) -> None:
    """Its waiting messages are bounded in bytes and in time, even if it sends bytes all the while."""
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


NO_WINDOW = settings_frame({4: 0})
ECHO = RawPeer().headers(1, RawPeer().request("/echo"))


async def test_a_peer_whose_window_stays_shut_is_cut_off() -> None:
    """Even if it accepts PINGs and answers them."""
    limits = Http2Limits(stall_timeout_s=0.4, ping_interval_s=0.05)
    async with Server(limits) as server, raw(server.port) as (_, writer):
        writer.write(PREFACE + NO_WINDOW + ECHO + data_frame(1, prefixed(b"x")))
        async with asyncio.timeout(PATIENCE_S):
            while len(server.accepted) < 1 or not server.accepted[0].closed.done():
                writer.write(raw_frame(6, 1, 0, b"8 bytes!"))
                await asyncio.sleep(0.02)
        assert await server.accepted[0].reason() == "the peer accepted no data for 0.4 s"


async def test_many_small_untaken_answers_are_bounded_by_their_number() -> None:
    async with Server(Http2Limits(max_queued_pieces=500)) as server, raw(server.port) as (_, writer):
        writer.write(PREFACE + NO_WINDOW + ECHO + data_frame(1, prefixed(*[b""] * 1000)))
        await until(lambda: len(server.accepted) == 1)
        reason = await server.accepted[0].reason()
        count = re.fullmatch("the peer reads too slowly: ([0-9]+) frames and messages wait for it", reason)
        assert count is not None and 500 < int(count[1]) <= 1000, reason


@pytest.mark.parametrize("frames", [1, 2000])
async def test_a_thousand_small_messages_do_not_block_the_loop(frames: int) -> None:
    """Other tasks have their turn every `TURN_S`, and the messages nevertheless arrive completely and in order."""
    async with Server() as server, raw(server.port) as (_, writer):

        def slow(stream: Http2Stream, message: memoryview) -> None:
            ends = time.perf_counter() + TURN_S / 50
            while time.perf_counter() < ends:
                pass

        handler = Recorder(slow)
        server.acceptors["/echo"] = lambda stream: handler
        turns = [0]

        def turn() -> None:
            turns.append(len(handler.messages))
            if turns[-1] < 2000:
                asyncio.get_running_loop().call_soon(turn)

        turn()
        sent = [str(number).encode() for number in range(2000)]
        data = [data_frame(1, prefixed(*sent))] if frames == 1 else [data_frame(1, prefixed(one)) for one in sent]
        writer.write(PREFACE + settings_frame() + ECHO + b"".join(data))
        assert await handler.wait(2000) == sent
        assert max(after - before for before, after in itertools.pairwise(turns)) <= 60


async def test_without_a_descriptor_a_connection_is_closed_and_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(transport: object) -> None:
        raise OSError(24, "Too many open files")

    async with Server() as server:
        async with raw(server.port) as (reader, writer):
            await until(lambda: server.listener.connection_count == 1)
        monkeypatch.setattr("raftlog.http2.transport.duplicate_socket", none_left)
        async with raw(server.port) as (reader, writer):
            writer.write(PREFACE)
            with contextlib.suppress(ConnectionError):
                assert await asyncio.wait_for(reader.read(), PATIENCE_S) == b""
        with pytest.raises(RetriableError, match=r"cannot be served: .*Too many open files"):
            await server.dial()
