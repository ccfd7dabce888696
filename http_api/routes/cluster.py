"""Handlers about the cluster and this node: brokers, quorum, health, and the OpenAPI document."""

from __future__ import annotations

import hashlib
from importlib import resources
from typing import Annotated

import msgspec
from aiohttp import web
from msgspec import Meta

from http_api.models.topics import Cluster, Health, known, node
from http_api.web.bodies import JSON_TYPE, read_json
from http_api.web.context import context_of
from http_api.web.query import Query
from http_api.web.replies import json_reply
from raftlog.version import __version__

QUORUM_TIMEOUT_S = 30.0
OPENAPI: bytes = (resources.files("http_api") / "openapi.json").read_bytes()
_OPENAPI_ETAG = f'"{hashlib.sha256(OPENAPI).hexdigest()[:16]}"'


async def describe_cluster(request: web.Request) -> web.StreamResponse:
    service = context_of(request).service
    Query(request)
    view = service.view
    return json_reply(
        Cluster(
            cluster_id=service.cluster_id,
            version=__version__,
            feature_level=view.feature_level,
            controller=known(view.controller),
            nodes=[node(broker) for broker in view.brokers()],
        )
    )


class FinalizeFeatureLevel(msgspec.Struct, forbid_unknown_fields=True):
    level: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    """None for the highest level that every node understands."""
    plan: bool = False
    """Change nothing and return the outcome."""


class FeatureLevelFinalized(msgspec.Struct):
    applied: bool
    feature_level_before: int
    feature_level: int


async def finalize_feature_level(request: web.Request) -> web.StreamResponse:
    """Raise the feature level; answers once the quorum has decided."""
    context = context_of(request)
    Query(request)
    asked = await read_json(request, context, FinalizeFeatureLevel)
    change = context.service.finalize_feature_level(asked.level, plan=asked.plan)
    found = await context.finish(change, QUORUM_TIMEOUT_S)
    return json_reply(FeatureLevelFinalized(found.applied, found.before, found.after))


async def describe_quorum(request: web.Request) -> web.StreamResponse:
    context = context_of(request)
    Query(request)
    return json_reply(await context.finish(context.service.quorum_status(), QUORUM_TIMEOUT_S))


async def health(request: web.Request) -> web.StreamResponse:
    """Answer 200 if the node is ready and knows of no problem, neither its own nor the cluster's."""
    found = context_of(request).service.health()
    Query(request)
    well = found.ready and not found.problems
    return json_reply(Health(found.ready, found.problems, found.event_loop), status=200 if well else 503)


async def ready(request: web.Request) -> web.StreamResponse:
    """Answer 200 if the node takes requests, whatever else may be wrong: for load balancers."""
    context = context_of(request)
    Query(request)
    found = context.service.health()
    takes_requests = found.ready and not context.closing
    return json_reply(Health(takes_requests, found.problems), status=200 if takes_requests else 503)


async def openapi(request: web.Request) -> web.StreamResponse:
    """Return the OpenAPI document, byte for byte as in the package."""
    Query(request)
    headers = {"ETag": _OPENAPI_ETAG}
    if _OPENAPI_ETAG in request.headers.get("If-None-Match", ""):
        return web.Response(status=304, headers=headers)
    return web.Response(body=OPENAPI, content_type=JSON_TYPE, headers=headers)
