"""The ways to send events: as the body of an answer, and as messages of a WebSocket (RFC 6455)."""

from __future__ import annotations

import asyncio
from typing import Protocol

from aiohttp import WSCloseCode, WSMsgType, web

from http_api.service.access import Usage
from http_api.web.call import Call
from http_api.web.delivery import unacknowledged
from http_api.web.replies import write_deadline, write_in_time

from .events import RECONNECT_MS, Shape, json_line, server_sent
from .waits import Waits

EVENT_STREAM = "text/event-stream"
NDJSON = "application/x-ndjson"
_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
CLOSE_SECONDS = 1.0
"""The time for the other side to answer the end of a WebSocket."""
MAX_MESSAGE = 1_024
"""The longest message of a WebSocket's client that is received, in bytes."""


class Sender(Protocol):
    """Sends events, each within its deadline. `open` and `send` raise `TimeoutError` if the reader does not read, and
    `ConnectionError` if it has left."""

    shape: Shape
    has_left: bool

    async def open(self) -> None: ...

    async def send(self, event: bytes) -> None: ...

    async def finish(self) -> web.StreamResponse: ...


class BodySender:
    """Events as the body of an answer."""

    def __init__(self, call: Call, media_type: str) -> None:
        self.shape: Shape = server_sent if media_type == EVENT_STREAM else json_line
        self.has_left = False
        self._call = call
        self._is_browser = media_type == EVENT_STREAM
        self._response = web.StreamResponse(headers={**_HEADERS, "Content-Type": media_type})

    async def open(self) -> None:
        """Send the head."""
        async with asyncio.timeout(write_deadline(self._call.context, 0)):
            await self._response.prepare(self._call.request)
            if self._is_browser:
                await self._response.write(b"retry: %d\n\n" % RECONNECT_MS)

    async def send(self, event: bytes) -> None:
        """Send an event."""
        charge(self._call, event)
        await write_in_time(self._response, self._call.context, event)

    async def finish(self) -> web.StreamResponse:
        """End the answer."""
        async with asyncio.timeout(write_deadline(self._call.context, 0)):
            await self._response.write_eof()
        return self._response


class SocketSender:
    """Events as text messages of a WebSocket, each a JSON object."""

    def __init__(self, call: Call, waits: Waits, heartbeat_s: float) -> None:
        self.shape: Shape = json_line
        self._call = call
        self._waits = waits
        # Compression would cost the node memory for each of its readers.
        self._socket = web.WebSocketResponse(
            timeout=CLOSE_SECONDS, heartbeat=heartbeat_s, compress=False, max_msg_size=MAX_MESSAGE, autoclose=False
        )
        self._reading: asyncio.Task[None] | None = None
        self.has_left = False
        """Whether the client has ended the WebSocket, or broken its rules."""
        self._sent_data = False

    async def open(self) -> None:
        """Answer the handshake. Raises `web.HTTPBadRequest` for a broken one."""
        async with asyncio.timeout(write_deadline(self._call.context, 0)):
            await self._socket.prepare(self._call.request)
        self._reading = asyncio.get_running_loop().create_task(self._read())

    async def send(self, event: bytes) -> None:
        """Send an event."""
        charge(self._call, event)
        async with asyncio.timeout(write_deadline(self._call.context, len(event))):
            await self._socket.send_str(event.rstrip(b"\n").decode())

    async def finish(self) -> web.StreamResponse:
        """End the WebSocket."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait({self._reading})
        code = WSCloseCode.GOING_AWAY if self._call.context.closing else WSCloseCode.OK
        await self._socket.close(code=WSCloseCode.UNSUPPORTED_DATA if self._sent_data else code)
        return self._socket

    def abandon(self) -> None:
        """Stop reading what the client sends: the request is over."""
        if self._reading is not None:
            self._reading.cancel()

    async def _read(self) -> None:
        """Wait for the client's end, while aiohttp answers its pings. A message ends the WebSocket, too: whatever a
        client sends without end would cost the node without bound."""
        message = await self._socket.receive()
        self._sent_data = message.type in (WSMsgType.TEXT, WSMsgType.BINARY)
        self.has_left = True
        self._waits.wake()


def charge(call: Call, event: bytes) -> None:
    """Count the bytes of an event for the caller's quota."""
    call.service.access.charge(call.caller, Usage.BYTES_OUT, len(event))


def waiting_bytes(request: web.Request) -> int:
    """Return the bytes of the request's connection that its client has not acknowledged."""
    transport = request.transport
    if transport is None:
        return 0
    found = transport.get_extra_info("socket")
    in_socket = unacknowledged(found.fileno()) if found is not None and found.fileno() >= 0 else 0
    return transport.get_write_buffer_size() + in_socket
