"""HTTP requests that know how much of their answer has arrived."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from jepsen_like.clients.http_requests import CUT_FROM_BYTES, Broken, NotSent, exchange

Answer = Callable[[bytes, asyncio.StreamWriter], Awaitable[None]]
LONG = b"x" * (8 * CUT_FROM_BYTES)


@asynccontextmanager
async def server(answer: Answer) -> AsyncIterator[str]:
    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await answer(await reader.readuntil(b"\r\n\r\n"), writer)
            await writer.drain()
            await reader.read()
        except ConnectionError:
            pass  # the client has cut
        finally:
            writer.transport.abort()
            ended.set()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    host, port = listening.sockets[0].getsockname()
    try:
        yield f"{host}:{port}"
        await asyncio.wait_for(ended.wait(), 10)
    finally:
        listening.close()


def with_body(body: bytes, length: int | None = None) -> Answer:
    async def answer(head: bytes, writer: asyncio.StreamWriter) -> None:
        told = len(body) if length is None else length
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % told + body)
        if length is not None:
            writer.close()

    return answer


async def test_a_whole_answer_is_returned() -> None:
    heads = []

    async def answer(head: bytes, writer: asyncio.StreamWriter) -> None:
        heads.append(head)
        writer.write(b"HTTP/1.1 404 Not Found\r\nContent-")
        await writer.drain()
        writer.write(b"Length: 2\r\n\r\n{}")

    async with server(answer) as address:
        told = await exchange(address, "POST", "/a", {"Accept": "b"}, b"", seconds=10)
    assert (told.status, told.body) == (404, b"{}")
    assert heads == [f"POST /a HTTP/1.1\r\nHost: {address}\r\nAccept: b\r\nContent-Length: 0\r\n\r\n".encode()]


@pytest.mark.parametrize("cut", ["reset", "end"])
async def test_a_long_answer_is_cut_and_a_short_one_is_not(cut: str) -> None:
    async with server(with_body(LONG)) as address:
        with pytest.raises(Broken, match=f"cut by {cut} after .* of {len(LONG)} bytes"):
            await exchange(address, "GET", "/", {}, seconds=10, cut=cut)  # type: ignore[arg-type]
    async with server(with_body(b"short")) as address:
        assert (await exchange(address, "GET", "/", {}, seconds=10, cut=cut)).body == b"short"  # type: ignore[arg-type]


async def test_an_answer_that_ends_early_or_never_comes_is_broken() -> None:
    async with server(with_body(b"half", length=8)) as address:
        with pytest.raises(Broken, match="ended the connection after 4 of 8 bytes"):
            await exchange(address, "GET", "/", {}, seconds=10)

    async def silent(head: bytes, writer: asyncio.StreamWriter) -> None:
        """Answer nothing."""

    async with server(silent) as address:
        with pytest.raises(Broken, match=r"no answer within 0\.1 s: nothing"):
            await exchange(address, "GET", "/", {}, seconds=0.1)
    with pytest.raises(NotSent):
        await exchange(address, "GET", "/", {}, seconds=10)
