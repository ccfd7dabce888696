"""TLS with ALPN h2, by the loop's own ssl."""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
import threading
from pathlib import Path

import pytest

from raftlog.errors import RetriableError
from raftlog.http2 import Http2Connection, connect
from raftlog.http2.frames import PREFACE
from raftlog.http2.tls import PIECE_BYTES, TURN_BYTES, TransportWriter
from raftlog.ports import FileRegion
from tests.support.http.http2_peer import data_frame, prefixed, settings_frame
from tests.support.http.http2_server import PATIENCE_S, Recorder, Server, loop_of_another_thread, until

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """A listener's and a dialer's context, with a certificate for 127.0.0.1."""
    from tests.support.clusters.certificates import self_signed

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

        pread_cached = pread

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


async def test_an_untrusted_certificate(tls: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    async with Server(ssl=tls[0]) as server:
        with pytest.raises(RetriableError, match="certificate verify failed"):
            await server.dial(ssl=ssl.create_default_context())
        with pytest.raises(RetriableError, match="this listener speaks TLS only"):
            await server.dial()  # plain, to TLS
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


async def test_a_listener_that_does_not_agree_to_h2_is_refused(
    tls: tuple[ssl.SSLContext, ssl.SSLContext], tmp_path: Path
) -> None:
    """RFC 9113 section 3.2: without the protocol's name in the handshake, either end gives up."""
    from tests.support.clusters.certificates import self_signed

    certificate, key = self_signed("127.0.0.1")
    (tmp_path / "certificate.pem").write_bytes(certificate)
    (tmp_path / "key.pem").write_bytes(key)
    plain = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)  # offers no protocol at all
    plain.load_cert_chain(tmp_path / "certificate.pem", tmp_path / "key.pem")

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            await reader.read()  # it stays silent until the dialer closes
        writer.close()

    async with await asyncio.start_server(listen, "127.0.0.1", 0, ssl=plain) as server:
        trusting = ssl.create_default_context(cafile=str(tmp_path / "certificate.pem"))
        with pytest.raises(RetriableError, match="did not agree to HTTP/2"):
            await connect("127.0.0.1", server.sockets[0].getsockname()[1], ssl=trusting)


async def test_a_connection_under_tls_stays_on_the_listeners_loop(tls: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    with loop_of_another_thread() as other:
        await stays_here(tls, other)


async def stays_here(tls: tuple[ssl.SSLContext, ssl.SSLContext], other: asyncio.AbstractEventLoop) -> None:
    async with Server(ssl=tls[0], loop_for_path={"/echo": other}) as server:
        connection: Http2Connection = await server.dial(ssl=tls[1])
        handler = Recorder()
        connection.open_stream("/echo", {}, handler).send([b"x"])
        assert await handler.wait(1) == [b"<x>"]
        assert server.accepted[0].thread is threading.main_thread()
        connection.close()
        await until(lambda: server.listener.connection_count == 0)


async def test_large_messages_are_encrypted_in_turns() -> None:
    class Transport(asyncio.Transport):
        def __init__(self) -> None:
            super().__init__()
            self.written: list[bytes] = []

        def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

        def get_write_buffer_size(self) -> int:
            return 0

        def write(self, data: bytes | bytearray | memoryview) -> None:
            self.written.append(bytes(data))

    transport, failures = Transport(), list[str]()
    writer = TransportWriter(transport, refill=lambda: None, failed=failures.append)
    content = os.urandom(16 << 20)
    writer.extend([b"head", content, b"tail"])
    writer.flush()
    assert sum(map(len, transport.written)) <= TURN_BYTES + PIECE_BYTES
    await until(lambda: writer.backlog == 0)
    assert b"".join(transport.written) == b"head" + content + b"tail" and not failures
    assert max(map(len, transport.written)) <= PIECE_BYTES and writer.total_sent == len(content) + 8
