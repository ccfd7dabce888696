"""Request bodies: bounded in bytes on the wire, in bytes once decompressed, and in time.

A body that is too large is refused (`body_too_large`) before it arrives if its length is announced, otherwise at the
first byte beyond the bound; so is a decompression bomb, because output is produced in bounded pieces. A body that
trickles is refused at its deadline (`slow_request`). The deadline moves with the bytes received, so that an honest
slow connection succeeds, unless its caller loses its credential or its right meanwhile.

The binary messages of `raftlog/wire.py` are read here as HTTP/1.1 bodies, too.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator
from typing import TypeVar

import msgspec
from aiohttp import web

from http_api.service.access import Usage
from raftlog.errors import CorruptBatch, InvalidRequest, RetriableError
from raftlog.json_values import JSON_ERRORS, json_refused
from raftlog.records.compression import ContentTooLarge, decompress
from raftlog.records.header import Codec
from raftlog.wire import CONTENT_TYPE, FetchRequest, OffsetsRequest, ProduceRequest, Response, decode_request, encode

from .call import Call
from .context import ApiContext
from .expectations import let_send
from .limits import OFFLOAD_BYTES, SMALL_BODY_BYTES
from .problems import ApiError
from .quotas import charge_body
from .revocation import Revocation

T = TypeVar("T")

JSON_TYPE = "application/json"
_ENCODINGS = "gzip, zstd, deflate, identity"
_MOST_GZIP_MEMBERS = 64
"""Each member copies the rest of the body: thousands of empty members would cost work without any output."""


def content_type(call: Call, *, allowed: tuple[str, ...]) -> str:
    """Return the body's media type, one of `allowed`. Raises `InvalidRequest("unsupported_media_type")`."""
    request = call.request
    given = request.headers.get("Content-Type")
    # Not `request.content_type`: it reads an invalid media type as `application/octet-stream`.
    media_type = (given or "").partition(";")[0].strip().lower()
    if media_type not in allowed:
        found = "missing" if given is None else repr(given[:128])
        raise InvalidRequest("unsupported_media_type", f"Content-Type is {found}; it must be {' or '.join(allowed)}")
    charset = request.charset or "utf-8"
    if charset.lower() not in {"utf-8", "utf8", "us-ascii", "ascii"}:
        raise InvalidRequest("unsupported_media_type", f"charset is {charset[:64]!r}; only utf-8 is supported")
    return media_type


async def read_body(call: Call, most: int | None = None) -> bytes:
    """Return the whole body, decompressed, of at most `most` bytes, to a caller that still has the route's right (S12).

    Raises `InvalidRequest` (`body_too_large`, `unsupported_media_type`, `invalid_request`, `authorization_failed`) or
    `RetriableError` (`slow_request`, `overloaded`).
    """
    request, context = call.request, call.context
    _check_transfer_coding(request)
    encoding = _content_encoding(request)
    limit = min(most or context.limits.max_body_bytes, context.limits.max_body_bytes)
    if (request.content_length or 0) > limit:
        raise _too_large(limit)
    await let_send(request)
    body = await _read_in_time(call, limit)
    if encoding == "zstd":
        # A frame says beforehand how much room its content needs at most, so that it is decompressed in one call.
        body = await context.threads.run(OFFLOAD_BYTES + 1, _decompress_zstd, body, limit)
        context.hold(request, len(body))
    elif encoding != "identity":
        body = await _decompress(request, context, Inflater(body, encoding, limit))
    call.check_again()
    return body


async def body_pieces(call: Call) -> AsyncIterator[bytes]:
    """Yield a body of any length as it arrives, to a caller that has the route's right each time (S12). A caller that
    has used up its quota of bytes waits for the next piece.

    Raises `InvalidRequest` (`unsupported_media_type`, `invalid_request`, `authorization_failed`, `unauthenticated`) or
    `RetriableError` (`slow_request` when nothing arrives for `stream_idle_timeout_s`, `shutting_down`).
    """
    request, context = call.request, call.context
    _check_transfer_coding(request)
    if _content_encoding(request) != "identity":
        raise InvalidRequest("unsupported_media_type", "a stream of records cannot be compressed")
    await let_send(request)
    while piece := await _next_piece(call):
        charge_body(call.caller, context, len(piece))
        call.check_again()
        yield piece
        while (delay_s := call.service.access.delay_s(call.caller, Usage.BYTES_IN)) > 0:
            await asyncio.sleep(min(delay_s, 1.0))
            call.check_again()


