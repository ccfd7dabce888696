"""JSON bodies about topics, records and the cluster: the schemas of `openapi.json`, checked and written by msgspec."""

from __future__ import annotations

from dataclasses import fields
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from http_api.service.service import EventLoop
from http_api.web.limits import DEFAULT_PRODUCE_TIMEOUT_MS
from raftlog.config import MAX_PARTITIONS_PER_TOPIC, MAX_PRODUCE_TIMEOUT_MS, TOPIC_CONFIG_NAMES, TopicConfig
from raftlog.model import NO_BROKER, BrokerRecord, PartitionRecord, TopicRecord

MAX_REPLICATION_FACTOR = 32

Setting = str | int


class CreateTopic(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    partitions: Annotated[int, Meta(ge=1, le=MAX_PARTITIONS_PER_TOPIC)] = 1
    replication_factor: Annotated[int, Meta(ge=1, le=MAX_REPLICATION_FACTOR)] | None = None
    configs: dict[str, Setting] = {}


class AlterTopic(msgspec.Struct, forbid_unknown_fields=True):
    assign: dict[str, Setting] = msgspec.field(default_factory=dict, name="set")
    remove: list[str] = []


class AddPartitions(msgspec.Struct, forbid_unknown_fields=True):
    count: Annotated[int, Meta(ge=1, le=MAX_PARTITIONS_PER_TOPIC)]
    """The new total number of partitions."""


class DeleteBefore(msgspec.Struct, forbid_unknown_fields=True):
    partition: Annotated[int, Meta(ge=0, le=2**31 - 1)]
    before: Annotated[int, Meta(ge=0, le=2**62)] | Literal["latest"]
    """The offset below which records are deleted; `latest` for all records that consumers may read."""


class DeleteRecords(msgspec.Struct, forbid_unknown_fields=True):
    partitions: Annotated[list[DeleteBefore], Meta(min_length=1, max_length=MAX_PARTITIONS_PER_TOPIC)]
    timeout_ms: Annotated[int, Meta(ge=1, le=MAX_PRODUCE_TIMEOUT_MS)] = DEFAULT_PRODUCE_TIMEOUT_MS


class PartitionDeletion(msgspec.Struct, omit_defaults=True):
    """The outcome for one partition."""

    partition: int
    log_start_offset: int | None = None
    error: dict[str, Any] | None = None


class DeletedRecords(msgspec.Struct):
    topic: str
    partitions: list[PartitionDeletion]


class Nothing(msgspec.Struct, forbid_unknown_fields=True):
    """The body `{}`."""


def settings(configs: dict[str, Setting]) -> dict[str, str]:
    """Return settings as text, as Kafka has them; JSON numbers and booleans are accepted."""
    return {name: str(value) for name, value in configs.items()}


class TopicSummary(msgspec.Struct):
    name: str
    id: str
    partition_count: int
    replication_factor: int
    created_index: int


class PartitionDescription(msgspec.Struct):
    partition: int
    leader: int | None
    leader_epoch: int
    partition_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    commit_set: tuple[int, ...]
    not_eligible: tuple[int, ...]
    min_insync_replicas: int
    adding_replicas: tuple[int, ...] = ()
    removing_replicas: tuple[int, ...] = ()
    unclean_leader_epochs: tuple[int, ...] = ()


class TopicDescription(msgspec.Struct):
    name: str
    id: str
    partition_count: int
    replication_factor: int
    configs: dict[str, str]
    """Every setting that is in effect."""
    overrides: list[str]
    """The names of the settings that were set on this topic."""
    created_index: int
    """The quorum log index of the topic's creation: of two topics of one name, the later has the greater."""
    partitions: list[PartitionDescription]


def topic_summary(topic: TopicRecord) -> TopicSummary:
    counts = (topic.partition_count, topic.replication_factor)
    return TopicSummary(topic.name, topic.topic_id.hex(), *counts, topic.created_index)


def topic_description(topic: TopicRecord, config: TopicConfig, partitions: list[PartitionRecord]) -> TopicDescription:
    kafka_names = {attribute: name for name, attribute in TOPIC_CONFIG_NAMES.items()}
    return TopicDescription(
        name=topic.name,
        id=topic.topic_id.hex(),
        partition_count=topic.partition_count,
        replication_factor=topic.replication_factor,
        configs={kafka_names[field.name]: str(getattr(config, field.name)) for field in fields(config)},
        overrides=sorted(name for name, _ in topic.configs),
        created_index=topic.created_index,
        partitions=[_partition_description(partition) for partition in partitions],
    )


def _partition_description(partition: PartitionRecord) -> PartitionDescription:
    return PartitionDescription(
        partition=partition.topic_partition.partition,
        leader=partition.leader if partition.has_leader else None,
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
        replicas=partition.replicas,
        isr=partition.isr,
        commit_set=partition.commit_set,
        not_eligible=partition.not_eligible,
        min_insync_replicas=partition.min_insync_replicas,
        adding_replicas=partition.adding_replicas,
        removing_replicas=partition.removing_replicas,
        unclean_leader_epochs=partition.unclean_leader_epochs,
    )


class Node(msgspec.Struct):
    id: int
    api: str
    data: str
    rack: str
    fenced: bool
    incarnation: int


class Cluster(msgspec.Struct):
    cluster_id: str
    version: str
    """The version of the node that answers."""
    feature_level: int
    controller: int | None
    nodes: list[Node]


def node(broker: BrokerRecord) -> Node:
    return Node(broker.broker_id, str(broker.api), str(broker.data), broker.rack, broker.fenced, broker.incarnation)


def known(broker_id: int) -> int | None:
    """Return the broker id, or None (null in JSON) for no broker."""
    return None if broker_id == NO_BROKER else broker_id


class Health(msgspec.Struct, omit_defaults=True):
    ready: bool
    problems: tuple[str, ...]
    event_loop: EventLoop | None = None


class Producer(msgspec.Struct):
    producer_id: int
    producer_epoch: int


class OffsetRange(msgspec.Struct):
    earliest: int
    latest: int
    leader_epoch: int


class OffsetOfTime(msgspec.Struct):
    offset: int | None
    timestamp: int | None
    leader_epoch: int


class ProducedBatch(msgspec.Struct, omit_defaults=True):
    """One batch of a produce request, with its outcome."""

    partition: int
    record_count: int
    base_offset: int | None = None
    log_append_time: int | None = None
    error: dict[str, Any] | None = None


class ProducedRecords(msgspec.Struct, omit_defaults=True):
    topic: str
    record_count: int
    batches: list[ProducedBatch]
    offsets: msgspec.Raw | None = None
