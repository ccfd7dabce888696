"""TLS handshakes are counted and bounded, and refused peers get the reason."""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from raftlog.errors import RetriableError
from raftlog.http2 import Http2Connection, Http2Limits, connect
from raftlog.http2.connection import TLS_REFUSED
from raftlog.http2.tls import DialTls, TransportWriter, prepare
from raftlog.http2.tls_accept import PLAIN_REFUSED
from raftlog.ports import FileRegion
from tests.support.clusters.certificates import self_signed
from tests.support.http.http2_server import PATIENCE_S, Recorder, Server, loop_of_another_thread, raw, until

pytestmark = pytest.mark.integration

Contexts = tuple[ssl.SSLContext, ssl.SSLContext]


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Contexts:
    """A listener's and a dialer's context."""
    return contexts(tmp_path_factory.mktemp("tls"))


def contexts(folder: Path) -> Contexts:
    certificate, key = self_signed("127.0.0.1")
    (folder / "certificate.pem").write_bytes(certificate)
    (folder / "key.pem").write_bytes(key)
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(folder / "certificate.pem", folder / "key.pem")
    return prepare(server), prepare(ssl.create_default_context(cafile=str(folder / "certificate.pem")))


class Refusals(list[str]):
    def __call__(self, address: str, reason: str) -> None:
        assert address.startswith("127.0.0.1:")
        self.append(reason)


async def test_handshakes_in_progress_count_as_connections_and_the_oldest_gives_way(tls: Contexts) -> None:
    refused = Refusals()
    async with (
        Server(Http2Limits(max_connections=2), ssl=tls[0], on_refused=refused) as server,
        raw(server.port) as (oldest, _),
        raw(server.port) as (second, _),
    ):
        await until(lambda: server.listener.connection_count == 2)
        for reader in (oldest, second):
            connection = await server.dial(ssl=tls[1])
            assert await asyncio.wait_for(reader.read(), PATIENCE_S) == b""
            connection.open_stream("/echo", {}, recorder := Recorder()).send([b"a"])
            await recorder.wait(1)
        assert refused == ["its handshake gave way to newer ones: too many are in progress"] * 2
        with pytest.raises(RetriableError):
            await server.dial(ssl=tls[1])
        assert refused[2:] == ["the listener accepts no more connections"]
        assert server.listener.connection_count == 2


async def test_the_handshakes_of_one_address_are_bounded(tls: Contexts) -> None:
    refused = Refusals()
    async with (
        Server(Http2Limits(max_handshakes_per_address=2), ssl=tls[0], on_refused=refused) as server,
        raw(server.port) as (oldest, _),
        raw(server.port),
        raw(server.port),
    ):
        assert await asyncio.wait_for(oldest.read(), PATIENCE_S) == b""
        assert refused == ["its handshake gave way to newer ones: too many are in progress"]
        assert server.listener.connection_count == 2


async def test_half_a_hello_ends_at_the_deadline(tls: Contexts) -> None:
    refused = Refusals()
    async with Server(Http2Limits(handshake_timeout_s=0.1), ssl=tls[0], on_refused=refused) as server:
        async with raw(server.port) as (silent, _), raw(server.port) as (half, writer):
            writer.write(b"\x16\x03\x01\x02\x00\x01")
            assert await asyncio.wait_for(silent.read(), PATIENCE_S) == b""
            with contextlib.suppress(ConnectionResetError):  # of unread bytes
                assert await asyncio.wait_for(half.read(), PATIENCE_S) == b""
        assert refused == ["no TLS handshake in time"] * 2
        assert server.listener.connection_count == 0


async def test_the_oldest_handshake_is_dropped(tls: Contexts) -> None:
    refused = Refusals()
    limits = Http2Limits(max_handshakes=2)
    async with (
        Server(limits, ssl=tls[0], on_refused=refused) as server,
        raw(server.port) as (first, _),
        raw(server.port),
    ):
        await until(lambda: server.listener.connection_count == 2)
        connection = await server.dial(ssl=tls[1])
        assert await asyncio.wait_for(first.read(), PATIENCE_S) == b""
        assert len(refused) == 1 and "gave way" in refused[0]
        connection.close()


