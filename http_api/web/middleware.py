"""The middleware of every request: its id, the check of host and origin, the bound on requests, errors, write
deadlines.

Every answer leaves from here, and every failure becomes a problem document here: a `RaftlogError` with its own code,
aiohttp's refusals with theirs, anything unexpected as `internal_error` with a log line that the request id finds.
Bytes that are not HTTP are answered in `server.py`.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Awaitable, Callable

import structlog
from aiohttp import web
from aiohttp.http import HttpVersion11

from raftlog.errors import InvalidRequest, InvariantViolation, RaftlogError, RetriableError

from .authentication import authenticate, recognize
from .context import ApiContext, context_of
from .expectations import check_expectation, is_body_unsent
from .limits import COUNTED_ANSWER_BYTES
from .problems import error_of_http, problem
from .quotas import admit, charge_answer
from .replies import send_in_time
from .tracing import trace_of_request

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

ALWAYS_ANSWERED = frozenset({"/v1/health", "/v1/live", "/v1/ready"})
"""Monitoring must get an answer from an overloaded node, too."""

SHELL = frozenset({"/console", "/console/", "/console/{file}", "/docs", "/docs/", "/docs/{file}"})
"""The files of the console and of the documents' viewer hold no data, and must be there before anybody can sign in:
they need no credential, whether one is given or not."""

METRICS_PATH = "/metrics"
"""Served beyond the bound on requests: scrapes that arrive together cost as much as one (`metrics/exposition.py`)."""

ANSWERED_WITHOUT_VIEW = frozenset({"/v1/quorum", "/openapi.json", METRICS_PATH})
"""Answered before the node knows the cluster: they explain why it does not."""

REQUEST_ID: web.RequestKey[str] = web.RequestKey("request_id", str)
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,64}")
_EXPOSED = (
    "X-Request-Id, Retry-After, WWW-Authenticate, Location, ETag, Preference-Applied, "
    "X-Raftlog-Next-Offset, X-Raftlog-High-Watermark, "
    "X-Raftlog-Last-Stable-Offset, X-Raftlog-Log-Start-Offset, X-Raftlog-Leader-Epoch"
)
_PREFLIGHT_S = 600

_ids = random.Random()
"""Request ids must be distinct, not secret: the system's random numbers would cost a system call each."""

_log = structlog.get_logger(__name__)


def request_id_of(request: web.BaseRequest) -> str:
    """Return the client's `X-Request-Id` if it is valid, otherwise a new id; the same for the whole request."""
    known = request.get(REQUEST_ID)
    if known is None:
        given = request.headers.get("X-Request-Id", "")
        known = given if given and _REQUEST_ID.fullmatch(given) else f"{_ids.getrandbits(64):016x}"
        request[REQUEST_ID] = known
    return known


