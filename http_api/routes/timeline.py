"""The timeline of the cluster: elections, changes of in-sync replicas, and faults of nodes, as this node remembers
them."""

from __future__ import annotations

import asyncio
from typing import get_args

from aiohttp import web

from http_api.web.call import Call
from http_api.web.listing import CHECKS_PER_TURN
from http_api.web.replies import encoded_reply
from raftlog.api.timeline import MAX_CHANGES, ChangeKind, ClusterChange, Timeline
from raftlog.json_values import encode
from raftlog.security.acls import CLUSTER, Operation, ResourceType

QUERY = ("topic", "kind", "limit")
DEFAULT_CHANGES = 200
KINDS = get_args(ChangeKind)
_CHANGE_COST = 128
"""Encoding a change takes about as long as parsing this number of bytes."""


async def list_changes(call: Call) -> web.StreamResponse:
    """List the newest changes that the caller may see: those of topics that it may describe, and those of nodes and the
    quorum if it may describe the cluster."""
    topic = call.query.text("topic")
    kind = None if call.query.text("kind") is None else call.query.choice("kind", KINDS, KINDS[0])
    limit = call.query.integer("limit", 1, MAX_CHANGES, DEFAULT_CHANGES)
    visible: dict[str | None, bool] = {None: call.may(Operation.DESCRIBE, CLUSTER.type, CLUSTER.name)}
    found: list[ClusterChange] = []
    more = False
    for number, change in enumerate(call.service.explain.changes(), 1):
        if number % CHECKS_PER_TURN == 0:
            await asyncio.sleep(0)
        if kind not in (None, change.kind) or topic not in (None, change.topic):
            continue
        name = change.topic
        if name not in visible:
            assert name is not None
            visible[name] = call.may(Operation.DESCRIBE, ResourceType.TOPIC, name)
        if not visible[name]:
            continue
        more = len(found) == limit
        if more:
            break
        found.append(change)
    return await encoded_reply(call, _CHANGE_COST * len(found), encode, Timeline(found, more))
