"""Messages of `raftlog/wire.py` as HTTP/1.1 bodies. What is *not* here: what they mean."""

from __future__ import annotations

from typing import TypeVar

from aiohttp import web

from raftlog.errors import InvalidRequest
from raftlog.wire import CONTENT_TYPE, FetchRequest, OffsetsRequest, ProduceRequest, Response, decode_request, encode

R = TypeVar("R", ProduceRequest, FetchRequest, OffsetsRequest)


def decode_message(body: bytes, kind: type[R]) -> tuple[R, memoryview]:
    """Head and body of a request of this kind. Raises `InvalidRequest`."""
    message, rest = decode_request(body)
    if not isinstance(message, kind):
        raise InvalidRequest("invalid_request", f"this path takes a {kind.__name__}, not a {type(message).__name__}")
    return message, rest


def raw_reply(answer: Response) -> web.Response:
    """An answer without a body of batches."""
    (head,) = encode(answer)
    assert isinstance(head, bytes)
    return web.Response(body=head, content_type=CONTENT_TYPE)
