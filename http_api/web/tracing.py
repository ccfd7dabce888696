"""The trace that a request belongs to."""

from __future__ import annotations

from aiohttp import web

from raftlog.trace_context import TRACEPARENT, TRACESTATE, TraceContext, parse


def trace_of_request(request: web.Request) -> TraceContext | None:
    """Return the trace context of the HTTP headers; None if there is none, or it is invalid or ambiguous."""
    given = request.headers.getall(TRACEPARENT, [])
    if len(given) != 1:
        return None
    # Several headers are one list (RFC 9110, 5.3).
    return parse(given[0].strip(), ",".join(request.headers.getall(TRACESTATE, [])))
