"""A dialer that reconnects: delays, refusals, deadlines."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from raftlog.errors import RetriableError
from raftlog.http2 import Http2Limits, Http2Stream, ReconnectingDialer, connect
from tests.support.clusters.held_port import HOST, HeldPort
from tests.support.http.http2_peer import settings_frame
from tests.support.http.http2_server import Recorder, Server, until

pytestmark = pytest.mark.integration


async def test_a_dialer_reconnects_until_it_is_closed() -> None:
    opened: list[Http2Stream] = []
    lost: list[str] = []

    class Counting:
        closed = 0

        def on_message(self, stream: Http2Stream, message: memoryview) -> None: ...
        def on_ended(self, stream: Http2Stream) -> None: ...
        def on_closed(self, stream: Http2Stream, reason: str) -> None:
            self.closed += 1

    async with Server() as server:
        handler = Counting()
        dialer = ReconnectingDialer(
            "127.0.0.1", server.port, "/echo", handler,
            random=random.Random(1), on_opened=opened.append, on_closed=lost.append,
        )  # fmt: skip
        await until(lambda: len(opened) == 1)
        assert dialer.stream is opened[0]
        assert server.accepted[0].stream is not None
        server.accepted[0].stream.connection.abort("test")
        await until(lambda: len(opened) == 2)
        assert handler.closed == 1 and len(lost) == 1
        assert server.accepted[1].stream is not None
        server.accepted[1].stream.reset()
        await until(lambda: len(opened) == 3)
        assert handler.closed == 2 and lost[1] == "reset by the peer: CANCEL"
        await dialer.close()
        assert handler.closed == 3 and dialer.stream is None
        await until(lambda: server.listener.connection_count == 0)


async def test_a_dialer_keeps_trying_while_there_is_no_listener(held: HeldPort) -> None:
    lost: list[str] = []
    opened: list[Http2Stream] = []
    dialer = ReconnectingDialer(
        HOST, held.number, "/echo", Recorder(), random=random.Random(1), on_opened=opened.append, on_closed=lost.append
    )
    await until(lambda: len(lost) >= 2)
    server = Server()
    await server.listener.start(HOST, held.number)
    await until(lambda: len(opened) == 1)
    await dialer.close()
    await server.listener.close(0.0)


@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), MemoryError()], ids=repr)
async def test_a_dialer_outlives_a_shortage(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """Resolving a name takes a thread."""

    def none_left(*_: Any) -> Any:
        raise error

    lost: list[str] = []
    opened: list[Http2Stream] = []
    async with Server() as server:
        with monkeypatch.context() as patch:
            patch.setattr(asyncio.get_running_loop(), "run_in_executor", none_left)
            dialer = ReconnectingDialer(
                "localhost", server.port, "/echo", Recorder(),
                random=random.Random(1), on_opened=opened.append, on_closed=lost.append,
            )  # fmt: skip
            await until(lambda: lost)
        await until(lambda: opened)
        await dialer.close()


async def test_an_invalid_host_is_a_peer_that_does_not_answer() -> None:
    with pytest.raises(RetriableError, match="connection_lost"):
        await connect("a" * 70, 80)


async def test_delays_are_random_grow_and_have_bounds() -> None:
    async with Server() as server:
        dialer = ReconnectingDialer("127.0.0.1", server.port, "/echo", Recorder(), random=random.Random(5))
        seen = []
        for failures in range(12):
            dialer._failures = failures
            seen.append([dialer.delay_s() for _ in range(200)])
        await dialer.close()
    assert all(0.1 <= delay <= 2.0 for delays in seen for delay in delays)
    assert max(seen[0]) <= 0.2 and max(seen[11]) > 1.5 and min(seen[11]) < 0.3
    assert len(set(seen[3])) > 100


class Chance(random.Random):
    """Records the requested bounds, and returns the lower one."""

    def __init__(self) -> None:
        super().__init__()
        self.longest: list[float] = []

    def uniform(self, a: float, b: float) -> float:
        self.longest.append(b)
        return a


async def test_each_failure_makes_the_delay_longer_and_a_stream_resets_it(held: HeldPort) -> None:
    chance = Chance()
    dialer = ReconnectingDialer(HOST, held.number, "/echo", Recorder(), random=chance)
    await until(lambda: len(chance.longest) >= 5)
    assert chance.longest[:5] == [0.2, 0.4, 0.8, 1.6, 2.0]
    server = Server()
    await server.listener.start(HOST, held.number)
    await until(lambda: dialer.stream is not None)
    dialer._handler = Recorder()
    failures = len(chance.longest)
    assert server.accepted[0].stream is not None
    server.accepted[0].stream.connection.abort("test")
    await until(lambda: len(chance.longest) > failures)
    assert chance.longest[failures] == 0.2
    await dialer.close()
    await server.listener.close(0.0)


async def test_a_stream_must_be_accepted_in_time_and_is_then_left_alone() -> None:
    limits = Http2Limits(connect_timeout_s=0.2)
    async with Server() as server:
        dialer = ReconnectingDialer(
            "127.0.0.1", server.port, "/echo", Recorder(), random=random.Random(1), limits=limits
        )
        await until(lambda: dialer.stream is not None)
        first = dialer.stream
        await asyncio.sleep(2 * limits.connect_timeout_s)  # only time can show it
        assert dialer.stream is first and len(server.accepted) == 1
        await dialer.close()

    async def says_settings_only(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(settings_frame())
        await reader.read()
        writer.close()

    lost: list[str] = []
    async with await asyncio.start_server(says_settings_only, "127.0.0.1", 0) as other:
        port = other.sockets[0].getsockname()[1]
        dialer = ReconnectingDialer(
            "127.0.0.1", port, "/x", Recorder(), random=random.Random(1), limits=limits, on_closed=lost.append
        )
        await until(lambda: len(lost) == 1)
        assert lost == ["/x: no response in time"]
        await dialer.close()


async def test_a_refused_stream_is_retried() -> None:
    async with Server() as server:
        refuse = True

        def sometimes(stream: Http2Stream) -> Recorder:
            if refuse:
                raise RetriableError("not_leader", "not yet")
            return server.accept(stream)

        server.acceptors["/sometimes"] = sometimes
        lost: list[str] = []
        dialer = ReconnectingDialer(
            "127.0.0.1", server.port, "/sometimes", Recorder(), random=random.Random(1), on_closed=lost.append
        )
        await until(lambda: len(lost) >= 1)
        assert lost[0] == "refused with 503 not_leader: not yet"
        dialer._handler = Recorder()
        refuse = False
        await until(lambda: dialer.stream is not None)
        await dialer.close()
