"""Connections without an accepted stream are few, short-lived, and never keep nodes or clients out (S10, S12)."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from raftlog.errors import RetriableError
from raftlog.http2 import Http2Limits, Http2Stream
from raftlog.http2.frames import PREFACE
from tests.support.http.http2_peer import RawPeer, data_frame, settings_frame
from tests.support.http.http2_server import Recorder, Server, echo, loop_of_another_thread, raw, until

pytestmark = pytest.mark.integration


async def ended(reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(ConnectionError):
        async with asyncio.timeout(10.0):
            await reader.read()


async def test_idle_strangers_give_way_and_a_client_is_served() -> None:
    limits = Http2Limits(max_strangers=20, max_strangers_per_address=10)
    async with Server(limits) as server, contextlib.AsyncExitStack() as stack:
        idle = [await stack.enter_async_context(raw(server.port)) for _ in range(40)]
        await asyncio.gather(*(ended(reader) for reader, _ in idle[:30]))
        connection = await server.dial()
        recorder = Recorder()
        connection.open_stream("/echo", {}, recorder).send([b"a"])
        assert await recorder.wait(1) == [b"<a>"]
        assert len(server.listener.connections) <= 11


async def test_a_stranger_is_cut_off_in_time_and_a_client_is_not() -> None:
    async with Server(Http2Limits(stranger_timeout_s=0.3)) as server:
        client, stranger = await server.dial(), await server.dial()
        recorder, refused = Recorder(), Recorder()
        client.open_stream("/echo", {}, recorder).send([b"a"])
        stranger.open_stream("/nowhere", {}, refused)
        await recorder.wait(1)
        await refused.reason()
        await asyncio.wait_for(stranger.wait_closed(), 10.0)
        assert "no stream was accepted in time" in stranger.peer_said
        client.open_stream("/echo", {}, again := Recorder()).send([b"b"])
        assert await again.wait(1) == [b"<b>"]


async def test_a_stream_that_waits_for_its_acceptance_does_not_count() -> None:
    async with Server(Http2Limits(stranger_timeout_s=0.3)) as server:
        waiting: list[Http2Stream] = []
        server.acceptors["/later"] = waiting.append  # type: ignore[assignment]
        connection = await server.dial()
        connection.open_stream("/later", {}, recorder := Recorder())
        assert "no stream was accepted in time" in await recorder.reason()
        waiting[0].accept(Recorder(echo))


async def test_clients_and_strangers_leave_room_for_nodes() -> None:
    limits = Http2Limits(max_connections=8, reserved_for_nodes=2)
    async with Server(limits, node_paths={"/node"}) as server, contextlib.AsyncExitStack() as stack:
        server.acceptors["/node"] = server.accept
        for _ in range(6):
            connection = await server.dial()
            connection.open_stream("/echo", {}, recorder := Recorder()).send([b"a"])
            await recorder.wait(1)
        late = await server.dial()
        stream = late.open_stream("/echo", {}, refused := Recorder())
        await refused.reason()
        assert isinstance(stream.refusal, RetriableError) and stream.refusal.code == "overloaded"
        assert await server.accepted[-1].reason(), "the handler of the refused stream learns of its end"
        strangers = [await stack.enter_async_context(raw(server.port)) for _ in range(5)]
        for _, writer in strangers:
            writer.write(PREFACE)
        for _ in range(2):
            node = await server.dial()
            node.open_stream("/node", {}, recorder := Recorder()).send([b"n"])
            assert await recorder.wait(1) == [b"<n>"]
        assert len(server.listener.connections) <= 8


async def test_a_link_that_moved_to_another_loop_is_a_nodes() -> None:
    with loop_of_another_thread() as other:
        limits = Http2Limits(max_connections=4, reserved_for_nodes=1, stranger_timeout_s=0.5)
        async with Server(limits, node_paths={"/node"}, loop_for_path={"/node": other}) as server:

            class Plain:
                def on_message(self, stream: Http2Stream, message: memoryview) -> None:
                    echo(stream, message)

                def on_ended(self, stream: Http2Stream) -> None:
                    stream.end()

                def on_closed(self, stream: Http2Stream, reason: str) -> None: ...

            server.acceptors["/node"] = lambda stream: Plain()  # type: ignore[assignment,return-value]
            node = await server.dial()
            node.open_stream("/node", {}, recorder := Recorder()).send([b"n"])
            await recorder.wait(1)
            for _ in range(3):
                client = await server.dial()
                client.open_stream("/echo", {}, one := Recorder()).send([b"a"])
                assert await one.wait(1) == [b"<a>"]
            async with raw(server.port) as (stranger, writer):  # the time of strangers passes
                writer.write(PREFACE + settings_frame())
                await ended(stranger)
            stream = node.open_stream("/node", {}, again := Recorder())
            stream.send([b"m"])
            assert await again.wait(1) == [b"<m>"]


async def test_unfinished_messages_are_given_back_when_their_connections_end() -> None:
    async with Server() as server:
        for _ in range(5):
            connection = await server.dial()
            connection.open_stream("/echo", {}, recorder := Recorder()).send([b"a"])
            await recorder.wait(1)
        readers = []
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(3):
                readers.append(await stack.enter_async_context(raw(server.port)))
                readers[-1][1].write(unfinished_message())
            await until(lambda: server.listener.partial_bytes > 3_000_000)
        await until(lambda: server.listener.partial_bytes == 0)


def unfinished_message(streams: int = 1) -> bytes:
    """A preface, requests, and the first bytes of a message of 32 MiB on each stream."""
    peer = RawPeer(handshake=False)
    frames = [
        peer.headers(2 * number + 1, peer.request("/echo")) + data_frame(2 * number + 1, b"\x02\0\0\0abc")
        for number in range(streams)
    ]
    return PREFACE + settings_frame() + b"".join(frames)


async def test_announced_messages_of_many_connections_hold_bounded_memory_and_clients_are_served() -> None:
    """150 KB over 80 connections held 3.4 GB, and an honest client waited for seconds."""
    limits = Http2Limits(max_listener_partial_bytes=64 << 20)
    async with Server(limits) as server, contextlib.AsyncExitStack() as stack:
        honest = await server.dial()
        honest.open_stream("/echo", {}, recorder := Recorder()).send([b"a"])
        await recorder.wait(1)
        sent = unfinished_message(streams=100)
        assert 80 * len(sent) < 300_000
        for _ in range(80):
            _, writer = await stack.enter_async_context(raw(server.port))
            writer.write(sent)
        await until(lambda: len(server.accepted) == 80 * 100 + 1)
        assert 32 << 20 < server.listener.partial_bytes <= 64 << 20
        message = bytes(8 << 20)
        honest.open_stream("/echo", {}, large := Recorder()).send([message])
        assert len((await large.wait(1))[0]) == len(message) + 2
    assert server.listener.partial_bytes == 0
