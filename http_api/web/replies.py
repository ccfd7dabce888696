"""JSON answers, and sending: every piece of an answer has a deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ParamSpec, TypeVar

import msgspec
from aiohttp import web

from raftlog import json_values as codec
from raftlog.errors import RaftlogError
from raftlog.model import NO_BROKER
from raftlog.ports import Buffer

from .bodies import JSON_TYPE
from .call import CALL, Call
from .compression import coding_of, compressed
from .context import ApiContext
from .limits import PIECE_BYTES
from .revocation import cut_when_revoked

D = TypeVar("D", bound=msgspec.Struct)
P = ParamSpec("P")

GZIP_FROM_BYTES = 1024
"""Smaller bodies fit into one packet uncompressed."""
_COMPRESSION_COST = 16
"""Compressing a byte takes about as long as parsing this number of bytes; larger bodies are compressed in a thread."""


def json_reply(document: Any, *, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    """Return a JSON answer."""
    return web.Response(status=status, body=codec.encode(document), content_type=JSON_TYPE, headers=headers)


def known(broker_id: int) -> int | None:
    """Return the broker id, or None (null in JSON) for no broker."""
    return None if broker_id == NO_BROKER else broker_id


def document_of(kind: type[D], record: object, **members: Any) -> D:
    """Return the document with these members; the others are the record's attributes of the same names."""
    taken = {name: getattr(record, name) for name in kind.__struct_fields__ if name not in members}
    return msgspec.convert(taken | members, kind)


async def encoded_reply(
    call: Call, cost: int, encode: Callable[P, bytes], *arguments: P.args, **named: P.kwargs
) -> web.Response:
    """Return what `encode(...)` makes of a larger JSON answer; it takes about as long as parsing `cost` bytes."""
    return await bulk_reply(call, await call.context.threads.run(cost, encode, *arguments, **named))


async def bulk_reply(
    call: Call, body: bytes, media_type: str = JSON_TYPE, headers: Mapping[str, str] | None = None
) -> web.Response:
    """Return a larger answer, compressed if the client accepts that."""
    response = web.Response(content_type=media_type, headers={"Vary": "Accept-Encoding", **(headers or {})})
    coding = coding_of(call.request.headers.get("Accept-Encoding", "")) if len(body) >= GZIP_FROM_BYTES else ""
    if coding:
        body = await call.context.threads.run(_COMPRESSION_COST * len(body), compressed, coding, body)
        response.headers["Content-Encoding"] = coding
    response.body = body
    return response


async def send_in_time(request: web.Request, context: ApiContext, response: web.Response) -> web.StreamResponse:
    """Send an answer within its deadline.

    Raises `ConnectionResetError` if the client reads too slowly, or may no longer read it.
    """
    body = response.body if isinstance(response.body, bytes) else b""
    sent: web.StreamResponse = response
    if len(body) <= GZIP_FROM_BYTES and _has_no_backlog(request):
        # The transport takes it whole, so there is nothing to wait for.
        await response.prepare(request)
        await response.write_eof()
        return response
    try:
        with _cut_when_revoked(request, response):
            if len(body) <= PIECE_BYTES:
                async with asyncio.timeout(write_deadline(context, len(body))):
                    await response.prepare(request)
                    await response.write_eof()
            else:
                # In one piece it would be copied twice before its first byte is sent.
                sent = web.StreamResponse(status=response.status, headers=response.headers)
                sent.content_length = len(body)
                async with asyncio.timeout(write_deadline(context, 0)):
                    await sent.prepare(request)
                await write_in_time(sent, context, body)
                await sent.write_eof()
    except (RaftlogError, TimeoutError) as error:
        if request.transport is not None:
            request.transport.abort()
        reason = error.detail if isinstance(error, RaftlogError) else "the client did not read the answer in time"
        raise ConnectionResetError(reason) from None
    return sent


def _cut_when_revoked(request: web.Request, response: web.Response) -> AbstractContextManager[None]:
    """Return the watch over the sending of what was read. A caller that loses its right
    meanwhile, perhaps by its own change, still gets a refusal, or the outcome of that change."""
    call = request.get(CALL)
    is_read = request.method in ("GET", "HEAD") and response.status < 400
    return cut_when_revoked(call) if call is not None and is_read else nullcontext()


def _has_no_backlog(request: web.Request) -> bool:
    """Return whether everything written before has reached the socket."""
    transport = request.transport
    return transport is not None and not transport.get_write_buffer_size()


async def write_in_time(response: web.StreamResponse, context: ApiContext, data: Buffer) -> None:
    """Write bytes in pieces, each with its deadline. Raises `TimeoutError`, `ConnectionError`."""
    view = memoryview(data).cast("B")
    for start in range(0, view.nbytes, PIECE_BYTES):
        piece = view[start : start + PIECE_BYTES]
        async with asyncio.timeout(write_deadline(context, piece.nbytes)):
            await response.write(piece)


def write_deadline(context: ApiContext, size: int) -> float:
    """Return the seconds that a client has to read this many bytes."""
    return context.limits.write_timeout_s + size / context.limits.write_min_bytes_per_s