async def test_a_plain_peer_is_answered_that_the_listener_needs_tls(tls: Contexts) -> None:
    refused = Refusals()
    async with Server(ssl=tls[0], on_refused=refused) as server:
        with pytest.raises(RetriableError, match="this listener speaks TLS only"):
            await server.dial()
        async with raw(server.port) as (reader, writer):
            writer.write(b"GET /echo HTTP/1.1\r\nHost: x\r\n\r\n")
            answer = await asyncio.wait_for(reader.read(), PATIENCE_S)
        assert answer.startswith(b"HTTP/1.1 400 ") and b"under TLS" in answer
        assert refused == [PLAIN_REFUSED] * 2 and not server.accepted


async def test_a_tls_peer_is_answered_that_the_listener_is_plain_text(tls: Contexts) -> None:
    refused = Refusals()
    async with Server(on_refused=refused) as server:
        with pytest.raises(RetriableError, match=r"it has no \[tls\] settings"):
            await server.dial(ssl=tls[1])
        await until(lambda: refused == [TLS_REFUSED])


async def test_a_peer_with_another_name_is_refused(tls: Contexts) -> None:
    """The dialer's check comes before any of the peer's bytes are used."""

    def nobody(certificate: object) -> None:
        assert certificate
        raise RetriableError("connection_lost", "that is not node 7")

    async with Server(ssl=tls[0]) as server:
        with pytest.raises(RetriableError, match="that is not node 7"):
            await server.dial(ssl=DialTls(lambda: tls[1], check=nobody))
        await until(lambda: server.listener.connection_count == 0)
        assert not server.accepted


async def test_each_connection_asks_for_its_context(tls: Contexts, tmp_path: Path) -> None:
    """New certificates take effect without a restart, and existing connections stay."""
    new, current = contexts(tmp_path), [tls]
    async with Server(ssl=lambda: current[0][0]) as server:
        dial = DialTls(lambda: current[0][1])
        before = await server.dial(ssl=dial)
        current[0] = new
        with pytest.raises(RetriableError, match="certificate verify failed"):
            await server.dial(ssl=DialTls(lambda: tls[1]))
        after = await server.dial(ssl=dial)
        handler = Recorder()
        before.open_stream("/echo", {}, handler).send([b"x"])
        assert await handler.wait(1) == [b"<x>"]
        for connection in (before, after):
            connection.close()


async def test_a_server_name_chooses_the_loop(tls: Contexts) -> None:
    """A stall of the listener's loop therefore does not affect connections by that name; other paths are not served
    there."""
    with loop_of_another_thread() as other:
        await elsewhere(tls, other)


async def test_strangers_cannot_fill_another_loop_by_its_name(tls: Contexts) -> None:
    """Connections above the rate stay on the listener's loop, and work there nevertheless."""
    with loop_of_another_thread() as other:
        await one_elsewhere(tls, other)


async def one_elsewhere(tls: Contexts, other: asyncio.AbstractEventLoop) -> None:
    limits = Http2Limits(moved_handshakes_per_second=0.001, moved_handshakes_burst=1)
    options = {"loop_for_path": {"/echo": other}, "loop_for_name": {"away.example": other}}
    async with Server(limits, ssl=tls[0], **options) as server:
        for thread in ("other", threading.main_thread().name):
            connection = await server.dial(ssl=DialTls(lambda: unnamed(tls[1]), server_name="away.example"))
            handler = Recorder()
            connection.open_stream("/echo", {}, handler).send([b"x"])
            assert await handler.wait(1) == [b"<x>"]
            accepted = server.accepted[-1].thread
            assert accepted is not None and accepted.name == thread
            connection.close()
        await until(lambda: server.listener.connection_count == 0)


async def elsewhere(tls: Contexts, other: asyncio.AbstractEventLoop) -> None:
    options = {"loop_for_path": {"/away": other}, "loop_for_name": {"away.example": other}}
    async with Server(ssl=tls[0], **options) as server:
        threads: list[threading.Thread] = []

        def accept(stream: object) -> Recorder:
            threads.append(threading.current_thread())
            return Recorder(lambda stream, message: stream.send([b"away"]))

        server.acceptors["/away"] = accept
        dialed = DialTls(lambda: unnamed(tls[1]), server_name="away.example")
        connection: Http2Connection = await server.dial(ssl=dialed)
        handler, misled = Recorder(), Recorder()
        connection.open_stream("/away", {}, handler).send([b"x"])
        assert await handler.wait(1) == [b"away"]
        assert [thread.name for thread in threads] == ["other"]
        connection.open_stream("/echo", {}, misled)
        assert "421" in await misled.reason() and not server.accepted
        assert server.listener.connection_count == 1
        connection.close()
        await until(lambda: server.listener.connection_count == 0)


