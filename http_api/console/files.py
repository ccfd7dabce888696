"""The files of the console, as they are in the package (`web/static_files.py`)."""

from __future__ import annotations

from importlib import resources

from aiohttp import web

from http_api.web.call import Call
from http_api.web.static_files import INDEX, StaticFile, StaticFiles

CONSOLE = "/console"

CONTENT_SECURITY_POLICY = (
    "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
"""No script or style in the page itself, none from elsewhere, and no text that becomes markup: whatever the bytes of a
record are, they stay text (CSP Level 3, Trusted Types)."""

_FILES = StaticFiles(resources.files("http_api") / "console" / "static", CONTENT_SECURITY_POLICY)


def console_files() -> dict[str, StaticFile]:
    """Return all files by name. They are read and compressed once."""
    return _FILES.files


async def redirect(call: Call) -> web.StreamResponse:
    """Lead to the folder."""
    return _FILES.redirect("console/")


async def send_index(call: Call) -> web.StreamResponse:
    """Return the page."""
    return _FILES.reply(call, INDEX)


async def send_file(call: Call) -> web.StreamResponse:
    """Return a file that the page names."""
    return _FILES.reply(call, call.segment("file"))
