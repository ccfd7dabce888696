"""Documents of the package that are served byte for byte: their entity tag, and their compressed form."""

from __future__ import annotations

import functools
import gzip
import hashlib

from aiohttp import web

from .bodies import JSON_TYPE
from .call import Call
from .compression import accepts_gzip


class StaticDocument:
    """A JSON document."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._etag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'

    def reply(self, call: Call) -> web.StreamResponse:
        """Return the document, compressed if the client accepts that, or 304 if the client has it."""
        headers = {"ETag": self._etag, "Vary": "Accept-Encoding"}
        if self._etag in call.request.headers.get("If-None-Match", ""):
            return web.Response(status=304, headers=headers)
        if not accepts_gzip(call.request.headers.get("Accept-Encoding", "")):
            return web.Response(body=self._content, content_type=JSON_TYPE, headers=headers)
        headers["Content-Encoding"] = "gzip"
        return web.Response(body=self._compressed, content_type=JSON_TYPE, headers=headers)

    @functools.cached_property
    def _compressed(self) -> bytes:
        return gzip.compress(self._content, mtime=0)
