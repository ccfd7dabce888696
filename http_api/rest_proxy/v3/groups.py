"""Consumer groups, their members, assignments and lags."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from operator import attrgetter

import msgspec
from aiohttp import web

from http_api.routes.group_offsets import offset_rows
from http_api.routes.groups import group_of
from http_api.web.call import Call
from http_api.web.listing import describable
from http_api.web.query import integer
from http_api.web.replies import known
from metadata.view import GroupRecord, MemberRecord
from raftlog.api.groups import GroupOffsetInfo
from raftlog.errors import InvalidRequest
from raftlog.model import TopicPartition
from raftlog.security.acls import Operation, ResourceType

from .resources import Addresses, Metadata, Related, check_cluster, reply, reply_list

GROUPS = "consumer-groups"


class GroupResource(msgspec.Struct, frozen=True):
    """A consumer group."""

    kind: str
    metadata: Metadata
    cluster_id: str
    consumer_group_id: str
    is_simple: bool
    """Whether it has offsets without ever having had members."""
    partition_assignor: str
    state: str
    coordinator: Related | None
    """Null while there is none."""
    consumers: Related
    lag_summary: Related


class ConsumerResource(msgspec.Struct, frozen=True):
    """A member of a consumer group."""

    kind: str
    metadata: Metadata
    cluster_id: str
    consumer_group_id: str
    consumer_id: str
    instance_id: str | None
    client_id: str
    assignments: Related


class AssignmentResource(msgspec.Struct, frozen=True):
    """A partition that a member owns."""

    kind: str
    metadata: Metadata
    cluster_id: str
    consumer_group_id: str
    consumer_id: str
    topic_name: str
    partition_id: int
    partition: Related
    lag: Related


class LagResource(msgspec.Struct, frozen=True):
    """The lag of a group in a partition. A value is null if the group has committed nothing there, or the partition has
    no leader."""

    kind: str
    metadata: Metadata
    cluster_id: str
    consumer_group_id: str
    topic_name: str
    partition_id: int
    current_offset: int | None
    log_end_offset: int | None
    lag: int | None
    consumer_id: str
    instance_id: str | None
    client_id: str


class LagSummaryResource(msgspec.Struct, frozen=True):
    """The largest lag of a group, and the sum."""

    kind: str
    metadata: Metadata
    cluster_id: str
    consumer_group_id: str
    max_lag_consumer_id: str
    max_lag_instance_id: str | None
    max_lag_client_id: str
    max_lag_topic_name: str
    max_lag_partition_id: int
    max_lag: int
    total_lag: int
    max_lag_consumer: Related | None
    max_lag_partition: Related


async def list_groups(call: Call) -> web.StreamResponse:
    """List the groups that the caller may describe."""
    check_cluster(call)
    groups = await describable(call, ResourceType.GROUP, call.view.groups.groups(), attrgetter("group_id"))
    resource = partial(_group, call, Addresses(call))
    return await reply_list(call, "KafkaConsumerGroupList", (GROUPS,), groups, attrgetter("group_id"), resource)


async def describe_group(call: Call) -> web.StreamResponse:
    """Describe a group."""
    check_cluster(call)
    return await reply(call, _group(call, Addresses(call), await group_of(call)))


async def list_consumers(call: Call) -> web.StreamResponse:
    """List the members of a group."""
    check_cluster(call)
    group = await group_of(call)
    path, members = (GROUPS, group.group_id, "consumers"), list(group.members.values())
    resource = partial(_consumer, Addresses(call), group.group_id)
    return await reply_list(call, "KafkaConsumerList", path, members, attrgetter("member_id"), resource)


async def describe_consumer(call: Call) -> web.StreamResponse:
    """Describe a member of a group."""
    check_cluster(call)
    group = await group_of(call)
    return await reply(call, _consumer(Addresses(call), group.group_id, _member(call, group)))


async def list_assignments(call: Call) -> web.StreamResponse:
    """List the partitions that a member owns, of the topics that the caller may describe."""
    check_cluster(call)
    group = await group_of(call)
    member = _member(call, group)
    owned = [(name, tp) for tp in member.owned if (name := _topic_name(call, tp))]
    shown = await describable(call, ResourceType.TOPIC, owned, lambda one: one[0])
    to = Addresses(call)

    def resource(one: tuple[str, TopicPartition]) -> AssignmentResource:
        return _assignment(to, group.group_id, member.member_id, one[0], one[1].partition)

    path = (GROUPS, group.group_id, "consumers", member.member_id, "assignments")
    names = "{0[0]}/{0[1].partition:010}".format
    return await reply_list(call, "KafkaConsumerAssignmentList", path, shown, names, resource)


async def describe_assignment(call: Call) -> web.StreamResponse:
    """Describe a partition that a member owns."""
    check_cluster(call)
    group = await group_of(call)
    member = _member(call, group)
    topic, number = _place(call)
    if not any((_topic_name(call, tp), tp.partition) == (topic, number) for tp in member.owned):
        raise InvalidRequest("not_found", f"{topic}/{number} is not assigned to consumer {member.member_id!r}")
    return await reply(call, _assignment(Addresses(call), group.group_id, member.member_id, topic, number))


async def list_lags(call: Call) -> web.StreamResponse:
    """List the lags of a group, of the topics that the caller may describe."""
    check_cluster(call)
    group = await group_of(call)
    rows = await offset_rows(call, group, with_lag=True)
    path = (GROUPS, group.group_id, "lags")
    names = "{0.topic}/{0.partition:010}".format
    return await reply_list(call, "KafkaConsumerLagList", path, rows, names, partial(_lag, Addresses(call), group))


async def describe_lag(call: Call) -> web.StreamResponse:
    """Describe the lag of a group in one partition."""
    check_cluster(call)
    topic, number = _place(call)
    group = await group_of(call)
    for row in await offset_rows(call, group, with_lag=True):
        if (row.topic, row.partition) == (topic, number):
            return await reply(call, _lag(Addresses(call), group, row))
    raise InvalidRequest("not_found", f"group {group.group_id!r} has no offset in {topic}/{number}")


async def summarize_lags(call: Call) -> web.StreamResponse:
    """Return the largest lag of a group, and the sum."""
    check_cluster(call)
    group = await group_of(call)
    rows = [row for row in await offset_rows(call, group, with_lag=True) if row.lag is not None]
    if not rows:
        raise InvalidRequest("not_found", f"group {group.group_id!r} has no lag: it has committed no offset")
    return await reply(call, _summary(Addresses(call), group, rows))


# --- Resources -------------------------------------------------------------------------------------------------------


def _group(call: Call, to: Addresses, group: GroupRecord) -> GroupResource:
    coordinator = known(call.view.controller)
    return GroupResource(
        "KafkaConsumerGroup",
        to.metadata(GROUPS, group.group_id),
        to.cluster_id,
        group.group_id,
        not group.assignor,
        group.assignor,
        group.state.value.upper(),
        None if coordinator is None else to.related("brokers", coordinator),
        to.related(GROUPS, group.group_id, "consumers"),
        to.related(GROUPS, group.group_id, "lag-summary"),
    )


def _consumer(to: Addresses, group_id: str, member: MemberRecord) -> ConsumerResource:
    path = (GROUPS, group_id, "consumers", member.member_id)
    return ConsumerResource(
        "KafkaConsumer",
        to.metadata(*path),
        to.cluster_id,
        group_id,
        member.member_id,
        member.instance_id or None,
        member.client_id,
        to.related(*path, "assignments"),
    )


def _assignment(to: Addresses, group_id: str, member_id: str, topic: str, number: int) -> AssignmentResource:
    place = (topic, "partitions", number)
    return AssignmentResource(
        "KafkaConsumerAssignment",
        to.metadata(GROUPS, group_id, "consumers", member_id, "assignments", topic, "partitions", number),
        to.cluster_id,
        group_id,
        member_id,
        topic,
        number,
        to.related("topics", *place),
        to.related(GROUPS, group_id, "lags", *place),
    )


def _lag(to: Addresses, group: GroupRecord, row: GroupOffsetInfo) -> LagResource:
    owner = None if row.member_id is None else group.members.get(row.member_id)
    return LagResource(
        "KafkaConsumerLag",
        to.metadata(GROUPS, group.group_id, "lags", row.topic, "partitions", row.partition),
        to.cluster_id,
        group.group_id,
        row.topic,
        row.partition,
        row.offset,
        row.log_end_offset,
        row.lag,
        row.member_id or "",
        (owner.instance_id or None) if owner is not None else None,
        owner.client_id if owner is not None else "",
    )


def _summary(to: Addresses, group: GroupRecord, rows: Sequence[GroupOffsetInfo]) -> LagSummaryResource:
    most = max(rows, key=lambda row: row.lag or 0)
    lag = _lag(to, group, most)
    consumer = to.related(GROUPS, group.group_id, "consumers", lag.consumer_id) if lag.consumer_id else None
    return LagSummaryResource(
        "KafkaConsumerGroupLagSummary",
        Metadata(to.url(GROUPS, group.group_id, "lag-summary"), f"{to.metadata(GROUPS, group.group_id).resource_name}"),
        to.cluster_id,
        group.group_id,
        lag.consumer_id,
        lag.instance_id,
        lag.client_id,
        most.topic,
        most.partition,
        most.lag or 0,
        sum(row.lag or 0 for row in rows),
        consumer,
        to.related("topics", most.topic, "partitions", most.partition),
    )


def _member(call: Call, group: GroupRecord) -> MemberRecord:
    name = call.segment("consumer")
    member = group.members.get(name)
    if member is None:
        raise InvalidRequest("not_found", f"group {group.group_id!r} has no consumer {name[:255]!r}")
    return member


def _place(call: Call) -> tuple[str, int]:
    """Return topic and partition in the path."""
    return call.segment("topic"), integer("the partition", call.segment("partition"), 0, 2**31 - 1)


def _topic_name(call: Call, partition: TopicPartition) -> str:
    topic = call.view.topic_by_id(partition.topic_id)
    return "" if topic is None or not call.may(Operation.DESCRIBE, ResourceType.TOPIC, topic.name) else topic.name