@web.middleware
async def answer_request(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer a request; the outermost middleware."""
    context = context_of(request)
    loop = asyncio.get_running_loop()
    started = loop.time()
    # A request has a task of its own, so these context variables end with it.
    structlog.contextvars.bind_contextvars(request_id=request_id_of(request))
    trace = trace_of_request(request)
    if trace is not None:
        structlog.contextvars.bind_contextvars(trace_id=trace.trace_id)
    try:
        response = _counted(request, context, await _respond(request, handler, context))
        _close_after(request, response)
        if isinstance(response, web.Response) and not response.prepared:
            response = await send_in_time(request, context, response)
    finally:
        context.release(request)
    seconds = loop.time() - started
    resource = request.match_info.route.resource
    sent = response.content_length or (response.body_length if response.prepared else 0)
    context.counts.answered(
        request.method,
        None if resource is None else resource.canonical,
        response.status,
        seconds,
        request.content_length or 0,
        sent,
    )
    elapsed_ms = round(1000 * seconds, 1)
    context.log.debug(
        "request", method=request.method, path=request.path, status=response.status, elapsed_ms=elapsed_ms
    )
    return response


async def _respond(request: web.Request, handler: Handler, context: ApiContext) -> web.StreamResponse:
    """Return the handler's answer, or a problem document."""
    try:
        check_sender(request, context)
        if _is_preflight(request):
            return _preflight(request)
        if _is_always_answered(request):
            await recognize(request, context)
            return await handler(request)
        if _is_of(request, SHELL):
            return await counted(request, handler, context)
        return await bounded(request, handler, context)
    except RaftlogError as error:
        _log_error(request, error)
        return _refusal(request, context, error)
    except web.HTTPException as error:
        return _refusal(request, context, error_of_http(error, request.path))
    except ConnectionError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever it is, the client gets an answer and the log the traceback
        _log.error("request_failed", method=request.method, path=request.path, exc_info=error)
        unexpected = RaftlogError("internal_error", "an unexpected error; the node's log has it under this request id")
        return _refusal(request, context, unexpected)


def _refusal(request: web.Request, context: ApiContext, error: RaftlogError) -> web.Response:
    """Return the answer to a failed request: a problem document, unless its API has another form."""
    request_id = request_id_of(request)
    return context.refuse(request, error, request_id) or problem(error, request_id)


def _counted(request: web.Request, context: ApiContext, response: web.StreamResponse) -> web.StreamResponse:
    """Return the answer once its bytes are counted, or a refusal if too many answers wait for their readers."""
    body = response.body if isinstance(response, web.Response) and not response.prepared else None
    if not isinstance(body, bytes) or len(body) <= COUNTED_ANSWER_BYTES or _is_always_answered(request):
        return response
    changed_nothing = request.method in ("GET", "HEAD") or response.status >= 400
    try:
        context.hold_answer(request, len(body), refusable=changed_nothing)
    except RetriableError as error:
        _log_error(request, error)
        return _refusal(request, context, error)
    return response


async def bounded(request: web.Request, handler: Handler, context: ApiContext) -> web.StreamResponse:
    """Find the caller, and count the request among the bounded number in progress, and among the caller's own."""
    if not context.closing and not context.service.knows_cluster and request.path not in ANSWERED_WITHOUT_VIEW:
        raise RetriableError("quorum_unavailable", "the node has just started and does not know the cluster yet")

    async def of_caller(request: web.Request) -> web.StreamResponse:
        caller = await authenticate(request, context)
        with context.request_of(caller, request):
            admit(request, caller, context)
            check_expectation(request)
            return await handler(request)

    return await counted(request, of_caller, context)


async def counted(request: web.Request, handler: Handler, context: ApiContext) -> web.StreamResponse:
    """Count the request among the bounded number in progress."""
    if context.closing:
        raise RetriableError("shutting_down", "the node is shutting down")
    most = context.limits.max_concurrent_requests
    if context.requests_under_way >= most and request.path != METRICS_PATH:
        raise RetriableError("overloaded", f"{most} requests are in progress, the maximum")
    context.requests_under_way += 1
    try:
        return await handler(request)
    finally:
        context.request_ended(request)


def check_sender(request: web.BaseRequest, context: ApiContext) -> None:
    """Check that the request names this node and, if it comes from a page, that the page is allowed. Raises
    `InvalidRequest`."""
    hosts = request.headers.getall("Host", [])
    origins = request.headers.getall("Origin", [])
    if request.version < HttpVersion11 and not hosts and not origins:
        return  # Health checks of load balancers omit the host; a browser always sends it.
    if len(hosts) != 1:
        raise InvalidRequest("invalid_request", f"a request must have one Host header, not {len(hosts)}")
    policy = context.policy
    if not policy.allows_host(hosts[0]):
        raise InvalidRequest(
            "host_not_allowed", f"Host {hosts[0][:128]!r} is not a name of this node; allowed_hosts can add it"
        )
    for origin in origins:
        if not policy.allows_origin(origin, hosts[0]):
            raise InvalidRequest(
                "origin_not_allowed", f"pages of {origin[:128]!r} may not use this API; allowed_origins can add them"
            )


def _is_always_answered(request: web.Request) -> bool:
    """Return whether everybody gets an answer. Other methods of these paths are refused like any unknown path."""
    return _is_of(request, ALWAYS_ANSWERED)


def _is_of(request: web.Request, paths: frozenset[str]) -> bool:
    """Return whether the request's method and path are those of a route with one of these paths."""
    resource = request.match_info.route.resource
    return resource is not None and resource.canonical in paths


def _is_preflight(request: web.Request) -> bool:
    """Return whether this is a CORS preflight: browsers send it without credentials (Fetch standard), and the answer is
    the same for every path."""
    headers = request.headers
    return request.method == "OPTIONS" and "Origin" in headers and "Access-Control-Request-Method" in headers


def _close_after(request: web.Request, response: web.StreamResponse) -> None:
    """Close the connection after an answer if the answer says so, or the rest of it is useless: a body of a caller that
    is not known, or one that the client was not told to send and may or may not send now."""
    if response.prepared:
        return
    refused = response.status == 401 and not request.content.is_eof()
    if is_body_unsent(request) or refused or response.headers.get("Connection") == "close":
        response.force_close()


def _preflight(request: web.Request) -> web.Response:
    """Answer a CORS preflight of an allowed page (Fetch standard)."""
    return web.Response(
        status=204,
        headers={
            "Access-Control-Allow-Methods": "GET, HEAD, POST, PUT, PATCH, DELETE",
            "Access-Control-Allow-Headers": request.headers.get("Access-Control-Request-Headers", ""),
            "Access-Control-Max-Age": str(_PREFLIGHT_S),
        },
    )


async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Add the headers that every answer carries, just before they are sent."""
    headers = response.headers
    headers.setdefault("X-Request-Id", request_id_of(request))
    headers.setdefault("Cache-Control", "no-store")
    headers["X-Content-Type-Options"] = "nosniff"
    headers["Server"] = "raftlog"
    charge_answer(request, context_of(request), response)
    origin = request.headers.get("Origin")
    if origin is not None and context_of(request).policy.allows_origin(origin, request.headers.get("Host", "")):
        headers["Access-Control-Allow-Origin"] = origin
        headers["Access-Control-Expose-Headers"] = _EXPOSED
        headers.add("Vary", "Origin")


def _log_error(request: web.Request, error: RaftlogError) -> None:
    if isinstance(error, InvariantViolation):
        _log.error(f"INVARIANT {error.detail}", method=request.method, path=request.path, exc_info=error)
    elif error.code == "internal_error":
        _log.error("request_failed", method=request.method, path=request.path, exc_info=error)
    else:
        _log.debug("request_refused", method=request.method, path=request.path, code=error.code, detail=error.detail)
