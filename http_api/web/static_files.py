"""Files of the package that pages are made of, as they are in a folder.

They hold no data and are served without a credential, so that a form for signing in can be shown. All that a page
shows comes from the public API, with the user's own credential and rights (S12).
"""

from __future__ import annotations

import functools
import gzip
import hashlib
from collections.abc import Mapping
from importlib.resources.abc import Traversable

from aiohttp import web

from .call import Call
from .compression import accepts_gzip
from .replies import GZIP_FROM_BYTES

INDEX = "index.html"

HEADERS = {
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-cache",  # The browser asks each time, and gets 304: no page of another version stays.
    "Vary": "Accept-Encoding",
}

_TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
    ".txt": "text/plain",
}
_COMPRESSED = ".gz"


class StaticFile:
    """One file, ready to be sent."""

    def __init__(self, stored: bytes, media_type: str, *, is_compressed: bool) -> None:
        """`stored`: the file's bytes, in gzip if `is_compressed`."""
        self.media_type = media_type
        self.etag = f'"{hashlib.sha256(stored).hexdigest()[:16]}"'
        self._stored = stored
        self._is_compressed = is_compressed
        self.compressed: bytes | None = stored if is_compressed else None
        """The content in gzip, where that is worth it."""
        if not is_compressed and len(stored) >= GZIP_FROM_BYTES:
            self.compressed = gzip.compress(stored, mtime=0)

    @property
    def content(self) -> bytes:
        """The content. A large file is decompressed each time: almost every client accepts gzip."""
        return gzip.decompress(self._stored) if self._is_compressed else self._stored


class StaticFiles:
    """The files of one folder, by name. A file that is stored as `NAME.gz` is served as NAME."""

    def __init__(self, folder: Traversable, policy: str) -> None:
        """`policy`: the Content-Security-Policy of its pages."""
        self.headers: Mapping[str, str] = {"Content-Security-Policy": policy, **HEADERS}
        self._folder = folder

    @functools.cached_property
    def files(self) -> dict[str, StaticFile]:
        """All files by name. They are read and compressed once."""
        found = {}
        for entry in self._folder.iterdir():
            name = entry.name.removesuffix(_COMPRESSED)
            media_type = _TYPES.get("." + name.rpartition(".")[2])
            if media_type is not None:
                found[name] = StaticFile(entry.read_bytes(), media_type, is_compressed=name != entry.name)
        return found

    def redirect(self, to: str) -> web.Response:
        """Lead to the folder, against which the names in a page count; the target is relative, for proxies' sake."""
        return web.Response(status=308, headers={**self.headers, "Location": to})

    def reply(self, call: Call, name: str) -> web.Response:
        """Return a file. Raises `HTTPNotFound`."""
        file = self.files.get(name)
        if file is None:
            raise web.HTTPNotFound
        asked = call.request.headers
        headers = {**self.headers, "ETag": file.etag}
        if file.etag in asked.get("If-None-Match", ""):
            return web.Response(status=304, headers=headers)
        if file.compressed is not None and accepts_gzip(asked.get("Accept-Encoding", "")):
            body = file.compressed
            headers["Content-Encoding"] = "gzip"
        else:
            body = file.content
        return web.Response(body=body, content_type=file.media_type, charset="utf-8", headers=headers)
