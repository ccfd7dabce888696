"""The files of the console, as they are in the package.

They hold no data and are served without a credential, so that the form for signing in can be shown. All that the
console shows comes from the public API, with the user's own credential and rights (S12).
"""

from __future__ import annotations

import functools
import gzip
import hashlib
from importlib import resources

import msgspec
from aiohttp import web

from http_api.web.call import Call
from http_api.web.replies import GZIP_FROM_BYTES, accepts_gzip

CONSOLE = "/console"
INDEX = "index.html"

CONTENT_SECURITY_POLICY = (
    "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
"""No script or style in the page itself, none from elsewhere, and no text that becomes markup: whatever the bytes of a
record are, they stay text (CSP Level 3, Trusted Types)."""

HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
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


class ConsoleFile(msgspec.Struct, frozen=True):
    """One file, ready to be sent."""

    content: bytes
    compressed: bytes | None
    """The same in gzip, where that is worth it."""
    media_type: str
    etag: str


@functools.cache
def console_files() -> dict[str, ConsoleFile]:
    """Return all files by name. They are read and compressed once."""
    found = {}
    for entry in (resources.files("http_api") / "console" / "static").iterdir():
        kind = "." + entry.name.rpartition(".")[2]
        if kind in _TYPES:
            content = entry.read_bytes()
            compressed = gzip.compress(content, mtime=0) if len(content) >= GZIP_FROM_BYTES else None
            tag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
            found[entry.name] = ConsoleFile(content, compressed, _TYPES[kind], tag)
    return found


async def redirect(call: Call) -> web.StreamResponse:
    """Lead to the folder, against which the names in the page count; the target is relative, for proxies' sake."""
    return web.Response(status=308, headers={**HEADERS, "Location": "console/"})


async def send_index(call: Call) -> web.StreamResponse:
    """Return the page."""
    return _reply(call, INDEX)


async def send_file(call: Call) -> web.StreamResponse:
    """Return a file that the page names."""
    return _reply(call, call.segment("file"))


def _reply(call: Call, name: str) -> web.Response:
    file = console_files().get(name)
    if file is None:
        raise web.HTTPNotFound
    asked = call.request.headers
    headers = {**HEADERS, "ETag": file.etag}
    if file.etag in asked.get("If-None-Match", ""):
        return web.Response(status=304, headers=headers)
    body = file.content
    if file.compressed is not None and accepts_gzip(asked.get("Accept-Encoding", "")):
        body = file.compressed
        headers["Content-Encoding"] = "gzip"
    return web.Response(body=body, content_type=file.media_type, charset="utf-8", headers=headers)
