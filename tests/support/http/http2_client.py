"""A client of HTTP/2 on the `h2` library, which counts windows and frames DATA itself: none of raftlog's own code."""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    InformationalResponseReceived,
    PingReceived,
    RemoteSettingsChanged,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    WindowUpdated,
)
from h2.settings import SettingCodes
from multidict import CIMultiDict

from tests.support.http.api_client import PATIENCE_S, Answer

Headers = Mapping[str, str] | Iterable[tuple[str, str]]


def fields_of(headers: Headers) -> list[tuple[str, str]]:
    return list(headers.items()) if isinstance(headers, Mapping) else list(headers)


class StreamLost(ConnectionError):
    """The stream was reset, or its connection ended."""

    def __init__(self, code: int) -> None:
        super().__init__(f"error {code}")
        self.code = code


class Stream:
    """One request and its answer."""

    def __init__(self, client: Http2Client, stream_id: int) -> None:
        self.id = stream_id
        self.interim: list[int] = []
        self.status = 0
        self.headers: CIMultiDict[str] = CIMultiDict()
        self.ended = False
        self.lost: int | None = None
        """The code with which the stream was reset, or its connection ended."""
        self._client = client
        self._chunks: deque[tuple[bytes, int]] = deque()

    async def send(self, data: bytes, *, end: bool = False) -> None:
        """Send content as the windows allow. Raises `StreamLost`."""
        h2 = self._client.h2
        position = 0
        while position < len(data):
            self._check()
            room = min(h2.local_flow_control_window(self.id), h2.max_outbound_frame_size, len(data) - position)
            if room <= 0:
                await self._client.changed()
                continue
            h2.send_data(self.id, data[position : position + room])
            position += room
            await self._client.flush()
        if end:
            h2.end_stream(self.id)
            await self._client.flush()

    async def read(self) -> bytes:
        """Return the next piece of the answer's content; nothing at its end. Raises `StreamLost`."""
        while not self._chunks:
            if self.ended:
                return b""
            self._check()
            await self._client.changed()
        data, counted = self._chunks.popleft()
        if counted and not self._client.closed:
            self._client.h2.acknowledge_received_data(counted, self.id)
            await self._client.flush()
        return data

    async def head(self) -> int:
        """Wait for the answer's head and return its status. Raises `StreamLost`."""
        while not self.status:
            self._check()
            await self._client.changed()
        return self.status

    async def answer(self) -> Answer:
        """Return the whole answer. Raises `StreamLost`."""
        status = await self.head()
        body = b""
        while piece := await self.read():
            body += piece
        return Answer(status, self.headers, body)

    async def reset(self, code: ErrorCodes = ErrorCodes.CANCEL) -> None:
        self._client.h2.reset_stream(self.id, code)
        await self._client.flush()

    def on_data(self, data: bytes, counted: int) -> None:
        self._chunks.append((data, counted))

    def _check(self) -> None:
        if self.lost is not None:
            raise StreamLost(self.lost)


