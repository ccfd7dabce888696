"""Listener and dialer over real sockets: both directions, errors, timers, TLS, and moving to another thread's loop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from raftlog.errors import InvalidRequest, RemoteProtocolError, RetriableError
from raftlog.http2 import Http2Connection, Http2Limits, Http2Listener, Http2Stream, ReconnectingDialer, connect
from raftlog.http2.frames import PREFACE
from raftlog.ports import FileRegion
from tests.support.http2_peer import data_frame, parse, prefixed, raw_frame, settings_frame

pytestmark = pytest.mark.integration

PATIENCE_S = 10.0
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


class Recorder:
    """A handler that keeps what it is told, and lets a test wait for it."""

    def __init__(self, act: Callable[[Http2Stream, memoryview], None] | None = None) -> None:
        self.act = act
        self.messages: list[bytes] = []
        self.ended = False
        self.closed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.thread: threading.Thread | None = None
        self.stream: Http2Stream | None = None
        self._changed = asyncio.Event()

    def on_message(self, stream: Http2Stream, message: memoryview) -> None:
        assert not self.closed.done()
        self.thread = threading.current_thread()
        self.messages.append(bytes(message))
        self._changed.set()
        if self.act is not None:
            self.act(stream, message)

    def on_ended(self, stream: Http2Stream) -> None:
        self.ended = True
        stream.end()

    def on_closed(self, stream: Http2Stream, reason: str) -> None:
        self.closed.set_result(reason)  # raises when called twice
        self._changed.set()

    async def wait(self, count: int) -> list[bytes]:
        async with asyncio.timeout(PATIENCE_S):
            while len(self.messages) < count:
                assert not self.closed.done(), self.closed.result()
                self._changed.clear()
                await self._changed.wait()
        return self.messages

    async def reason(self) -> str:
        return await asyncio.wait_for(self.closed, PATIENCE_S)


def echo(stream: Http2Stream, message: memoryview) -> None:
    stream.send([b"<", message, b">"])


class Server:
    """A listener with an echo at /echo, and whatever else a test adds."""

    def __init__(self, limits: Http2Limits | None = None, **options: Any) -> None:
        self.accepted: list[Recorder] = []
        self.acceptors: dict[str, Callable[[Http2Stream], Recorder]] = {"/echo": self.accept}
        self.listener = Http2Listener(self.acceptors, limits=limits, **options)
        self.port = 0
        self.connections: list[Http2Connection] = []

    async def dial(self, **options: Any) -> Http2Connection:
        connection = await connect("127.0.0.1", self.port, **options)
        self.connections.append(connection)
        return connection

    def accept(self, stream: Http2Stream) -> Recorder:
        recorder = Recorder(echo)
        recorder.stream = stream
        self.accepted.append(recorder)
        return recorder

    async def __aenter__(self) -> Server:
        self.port = await self.listener.start("127.0.0.1", 0)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.listener.close(0.0)
        assert self.listener.connection_count == 0
        for connection in self.connections:
            connection.abort("the test is over")
            await connection.wait_closed()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def raw(port: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


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


async def test_regions_of_files_among_buffers(tmp_path: Path) -> None:
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


async def test_a_handlers_verdict_on_its_peer() -> None:
    async with Server() as server:

        def judge(stream: Http2Stream, message: memoryview) -> None:
            if message == b"odd":
                raise InvalidRequest("invalid_request", "not like this")
            if message == b"bad":
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


async def test_what_was_received_before_our_own_reset_is_not_told_any_more() -> None:
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
            for _ in range(megabytes if message == b"go" else 0):
                if not stream.closed:
                    stream.send([bytes(1 << 20)])
                assert stream.connection.queued_bytes <= 22 << 20

        server.acceptors["/flood"] = lambda stream: server.accepted.append(r := Recorder(flood)) or r  # type: ignore[func-returns-value]
        connection = await server.dial()
        stream = connection.open_stream("/flood", {}, Recorder())
        await until(lambda: len(server.accepted) == 1)
        connection.pause_reading()
        stream.send([b"go"])
        while not server.accepted[0].closed.done():
            stream.send([b"still alive"])
            await asyncio.sleep(0.02)
        assert reason in await server.accepted[0].reason()


async def test_reading_can_be_paused_to_hold_a_peer_back() -> None:
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


async def test_drained_is_told_after_there_was_a_queue() -> None:
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


async def test_connecting_fails_with_the_reason() -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
        with pytest.raises(RetriableError, match="no answer in time") as caught:
            await connect("127.0.0.1", port, limits=Http2Limits(connect_timeout_s=0.2))
        assert caught.value.code == "connection_lost"
    with pytest.raises(RetriableError, match=f"127.0.0.1:{port}"):
        await connect("127.0.0.1", port)

    async def http_1_1(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(http_1_1, "127.0.0.1", 0) as other:
        with pytest.raises(RetriableError, match="connection"):
            await connect("127.0.0.1", other.sockets[0].getsockname()[1])


async def test_a_listener_takes_so_many_connections_and_no_more() -> None:
    async with Server(Http2Limits(max_connections=2)) as server:
        first, second = [await server.dial() for _ in range(2)]
        with pytest.raises(RetriableError):
            await server.dial()
        first.close()
        await until(lambda: server.listener.connection_count == 1)
        third = await server.dial()
        second.close()
        third.close()


async def test_a_bug_in_a_handler_is_loud_and_every_stream_is_told() -> None:
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
        assert isinstance(loud[0]["exception"], ZeroDivisionError)
        await until(lambda: server.listener.connection_count == 0)


# --- Reconnecting ----------------------------------------------------------------------------------------------------


async def test_a_dialer_comes_back_until_it_is_closed() -> None:
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


async def test_a_dialer_keeps_trying_while_nobody_is_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    lost: list[str] = []
    opened: list[Http2Stream] = []
    dialer = ReconnectingDialer(
        "127.0.0.1", port, "/echo", Recorder(), random=random.Random(1), on_opened=opened.append, on_closed=lost.append
    )
    await until(lambda: len(lost) >= 2)
    server = Server()
    await server.listener.start("127.0.0.1", port)
    await until(lambda: len(opened) == 1)
    await dialer.close()
    await server.listener.close(0.0)


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


async def test_a_refused_stream_is_tried_again() -> None:
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


# --- Another thread's loop -------------------------------------------------------------------------------------------


@pytest.fixture
def other_loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="other")
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    loop.run_until_complete(asyncio.sleep(0.05))
    loop.close()


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
        sent = [os.urandom(size) for size in (10, 2 << 20, 0, 70_000)]
        for message in sent:  # all of it is on its way before the move
            stream.send([message])
        assert await handler.wait(4) == [b"<" + message + b">" for message in sent]
        stream.send([b"and later"])
        await handler.wait(5)
        stream.end()
        assert await handler.reason() == "ended"
        await until(lambda: "closed other ended" in threads)
        assert set(threads) == {"other", "closed other ended"}

        here = Recorder()  # a later stream stays where the connection is
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


async def test_a_loop_that_has_stopped_costs_only_its_connections() -> None:
    stopped = asyncio.new_event_loop()
    stopped.close()
    async with Server(loop_for_path={"/there": stopped}) as server:
        server.acceptors["/there"] = server.accept
        connection = await server.dial()
        handler = Recorder()
        connection.open_stream("/there", {}, handler).send([b"x"])
        assert "peer closed" in await handler.reason() or "lost" in handler.closed.result()
        await until(lambda: server.listener.connection_count == 0)


# --- TLS -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """A listener's and a dialer's context, with a certificate for 127.0.0.1."""
    from tests.support.certificates import self_signed

    folder = tmp_path_factory.mktemp("tls")
    certificate, key = self_signed("127.0.0.1")
    (folder / "certificate.pem").write_bytes(certificate)
    (folder / "key.pem").write_bytes(key)
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(folder / "certificate.pem", folder / "key.pem")
    return server, ssl.create_default_context(cafile=str(folder / "certificate.pem"))


async def test_tls(tls: tuple[ssl.SSLContext, ssl.SSLContext], tmp_path: Path) -> None:
    content = os.urandom(2 << 20)
    (tmp_path / "segment").write_bytes(content)
    released: list[int] = []

    class ReadFile:
        def pread(self, length: int, position: int) -> bytes:
            return content[position : position + length]

    async with Server(ssl=tls[0]) as server:
        connection = await server.dial(ssl=tls[1])
        assert connection.get_extra_info("ssl_object").selected_alpn_protocol() == "h2"
        handler = Recorder()
        stream = connection.open_stream("/echo", {}, handler)
        sent = [os.urandom(size) for size in (0, 21, 70_000, 5 << 20)]
        for message in sent:
            stream.send([message])
        region = FileRegion(ReadFile(), 3, 1 << 20, lambda: released.append(1))  # type: ignore[arg-type]
        stream.send([b"file ", region])
        expected = [b"<" + message + b">" for message in (*sent, b"file " + content[3 : 3 + (1 << 20)])]
        assert await handler.wait(5) == expected
        assert released == [1]
        stream.end()
        assert await handler.reason() == "ended"
        connection.close()
        await until(lambda: server.listener.connection_count == 0 and connection.closed)


async def test_a_certificate_that_is_not_trusted(tls: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    async with Server(ssl=tls[0]) as server:
        with pytest.raises(RetriableError, match="certificate verify failed"):
            await server.dial(ssl=ssl.create_default_context())
        with pytest.raises(RetriableError):
            await server.dial(limits=Http2Limits(connect_timeout_s=1.0))  # plain, to TLS
        await until(lambda: server.listener.connection_count == 0)


async def test_tls_without_h2_is_not_served(tls: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    context = ssl.create_default_context()
    context.load_verify_locations(cadata=ssl.DER_cert_to_PEM_cert(tls[1].get_ca_certs(binary_form=True)[0]))
    async with Server(ssl=tls[0]) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=context)
        writer.write(PREFACE + settings_frame() + data_frame(1, prefixed(b"x")))
        with contextlib.suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(), PATIENCE_S) == b""
        writer.close()
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            await writer.wait_closed()


async def test_a_connection_under_tls_stays_on_the_listeners_loop(
    tls: tuple[ssl.SSLContext, ssl.SSLContext], other_loop: asyncio.AbstractEventLoop
) -> None:
    async with Server(ssl=tls[0], loop_for_path={"/echo": other_loop}) as server:
        connection: Http2Connection = await server.dial(ssl=tls[1])
        handler = Recorder()
        connection.open_stream("/echo", {}, handler).send([b"x"])
        assert await handler.wait(1) == [b"<x>"]
        assert server.accepted[0].thread is threading.main_thread()
        connection.close()
        await until(lambda: server.listener.connection_count == 0)
