"""Answers in JSON. What is *not* here: problems (`problems.py`), streams (`fetch.py`)."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from . import codec
from .bodies import JSON_TYPE
from .context import ApiContext

GZIP_FROM_BYTES = 1024
"""Smaller bodies fit a packet as they are."""
_GZIP_LEVEL = 1
"""JSON of records shrinks to a fraction at the fastest level already."""
_GZIP_COST = 16
"""Compressing a byte takes about as long as parsing so many: larger bodies are compressed in a thread."""


def json_reply(document: Any, *, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    """A JSON answer."""
    return web.Response(status=status, body=codec.encode(document), content_type=JSON_TYPE, headers=headers)


async def bulk_reply(
    request: web.Request, context: ApiContext, body: bytes, media_type: str, headers: Mapping[str, str]
) -> web.Response:
    """A larger answer, compressed for those who accept that."""
    response = web.Response(content_type=media_type, headers={**headers, "Vary": "Accept-Encoding"})
    if len(body) >= GZIP_FROM_BYTES and accepts_gzip(request.headers.get("Accept-Encoding", "")):
        body = await context.threads.run(_GZIP_COST * len(body), _gzip, body)
        response.headers["Content-Encoding"] = "gzip"
    response.body = body
    return response


def accepts_gzip(accept_encoding: str) -> bool:
    """Whether an `Accept-Encoding` header asks for gzip by name (RFC 9110, 12.5.3)."""
    for choice in accept_encoding.lower().split(","):
        name, _, parameters = choice.partition(";")
        if name.strip() in {"gzip", "x-gzip"}:
            return parameters.replace(" ", "") not in {"q=0", "q=0.0", "q=0.00", "q=0.000"}
    return False


def _gzip(body: bytes) -> bytes:
    compressor = zlib.compressobj(_GZIP_LEVEL, wbits=16 + zlib.MAX_WBITS)
    return compressor.compress(body) + compressor.flush()
