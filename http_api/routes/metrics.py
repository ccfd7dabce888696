"""The handler of `/metrics`."""

from __future__ import annotations

from aiohttp import web

from http_api.web.call import Call


async def show_metrics(call: Call) -> web.StreamResponse:
    """Return the node's metrics in Prometheus's text format, or as OpenMetrics if the client accepts it."""
    text, content_type = await call.context.exposition.text(call.request.headers.get("Accept", ""))
    return web.Response(body=text, headers={"Content-Type": content_type})
