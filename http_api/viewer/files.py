"""The pages that show the OpenAPI documents, as they are in the package (`web/static_files.py`)."""

from __future__ import annotations

from importlib import resources

from aiohttp import web

from http_api.web.call import Call
from http_api.web.static_files import INDEX, StaticFile, StaticFiles

VIEWER = "/docs"

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'"
)
"""No script or style in a page itself, and none from elsewhere. Swagger UI's style sheet has its images in itself; it
makes markup of descriptions, which come from this package, so Trusted Types are not required."""

_FILES = StaticFiles(resources.files("http_api") / "viewer" / "static", CONTENT_SECURITY_POLICY)


def viewer_files() -> dict[str, StaticFile]:
    """Return all files by name. They are read once."""
    return _FILES.files


async def redirect(call: Call) -> web.StreamResponse:
    """Lead to the folder."""
    return _FILES.redirect("docs/")


async def send_index(call: Call) -> web.StreamResponse:
    """Return the page of the native API's document."""
    return _FILES.reply(call, INDEX)


async def send_file(call: Call) -> web.StreamResponse:
    """Return a file that a page names, or another page."""
    return _FILES.reply(call, call.segment("file"))
