"""Clusters (there is one) and brokers."""

from __future__ import annotations

from functools import partial

import msgspec
from aiohttp import web

from http_api.web.call import Call
from http_api.web.query import integer
from http_api.web.replies import bulk_reply
from raftlog.errors import InvalidRequest
from raftlog.json_values import encode
from raftlog.model import NO_BROKER, BrokerId, BrokerRecord

from .resources import Addresses, ListMetadata, Metadata, Related, ResourceList, check_cluster, reply, reply_list


class ClusterResource(msgspec.Struct, frozen=True):
    """The cluster."""

    kind: str
    metadata: Metadata
    cluster_id: str
    controller: Related | None
    """Null while it has none."""
    acls: Related
    brokers: Related
    consumer_groups: Related
    topics: Related
    partition_reassignments: Related


class BrokerResource(msgspec.Struct, frozen=True):
    """A broker; its address is that of its API."""

    kind: str
    metadata: Metadata
    cluster_id: str
    broker_id: int
    host: str
    port: int
    rack: str | None


async def list_clusters(call: Call) -> web.StreamResponse:
    """List the one cluster."""
    cluster = _cluster(call)
    url = cluster.metadata.self_url.rpartition("/")[0]
    return await bulk_reply(call, encode(ResourceList("KafkaClusterList", ListMetadata(url), [cluster])))


async def describe_cluster(call: Call) -> web.StreamResponse:
    """Describe the cluster."""
    check_cluster(call)
    return await reply(call, _cluster(call))


async def list_brokers(call: Call) -> web.StreamResponse:
    """List the registered brokers."""
    check_cluster(call)
    return await reply_list(
        call, "KafkaBrokerList", ("brokers",), call.view.brokers(), _name, partial(_broker, Addresses(call))
    )


async def describe_broker(call: Call) -> web.StreamResponse:
    """Describe a broker."""
    check_cluster(call)
    number = BrokerId(integer("the broker", call.segment("broker"), 0, 2**31 - 1))
    broker = call.view.broker(number)
    if broker is None:
        raise InvalidRequest("not_found", f"there is no broker {number}")
    return await reply(call, _broker(Addresses(call), broker))


def _cluster(call: Call) -> ClusterResource:
    to = Addresses(call)
    controller = call.view.controller
    return ClusterResource(
        "KafkaCluster",
        to.metadata(),
        to.cluster_id,
        None if controller == NO_BROKER else to.related("brokers", controller),
        to.related("acls"),
        to.related("brokers"),
        to.related("consumer-groups"),
        to.related("topics"),
        to.related("topics", "-", "partitions", "-", "reassignment"),
    )


def _name(broker: BrokerRecord) -> str:
    return f"{broker.broker_id:010}"


def _broker(to: Addresses, broker: BrokerRecord) -> BrokerResource:
    number = broker.broker_id
    return BrokerResource(
        "KafkaBroker",
        to.metadata("brokers", number),
        to.cluster_id,
        number,
        broker.api.host,
        broker.api.port,
        broker.rack or None,
    )
