"""`POST /v1/quorum/voters`: add or remove a voter of the metadata quorum."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from aiohttp import web
from msgspec import Meta

from http_api.web.bodies import read_json
from http_api.web.context import context_of
from http_api.web.query import Query
from http_api.web.replies import json_reply
from raftlog.config import majority

CHANGE_TIMEOUT_S = 30.0
"""Seconds beyond the time that the node itself waits for the quorum."""


class ChangeVoters(msgspec.Struct, forbid_unknown_fields=True):
    action: Literal["add", "remove"]
    node: Annotated[int, Meta(ge=0, le=2**31 - 1)]
    plan: bool = False
    """Change nothing and return the outcome."""


class VotersChanged(msgspec.Struct):
    applied: bool
    voters_before: tuple[int, ...]
    voters: tuple[int, ...]
    failures_survived_before: int
    failures_survived: int
    """The number of voters that may fail at once."""
    index: int | None
    """The metadata index of the change; null if there was nothing to change."""


async def change_voters(request: web.Request) -> web.StreamResponse:
    """Change the voters; answers once the voters after the change have agreed to it."""
    context = context_of(request)
    Query(request)
    asked = await read_json(request, context, ChangeVoters)
    change = context.service.change_voters(asked.action, asked.node, plan=asked.plan)
    found = await context.finish(change, CHANGE_TIMEOUT_S)
    before, after = (len(voters) - majority(len(voters)) for voters in (found.before, found.after))
    index = found.index if found.index >= 0 else None
    return json_reply(VotersChanged(found.applied, found.before, found.after, before, after, index))
