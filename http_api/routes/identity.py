"""The caller itself."""

from __future__ import annotations

from aiohttp import web

from http_api.web.call import Call
from http_api.web.replies import json_reply
from raftlog.api.security import Identity


async def describe_caller(call: Call) -> web.StreamResponse:
    """Return the caller as this node authenticated it."""
    caller = call.caller
    principal = caller.principal
    return json_reply(Identity(str(principal), list(principal.groups), caller.host, caller.superuser, caller.mechanism))
