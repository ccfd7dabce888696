"""Consumers of version 2, except their reads: create, subscribe, assign, seek, commit.

A consumer lives in the quorum, so any node answers for it, and a node that dies takes none with it. A name that exists
is taken over: the former program of this name is fenced.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

import msgspec
from aiohttp import web

from http_api.rest_proxy.errors import RestRefusal
from http_api.routes.groups import group_name
from http_api.routes.offsets import OFFSETS_TIMEOUT_S
from http_api.service.groups import check_name
from http_api.service.instances import Lease
from http_api.web.bodies import content_type, decode_json, read_body
from http_api.web.call import Call
from http_api.web.limits import SMALL_BODY_BYTES
from http_api.web.origins import base_url
from http_api.web.query import integer
from http_api.web.topics import partitions_named
from metadata.view import InstanceRecord, InstanceSettings
from raftlog.errors import InvalidRequest, error_from_code
from raftlog.json_values import encode
from raftlog.model import Offset, TopicPartition
from raftlog.patterns import full_matcher
from raftlog.security.acls import Operation, Resource, ResourceType
from raftlog.wire import (
    TIMESTAMP_EARLIEST,
    TIMESTAMP_LATEST,
    CommitOffsetsRequest,
    JoinGroupRequest,
    OffsetQuery,
    OffsetsRequest,
    OffsetToCommit,
)

from .media_types import EMBEDDED, METADATA_BODY_TYPES, METADATA_TYPES, answer_type

MAX_WAIT_MS = 300_000
DEFAULT_WAIT_MS = 1_000
NOTHING_DELIVERED = 40903
BAD_SETTING = 42204
STRIMZI = "strimzi"
COMPAT_HEADER = "X-Raftlog-Rest-Compat"
OFFSETS_QUERY = ("topic", "partition")
SESSION_TIMEOUT_MS = 10_000


class CreateConsumer(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename=lambda name: name.replace("_", ".")
):
    """The request to create a consumer. Values may be strings, as some proxies have them."""

    name: str | None = None
    format: str = "binary"
    auto_offset_reset: str = "latest"
    auto_commit_enable: bool | str | None = None
    enable_auto_commit: bool | str | None = None
    fetch_min_bytes: int | str = 1
    consumer_request_timeout_ms: int | str = DEFAULT_WAIT_MS
    isolation_level: str = "read_committed"
    topic_metadata_refresh_interval_ms: int | str | None = None
    """Without effect, as every node knows of a new topic at once."""


class ConsumerCreated(msgspec.Struct, frozen=True):
    """A consumer's name, and the address below which it is used."""

    instance_id: str
    base_uri: str


