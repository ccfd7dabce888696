"""Handlers about the cluster and this node: brokers, quorum, health, and the OpenAPI document."""

from __future__ import annotations

import hashlib
from importlib import resources

from aiohttp import web

from http_api.web.authentication import sees_details
from http_api.web.bodies import JSON_TYPE, read_json
from http_api.web.call import Call
from http_api.web.replies import json_reply, known
from raftlog.api.cluster import ClusterInfo, FinalizeFeatureLevel, HealthInfo, NodeInfo
from raftlog.api.quorum import ChangeVoters
from raftlog.model import BrokerRecord
from raftlog.version import __version__

QUORUM_TIMEOUT_S = 30.0
"""Seconds beyond the time that the node itself waits for the quorum."""
OPENAPI: bytes = (resources.files("http_api") / "openapi.json").read_bytes()
_OPENAPI_ETAG = f'"{hashlib.sha256(OPENAPI).hexdigest()[:16]}"'


async def describe_cluster(call: Call) -> web.StreamResponse:
    view = call.view
    return json_reply(
        ClusterInfo(
            cluster_id=call.service.cluster_id,
            version=__version__,
            feature_level=view.feature_level,
            controller=known(view.controller),
            nodes=[_node(broker) for broker in view.brokers()],
        )
    )


def _node(broker: BrokerRecord) -> NodeInfo:
    return NodeInfo(broker.broker_id, str(broker.api), str(broker.data), broker.rack, broker.fenced, broker.incarnation)


async def finalize_feature_level(call: Call) -> web.StreamResponse:
    """Raise the feature level; answers once the quorum has decided."""
    asked = await read_json(call, FinalizeFeatureLevel)
    change = call.service.quorum.finalize_feature_level(asked.level, plan=asked.plan)
    return json_reply(await call.context.finish(change, QUORUM_TIMEOUT_S))


async def describe_quorum(call: Call) -> web.StreamResponse:
    return json_reply(await call.context.finish(call.service.quorum.status(), QUORUM_TIMEOUT_S))


async def change_voters(call: Call) -> web.StreamResponse:
    """Change the voters of the metadata quorum; answers once the voters after the change have agreed to it."""
    asked = await read_json(call, ChangeVoters)
    change = call.service.quorum.change_voters(asked.action, asked.node, plan=asked.plan)
    return json_reply(await call.context.finish(change, QUORUM_TIMEOUT_S))


async def health(call: Call) -> web.StreamResponse:
    """Answer 200 if the node is ready and knows of no problem, neither its own nor the cluster's."""
    found = call.service.health()
    well = found.ready and not found.problems
    return json_reply(_shown(call, found), status=200 if well else 503)


async def ready(call: Call) -> web.StreamResponse:
    """Answer 200 if the node takes requests, whatever else may be wrong: for load balancers."""
    found = call.service.health()
    takes_requests = found.ready and not call.context.closing
    shown = _shown(call, HealthInfo(takes_requests, found.problems))
    return json_reply(shown, status=200 if takes_requests else 503)


def _shown(call: Call, found: HealthInfo) -> HealthInfo:
    """Return the health as the caller may see it: problems name topics, addresses and files."""
    return found if sees_details(call.request, call.context) else HealthInfo(found.ready, [])


async def openapi(call: Call) -> web.StreamResponse:
    """Return the OpenAPI document, byte for byte as in the package."""
    headers = {"ETag": _OPENAPI_ETAG}
    if _OPENAPI_ETAG in call.request.headers.get("If-None-Match", ""):
        return web.Response(status=304, headers=headers)
    return web.Response(body=OPENAPI, content_type=JSON_TYPE, headers=headers)
