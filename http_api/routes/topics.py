"""Topics: create, list, describe, alter, add partitions, delete."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from operator import attrgetter

from aiohttp import web

from http_api.service.access import Usage
from http_api.web.bodies import read_json
from http_api.web.call import Call
from http_api.web.listing import describable
from http_api.web.quotas import spend
from http_api.web.replies import document_of, encoded_reply, known
from http_api.web.topics import TOPIC_ID, topic_meant, topic_of
from raftlog.api import topics as documents
from raftlog.config import TOPIC_CONFIG_NAMES, TopicConfig
from raftlog.errors import RetriableError
from raftlog.json_values import encode
from raftlog.model import PartitionRecord, TopicRecord
from raftlog.patterns import full_matcher
from raftlog.security.acls import Operation, Resource, ResourceType

METADATA_TIMEOUT_S = 60.0
"""Seconds beyond the time that the broker waits for the quorum, and for leaders of a new topic."""

QUERY = ("pattern",)
DESCRIBE_QUERY = (TOPIC_ID,)
DELETE_QUERY = (TOPIC_ID,)

_TOPIC_COST = 32
"""Listing a topic takes about as long as parsing this number of bytes."""
_PARTITION_COST = 128
"""Describing a partition takes about as long as parsing this number of bytes."""


async def list_topics(call: Call) -> web.StreamResponse:
    """List all topics, or those whose whole names match a pattern."""
    pattern = call.query.text("pattern")
    fits = None if pattern is None else full_matcher(pattern)
    topics = await describable(call, ResourceType.TOPIC, call.view.topics(), attrgetter("name"))
    return await encoded_reply(call, _TOPIC_COST * len(topics), _list, topics, fits)


async def create_topic(call: Call) -> web.StreamResponse:
    asked = await read_json(call, documents.CreateTopic)
    call.check(Operation.CREATE, Resource(ResourceType.TOPIC, asked.name))
    if asked.restored_producer_ids_below is not None:
        call.check(Operation.ALTER)
    configs = _settings(asked.configs)
    spend(call.caller, call.service.access, {Usage.TOPICS_CREATED: 1, Usage.PARTITIONS_CREATED: asked.partitions})
    shape = (asked.name, asked.partitions, asked.replication_factor, configs)
    below = asked.restored_producer_ids_below
    topics = call.service.topics
    creation = topics.create(*shape) if below is None else topics.restore(*shape, below)
    await call.context.finish(creation, METADATA_TIMEOUT_S)
    topic = call.view.topic(asked.name)
    if topic is None:
        raise RetriableError("outcome_unknown", f"topic {asked.name!r} was created, but this node does not see it yet")
    response = await _described(call, topic)
    response.set_status(201)
    response.headers["Location"] = f"/v1/topics/{asked.name}"
    return response


async def describe_topic(call: Call) -> web.StreamResponse:
    """Describe a topic. If the caller's `topic_id` is another topic's, the middleware has caught up with the quorum
    first."""
    return await _described(call, topic_of(call))


async def alter_topic(call: Call) -> web.StreamResponse:
    topic = topic_of(call)
    asked = await read_json(call, documents.AlterTopic)
    change = call.service.topics.alter(topic.name, _settings(asked.assign), asked.remove)
    await call.context.finish(change, METADATA_TIMEOUT_S)
    return await _described(call, topic_of(call))


async def add_partitions(call: Call) -> web.StreamResponse:
    topic = topic_of(call)
    asked = await read_json(call, documents.AddPartitions)
    added = asked.count - topic.partition_count
    if added > 0:
        spend(call.caller, call.service.access, {Usage.PARTITIONS_CREATED: added})
    await call.context.finish(call.service.topics.add_partitions(topic.name, asked.count), METADATA_TIMEOUT_S)
    return await _described(call, topic_of(call))


async def delete_topic(call: Call) -> web.StreamResponse:
    is_named_by_id = call.query.text(TOPIC_ID) is not None
    topic = topic_meant(call)
    deletion = call.service.topics.delete(topic.name, topic.topic_id if is_named_by_id else None)
    await call.context.finish(deletion, METADATA_TIMEOUT_S)
    return web.Response(status=204)


async def _described(call: Call, topic: TopicRecord) -> web.Response:
    view = call.view
    config = view.topic_config(topic.topic_id)
    assert config is not None, "the view has a topic without its settings"
    partitions = view.partitions_of(topic.topic_id)
    return await encoded_reply(call, _PARTITION_COST * len(partitions), _description, topic, config, partitions)


def _settings(configs: dict[str, documents.Setting]) -> dict[str, str]:
    """Return settings as text, as Kafka has them; JSON numbers and booleans are accepted."""
    return {name: str(value) for name, value in configs.items()}


def _list(topics: list[TopicRecord], fits: Callable[[str], bool] | None) -> bytes:
    chosen = [topic for topic in topics if fits is None or fits(topic.name)]
    shown = [document_of(documents.TopicSummary, topic, id=topic.topic_id.hex()) for topic in chosen]
    return encode(documents.Topics(shown))


def _description(topic: TopicRecord, config: TopicConfig, partitions: list[PartitionRecord]) -> bytes:
    kafka_names = {attribute: name for name, attribute in TOPIC_CONFIG_NAMES.items()}
    return encode(
        document_of(
            documents.TopicDescription,
            topic,
            id=topic.topic_id.hex(),
            configs={kafka_names[field.name]: str(getattr(config, field.name)) for field in fields(config)},
            overrides=sorted(name for name, _ in topic.configs),
            partitions=[_partition(record) for record in partitions],
        )
    )


def _partition(record: PartitionRecord) -> documents.PartitionInfo:
    number = record.topic_partition.partition
    return document_of(documents.PartitionInfo, record, partition=number, leader=known(record.leader))