async def _next_piece(call: Call) -> bytes:
    """Return what has arrived, empty at the end of the body. Raises as `body_pieces`."""
    context = call.context
    timeout = asyncio.timeout(context.limits.stream_idle_timeout_s)
    revoked = Revocation(timeout)
    unwatch = call.watch(revoked)
    context.polls.add(timeout)
    try:
        async with timeout:
            piece = await call.request.content.readany()
    except TimeoutError:
        if revoked.error is not None:
            raise revoked.error from None
        if context.closing:
            raise RetriableError("shutting_down", "the node is shutting down") from None
        idle_s = context.limits.stream_idle_timeout_s
        raise RetriableError("slow_request", f"nothing has arrived for {idle_s:.0f} s") from None
    except web.RequestPayloadError as error:
        raise InvalidRequest("invalid_request", f"the body's framing is broken: {str(error)[:200]}") from None
    finally:
        unwatch()
        context.polls.discard(timeout)
    if revoked.error is not None:
        raise revoked.error
    return piece


async def read_json(call: Call, model: type[T]) -> T:
    """Return the body, a small one, as a `model`. Raises as `read_body` and `decode_json`."""
    content_type(call, allowed=(JSON_TYPE,))
    return decode_json(await read_body(call, SMALL_BODY_BYTES), model)


def decode_json(body: bytes, model: type[T]) -> T:
    """Decode `body` as a `model`. Raises `InvalidRequest`: `invalid_json` if it is not JSON, `invalid_request` if it
    has another shape."""
    try:
        return msgspec.json.decode(body, type=model)
    except JSON_ERRORS as error:
        raise json_refused(error) from None


async def _read_in_time(call: Call, limit: int) -> bytes:
    request, context = call.request, call.context
    content = request.content
    if content.is_eof() and content.exception() is None:
        # A small body arrives with the head: there is nothing to wait for.
        body = content.read_nowait()
        charge_body(call.caller, context, len(body))
        if len(body) > limit:
            raise _too_large(limit)
        context.hold(request, len(body))
        return body
    limits = context.limits
    loop = asyncio.get_running_loop()
    started = loop.time()
    chunks: list[bytes] = []
    received = 0
    timeout = asyncio.timeout_at(started + limits.body_timeout_s)
    revoked = Revocation(timeout)
    unwatch = call.watch(revoked)
    try:
        async with timeout as deadline:
            while chunk := await content.readany():
                received += len(chunk)
                charge_body(call.caller, context, len(chunk))
                if received > limit:
                    raise _too_large(limit)
                context.hold(request, len(chunk))
                chunks.append(chunk)
                deadline.reschedule(started + limits.body_timeout_s + received / limits.body_min_bytes_per_s)
    except TimeoutError:
        if revoked.error is not None:
            raise revoked.error from None
        raise RetriableError(
            "slow_request", f"after {loop.time() - started:.1f} s only {received} bytes of the body had arrived"
        ) from None
    except web.RequestPayloadError as error:
        raise InvalidRequest("invalid_request", f"the body's framing is broken: {str(error)[:200]}") from None
    finally:
        unwatch()
    if revoked.error is not None:
        raise revoked.error
    return await context.threads.run(received, b"".join, chunks)


def _check_transfer_coding(request: web.Request) -> None:
    """Refuse other transfer codings than `chunked`: aiohttp removes that one, and would take any coding below it for
    the body itself."""
    given = request.headers.get("Transfer-Encoding", "chunked")
    if given.strip().lower() != "chunked":
        raise InvalidRequest("invalid_request", f"Transfer-Encoding is {given[:64]!r}; only chunked is supported")


def _content_encoding(request: web.Request) -> str:
    given = ",".join(request.headers.getall("Content-Encoding", ["identity"])).strip().lower()
    if given in {"gzip", "x-gzip"}:
        return "gzip"
    if given in {"deflate", "zstd", "identity"}:
        return given
    raise ApiError(
        "unsupported_media_type",
        f"Content-Encoding is {given[:64]!r}; it must be gzip, zstd or deflate, once",
        headers={"Accept-Encoding": _ENCODINGS},
    )


