"""Partitions, their replicas and their reassignments."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec
from aiohttp import web

from http_api.web.call import Call
from http_api.web.query import integer
from http_api.web.topics import partition_of, topic_of
from raftlog.errors import InvalidRequest
from raftlog.model import NO_BROKER, PartitionRecord
from raftlog.security.acls import Operation, ResourceType

from .resources import Addresses, Metadata, Related, check_cluster, reply, reply_list


class PartitionResource(msgspec.Struct, frozen=True):
    """A partition."""

    kind: str
    metadata: Metadata
    cluster_id: str
    topic_name: str
    partition_id: int
    leader: Related | None
    """Null while it has none."""
    replicas: Related
    reassignment: Related


class ReplicaResource(msgspec.Struct, frozen=True):
    """A replica of a partition."""

    kind: str
    metadata: Metadata
    cluster_id: str
    topic_name: str
    partition_id: int
    broker_id: int
    is_leader: bool
    is_in_sync: bool
    broker: Related


class ReassignmentResource(msgspec.Struct, frozen=True):
    """The replicas that a partition gets and loses; both are empty if it is not being moved."""

    kind: str
    metadata: Metadata
    cluster_id: str
    topic_name: str
    partition_id: int
    adding_replicas: list[int]
    removing_replicas: list[int]
    replicas: Related


async def list_partitions(call: Call) -> web.StreamResponse:
    """List the partitions of a topic."""
    check_cluster(call)
    topic = topic_of(call)
    records = call.view.partitions_of(topic.topic_id)
    resource = partial(_partition, Addresses(call), topic.name)
    return await reply_list(call, "KafkaPartitionList", ("topics", topic.name, "partitions"), records, _name, resource)


async def describe_partition(call: Call) -> web.StreamResponse:
    """Describe a partition."""
    check_cluster(call)
    topic = topic_of(call)
    return await reply(call, _partition(Addresses(call), topic.name, partition_of(call, topic)))


async def list_replicas(call: Call) -> web.StreamResponse:
    """List the replicas of a partition."""
    check_cluster(call)
    topic = topic_of(call)
    record = partition_of(call, topic)
    path = ("topics", topic.name, "partitions", record.topic_partition.partition, "replicas")
    resource = partial(_replica, Addresses(call), topic.name, record)
    return await reply_list(call, "KafkaReplicaList", path, record.replicas, "{:010}".format, resource)


async def describe_replica(call: Call) -> web.StreamResponse:
    """Describe a replica of a partition."""
    check_cluster(call)
    topic = topic_of(call)
    record = partition_of(call, topic)
    broker = integer("the broker", call.segment("broker"), 0, 2**31 - 1)
    if broker not in record.replicas:
        raise InvalidRequest("not_found", f"broker {broker} has no replica of this partition")
    return await reply(call, _replica(Addresses(call), topic.name, record, broker))


async def describe_reassignment(call: Call) -> web.StreamResponse:
    """Describe the reassignment of a partition."""
    check_cluster(call)
    topic = topic_of(call)
    return await reply(call, _reassignment(Addresses(call), topic.name, partition_of(call, topic)))


async def list_reassignments_of_topic(call: Call) -> web.StreamResponse:
    """List the partitions of a topic that are being moved."""
    check_cluster(call)
    topic = topic_of(call)
    moving = [record for record in call.view.reassigning() if record.topic_partition.topic_id == topic.topic_id]
    return await _reply_moving(call, topic.name, moving)


async def list_reassignments(call: Call) -> web.StreamResponse:
    """List the partitions that are being moved, of the topics that the caller may describe."""
    check_cluster(call)
    moving = [
        record
        for record in call.view.reassigning()
        if call.may(Operation.DESCRIBE, ResourceType.TOPIC, _topic_name(call, record))
    ]
    return await _reply_moving(call, "-", moving)


async def _reply_moving(call: Call, name: str, moving: Sequence[PartitionRecord]) -> web.StreamResponse:
    to = Addresses(call)

    def resource(record: PartitionRecord) -> ReassignmentResource:
        return _reassignment(to, _topic_name(call, record), record)

    def name_of(record: PartitionRecord) -> str:
        return f"{_topic_name(call, record)}/{_name(record)}"

    path = ("topics", name, "partitions", "-", "reassignment")
    return await reply_list(call, "KafkaReassignmentList", path, moving, name_of, resource)


def _topic_name(call: Call, record: PartitionRecord) -> str:
    topic = call.view.topic_by_id(record.topic_partition.topic_id)
    assert topic is not None, "a partition of no topic"
    return topic.name


def _name(record: PartitionRecord) -> str:
    return f"{record.topic_partition.partition:010}"


def _partition(to: Addresses, topic: str, record: PartitionRecord) -> PartitionResource:
    number = record.topic_partition.partition
    path = ("topics", topic, "partitions", number)
    return PartitionResource(
        "KafkaPartition",
        to.metadata(*path),
        to.cluster_id,
        topic,
        number,
        None if record.leader == NO_BROKER else to.related(*path, "replicas", record.leader),
        to.related(*path, "replicas"),
        to.related(*path, "reassignment"),
    )


def _replica(to: Addresses, topic: str, record: PartitionRecord, broker: int) -> ReplicaResource:
    number = record.topic_partition.partition
    return ReplicaResource(
        "KafkaReplica",
        to.metadata("topics", topic, "partitions", number, "replicas", broker),
        to.cluster_id,
        topic,
        number,
        broker,
        broker == record.leader,
        broker in record.isr,
        to.related("brokers", broker),
    )


def _reassignment(to: Addresses, topic: str, record: PartitionRecord) -> ReassignmentResource:
    number = record.topic_partition.partition
    path = ("topics", topic, "partitions", number)
    return ReassignmentResource(
        "KafkaReassignment",
        to.metadata(*path, "reassignment"),
        to.cluster_id,
        topic,
        number,
        list(record.adding_replicas),
        list(record.removing_replicas),
        to.related(*path, "replicas"),
    )
