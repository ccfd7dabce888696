"""Quotas at the door: a caller that has used up one gets 429 until it has paid its debt (Kafka's way: a request that
was admitted is served whatever its size, and the next one waits)."""

from __future__ import annotations

import math
from collections.abc import Mapping

from aiohttp import web

from http_api.exchange.protocol import connection_of
from http_api.service.access import AccessService, Usage
from raftlog.errors import CODES, RetriableError
from raftlog.security.principals import Caller

from .authentication import AUTHENTICATED
from .context import ApiContext
from .problems import ApiError

ADMISSION = (Usage.REQUESTS, Usage.BYTES_IN, Usage.BYTES_OUT)
"""The uses that every request is held to."""
CONNECTION_RETRY_S = 1
"""Seconds to wait with another connection: there is room as soon as one is closed."""
_THROTTLED = CODES["throttled"].status


def admit(request: web.Request, caller: Caller, context: ApiContext) -> None:
    """Count a request, and its connection. Raises `ApiError` (`throttled`), and does not count the request, while the
    caller has to wait, or has too many connections: then this one is closed."""
    access = context.service.access
    try:
        # The request of a client that has gone is cancelled before this: what it would count here is never released.
        access.enter(connection_of(request), caller)
    except RetriableError as error:
        wait = {"Retry-After": str(CONNECTION_RETRY_S), "Connection": "close"}
        raise ApiError(error.code, error.detail, headers=wait) from None
    _check(caller, access.delay_s(caller, *ADMISSION))
    access.charge(caller, Usage.REQUESTS, 1)


def spend(caller: Caller, access: AccessService, uses: Mapping[Usage, int]) -> None:
    """Count what a request is about to use. Raises `ApiError` (`throttled`), and counts nothing, if that is more than
    the caller may use now: unlike bytes, these uses are never advanced."""
    _check(caller, max(access.delay_for_s(caller, usage, amount) for usage, amount in uses.items()))
    for usage, amount in uses.items():
        access.charge(caller, usage, amount)


def _check(caller: Caller, delay_s: float) -> None:
    if delay_s > 0:
        wait_s = math.ceil(delay_s)
        raise ApiError(
            "throttled",
            f"a quota of {caller} or of its address is used up: retry after {wait_s} s",
            headers={"Retry-After": str(wait_s)},
        )


def charge_body(caller: Caller, context: ApiContext, count: int) -> None:
    """Count bytes of a body that were received."""
    if count:
        context.service.access.charge(caller, Usage.BYTES_IN, count)


def charge_answer(request: web.Request, context: ApiContext, response: web.StreamResponse) -> None:
    """Count the bytes of an answer that is about to be sent, unless its caller is unknown or has to wait."""
    found, count = request.get(AUTHENTICATED), response.content_length
    if found is not None and count and response.status != _THROTTLED:
        context.service.access.charge(found.caller, Usage.BYTES_OUT, count)
