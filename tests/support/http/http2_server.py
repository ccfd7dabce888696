"""A listener with an echo, a handler that records its calls, and raw connections: for tests over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from raftlog.http2 import Http2Connection, Http2Limits, Http2Listener, Http2Stream, connect

PATIENCE_S = 10.0


class Recorder:
    """A handler that records its calls, and lets a test wait for them."""

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
        self.closed.set_result(reason)  # raises if it is called twice
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
    """A listener with an echo at /echo, and the handlers that a test adds."""

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


@contextlib.contextmanager
def loop_of_another_thread() -> Iterator[asyncio.AbstractEventLoop]:
    """A running loop, in a thread named "other"."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="other")
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
        loop.close()