async def _decompress(request: web.Request, context: ApiContext, inflater: Inflater) -> bytes:
    """Decompress the first `OFFLOAD_BYTES` of a small body here and the rest in a thread: its final size is unknown."""
    pieces = [await context.threads.run(inflater.compressed, inflater.read, OFFLOAD_BYTES)]
    context.hold(request, len(pieces[0]))
    while not inflater.ended:
        piece = await context.threads.run(OFFLOAD_BYTES + 1, inflater.read, 16 * OFFLOAD_BYTES)
        context.hold(request, len(piece))
        pieces.append(piece)
    return await context.threads.run(sum(map(len, pieces)), b"".join, pieces)


def _decompress_zstd(body: bytes, limit: int) -> bytes:
    try:
        return bytes(decompress(Codec.ZSTD, memoryview(body), limit))
    except ContentTooLarge:
        raise _too_large(limit) from None
    except CorruptBatch as error:
        raise InvalidRequest("invalid_request", f"the zstd body is not one frame: {error.detail}"[:300]) from None


class Inflater:
    """A compressed body, decompressed in pieces up to `limit` bytes."""

    def __init__(self, body: bytes, encoding: str, limit: int) -> None:
        self.ended = False
        self.compressed = len(body)
        """The size of the compressed body in bytes."""
        self._rest = body
        self._encoding = encoding
        self._limit = limit
        self._produced = 0
        self._members = 1
        self._inflate = self._member()

    def read(self, most: int) -> bytes:
        """Return up to `most` further bytes. Raises `InvalidRequest` if the body is broken, truncated or beyond the
        limit."""
        pieces: list[bytes] = []
        room = most
        try:
            while room > 0 and not self.ended:
                piece = self._inflate.decompress(self._rest, room)
                self._rest = self._inflate.unconsumed_tail
                pieces.append(piece)
                room -= len(piece)
                self._produced += len(piece)
                if self._produced > self._limit:
                    raise _too_large(self._limit)
                if self._inflate.eof:
                    self._next_member()
                elif not piece and not self._rest:
                    raise InvalidRequest("invalid_request", f"the {self._encoding} body ends too early")
        except zlib.error as error:
            raise InvalidRequest("invalid_request", f"the {self._encoding} body is broken: {error}") from None
        return b"".join(pieces)

    def _next_member(self) -> None:
        """Begin the next member of a gzip body, which may consist of several (RFC 1952, 2.2)."""
        self._rest = self._inflate.unused_data
        if not self._rest:
            self.ended = True
        elif self._encoding == "gzip" and self._members < _MOST_GZIP_MEMBERS:
            self._members += 1
            self._inflate = self._member()
        else:
            raise InvalidRequest("invalid_request", f"there are bytes after the {self._encoding} body")

    def _member(self) -> zlib._Decompress:
        if self._encoding == "gzip":
            return zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
        # "deflate" is the zlib format (RFC 9110, 8.4.1.2), but some send the bare stream.
        head = self._rest[:2]
        is_zlib = len(head) == 2 and head[0] & 0x0F == 8 and int.from_bytes(head, "big") % 31 == 0
        return zlib.decompressobj(wbits=zlib.MAX_WBITS if is_zlib else -zlib.MAX_WBITS)


def _too_large(limit: int) -> InvalidRequest:
    return InvalidRequest("body_too_large", f"a body may have at most {limit} bytes here, compressed or decompressed")


R = TypeVar("R", ProduceRequest, FetchRequest, OffsetsRequest)


async def read_message(call: Call, kind: type[R], most: int | None = None) -> tuple[R, memoryview]:
    """Return head and body of a request of this kind. Raises as `read_body`, and `InvalidRequest`."""
    content_type(call, allowed=(CONTENT_TYPE,))
    return decode_message(await read_body(call, most), kind)


def decode_message(body: bytes, kind: type[R]) -> tuple[R, memoryview]:
    """Decode a request of this kind into its head and body. Raises `InvalidRequest`."""
    message, rest = decode_request(body)
    if not isinstance(message, kind):
        raise InvalidRequest("invalid_request", f"this path accepts a {kind.__name__}, not a {type(message).__name__}")
    return message, rest


def raw_reply(answer: Response) -> web.Response:
    """Return an answer that carries no batches."""
    (head,) = encode(answer)
    assert isinstance(head, bytes)
    return web.Response(body=head, content_type=CONTENT_TYPE)
