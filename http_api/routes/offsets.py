"""`GET .../offsets` and `POST /v1/offsets`: the first and last offset, or that of a time. And producer ids."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from aiohttp import web

from http_api.web.bodies import JSON_TYPE, content_type, decode_json, raw_reply, read_body, read_message
from http_api.web.call import Call
from http_api.web.limits import SMALL_BODY_BYTES
from http_api.web.replies import encoded_reply, json_reply
from http_api.web.topics import TOPIC_ID, partition_of, topic_meant
from raftlog.api.groups import MAX_OFFSETS_PER_REQUEST
from raftlog.api.records import (
    AllocateProducer,
    OffsetOfTime,
    OffsetRange,
    PartitionOffsets,
    Producer,
    TopicOffsets,
)
from raftlog.config import MAX_REQUEST_HEAD_BYTES
from raftlog.errors import error_from_code
from raftlog.json_values import encode
from raftlog.model import PartitionRecord, TopicPartition
from raftlog.wire import TIMESTAMP_EARLIEST, TIMESTAMP_LATEST, FoundOffset, OffsetQuery, OffsetsRequest

OFFSETS_TIMEOUT_S = 30.0
ALLOCATE_TIMEOUT_S = 30.0
QUERY = (TOPIC_ID, "timestamp", "isolation")
TOPIC_QUERY = (TOPIC_ID, "isolation")
MAX_LISTED = 1_000
"""The most partitions of one answer."""
_ROW_COST = 64
"""A row takes about as long as parsing this number of bytes."""
ISOLATION = {"read_uncommitted": 0, "read_committed": 1}


def isolation_of(call: Call) -> int:
    """Return the wire's isolation: 1 unless the reader asks for uncommitted records."""
    return ISOLATION[call.query.choice("isolation", ISOLATION, "read_committed")]


async def read_offsets(call: Call) -> web.StreamResponse:
    """Return the earliest and latest offset of a partition, or the offset of a time."""
    time, isolation = call.query.timestamp("timestamp"), isolation_of(call)
    topic = topic_meant(call)
    partition = partition_of(call, topic)
    if time is None:
        both = (TIMESTAMP_EARLIEST, TIMESTAMP_LATEST)
        earliest, latest = await find_offsets_of(call, partition, both, isolation)
        return json_reply(OffsetRange(earliest.offset, latest.offset, latest.leader_epoch))
    found = await find_offset(call, partition, time, isolation)
    if found.offset < 0:
        return json_reply(OffsetOfTime(None, None, found.leader_epoch))
    return json_reply(OffsetOfTime(found.offset, found.timestamp_ms, found.leader_epoch))


async def read_topic_offsets(call: Call) -> web.StreamResponse:
    """Return the earliest and latest offset of every partition of a topic, as far as they have leaders."""
    isolation = isolation_of(call)
    topic = topic_meant(call)
    numbers = [TopicPartition(topic.topic_id, number) for number in range(min(topic.partition_count, MAX_LISTED))]
    ranges = await ranges_of(call, numbers, isolation)
    shown = [
        PartitionOffsets(tp.partition, held.start if held else None, held.end if held else None)
        for tp in numbers
        for held in (ranges.get(tp),)
    ]
    found = TopicOffsets(topic.name, topic.topic_id.hex(), shown, topic.partition_count > MAX_LISTED)
    return await encoded_reply(call, _ROW_COST * len(shown), encode, found)


async def find_offsets(call: Call) -> web.StreamResponse:
    """Answer an `OffsetsRequest`."""
    message, _ = await read_message(call, OffsetsRequest, MAX_REQUEST_HEAD_BYTES)
    return raw_reply(await call.context.finish(call.partitions.offsets(message), OFFSETS_TIMEOUT_S))


async def allocate_producer(call: Call) -> web.StreamResponse:
    """Return a producer id that is not in use."""
    body = await read_body(call, SMALL_BODY_BYTES)
    if body:
        content_type(call, allowed=(JSON_TYPE,))
        decode_json(body, AllocateProducer)
    producer_id, epoch = await call.context.finish(
        call.service.allocate_producer_id(call.principal), ALLOCATE_TIMEOUT_S
    )
    return json_reply(Producer(producer_id, epoch))


async def find_offset(call: Call, partition: PartitionRecord, time: int, isolation: int = 1) -> FoundOffset:
    """Return the offset of a time (or `TIMESTAMP_EARLIEST`, `TIMESTAMP_LATEST`) in one partition. Raises
    `RaftlogError`."""
    (found,) = await find_offsets_of(call, partition, (time,), isolation)
    return found


async def find_offsets_of(
    call: Call, partition: PartitionRecord, times: Sequence[int], isolation: int = 1
) -> list[FoundOffset]:
    """Return several offsets; with `isolation` 1 up to the last stable offset."""
    number = partition.topic_partition
    queries = [OffsetQuery(number.topic_id, number.partition, time) for time in times]
    wanted = OffsetsRequest(0, queries, isolation=isolation)
    answer = await call.context.finish(call.partitions.offsets(wanted), OFFSETS_TIMEOUT_S)
    for found in answer.partitions:
        if found.error:
            raise error_from_code(found.error, found.detail, found.leader)
    return answer.partitions


@dataclass(frozen=True, slots=True)
class Held:
    """The offsets of a partition."""

    start: int
    end: int


async def ranges_of(call: Call, partitions: Iterable[TopicPartition], isolation: int) -> dict[TopicPartition, Held]:
    """Return the range of each partition for this isolation; partitions without a leader are left out."""
    asked = list(partitions)
    both = (TIMESTAMP_EARLIEST, TIMESTAMP_LATEST)
    queries = [OffsetQuery(tp.topic_id, tp.partition, time) for tp in asked for time in both]
    found = await find_many(call, queries, isolation)
    ranges = {}
    for position, partition in enumerate(asked):
        first, last = found[2 * position], found[2 * position + 1]
        if not first.error and not last.error:
            ranges[partition] = Held(first.offset, last.offset)
    return ranges


async def find_many(call: Call, queries: list[OffsetQuery], isolation: int) -> list[FoundOffset]:
    """Return the answers to any number of queries, which are sent in bounded requests."""
    found: list[FoundOffset] = []
    for first in range(0, len(queries), MAX_OFFSETS_PER_REQUEST):
        part = OffsetsRequest(0, queries[first : first + MAX_OFFSETS_PER_REQUEST], isolation=isolation)
        found += (await call.context.finish(call.partitions.offsets(part), OFFSETS_TIMEOUT_S)).partitions
    return found
