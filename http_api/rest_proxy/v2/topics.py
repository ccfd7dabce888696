"""Brokers, topics, partitions and their offsets, as version 2 describes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from operator import attrgetter
from typing import Any

import msgspec
from aiohttp import web

from http_api.routes.offsets import find_offsets_of
from http_api.web.call import Call
from http_api.web.listing import describable
from http_api.web.replies import bulk_reply, known
from http_api.web.topics import partition_of, topic_of
from raftlog.config import TOPIC_CONFIG_NAMES, TopicConfig
from raftlog.json_values import encode
from raftlog.model import PartitionRecord, TopicRecord
from raftlog.security.acls import ResourceType
from raftlog.wire import TIMESTAMP_EARLIEST, TIMESTAMP_LATEST

from .media_types import answer_type

_TOPIC_COST = 32
"""Listing a topic takes about as long as parsing this number of bytes."""
_PARTITION_COST = 128
"""Describing a partition takes about as long as parsing this number of bytes."""


class Brokers(msgspec.Struct, frozen=True):
    """The brokers of the cluster that are alive."""

    brokers: list[int]


class PartitionReplica(msgspec.Struct, frozen=True):
    """A replica of a partition."""

    broker: int
    leader: bool
    in_sync: bool


class PartitionDocument(msgspec.Struct, frozen=True):
    """A partition; `leader` is null if it has none."""

    partition: int
    leader: int | None
    replicas: list[PartitionReplica]


class TopicDocument(msgspec.Struct, frozen=True):
    """A topic with its settings and partitions."""

    name: str
    configs: dict[str, str]
    partitions: list[PartitionDocument]


class PartitionOffsets(msgspec.Struct, frozen=True):
    """The first offset of a partition, and the one behind the last that a reader may see."""

    beginning_offset: int
    end_offset: int


async def list_brokers(call: Call) -> web.StreamResponse:
    """List the brokers."""
    return await _reply(call, Brokers([broker.broker_id for broker in call.view.brokers() if not broker.fenced]))


async def list_topics(call: Call) -> web.StreamResponse:
    """List the names of the topics."""
    topics = await describable(call, ResourceType.TOPIC, call.view.topics(), attrgetter("name"))
    return await _reply(call, [topic.name for topic in topics], _TOPIC_COST * len(topics))


async def describe_topic(call: Call) -> web.StreamResponse:
    """Describe a topic."""
    media_type = answer_type(call.request)
    topic = topic_of(call)
    config = call.view.topic_config(topic.topic_id)
    assert config is not None, "the view has a topic without its settings"
    records = call.view.partitions_of(topic.topic_id)
    body = await call.context.threads.run(_PARTITION_COST * len(records), _description, topic, config, records)
    return await bulk_reply(call, body, media_type)


async def list_partitions(call: Call) -> web.StreamResponse:
    """Describe the partitions of a topic."""
    media_type = answer_type(call.request)
    records = call.view.partitions_of(topic_of(call).topic_id)
    body = await call.context.threads.run(_PARTITION_COST * len(records), _descriptions, records)
    return await bulk_reply(call, body, media_type)


async def describe_partition(call: Call) -> web.StreamResponse:
    """Describe one partition."""
    return await _reply(call, _partition(partition_of(call, topic_of(call))))


async def read_offsets(call: Call) -> web.StreamResponse:
    """Return the first offset and the end of a partition."""
    media_type = answer_type(call.request)
    partition = partition_of(call, topic_of(call))
    first, end = await find_offsets_of(call, partition, (TIMESTAMP_EARLIEST, TIMESTAMP_LATEST))
    return await bulk_reply(call, encode(PartitionOffsets(first.offset, end.offset)), media_type)


async def _reply(call: Call, document: Any, cost: int = 0) -> web.StreamResponse:
    media_type = answer_type(call.request)
    return await bulk_reply(call, await call.context.threads.run(cost, encode, document), media_type)


def _description(topic: TopicRecord, config: TopicConfig, records: Sequence[PartitionRecord]) -> bytes:
    kafka_names = {attribute: name for name, attribute in TOPIC_CONFIG_NAMES.items()}
    configs = {kafka_names[field.name]: _setting(getattr(config, field.name)) for field in fields(config)}
    return encode(TopicDocument(topic.name, configs, [_partition(record) for record in records]))


def _descriptions(records: Sequence[PartitionRecord]) -> bytes:
    return encode([_partition(record) for record in records])


def _setting(value: object) -> str:
    """Return a setting as Kafka writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _partition(record: PartitionRecord) -> PartitionDocument:
    replicas = [PartitionReplica(broker, broker == record.leader, broker in record.isr) for broker in record.replicas]
    return PartitionDocument(record.topic_partition.partition, known(record.leader), replicas)
