"""The accept loop of both listeners, if a process is out of descriptors."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from typing import Any

import pytest

from raftlog.system import paced_server
from raftlog.system.paced_server import PacedServer


class Greeter(asyncio.Protocol):
    """Sends one word to every client."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(b"hello")
        transport.close()


class Short(socket.socket):
    """A listening socket whose process has no descriptors left for `refusals` calls."""

    refusals = 0
    asked = 0

    def accept(self) -> tuple[socket.socket, Any]:
        Short.asked += 1
        if Short.refusals:
            Short.refusals -= 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return super().accept()

    def dup(self) -> Short:
        return Short(fileno=os.dup(self.fileno()))


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> type[Short]:
    monkeypatch.setattr(paced_server, "PAUSE_SECONDS", 0.05)
    monkeypatch.setattr(Short, "refusals", 0)
    monkeypatch.setattr(Short, "asked", 0)
    return Short


async def greeting(port: int) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        return await reader.read()
    finally:
        writer.close()
        await writer.wait_closed()


async def test_it_serves_and_closes() -> None:
    server = PacedServer(Greeter, backlog=16)
    await server.listen("127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    assert await asyncio.gather(*(greeting(port) for _ in range(20))) == [b"hello"] * 20
    server.close()
    await server.wait_closed()
    assert not server.is_serving() and not server.sockets
    with pytest.raises(OSError):
        await greeting(port)


async def test_without_descriptors_it_pauses_and_serves_waiting_clients_afterwards(short: type[Short]) -> None:
    """One call per pause; asyncio's own loop makes as many as the backlog is long, with a log line for each."""
    told: list[int | None] = []
    server = PacedServer(Greeter, backlog=256, on_short=lambda error: told.append(error.errno))
    await server.listen("127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    (plain,) = server.sockets
    asyncio.get_running_loop().remove_reader(plain.fileno())
    server._sockets = [short(fileno=plain.detach())]
    short.refusals = 3
    await server.start_serving()
    async with asyncio.timeout(10):
        assert await asyncio.gather(*(greeting(port) for _ in range(50))) == [b"hello"] * 50
    assert told == [errno.EMFILE] * 3
    assert short.asked < 3 + 2 * 51
    server.close()
    await server.wait_closed()


async def test_it_can_be_closed_while_it_pauses(short: type[Short]) -> None:
    rests = asyncio.Event()
    server = PacedServer(Greeter, backlog=16, on_short=lambda error: rests.set())
    await server.listen("127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    (plain,) = server.sockets
    asyncio.get_running_loop().remove_reader(plain.fileno())
    server._sockets = [short(fileno=plain.detach())]
    short.refusals = 1000
    await server.start_serving()
    waiting = asyncio.ensure_future(greeting(port))
    async with asyncio.timeout(10):
        await rests.wait()
        server.close()
        await server.wait_closed()
        with pytest.raises(OSError):
            await waiting
