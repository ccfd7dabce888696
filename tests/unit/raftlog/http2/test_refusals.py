"""A listener without TLS reports to its owner which peer asked for TLS, and the result."""

from __future__ import annotations

import asyncio
import ssl

import pytest

from raftlog.http2.connection import TLS_REFUSED
from tests.support.http.http2_server import PATIENCE_S, Server, raw, until


@pytest.mark.parametrize("speaks_tls", [True, False])
async def test_a_peer_that_speaks_tls_to_a_plain_listener_is_reported(speaks_tls: bool) -> None:
    told: list[tuple[str, str]] = []
    hello = ssl.MemoryBIO()
    dialer = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), hello, server_hostname="raftlog.example")
    with pytest.raises(ssl.SSLWantReadError):
        dialer.do_handshake()
    async with (
        Server(on_refused=lambda address, reason: told.append((address, reason))) as server,
        raw(server.port) as (reader, writer),
    ):
        host, port = writer.get_extra_info("sockname")[:2]
        writer.write(hello.read() if speaks_tls else b"HELO raftlog.example\r\n" * 10)
        await asyncio.wait_for(reader.read(), PATIENCE_S)
        await until(lambda: server.listener.connection_count == 0)
        assert told == ([(f"{host}:{port}", TLS_REFUSED)] if speaks_tls else [])
