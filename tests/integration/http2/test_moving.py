"""A connection whose first request names a path of another thread's loop moves there."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from raftlog.http2 import Http2Connection, Http2Limits, Http2Stream, transport
from raftlog.http2.frames import PREFACE
from raftlog.ports import Part
from raftlog.system.loop_events import events_of
from raftlog.system.zero_copy import SocketWriter
from tests.support.http.http2_peer import RawPeer as HpackPeer
from tests.support.http.http2_peer import parse, raw_frame, settings_frame
from tests.support.http.http2_server import PATIENCE_S, Recorder, Server, loop_of_another_thread, raw, until

pytestmark = pytest.mark.integration


@pytest.fixture
def other_loop() -> Iterator[asyncio.AbstractEventLoop]:
    with loop_of_another_thread() as loop:
        yield loop


async def test_a_connection_moves_to_the_loop_of_its_first_path(other_loop: asyncio.AbstractEventLoop) -> None:
    threads: list[str] = []

    class There:
        def on_message(self, stream: Http2Stream, message: memoryview) -> None:
            threads.append(threading.current_thread().name)
            stream.send([b"<", message, b">"])

        def on_ended(self, stream: Http2Stream) -> None:
            stream.end()

        def on_closed(self, stream: Http2Stream, reason: str) -> None:
            threads.append(f"closed {threading.current_thread().name} {reason}")

    def accept(stream: Http2Stream) -> There:
        threads.append(threading.current_thread().name)
        assert stream.connection.loop is other_loop
        return There()

    async with Server(loop_for_path={"/there": other_loop}) as server:
        server.acceptors["/there"] = accept  # type: ignore[assignment]
        connection = await server.dial()
        handler = Recorder()
        stream = connection.open_stream("/there", {}, handler)
        sent = [b"%d" % number for number in range(5_000)]  # more than a connection reads in one turn of its loop
        sent += [os.urandom(size) for size in (10, 2 << 20, 0, 70_000)]
        for message in sent:  # all of it is in flight before the move
            stream.send([message])
        assert await handler.wait(len(sent)) == [b"<" + message + b">" for message in sent]
        stream.send([b"and later"])
        await handler.wait(len(sent) + 1)
        stream.end()
        assert await handler.reason() == "ended"
        await until(lambda: "closed other ended" in threads)
        assert set(threads) == {"other", "closed other ended"}

        here = Recorder()  # a later stream stays on the connection's loop
        connection.open_stream("/echo", {}, here)
        await asyncio.sleep(0)
        assert server.listener.connection_count == 1
        connection.close()
        await until(lambda: server.listener.connection_count == 0)

        stays = await server.dial()
        handler = Recorder()
        stays.open_stream("/echo", {}, handler).send([b"x"])
        await handler.wait(1)
        assert server.accepted[-1].thread is threading.main_thread()
        stays.close()


async def test_unsent_bytes_move_along(other_loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(SocketWriter):
        """A writer whose socket takes nothing on the listener's loop."""

        def __init__(self, loop: asyncio.AbstractEventLoop, sock: socket.socket, **calls: Any) -> None:
            super().__init__(loop, sock, **calls)
            self._full = loop is not other_loop

        def send(self, parts: list[Part]) -> None:
            if self._full:
                self.extend(parts)
            else:
                super().send(parts)

        def flush(self) -> None:
            if not self._full:
                super().flush()

    monkeypatch.setattr(transport, "SocketWriter", Full)
    async with Server(loop_for_path={"/there": other_loop}) as server, raw(server.port) as (reader, writer):
        writer.write(PREFACE + settings_frame())
        await until(lambda: server.listener.connection_count == 1)
        (connection,) = server.listener.connections
        await until(lambda: connection.queued_bytes > 0)
        before = connection.queued_bytes
        writer.write(raw_frame(6, 0, 0, b"waiting!"))
        await until(lambda: connection.queued_bytes > before)
        writer.write(HpackPeer().headers(1, HpackPeer().request("/there")))
        frames: list[Any] = []
        data = b""
        async with asyncio.timeout(PATIENCE_S):
            while not any(frame.type == 1 for frame in frames):
                data += await reader.read(1000)
                frames = parse(data)
        assert [frame.opaque_data for frame in frames if frame.type == 6] == [b"waiting!"]
        assert connection.loop is other_loop


async def test_a_turn_of_the_old_loop_does_not_touch_a_connection_that_has_left() -> None:
    here, there = asyncio.get_running_loop(), asyncio.new_event_loop()
    shell = Http2Connection(here, Http2Limits(), acceptors={})._shell
    shell.loop = there
    events_here = shell._events
    shell._events = events_of(there)
    shell._wake_due = shell._flush_due = True
    shell._on_turn(here)
    shell._flush_now(events_here)
    assert shell._wake_due and shell._flush_due
    there.close()


async def test_closing_the_listener_closes_connections_on_other_loops(other_loop: asyncio.AbstractEventLoop) -> None:
    class Quiet:
        def on_message(self, stream: Http2Stream, message: memoryview) -> None:
            stream.send([message])

        def on_ended(self, stream: Http2Stream) -> None: ...
        def on_closed(self, stream: Http2Stream, reason: str) -> None: ...

    async with Server(loop_for_path={"/there": other_loop}) as server:
        server.acceptors["/there"] = lambda stream: Quiet()  # type: ignore[assignment,return-value]
        connection = await server.dial()
        handler = Recorder()
        connection.open_stream("/there", {}, handler).send([b"x"])
        await handler.wait(1)
        await server.listener.close(0.05)
        assert server.listener.connection_count == 0
        await handler.reason()


async def test_a_stopped_loop_affects_only_its_connections() -> None:
    stopped = asyncio.new_event_loop()
    stopped.close()
    async with Server(loop_for_path={"/there": stopped}) as server:
        server.acceptors["/there"] = server.accept
        connection = await server.dial()
        handler = Recorder()
        connection.open_stream("/there", {}, handler).send([b"x"])
        assert "peer closed" in await handler.reason() or "lost" in handler.closed.result()
        await until(lambda: server.listener.connection_count == 0)


async def test_a_bug_on_the_way_to_another_loop_ends_the_connection(
    other_loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[BaseException | None] = []
    other_loop.set_exception_handler(lambda _, context: heard.append(context.get("exception")))

    async def broken(*_: Any, **__: Any) -> None:
        raise KeyError("nobody foresaw this one")

    monkeypatch.setattr(other_loop, "connect_accepted_socket", broken)
    async with Server(loop_for_path={"/there": other_loop}) as server:
        connection, handler = await server.dial(), Recorder()
        connection.open_stream("/there", {}, handler).send([b"x"])
        assert "closed the connection" in await handler.reason()
        await until(lambda: server.listener.connection_count == 0)
    await until(lambda: bool(heard))
    assert isinstance(heard[0], KeyError)
