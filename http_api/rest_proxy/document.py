"""`GET /openapi/rest-proxy.json`: the OpenAPI document of the REST Proxy API."""

from __future__ import annotations

from importlib import resources

from aiohttp import web

from http_api.web.call import Call
from http_api.web.documents import StaticDocument

OPENAPI: bytes = (resources.files("http_api.rest_proxy") / "openapi.json").read_bytes()
_DOCUMENT = StaticDocument(OPENAPI)


async def rest_proxy_document(call: Call) -> web.StreamResponse:
    """Return the document."""
    return _DOCUMENT.reply(call)