class Subscribe(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A subscription: topics, or a pattern of their names."""

    topics: list[str] | None = None
    topic_pattern: str | None = None


class Subscription(msgspec.Struct, frozen=True, omit_defaults=True):
    """The topics that a consumer subscribes to."""

    topics: list[str]
    partitions: list[dict[str, list[int]]] | None = None


class NamedPartition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    topic: str
    partition: int


class NamedPartitions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Some partitions."""

    partitions: list[NamedPartition]


class OffsetIn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    topic: str
    partition: int
    offset: int
    metadata: str | None = None


class TimeIn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    topic: str
    partition: int
    timestamp: datetime


class SeekTo(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """New positions, by offset or by time."""

    offsets: list[OffsetIn] = []
    timestamps: list[TimeIn] = []


class CommitOffsets(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Offsets to commit; `partitions` is Redpanda's name of the same."""

    offsets: list[OffsetIn] | None = None
    partitions: list[OffsetIn] | None = None


class OffsetOut(msgspec.Struct, frozen=True):
    topic: str
    partition: int
    offset: int
    """-1: nothing is committed."""
    metadata: str


class CommittedOffsets(msgspec.Struct, frozen=True):
    """Committed offsets."""

    offsets: list[OffsetOut]


# --- Life ------------------------------------------------------------------------------------------------------------


async def create_consumer(call: Call) -> web.StreamResponse:
    """Create a consumer, or take over one of this name."""
    media_type = answer_type(call.request)
    asked = await _read(call, CreateConsumer, empty=CreateConsumer())
    group_id = group_name(call)
    name = check_name("a consumer", asked.name or f"rest-consumer-{secrets.token_hex(16)}")
    settings = _settings(asked)
    created = call.service.instances.create(group_id, name, settings, call.principal)
    await call.context.finish(created, OFFSETS_TIMEOUT_S)
    base = f"{base_url(call.request)}/consumers/{group_id}/instances/{name}"
    return _reply(ConsumerCreated(name, base), media_type)


async def delete_consumer(call: Call) -> web.StreamResponse:
    """Delete a consumer."""
    await call.context.finish(call.service.instances.remove(group_name(call), instance_name(call)), OFFSETS_TIMEOUT_S)
    return web.Response(status=204)


def instance_name(call: Call) -> str:
    """Return the consumer in the path. Raises `InvalidRequest`."""
    return check_name("a consumer", call.segment("instance"))


async def instance_of(call: Call) -> InstanceRecord:
    """Return the consumer in the path as the quorum knows it: the client's last request may have changed it through
    another node (S7). Raises `InvalidRequest` (`unknown_instance`)."""
    await call.catch_up(f"the consumer {instance_name(call)!r}")
    return await known_instance_of(call)


async def known_instance_of(call: Call) -> InstanceRecord:
    """Return the consumer in the path as this node knows it: all that never changes in it, such as its format. Raises
    `InvalidRequest` (`unknown_instance`)."""
    found = call.service.instances.find(group_name(call), instance_name(call))
    return await call.context.finish(found, OFFSETS_TIMEOUT_S)


def _settings(asked: CreateConsumer) -> InstanceSettings:
    if asked.format not in EMBEDDED:
        raise RestRefusal(422, BAD_SETTING, f"format must be {', '.join(EMBEDDED)}, not {asked.format[:64]!r}")
    if asked.auto_offset_reset not in ("earliest", "latest"):
        told = asked.auto_offset_reset[:64]
        raise RestRefusal(422, BAD_SETTING, f"auto.offset.reset must be earliest or latest, not {told!r}")
    if asked.isolation_level != "read_committed":
        raise RestRefusal(422, BAD_SETTING, "isolation.level must be read_committed: consumers see committed records")
    auto_commit = asked.auto_commit_enable if asked.enable_auto_commit is None else asked.enable_auto_commit
    return InstanceSettings(
        asked.format,
        asked.auto_offset_reset,
        str(auto_commit).lower() == "true",
        _number("fetch.min.bytes", asked.fetch_min_bytes, -1, 64 * 1024 * 1024),
        _number("consumer.request.timeout.ms", asked.consumer_request_timeout_ms, 0, MAX_WAIT_MS),
    )


def _number(name: str, value: int | str, low: int, high: int) -> int:
    try:
        return max(0, integer(name, str(value), low, high))
    except InvalidRequest as error:
        raise RestRefusal(400, 40001, error.detail) from None


# --- Subscription ----------------------------------------------------------------------------------------------------


async def subscribe(call: Call) -> web.StreamResponse:
    """Subscribe to topics, or to a pattern."""
    asked = await _read(call, Subscribe)
    topics, pattern = asked.topics or [], asked.topic_pattern or ""
    if bool(topics) == bool(pattern):
        raise InvalidRequest("invalid_request", "give topics, or topic_pattern, and not both")
    group_id, name = group_name(call), instance_name(call)
    call.check_request(JoinGroupRequest(0, group_id, name, "", "", topics, pattern, "", SESSION_TIMEOUT_MS, 60_000))
    if (await instance_of(call)).partitions:
        raise RestRefusal(409, NOTHING_DELIVERED, "the consumer has assigned partitions to itself: delete that first")
    subscribed = call.service.instances.subscribe(group_id, name, topics=topics, pattern=pattern)
    await call.context.finish(subscribed, OFFSETS_TIMEOUT_S)
    return web.Response(status=204)


async def describe_subscription(call: Call) -> web.StreamResponse:
    """Return the topics that the consumer subscribes to."""
    media_type = answer_type(call.request)
    record = await instance_of(call)
    topics = _topics(call, record)
    if call.context.rest_compat != STRIMZI:
        return _reply(Subscription(topics), media_type)
    owned: dict[str, list[int]] = {}
    for one in _owned(call, record):
        owned.setdefault(one.topic, []).append(one.partition)
    return _reply(Subscription(topics, [{topic: numbers} for topic, numbers in owned.items()]), media_type)


def _topics(call: Call, record: InstanceRecord) -> list[str]:
    """Return the topics that a consumer subscribes to: of a pattern, those that match it now."""
    if not record.pattern:
        return list(record.topics)
    matches = full_matcher(record.pattern)
    names = sorted(topic.name for topic in call.view.topics() if matches(topic.name))
    return [name for name in names if call.may(Operation.DESCRIBE, ResourceType.TOPIC, name)]


async def unsubscribe(call: Call) -> web.StreamResponse:
    """Subscribe to nothing."""
    ended = call.service.instances.subscribe(group_name(call), instance_name(call))
    await call.context.finish(ended, OFFSETS_TIMEOUT_S)
    return web.Response(status=204)


async def assign(call: Call) -> web.StreamResponse:
    """Assign partitions to the consumer itself."""
    asked = await _read(call, NamedPartitions)
    _check_topics(call, (one.topic for one in asked.partitions))
    partitions = await partitions_named(call, [(one.topic, one.partition) for one in asked.partitions])
    if (await instance_of(call)).subscribes:
        raise RestRefusal(409, NOTHING_DELIVERED, "the consumer subscribes to topics: delete that first")
    assigned = call.service.instances.subscribe(group_name(call), instance_name(call), partitions=partitions)
    await call.context.finish(assigned, OFFSETS_TIMEOUT_S)
    return web.Response(status=204)


async def describe_assignments(call: Call) -> web.StreamResponse:
    """Return the consumer's partitions."""
    media_type = answer_type(call.request)
    return _reply(NamedPartitions(_owned(call, await instance_of(call))), media_type)


def _owned(call: Call, record: InstanceRecord) -> list[NamedPartition]:
    partitions: Iterable[TopicPartition] = record.partitions
    if record.subscribes:
        group = call.view.groups.group(record.group_id)
        member = group.members.get(record.name) if group is not None else None
        partitions = member.assigned if member is not None else ()
    found = []
    for partition in partitions:
        topic = call.view.topic_by_id(partition.topic_id)
        if topic is not None and call.may(Operation.DESCRIBE, ResourceType.TOPIC, topic.name):
            found.append(NamedPartition(topic.name, partition.partition))
    return sorted(found, key=lambda one: (one.topic, one.partition))


# --- Positions -------------------------------------------------------------------------------------------------------


async def seek(call: Call) -> web.StreamResponse:
    """Move positions to offsets or times."""
    asked = await _read(call, SeekTo)
    _check_topics(call, (one.topic for one in (*asked.offsets, *asked.timestamps)))
    by_offset = await _sought(call, asked.offsets)
    by_time = await _sought(call, asked.timestamps)
    wanted = {tp: Offset(_natural(one.offset)) for tp, one in zip(by_offset, asked.offsets, strict=True)}
    times = [_milliseconds(one.timestamp) for one in asked.timestamps]
    wanted |= await _find(call, by_time, times)
    return await _seek(call, wanted)


async def seek_to_beginning(call: Call) -> web.StreamResponse:
    """Move positions to the first records."""
    return await _seek_to(call, TIMESTAMP_EARLIEST)


async def seek_to_end(call: Call) -> web.StreamResponse:
    """Move positions behind the last records."""
    return await _seek_to(call, TIMESTAMP_LATEST)


async def _sought(
    call: Call, named: Sequence[OffsetIn] | Sequence[TimeIn] | Sequence[NamedPartition]
) -> list[TopicPartition]:
    """Return the named partitions. One that does not exist is not assigned to the consumer, which is the error."""
    try:
        return await partitions_named(call, [(one.topic, one.partition) for one in named])
    except InvalidRequest as error:
        if error.code not in ("unknown_topic", "unknown_partition"):
            raise
        raise InvalidRequest("stale_generation", f"{error.detail}, so it is not assigned to this consumer") from None


async def _seek_to(call: Call, time: int) -> web.StreamResponse:
    asked = await _read(call, NamedPartitions)
    _check_topics(call, (one.topic for one in asked.partitions))
    partitions = await _sought(call, asked.partitions)
    return await _seek(call, await _find(call, partitions, [time] * len(partitions)))


async def _seek(call: Call, wanted: dict[TopicPartition, Offset]) -> web.StreamResponse:
    sought = call.service.instances.seek(group_name(call), instance_name(call), wanted)
    await call.context.finish(sought, OFFSETS_TIMEOUT_S)
    return web.Response(status=204)


async def _find(call: Call, partitions: Sequence[TopicPartition], times: Sequence[int]) -> dict[TopicPartition, Offset]:
    """Return the offset of a time in each partition, the end where there is no record of that time or later."""
    found: dict[TopicPartition, Offset] = {}
    for wanted, is_last in ((times, False), ([TIMESTAMP_LATEST] * len(partitions), True)):
        asked = [(tp, time) for tp, time in zip(partitions, wanted, strict=True) if tp not in found]
        if not asked:
            break
        queries = [OffsetQuery(tp.topic_id, tp.partition, time) for tp, time in asked]
        looked_up = call.partitions.offsets(OffsetsRequest(0, queries, isolation=1))
        answer = await call.context.finish(looked_up, OFFSETS_TIMEOUT_S)
        for (partition, _), one in zip(asked, answer.partitions, strict=True):
            if one.error:
                raise error_from_code(one.error, one.detail, one.leader)
            if one.offset >= 0 or is_last:
                found[partition] = Offset(one.offset)
    return found


# --- Offsets ---------------------------------------------------------------------------------------------------------


async def commit_offsets(call: Call) -> web.StreamResponse:
    """Commit offsets: those in the body, or everything that was delivered, if the body is empty or an empty object."""
    body = await read_body(call, SMALL_BODY_BYTES)
    asked = _decoded(call, body, CommitOffsets) if body.strip() else CommitOffsets()
    named = asked.offsets if asked.offsets is not None else asked.partitions
    if named is None:
        await _commit_delivered(call)
    else:
        await _commit(call, named)
    headers = {COMPAT_HEADER: call.context.rest_compat}
    if call.context.rest_compat == STRIMZI:
        return web.Response(status=204, headers=headers)
    return web.Response(body=b"[]", content_type=METADATA_TYPES[0], headers=headers)


async def _commit(call: Call, named: Sequence[OffsetIn]) -> None:
    _check_topics(call, (one.topic for one in named))
    partitions = await partitions_named(call, [(one.topic, one.partition) for one in named])
    # To Confluent's proxy clients commit the record that was processed; to Strimzi's and Redpanda's the next one.
    step = 0 if call.context.rest_compat == STRIMZI else 1
    offsets = [
        OffsetToCommit(tp.topic_id, tp.partition, _natural(one.offset) + step, -1, one.metadata or "")
        for tp, one in zip(partitions, named, strict=True)
    ]
    await _decide(call, await instance_of(call), offsets)


async def _commit_delivered(call: Call) -> None:
    """Commit up to where the client has certainly got everything (S8). Raises `RestRefusal` if it has got nothing since
    this consumer came to its partitions: what was read before that may come again."""
    instances = call.service.instances
    lent = instances.lend(group_name(call), instance_name(call), 0)
    lease: Lease = await call.context.finish(lent, OFFSETS_TIMEOUT_S)
    try:
        transport = call.request.transport
        if transport is None or transport.is_closing():
            # A commit that comes late would commit what was delivered after it was sent.
            raise ConnectionResetError("the client has gone")
        delivered = [one for one in lease.partitions if one.delivered]
        if not delivered:
            raise RestRefusal(409, NOTHING_DELIVERED, "nothing was delivered since the consumer got its partitions")
        offsets = [OffsetToCommit(one.partition.topic_id, one.partition.partition, one.offset) for one in delivered]
        await _decide(call, lease.record, offsets)
    finally:
        await call.context.finish(instances.settle(lease, {}), OFFSETS_TIMEOUT_S)


async def _decide(call: Call, record: InstanceRecord, offsets: Sequence[OffsetToCommit]) -> None:
    """Commit for one epoch of the consumer: the quorum refuses it if the consumer has another, or lost a partition."""
    group = call.view.groups.group(record.group_id)
    member = group.members.get(record.name) if group is not None else None
    is_member = record.subscribes
    generation = (member.generation if member is not None else record.epoch) if is_member else 0
    commit = CommitOffsetsRequest(
        0,
        record.group_id,
        record.name if is_member else "",
        record.epoch if is_member else 0,
        generation,
        list(offsets),
    )
    call.check_request(commit)
    await call.context.decided(partial(call.service.groups.commit, commit, principal=call.principal))


async def describe_offsets(call: Call) -> web.StreamResponse:
    """Return committed offsets of the partitions in the body, or of `topic` and `partition` in the query."""
    media_type = answer_type(call.request)
    topics, numbers = call.query.texts("topic"), call.query.texts("partition")
    if topics or numbers:
        if len(topics) != len(numbers):
            raise InvalidRequest("invalid_request", "give topic and partition equally often")
        pairs = zip(topics, numbers, strict=True)
        asked = [NamedPartition(topic, integer("partition", text, 0, 2**31 - 1)) for topic, text in pairs]
    else:
        asked = (await _read(call, NamedPartitions)).partitions
    _check_topics(call, (one.topic for one in asked))
    record = await instance_of(call)
    partitions = await partitions_named(call, [(one.topic, one.partition) for one in asked])
    committed = call.view.groups.offsets(record.group_id)
    shown = []
    for one, partition in zip(asked, partitions, strict=True):
        known = committed.get(partition)
        shown.append(
            OffsetOut(one.topic, one.partition, -1, "")
            if known is None
            else OffsetOut(one.topic, one.partition, known.offset, known.metadata)
        )
    return _reply(CommittedOffsets(shown), media_type)


# --- Bodies ----------------------------------------------------------------------------------------------------------


async def _read(call: Call, model: type[Any], empty: Any = None) -> Any:
    body = await read_body(call, SMALL_BODY_BYTES)
    if not body.strip() and empty is not None:
        return empty
    return _decoded(call, body, model)


def _decoded(call: Call, body: bytes, model: type[Any]) -> Any:
    content_type(call, allowed=METADATA_BODY_TYPES)
    return decode_json(body, model)


def _check_topics(call: Call, topics: Iterable[str]) -> None:
    """Raise `InvalidRequest` (`authorization_failed`) for a topic that the caller may not read."""
    for name in dict.fromkeys(topics):
        call.check(Operation.READ, Resource(ResourceType.TOPIC, name))


def _natural(offset: int) -> int:
    if not 0 <= offset < 2**62:
        raise InvalidRequest("invalid_request", f"an offset is at least 0, not {offset}")
    return offset


def _milliseconds(time: datetime) -> int:
    aware = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
    return max(0, round(aware.timestamp() * 1000))


def _reply(document: Any, media_type: str) -> web.Response:
    return web.Response(body=encode(document), content_type=media_type)
