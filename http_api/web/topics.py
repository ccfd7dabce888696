"""The topics and partitions that requests name. Unknown ones are refused by name."""

from __future__ import annotations

import re
from collections.abc import Sequence

from aiohttp import web

from metadata.view import ClusterView
from raftlog.errors import InvalidRequest
from raftlog.model import PartitionRecord, TopicPartition, TopicRecord

from .call import Call
from .query import integer

TOPIC_ID = "topic_id"
"""The query parameter with the id of the topic in the path."""
_PARTITION = re.compile(r"[0-9]{1,10}")
_HEXADECIMAL_ID = re.compile(r"[0-9a-fA-F]{32}", re.ASCII)


def topic_named(view: ClusterView, name: str) -> TopicRecord:
    """Return the topic of this name. Raises `InvalidRequest("unknown_topic")`."""
    topic = view.topic(name)
    if topic is None:
        raise InvalidRequest("unknown_topic", f"there is no topic {name[:249]!r}")
    return topic


def partition_numbered(topic: TopicRecord, number: int) -> TopicPartition:
    """Return the topic's partition with this number. Raises `InvalidRequest("unknown_partition")`."""
    if not 0 <= number < topic.partition_count:
        raise _unknown_partition(topic, number)
    return TopicPartition(topic.topic_id, number)


async def partitions_named(call: Call, named: Sequence[tuple[str, int]]) -> list[TopicPartition]:
    """Return the partitions with these topic names and numbers. If one is unknown here, the view catches up first, and
    the route's guard decides again. Raises `InvalidRequest`, and `RetriableError` if the quorum does not answer."""
    view = call.view
    for name, number in named:
        topic = view.topic(name)
        if topic is None or number >= topic.partition_count:
            await call.catch_up(f"partition {number} of topic {name[:249]!r}")
            break
    return [partition_numbered(topic_named(view, name), number) for name, number in named]


def topic_of(call: Call) -> TopicRecord:
    """Return the topic in the path. Raises `InvalidRequest("unknown_topic")`."""
    return topic_named(call.view, call.segment("topic"))


def topic_meant(call: Call) -> TopicRecord:
    """Return the topic in the path; if the query has a `topic_id`, it must match. Raises `InvalidRequest`."""
    topic = topic_of(call)
    if is_another(call.request, topic):
        given = call.request.query[TOPIC_ID][:64]
        gone = f"topic {topic.name!r} with the id {given} was deleted; the current one has another id"
        raise InvalidRequest("unknown_topic", gone)
    return topic


def is_another(request: web.Request, topic: TopicRecord) -> bool:
    """Return whether the query's `topic_id` belongs to another topic. Raises `InvalidRequest` if it is not an id."""
    given = request.query.get(TOPIC_ID) if "?" in request.raw_path else None
    if given is None:
        return False
    if not _HEXADECIMAL_ID.fullmatch(given):
        raise InvalidRequest("invalid_request", f"{TOPIC_ID} must have 32 hexadecimal digits, not {given[:64]!r}")
    return bytes.fromhex(given) != topic.topic_id


def partition_of(call: Call, topic: TopicRecord) -> PartitionRecord:
    """Return the partition in the path. Raises `InvalidRequest("unknown_partition")`."""
    number = integer("the partition", call.segment("partition"), 0, 2**31 - 1)
    partition = call.view.partition(TopicPartition(topic.topic_id, number))
    if partition is None:
        raise _unknown_partition(topic, number)
    return partition


def _unknown_partition(topic: TopicRecord, number: int) -> InvalidRequest:
    return InvalidRequest(
        "unknown_partition", f"topic {topic.name!r} has partitions 0 to {topic.partition_count - 1}, not {number}"
    )


async def know_topic(call: Call) -> None:
    """Catch up with the quorum before a topic or partition is reported as unknown: another node may just have created
    it, and this node's view may be stale. The same holds if the caller knows another topic by this name, because one of
    the two was deleted. Raises `RetriableError` if the quorum does not answer."""
    request, context = call.request, call.context
    name = request.match_info.get("topic")
    if name is None:
        return
    topic = call.view.topic(name)
    partition = request.match_info.get("partition") or request.query.get("partition", "")
    if topic is None:
        await context.catch_up(f"topic {name[:249]!r}")
    elif is_another(request, topic):
        await context.catch_up(f"whether topic {name!r} was deleted and created again", code="metadata_behind")
    elif _PARTITION.fullmatch(partition) and int(partition) >= topic.partition_count:
        await context.catch_up(f"partition {partition} of topic {name!r}")
