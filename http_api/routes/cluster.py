"""Handlers about the cluster and this node: brokers, quorum, health, and the OpenAPI document."""

from __future__ import annotations

import html
from importlib import resources

from aiohttp import web

from http_api.web.authentication import sees_details
from http_api.web.bodies import JSON_TYPE, read_json
from http_api.web.call import Call
from http_api.web.documents import StaticDocument
from http_api.web.negotiation import negotiate
from http_api.web.query import integer
from http_api.web.replies import document_of, json_reply, known
from raftlog.api.cluster import ClusterInfo, FinalizeFeatureLevel, FirstPage, HealthInfo, Liveness, NodeInfo
from raftlog.api.quorum import ChangeVoters, QuorumInfo
from raftlog.model import BrokerId, BrokerRecord
from raftlog.version import __version__

QUORUM_TIMEOUT_S = 30.0
"""Seconds beyond the time that the node itself waits for the quorum."""
OPENAPI: bytes = (resources.files("http_api") / "openapi.json").read_bytes()
HTML_TYPE = "text/html"
LINKS = {
    "/v1/cluster": "the nodes of the cluster",
    "/v1/health": "problems, if there are any",
    "/v1/topics": "the topics",
    "/v1/groups": "the consumer groups",
    "/docs/": "the documents of both APIs as pages, from which requests can be sent",
    "/openapi.json": "every request and answer of this API",
    "/openapi/rest-proxy.json": "the same of the REST Proxy API, which this node speaks as well",
}
_PAGE = """\
<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>raftlog</title>
<style>
body {{ font: 1rem/1.6 system-ui, sans-serif; max-width: 40rem; margin: 3rem auto; padding: 0 1rem }}
:root {{ color-scheme: light dark }}
</style>
</head><body><h1>raftlog {version}</h1>
<p>This is a node of the cluster {cluster}, a replicated commit log. Its HTTP API:</p><ul>{rows}</ul>
<p>On the command line: <code>raftlog --help</code>. The manual is in the folder <code>docs</code> of the source;
<code>make docs</code> makes a site of it.</p></body></html>
"""
DOCUMENT = StaticDocument(OPENAPI)


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
    status = await call.context.finish(call.service.quorum.status(), QUORUM_TIMEOUT_S)
    matched = {str(node): index for node, index in status.match_index.items()}
    next_id = call.view.transactions.granted_below
    return json_reply(document_of(QuorumInfo, status, match_index=matched, next_producer_id=next_id))


async def change_voters(call: Call) -> web.StreamResponse:
    """Change the voters of the metadata quorum; answers once the voters after the change have agreed to it."""
    asked = await read_json(call, ChangeVoters)
    change = call.service.quorum.change_voters(asked.action, asked.node, plan=asked.plan)
    return json_reply(await call.context.finish(change, QUORUM_TIMEOUT_S))


async def roll_check(call: Call) -> web.StreamResponse:
    """Report whether a node may be stopped now, after a linearizable read."""
    node = BrokerId(integer("the broker", call.segment("broker"), 0, 2**31 - 1))
    return json_reply(await call.context.finish(call.service.roll_check(node), QUORUM_TIMEOUT_S))


async def live(call: Call) -> web.StreamResponse:
    """Answer 200 whenever the event loop runs: a node that waits for a quorum must not be restarted for that."""
    return json_reply(Liveness(True))


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
    """Return the OpenAPI document of the native API."""
    return DOCUMENT.reply(call)


async def first_page(call: Call) -> web.StreamResponse:
    """Say what this is and where to go on: as a page for a browser, as JSON for everything else."""
    found = FirstPage(name="raftlog", version=__version__, cluster_id=call.service.cluster_id, links=LINKS)
    if negotiate(call.request, (JSON_TYPE, HTML_TYPE)) == JSON_TYPE:
        return json_reply(found, headers={"Vary": "Accept"})
    rows = "".join(f'<li><a href="{path}">{path}</a>: {html.escape(what)}</li>' for path, what in LINKS.items())
    body = _PAGE.format(version=html.escape(__version__), cluster=html.escape(found.cluster_id), rows=rows)
    headers = {"Vary": "Accept", "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}
    return web.Response(text=body, content_type=HTML_TYPE, headers=headers)
