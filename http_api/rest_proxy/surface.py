"""The paths of the REST Proxy API, whose errors have a form of their own."""

from __future__ import annotations

from aiohttp import web

from http_api.web.bodies import JSON_TYPE
from raftlog.errors import RaftlogError

from .errors import V3_CODES, rest_error
from .v2.media_types import V2_TYPE

V2_PATHS = frozenset({"brokers", "topics", "consumers"})
"""The first segments of version 2's paths."""
V3_PATH = "v3"


def refuse_as_rest_proxy(request: web.BaseRequest, error: RaftlogError, request_id: str) -> web.Response | None:
    """Return the answer to a failed request if its path belongs to this API, whether it exists or not."""
    first = request.path.removeprefix("/").partition("/")[0]
    if first == V3_PATH:
        return rest_error(error, request_id, JSON_TYPE, V3_CODES)
    return rest_error(error, request_id, V2_TYPE) if first in V2_PATHS else None
