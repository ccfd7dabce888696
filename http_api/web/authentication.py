"""The caller of each request: its credentials, and what the broker makes of them (S12).

Every path needs a valid credential, paths that do not exist included, so that nothing is learnt from the difference.
The two for load balancers are answered to everybody, with details only for callers that may describe the cluster.
"""

from __future__ import annotations

from functools import lru_cache

from aiohttp import web

from http_api.exchange.protocol import ExchangeProtocol
from http_api.service.access import Authenticated
from raftlog.errors import InvalidRequest, RetriableError
from raftlog.security.acls import CLUSTER, Operation
from raftlog.security.presented import Presented
from raftlog.security.principals import ANONYMOUS, Caller, host_of
from raftlog.security.secrets import Secret

from .context import ApiContext

AUTHENTICATED: web.RequestKey[Authenticated] = web.RequestKey("authenticated", Authenticated)

_NOBODY = Caller(ANONYMOUS, "")


async def authenticate(request: web.Request, context: ApiContext) -> Caller:
    """Find the caller of a request. Raises `InvalidRequest` (`unauthenticated`), or a `RetriableError` if its
    credential cannot be checked at present."""
    found = await context.service.access.authenticate(presented(request))
    request[AUTHENTICATED] = found
    protocol: object = request.protocol
    if isinstance(protocol, ExchangeProtocol):
        protocol.recognize()
    else:
        context.connections.recognize(request.protocol)
    return found.caller


async def recognize(request: web.Request, context: ApiContext) -> None:
    """Find the caller of a request that is answered to everybody: without a valid credential there is none."""
    given = presented(request)
    access = context.service.access
    if access.needs_credentials and given.authorization is None and given.certificate is None:
        return  # A load balancer: no failed attempt, of which the audit log would be full.
    try:
        await authenticate(request, context)
    except InvalidRequest as error:
        # The answer is the one that everybody gets; the audit log has the attempt.
        if error.code != "unauthenticated":
            raise
    except RetriableError:
        # Monitoring must get an answer even if credentials cannot be checked.
        return


def caller_of(request: web.Request) -> Caller:
    """Return the caller; on a path that is answered to everybody perhaps one that nothing authenticates."""
    found = request.get(AUTHENTICATED)
    return _NOBODY if found is None else found.caller


def sees_details(request: web.Request, context: ApiContext) -> bool:
    """Return whether the caller of a path that is answered to everybody may see details."""
    found = request.get(AUTHENTICATED)
    return found is not None and context.service.access.allows(found.caller, Operation.DESCRIBE, CLUSTER)


def presented(request: web.BaseRequest) -> Presented:
    """Return the credentials of a request."""
    given = [Secret(text) for text in request.headers.getall("Authorization", [])]
    if len(given) > 1:
        # Only one could be meant. An empty header is refused like any other that is malformed, and recorded as such.
        given = [Secret("")]
    transport = request.transport
    certificate = None if transport is None else transport.get_extra_info("peercert")
    return Presented(_host(request.remote), given[0] if given else None, certificate or None)


@lru_cache(maxsize=4_096)
def _host(remote: str | None) -> str:
    """Return the address of the client as rules write it: the same few clients send most requests."""
    return host_of(remote) if remote else ""
