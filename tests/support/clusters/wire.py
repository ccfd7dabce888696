"""Messages of `raftlog/wire.py` to a node, without the client: over HTTP/1.1, and over HTTP/2 streams."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp

from raftlog.http2 import Http2Stream, connect
from raftlog.model import Endpoint
from raftlog.ports import FileRegion
from raftlog.records.batch import encode as encode_batch
from raftlog.wire import (
    CONTENT_TYPE,
    FetchRequest,
    FetchResponse,
    ProducePartition,
    ProduceRequest,
    Request,
    Response,
    decode_response,
    encode,
)

PATIENCE_S = 30.0


def message_of(request: Request, *batches: bytes) -> bytes:
    """Return the whole message."""
    parts = encode(request, batches)
    assert not any(isinstance(part, FileRegion) for part in parts)
    return b"".join(parts)  # type: ignore[arg-type]


def produce_message(topic_id: bytes, partition: int, batch: bytes, *, acks: int = -1, number: int = 1) -> bytes:
    """A message with one batch to one partition."""
    return message_of(ProduceRequest(number, acks, 10_000, [ProducePartition(topic_id, partition, len(batch))]), batch)


def small_batch(*values: bytes, timestamp_ms: int = 1_700_000_000_000, **fields: int) -> bytes:
    return encode_batch(list(values), base_timestamp_ms=timestamp_ms, **fields)  # type: ignore[arg-type]


async def ask_raw(api: Endpoint, path: str, message: bytes) -> Response:
    """Send a message by HTTP/1.1. The answer must be a message."""
    response, _ = decode_response(await ask_raw_bytes(api, path, message))
    return response


async def ask_raw_bytes(api: Endpoint, path: str, message: bytes) -> bytes:
    """The same; returns the answer's bytes."""
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"http://{api}{path}", data=io.BytesIO(message), headers={"Content-Type": CONTENT_TYPE}) as answer,
    ):
        assert answer.status == 200, await answer.text()
        return await answer.read()


async def fetch_raw(api: Endpoint, request: FetchRequest) -> FetchResponse:
    """Fetch by HTTP/1.1."""
    response = await ask_raw(api, "/v1/fetch", message_of(request))
    assert isinstance(response, FetchResponse), response
    return response


class Talk:
    """One stream, driven by hand: sent messages, received messages, and its end."""

    def __init__(self) -> None:
        self.stream: Http2Stream
        self.messages: asyncio.Queue[bytes] = asyncio.Queue()
        self.closed: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def send(self, message: bytes) -> None:
        self.stream.send([message])

    async def answer(self) -> bytes:
        """The next message; fails if the stream ends first."""
        async with asyncio.timeout(PATIENCE_S):
            waiting = asyncio.ensure_future(self.messages.get())
            await asyncio.wait([waiting, self.closed], return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done():
                waiting.cancel()
                raise AssertionError(f"the stream ended: {self.closed.result()}")
            return waiting.result()

    async def ask(self, message: bytes) -> Response:
        self.send(message)
        return decode_response(await self.answer())[0]

    async def end(self) -> str:
        """The reason for the stream's end."""
        async with asyncio.timeout(PATIENCE_S):
            return await asyncio.shield(self.closed)

    # --- The stream's handler ---

    def on_message(self, stream: Http2Stream, message: memoryview) -> None:
        self.messages.put_nowait(bytes(message))

    def on_ended(self, stream: Http2Stream) -> None:
        stream.end()

    def on_closed(self, stream: Http2Stream, reason: str) -> None:
        if not self.closed.done():
            self.closed.set_result(reason)


@asynccontextmanager
async def talking(data: Endpoint, path: str) -> AsyncIterator[Talk]:
    """A connection to a data listener with one stream of this path."""
    connection = await connect(data.host, data.port)
    try:
        talk = Talk()
        talk.stream = connection.open_stream(path, {}, talk)
        yield talk
    finally:
        connection.close()
        await connection.wait_closed()
