"""Listener and dialer over real sockets: messages both ways, refusals, handlers."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from raftlog.errors import InvalidRequest, RemoteProtocolError, RetriableError
from raftlog.http2 import Http2Limits, Http2Stream, connect
from raftlog.ports import FileRegion
from tests.support.clusters.held_port import HOST, HeldPort
from tests.support.http.http2_server import PATIENCE_S, Recorder, Server, echo, until

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


@pytest.mark.parametrize("dialers", [Http2Limits(), TINY], ids=["ours", "tiny"])
@pytest.mark.parametrize("listeners", [Http2Limits(), TINY], ids=["ours", "tiny"])
async def test_messages_of_all_sizes_both_ways(dialers: Http2Limits, listeners: Http2Limits) -> None:
    async with Server(listeners) as server:
        connection = await server.dial(limits=dialers)
        handler = Recorder()
        accepted: list[Http2Stream] = []
        stream = connection.open_stream("/echo?x=1", {"raftlog-node": "1"}, handler, accepted.append)
        sent = [os.urandom(size) for size in (0, 1, 21, 4092, 4093, 70_000, 1 << 20, 18 << 20, 5)]
        for message in sent:
            stream.send([message[:7], memoryview(message)[7:]])
        assert await handler.wait(len(sent)) == [b"<" + message + b">" for message in sent]
        assert accepted == [stream] and stream.status == 200
        (theirs,) = server.accepted
        assert theirs.stream is not None
        assert theirs.stream.path == "/echo?x=1" and theirs.stream.headers["raftlog-node"] == "1"
        stream.end()
        assert await handler.reason() == "ended" and handler.ended
        assert await theirs.reason() == "ended" and connection.queued_bytes == 0
        connection.close()
        await until(lambda: server.listener.connection_count == 0)
        assert connection.closed


async def test_many_streams_on_one_connection() -> None:
    async with Server(TINY) as server:
        connection = await server.dial()
        handlers = [Recorder() for _ in range(50)]
        for number, handler in enumerate(handlers):
            stream = connection.open_stream("/echo", {}, handler)
            stream.send([bytes([number]) * 100_000])
            stream.end()
        for number, handler in enumerate(handlers):
            assert await handler.reason() == "ended"
            assert handler.messages == [b"<" + bytes([number]) * 100_000 + b">"]
        connection.close()


async def test_regions_of_files_between_buffers(tmp_path: Path) -> None:
    content = os.urandom(3 << 20)
    (tmp_path / "segment").write_bytes(content)
    released: list[str] = []
    with (tmp_path / "segment").open("rb") as file:

        def region(name: str, position: int, length: int) -> FileRegion:
            return FileRegion(file, position, length, lambda: released.append(name))  # type: ignore[arg-type]

        for limits in (Http2Limits(), TINY):
            async with Server(limits) as server:
                connection = await server.dial()
                handler = Recorder()
                stream = connection.open_stream("/echo", {}, handler)
                stream.send([b"a", region("first", 5, 2 << 20), b"b", region("second", 0, 100)])
                stream.send([b"next"])
                expected = b"<a" + content[5 : 5 + (2 << 20)] + b"b" + content[:100] + b">"
                assert await handler.wait(2) == [expected, b"<next>"]
                assert released == ["first", "second"]
                released.clear()
                stream.send([region("cut off", 0, 3 << 20)] * 1)
                connection.abort("test")
                stream.send([region("too late", 0, 10)])
                await handler.reason()
                assert sorted(released) == ["cut off", "too late"]
                released.clear()


async def test_refusals_have_a_status_a_code_and_a_reason() -> None:
    async with Server() as server:

        def busy(stream: Http2Stream) -> Recorder:
            raise RetriableError("shutting_down", "the broker is stöpping")

        server.acceptors["/busy"] = busy
        connection = await server.dial()
        for path, reason in (
            ("/nowhere", "refused with 404 not_found: nothing is served at '/nowhere'"),
            ("/busy", "refused with 503 shutting_down: the broker is st?pping"),
        ):
            handler = Recorder()
            connection.open_stream(path, {}, handler).send([b"early" * 100_000])
            assert await handler.reason() == reason
        handler = Recorder()
        connection.open_stream("/echo", {}, handler).send([b"the connection lives"])
        await handler.wait(1)
        connection.close()


async def test_a_handlers_decision_about_its_peer() -> None:
    async with Server() as server:

        def judge(stream: Http2Stream, message: memoryview) -> None:
            if bytes(message) == b"odd":
                raise InvalidRequest("invalid_request", "not like this")
            if bytes(message) == b"bad":
                raise RemoteProtocolError("never like this")
            echo(stream, message)

        server.acceptors["/echo"] = lambda stream: Recorder(judge)
        connection = await server.dial()
        first, second = Recorder(), Recorder()
        connection.open_stream("/echo", {}, first).send([b"odd"])
        assert await first.reason() == "reset by the peer: INTERNAL_ERROR"
        connection.open_stream("/echo", {}, second).send([b"bad"])
        await second.reason()
        await until(lambda: connection.closed and server.listener.connection_count == 0)


async def test_messages_received_before_an_own_reset_are_not_delivered() -> None:
    async with Server() as server:
        handler = Recorder(lambda stream, message: stream.reset())
        server.acceptors["/reset"] = lambda stream: handler
        connection = await server.dial()
        theirs = Recorder()
        stream = connection.open_stream("/reset", {}, theirs)
        for _ in range(5):
            stream.send([b"x"])
        assert await theirs.reason() == "reset by the peer: CANCEL"
        assert await handler.reason() == "reset by us" and handler.messages == [b"x"]
        connection.close()


async def test_reading_can_be_paused_to_slow_a_peer_down() -> None:
    async with Server() as server:
        connection = await server.dial()
        handler = Recorder()
        stream = connection.open_stream("/echo", {}, handler)
        stream.send([b"a"])
        await handler.wait(1)
        connection.pause_reading()
        stream.send([b"b"])
        await until(lambda: len(server.accepted[0].messages) == 2)
        await asyncio.sleep(0.05)
        assert len(handler.messages) == 1
        connection.resume_reading()
        await handler.wait(2)
        connection.close()


async def test_drained_is_called_after_there_was_a_queue() -> None:
    async with Server() as server:
        connection = await server.dial()
        drained = asyncio.Event()
        connection.on_drained = drained.set
        stream = connection.open_stream("/echo", {}, Recorder())
        for _ in range(20):
            stream.send([bytes(1 << 20)])
        assert connection.queued_bytes > 0
        await asyncio.wait_for(drained.wait(), PATIENCE_S)
        assert connection.queued_bytes < 1 << 20
        connection.close()


async def test_closing_a_listener_lets_streams_finish() -> None:
    async with Server() as server:
        connection = await server.dial()
        told: list[str] = []
        connection.on_goaway = lambda _, reason: told.append(reason)
        idle = await server.dial()
        handler = Recorder()
        stream = connection.open_stream("/echo", {}, handler)
        stream.send([b"a"])
        await handler.wait(1)
        closing = asyncio.get_running_loop().create_task(server.listener.close(PATIENCE_S))
        await until(lambda: bool(told) and idle.closed)
        with pytest.raises(RetriableError):
            connection.open_stream("/echo", {}, Recorder())
        with pytest.raises(RetriableError):
            await server.dial()
        stream.send([b"b"])
        await handler.wait(2)
        assert not closing.done()
        stream.end()
        assert await handler.reason() == "ended"
        await asyncio.wait_for(closing, PATIENCE_S)


@pytest.mark.parametrize("said", ["before its end", "after its end"])
async def test_the_last_stream_is_sent_completely_before_the_connection_closes(said: str) -> None:
    """However long the peer takes for it: `linger_s` applies after it has everything."""
    async with Server(Http2Limits(linger_s=0.05)) as server:
        answer = os.urandom(16_000_000)  # one frame, and therefore written to the socket at once

        def last_words(stream: Http2Stream, message: memoryview) -> None:
            connection.pause_reading()
            stream.send([answer])
            if said == "before its end":
                stream.connection.go_away("enough")
            stream.end()

        handlers: list[Recorder] = []
        server.acceptors["/last"] = lambda stream: handlers.append(r := Recorder(last_words)) or r  # type: ignore[func-returns-value]
        connection = await server.dial()
        handler = Recorder()
        stream = connection.open_stream("/last", {}, handler)
        stream.send([b"go"])
        stream.end()
        (theirs,) = server.listener.connections
        await until(lambda: len(handlers) == 1 and handlers[0].closed.done())
        theirs.go_away("enough")
        await asyncio.sleep(0.2)  # only time can show it
        connection.resume_reading()
        assert await handler.wait(1) == [answer]
        assert await handler.reason() == "ended"
        await until(lambda: server.listener.connection_count == 0)


async def test_a_dropped_connection_has_the_peers_reason() -> None:
    async with Server() as server:
        reasons: list[str] = []
        await server.dial(on_closed=lambda connection, reason: reasons.append(reason))
        (theirs,) = server.listener.connections
        theirs.go_away("moving house")
        await until(lambda: bool(reasons))
        assert "NO_ERROR moving house" in reasons[0]


async def test_connecting_fails_with_the_reason(held: HeldPort) -> None:
    with socket.create_server((HOST, held.number)):
        with pytest.raises(RetriableError, match="no answer in time") as caught:
            await connect(HOST, held.number, limits=Http2Limits(connect_timeout_s=0.2))
        assert caught.value.code == "connection_lost"
    with pytest.raises(RetriableError, match=str(held)):
        await connect(HOST, held.number)

    async def http_1_1(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(http_1_1, "127.0.0.1", 0) as other:
        with pytest.raises(RetriableError, match="does not speak HTTP/2, its first bytes are b'HTTP/1\\.1 400 Bad"):
            await connect("127.0.0.1", other.sockets[0].getsockname()[1])


async def test_a_listener_accepts_a_maximum_number_of_connections() -> None:
    async with Server(Http2Limits(max_connections=2)) as server:
        first, second = [await server.dial() for _ in range(2)]
        for connection in (first, second):
            connection.open_stream("/echo", {}, recorder := Recorder()).send([b"a"])
            await recorder.wait(1)
        with pytest.raises(RetriableError):
            await server.dial()
        first.close()
        await until(lambda: server.listener.connection_count == 1)
        third = await server.dial()
        second.close()
        third.close()


async def test_a_bug_in_a_handler_is_raised_and_every_stream_is_closed() -> None:
    async with Server() as server:
        loud: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: loud.append(context))

        def bug(stream: Http2Stream, message: memoryview) -> None:
            raise ZeroDivisionError

        server.acceptors["/bug"] = lambda stream: server.accepted.append(r := Recorder(bug)) or r  # type: ignore[func-returns-value]
        connection = await server.dial()
        handlers = [Recorder(), Recorder()]
        connection.open_stream("/echo", {}, handlers[0]).send([b"x"])
        await handlers[0].wait(1)
        connection.open_stream("/bug", {}, handlers[1]).send([b"x"])
        for handler in (*handlers, *server.accepted):
            await handler.reason()
        assert server.accepted[0].closed.result() == "a handler failed: ZeroDivisionError()"
        assert isinstance(loud[0]["exception"], ZeroDivisionError)
        await until(lambda: server.listener.connection_count == 0)


async def test_a_bug_in_one_on_closed_does_not_keep_the_others_from_being_called() -> None:
    async with Server() as server:
        loud: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: loud.append(context))

        class Broken(Recorder):
            def on_closed(self, stream: Http2Stream, reason: str) -> None:
                raise ZeroDivisionError

        connection = await server.dial()
        handlers = [Broken(), Recorder(), Broken(), Recorder()]
        for handler in handlers:
            connection.open_stream("/echo", {}, handler)
        connection.abort("test")
        for handler in (handlers[1], handlers[3]):
            assert await handler.reason() == "test"
        await connection.wait_closed()
        assert [type(context["exception"]) for context in loud] == [ZeroDivisionError] * 2


async def test_framed_messages_that_never_reached_the_socket_are_released_at_once() -> None:
    """The second message of a turn is framed, and waits in the core for the end of the turn."""
    released: list[int] = []

    class NoFile:
        def fileno(self) -> int:
            return -1

    async with Server() as server:
        connection = await server.dial()
        stream = connection.open_stream("/echo", {}, Recorder())
        stream.send([b"first"])
        stream.send([FileRegion(NoFile(), 0, 10, lambda: released.append(1))])  # type: ignore[arg-type]
        assert released == []
        connection.abort("dropped")
        assert released == [1]
