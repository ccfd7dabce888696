"""Topics: create, list, describe, alter, add partitions, delete."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from aiohttp import web

from http_api.models.topics import AddPartitions, AlterTopic, CreateTopic, settings, topic_description, topic_summary
from http_api.web.bodies import JSON_TYPE, read_json
from http_api.web.context import ApiContext, context_of
from http_api.web.query import TOPIC_ID, Query, topic_meant, topic_of
from http_api.web.replies import bulk_reply
from raftlog.config import TopicConfig
from raftlog.errors import RetriableError
from raftlog.json_values import encode
from raftlog.model import PartitionRecord, TopicRecord
from raftlog.patterns import full_matcher

METADATA_TIMEOUT_S = 60.0
"""Seconds beyond the time that the broker waits for the quorum, and for leaders of a new topic."""

QUERY = ("pattern",)
DESCRIBE_QUERY = (TOPIC_ID,)
DELETE_QUERY = (TOPIC_ID,)

_TOPIC_COST = 32
"""Listing a topic takes about as long as parsing this number of bytes."""
_PARTITION_COST = 128
"""Describing a partition takes about as long as parsing this number of bytes."""


async def list_topics(request: web.Request) -> web.StreamResponse:
    """List all topics, or those whose whole names match a pattern."""
    context = context_of(request)
    pattern = Query(request, QUERY).text("pattern")
    topics = context.service.view.topics()
    if pattern is not None:
        fits = full_matcher(pattern)
        topics = await context.threads.run(_TOPIC_COST * len(topics), _fitting, topics, fits)
    body = await context.threads.run(_TOPIC_COST * len(topics), _list, topics)
    return await bulk_reply(request, context, body, JSON_TYPE, {})


async def create_topic(request: web.Request) -> web.StreamResponse:
    context = context_of(request)
    Query(request)
    asked = await read_json(request, context, CreateTopic)
    await context.finish(
        context.service.topics.create(asked.name, asked.partitions, asked.replication_factor, settings(asked.configs)),
        METADATA_TIMEOUT_S,
    )
    topic = context.service.view.topic(asked.name)
    if topic is None:
        raise RetriableError("outcome_unknown", f"topic {asked.name!r} was created and cannot be seen here")
    return await _described(request, context, topic, status=201, headers={"Location": f"/v1/topics/{asked.name}"})


async def describe_topic(request: web.Request) -> web.StreamResponse:
    """Describe a topic. If the caller's `topic_id` is another topic's, the middleware has caught up with the quorum
    first."""
    context = context_of(request)
    Query(request, DESCRIBE_QUERY)
    return await _described(request, context, topic_of(request, context.service))


async def alter_topic(request: web.Request) -> web.StreamResponse:
    context = context_of(request)
    Query(request)
    topic = topic_of(request, context.service)
    asked = await read_json(request, context, AlterTopic)
    change = context.service.topics.alter(topic.name, settings(asked.assign), asked.remove)
    await context.finish(change, METADATA_TIMEOUT_S)
    return await _described(request, context, topic_of(request, context.service))


async def add_partitions(request: web.Request) -> web.StreamResponse:
    context = context_of(request)
    Query(request)
    topic = topic_of(request, context.service)
    asked = await read_json(request, context, AddPartitions)
    await context.finish(context.service.topics.add_partitions(topic.name, asked.count), METADATA_TIMEOUT_S)
    return await _described(request, context, topic_of(request, context.service))


async def delete_topic(request: web.Request) -> web.StreamResponse:
    context = context_of(request)
    is_named_by_id = Query(request, DELETE_QUERY).text(TOPIC_ID) is not None
    topic = topic_meant(request, context.service)
    deletion = context.service.topics.delete(topic.name, topic.topic_id if is_named_by_id else None)
    await context.finish(deletion, METADATA_TIMEOUT_S)
    return web.Response(status=204)


async def _described(
    request: web.Request,
    context: ApiContext,
    topic: TopicRecord,
    *,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
) -> web.Response:
    view = context.service.view
    config = view.topic_config(topic.topic_id)
    assert config is not None, "the view has a topic without its settings"
    partitions = view.partitions_of(topic.topic_id)
    body = await context.threads.run(_PARTITION_COST * len(partitions), _description, topic, config, partitions)
    return await bulk_reply(request, context, body, JSON_TYPE, headers or {}, status=status)


def _fitting(topics: list[TopicRecord], fits: Callable[[str], bool]) -> list[TopicRecord]:
    return [topic for topic in topics if fits(topic.name)]


def _list(topics: list[TopicRecord]) -> bytes:
    return encode({"topics": [topic_summary(topic) for topic in topics]})


def _description(topic: TopicRecord, config: TopicConfig, partitions: list[PartitionRecord]) -> bytes:
    return encode(topic_description(topic, config, partitions))
