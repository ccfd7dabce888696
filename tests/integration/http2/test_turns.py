"""Many connections that send much do not keep a proper client waiting, nor refill their budgets (S10)."""

from __future__ import annotations

import asyncio
import contextlib
import itertools

import pytest

from raftlog.http2 import Http2Limits, Http2Stream
from raftlog.http2.frames import PREFACE
from tests.support.http.http2_peer import RawPeer, data_frame, raw_frame, settings_frame
from tests.support.http.http2_server import PATIENCE_S, Recorder, Server, raw, until

pytestmark = pytest.mark.integration

FLOODS = 40
MESSAGE_S = 0.0002
PING = raw_frame(6, 0, 0, b"8 bytes!")


def flood(messages: int) -> bytes:
    """A request, and small messages that come with it."""
    peer = RawPeer(handshake=False)
    request = peer.headers(1, peer.request("/echo"))
    return PREFACE + settings_frame() + request + data_frame(1, b"\0\0\0\x01x" * messages)


async def test_an_iteration_of_the_loop_does_not_last_longer_because_more_connections_send(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """40 connections took 40 turns of 10 ms in each iteration: a proper client waited for 400 ms."""
    loop = asyncio.get_running_loop()
    spent = 0.0
    clock = loop.time
    monkeypatch.setattr(loop, "time", lambda: clock() + spent)  # the time that handlers would take

    def costly(stream: Http2Stream, message: memoryview) -> None:
        nonlocal spent
        spent += MESSAGE_S

    async with Server() as server, contextlib.AsyncExitStack() as stack:
        handlers: list[Recorder] = []

        def accept(stream: Http2Stream) -> Recorder:
            handlers.append(Recorder(costly))
            return handlers[-1]

        server.acceptors["/echo"] = accept
        iterations = [spent]

        def iteration() -> None:
            iterations.append(spent)
            ticking.append(loop.call_soon(iteration))
            del ticking[:-1]

        ticking = [loop.call_soon(iteration)]
        writers = [(await stack.enter_async_context(raw(server.port)))[1] for _ in range(FLOODS)]
        for writer in writers:
            writer.write(flood(600))
        await until(lambda: sum(len(one.messages) for one in handlers) == FLOODS * 600)
        ticking[-1].cancel()
        longest = max(after - before for before, after in itertools.pairwise(iterations))
        assert longest < 0.1, f"an iteration took {longest:.3f} s"
        assert all(one.messages == [b"x"] * 600 for one in handlers)


async def test_reconnecting_does_not_refill_the_budget_of_an_abuser() -> None:
    limits = Http2Limits(
        control_frames_per_second=0.001,
        control_frames_burst=100,
        address_control_frames_per_second=0.001,
        address_control_frames_burst=300,
    )
    sent = 0
    async with Server(limits) as server:
        while sent < 20:
            async with raw(server.port) as (reader, writer):
                writer.write(PREFACE + settings_frame() + PING * 90)
                answered = b""
                with contextlib.suppress(ConnectionError):
                    async with asyncio.timeout(PATIENCE_S):
                        while b"control frames" not in answered and answered.count(b"8 bytes!") < 90:
                            answered += await reader.read(65_536)
                sent += 1
                if b"too many control frames" in answered:
                    break
        assert 4 <= sent <= 5, f"{sent} connections had 90 each, and their address has 300"
        connection = await server.dial()
        connection.open_stream("/echo", {}, recorder := Recorder()).send([b"a"])
        assert await recorder.wait(1) == [b"<a>"], "the setup of a connection has a budget of its own"