def unnamed(context: ssl.SSLContext) -> ssl.SSLContext:
    """The certificate's name does not matter."""
    context.check_hostname = False
    return context


# --- File regions -----------------------------------------------------------------------------------------------------


class Transport(asyncio.Transport):
    """Accepts everything."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data


class ColdFile:
    """No part of it is in the page cache."""

    def __init__(self, content: bytes, before: Callable[[], object] = lambda: None) -> None:
        self.content = content
        self.before = before
        self.readers: list[str] = []

    def pread_cached(self, length: int, position: int) -> None:
        return None

    def pread(self, length: int, position: int) -> bytes:
        self.before()
        self.readers.append(threading.current_thread().name)
        return self.content[position : position + length]


def region(file: ColdFile, length: int, released: list[int]) -> FileRegion:
    return FileRegion(file, 0, length, lambda: released.append(1))  # type: ignore[arg-type]


async def test_bytes_missing_in_the_page_cache_are_read_by_a_thread_in_slices() -> None:
    transport, failures, released = Transport(), list[str](), list[int]()
    file = ColdFile(os.urandom(1 << 20))
    writer = TransportWriter(transport, refill=lambda: None, failed=failures.append)
    writer.extend([b"head", region(file, 1 << 20, released), b"tail"])
    writer.flush()
    await until(lambda: writer.backlog == 0)
    assert bytes(transport.written) == b"head" + file.content + b"tail"
    assert len(file.readers) == 4 and threading.main_thread().name not in file.readers
    assert released == [1] and not failures


async def test_a_region_is_held_until_its_reader_is_done() -> None:
    transport, failures, released = Transport(), list[str](), list[int]()
    go = threading.Event()
    file = ColdFile(b"x" * 100, before=lambda: go.wait(PATIENCE_S))
    writer = TransportWriter(transport, refill=lambda: None, failed=failures.append)
    writer.extend([region(file, 100, released)])
    writer.flush()
    writer.close()
    assert not released, "a thread reads from that file"
    go.set()
    await until(lambda: released == [1])
    assert not transport.written and not failures


async def test_a_short_file_fails_the_connection() -> None:
    transport, failures, released = Transport(), list[str](), list[int]()
    writer = TransportWriter(transport, refill=lambda: None, failed=failures.append)
    writer.extend([region(ColdFile(b"short"), 100, released)])
    writer.flush()
    await until(lambda: bool(failures))
    assert "ends 95 bytes before" in failures[0] and released == [1]


async def test_tls_costs_nothing_if_it_is_not_used() -> None:
    async with Server() as server:
        connection = await connect("127.0.0.1", server.port)
        assert connection.can_move and connection.get_extra_info("peercert") is None
        connection.close()
        await connection.wait_closed()


async def test_a_listener_may_serve_both(tls: Contexts) -> None:
    refused = Refusals()
    async with Server(ssl=tls[0], accepts_plain=True, on_refused=refused) as server:
        for context in (None, tls[1]):
            connection = await server.dial(ssl=context)
            assert (connection.get_extra_info("ssl_object") is None) is (context is None)
            handler = Recorder()
            stream = connection.open_stream("/echo", {}, handler)
            stream.send([b"hello"])
            assert await handler.wait(1) == [b"<hello>"]
            connection.close()
        assert refused == []


async def test_a_dialer_falls_back_to_plain_text_only_if_it_may_and_the_peer_speaks_no_tls(
    tls: Contexts, tmp_path: Path
) -> None:
    """Never because a certificate is refused, which an attacker could cause."""
    may, may_not = (DialTls(lambda: tls[1], or_plain=allowed) for allowed in (True, False))
    async with Server() as plain:
        connection = await plain.dial(ssl=may)
        assert connection.get_extra_info("ssl_object") is None
        connection.close()
        with pytest.raises(RetriableError, match="speaks no TLS"):
            await plain.dial(ssl=may_not)
    async with Server(ssl=tls[0], accepts_plain=True) as both:
        connection = await both.dial(ssl=may)
        assert connection.get_extra_info("ssl_object") is not None
        connection.close()
    stranger, _ = contexts(tmp_path)
    async with Server(ssl=stranger, accepts_plain=True) as foreign:
        with pytest.raises(RetriableError, match="certificate"):
            await foreign.dial(ssl=may)