class Http2Client:
    """One connection. `goaway` is the code of the peer's GOAWAY; None: none has come."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, authority: str) -> None:
        self.authority = authority
        self.goaway: int | None = None
        self.closed = False
        self.streams: dict[int, Stream] = {}
        config = H2Configuration(header_encoding="utf-8", validate_outbound_headers=False)
        self.h2 = H2Connection(config)
        self._reader = reader
        self._writer = writer
        self._changed = asyncio.Event()

    @property
    def most_streams(self) -> int:
        return int(self.h2.remote_settings.max_concurrent_streams)

    async def start(self, settings: Mapping[SettingCodes, int]) -> asyncio.Task[None]:
        self.h2.initiate_connection()
        self.h2.increment_flow_control_window(2**30)  # only streams hold back their answers
        if settings:
            self.h2.update_settings(dict(settings))
        await self.flush()
        task = asyncio.get_running_loop().create_task(self._receive())
        async with asyncio.timeout(PATIENCE_S):
            while not self.closed and self.most_streams > 2**20:
                await self.changed()
        return task

    async def begin(
        self, method: str, path: str, headers: Headers = (), *, end: bool = False, pseudo: Headers | None = None
    ) -> Stream:
        """Send the head of a request."""
        own = [(":method", method), (":scheme", "http"), (":authority", self.authority), (":path", path)]
        stream = Stream(self, self.h2.get_next_available_stream_id())
        self.streams[stream.id] = stream
        fields = [(name.lower(), value) for name, value in fields_of(headers)]
        self.h2.send_headers(stream.id, [*(own if pseudo is None else fields_of(pseudo)), *fields], end_stream=end)
        await self.flush()
        return stream

    async def request(self, method: str, path: str, headers: Headers = (), body: Any = None) -> Answer:
        """Send a request and return its answer. `body`: bytes, a file, or an iterator. Raises `StreamLost`."""
        async with asyncio.timeout(PATIENCE_S):
            stream = await self.begin(method, path, headers, end=body is None)
            sending = None if body is None else asyncio.ensure_future(self._upload(stream, body))
            try:
                return await stream.answer()
            finally:
                if sending is not None and not sending.done():
                    sending.cancel()
                    await asyncio.wait([sending])
                    if stream.lost is None and not self.closed:
                        await stream.reset(ErrorCodes.NO_ERROR)  # the server did not want the rest
                self.streams.pop(stream.id, None)

    async def _upload(self, stream: Stream, body: Any) -> None:
        if hasattr(body, "__aiter__"):
            async for piece in body:
                await stream.send(piece)
            await stream.send(b"", end=True)
        else:
            await stream.send(body.read() if hasattr(body, "read") else body, end=True)

    async def flush(self) -> None:
        data = self.h2.data_to_send()
        if data and not self.closed:
            self._writer.write(data)
            await self._writer.drain()

    async def raw(self, data: bytes) -> None:
        """Send bytes that `h2` would not."""
        await self.flush()
        self._writer.write(data)
        await self._writer.drain()

    async def changed(self) -> None:
        """Wait for the next frames."""
        self._changed.clear()
        async with asyncio.timeout(PATIENCE_S):
            await self._changed.wait()

    async def _receive(self) -> None:
        try:
            while data := await self._reader.read(65_536):
                for event in self.h2.receive_data(data):
                    self._on_event(event)
                self._changed.set()
                await self.flush()
        except (ConnectionError, ssl.SSLError):
            pass  # the end of the connection, like any other
        finally:
            self.closed = True
            for stream in self.streams.values():
                if not stream.ended and stream.lost is None:
                    stream.lost = -1 if self.goaway is None else self.goaway
            self._changed.set()

    def _on_event(self, event: object) -> None:
        if isinstance(event, ConnectionTerminated):
            self.goaway = int(event.error_code or 0)
        stream = self.streams.get(getattr(event, "stream_id", None) or 0)
        if isinstance(event, DataReceived) and stream is None:
            self.h2.acknowledge_received_data(event.flow_controlled_length or 0, event.stream_id or 0)
        if stream is None or isinstance(event, PingReceived | WindowUpdated | RemoteSettingsChanged):
            return
        if isinstance(event, InformationalResponseReceived):
            stream.interim.append(int(dict(event.headers or [])[":status"]))  # type: ignore[arg-type, index]
        elif isinstance(event, ResponseReceived):
            for name, value in event.headers or []:
                stream.headers.add(str(name), str(value))
            stream.status = int(stream.headers.pop(":status"))
        elif isinstance(event, DataReceived):
            stream.on_data(event.data or b"", event.flow_controlled_length or 0)
        elif isinstance(event, StreamEnded):
            stream.ended = True
        elif isinstance(event, StreamReset):
            stream.lost = int(event.error_code or 0)


@asynccontextmanager
async def http2_client(
    port: int, *, ssl_context: ssl.SSLContext | None = None, settings: Mapping[SettingCodes, int] | None = None
) -> AsyncIterator[Http2Client]:
    """Connect to a port of this machine."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=ssl_context)
    client = Http2Client(reader, writer, f"127.0.0.1:{port}")
    task = await client.start(settings or {})
    try:
        yield client
    finally:
        writer.transport.abort()
        await asyncio.wait([task])
        task.result()
