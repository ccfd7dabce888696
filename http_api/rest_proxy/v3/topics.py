"""Topics: list, create, describe, grow, delete."""

from __future__ import annotations

from functools import partial
from operator import attrgetter
from typing import Annotated

import msgspec
from aiohttp import web
from msgspec import Meta

from http_api.routes.topics import METADATA_TIMEOUT_S
from http_api.service.access import Usage
from http_api.web.bodies import read_json
from http_api.web.call import Call
from http_api.web.listing import describable
from http_api.web.quotas import spend
from http_api.web.topics import topic_named, topic_of
from raftlog.api.topics import MAX_REPLICATION_FACTOR
from raftlog.config import MAX_PARTITIONS_PER_TOPIC, check_topic_name, parse_topic_config
from raftlog.errors import InvalidRequest
from raftlog.model import TopicRecord
from raftlog.security.acls import Operation, Resource, ResourceType

from .resources import Addresses, Metadata, Related, check_cluster, reply, reply_list

Partitions = Annotated[int, Meta(ge=1, le=MAX_PARTITIONS_PER_TOPIC)]


class ConfigIn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A setting of a new topic; null: its default."""

    name: str
    value: str | None = None


class CreateTopic(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The request to create a topic."""

    topic_name: str
    partitions_count: Partitions = 1
    replication_factor: Annotated[int, Meta(ge=1, le=MAX_REPLICATION_FACTOR)] | None = None
    configs: list[ConfigIn] = []
    validate_only: bool = False


class AlterTopic(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The request to grow a topic."""

    partitions_count: Partitions


class TopicResource(msgspec.Struct, frozen=True):
    """A topic."""

    kind: str
    metadata: Metadata
    cluster_id: str
    topic_name: str
    is_internal: bool
    replication_factor: int
    partitions_count: int
    partitions: Related
    configs: Related
    partition_reassignments: Related


async def list_topics(call: Call) -> web.StreamResponse:
    """List the topics that the caller may describe."""
    check_cluster(call)
    topics = await describable(call, ResourceType.TOPIC, call.view.topics(), attrgetter("name"))
    return await reply_list(
        call, "KafkaTopicList", ("topics",), topics, attrgetter("name"), partial(_topic, call, Addresses(call))
    )


async def create_topic(call: Call) -> web.StreamResponse:
    """Create a topic, or with `validate_only` check whether its name is free and its settings are valid."""
    check_cluster(call)
    asked = await read_json(call, CreateTopic)
    name = check_topic_name(asked.topic_name)
    call.check(Operation.CREATE, Resource(ResourceType.TOPIC, name))
    configs = {one.name: one.value for one in asked.configs if one.value is not None}
    if len(configs) < sum(one.value is not None for one in asked.configs):
        raise InvalidRequest("invalid_config", "a setting is given twice")
    parse_topic_config(configs)
    if asked.validate_only:
        await call.catch_up(f"topic {name!r}")
        if call.view.topic(name) is not None:
            raise InvalidRequest("topic_exists", f"topic {name!r} exists")
        return await reply(
            call, _resource(Addresses(call), name, asked.partitions_count, asked.replication_factor or 0)
        )
    spend(call.caller, call.service.access, {Usage.TOPICS_CREATED: 1, Usage.PARTITIONS_CREATED: asked.partitions_count})
    creation = call.service.topics.create(name, asked.partitions_count, asked.replication_factor, configs)
    await call.context.finish(creation, METADATA_TIMEOUT_S)
    resource = _topic(call, Addresses(call), topic_named(call.view, name))
    response = await reply(call, resource)
    response.set_status(201)
    response.headers["Location"] = resource.metadata.self_url
    return response


async def describe_topic(call: Call) -> web.StreamResponse:
    """Describe a topic."""
    check_cluster(call)
    return await reply(call, _topic(call, Addresses(call), topic_of(call)))


async def alter_topic(call: Call) -> web.StreamResponse:
    """Grow a topic."""
    check_cluster(call)
    topic = topic_of(call)
    asked = await read_json(call, AlterTopic)
    added = asked.partitions_count - topic.partition_count
    if added > 0:
        spend(call.caller, call.service.access, {Usage.PARTITIONS_CREATED: added})
    change = call.service.topics.add_partitions(topic.name, asked.partitions_count)
    await call.context.finish(change, METADATA_TIMEOUT_S)
    return await reply(call, _topic(call, Addresses(call), topic_of(call)))


async def delete_topic(call: Call) -> web.StreamResponse:
    """Delete a topic."""
    check_cluster(call)
    await call.context.finish(call.service.topics.delete(topic_of(call).name), METADATA_TIMEOUT_S)
    return web.Response(status=204)


def _topic(call: Call, to: Addresses, topic: TopicRecord) -> TopicResource:
    replicas = (len(record.replicas) for record in call.view.partitions_of(topic.topic_id)[:1])
    return _resource(to, topic.name, topic.partition_count, next(replicas, 0))


def _resource(to: Addresses, name: str, partitions: int, replication_factor: int) -> TopicResource:
    return TopicResource(
        "KafkaTopic",
        to.metadata("topics", name),
        to.cluster_id,
        name,
        False,
        replication_factor,
        partitions,
        to.related("topics", name, "partitions"),
        to.related("topics", name, "configs"),
        to.related("topics", name, "partitions", "-", "reassignment"),
    )
