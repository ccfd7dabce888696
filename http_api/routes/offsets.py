"""`GET .../offsets` and `POST /v1/offsets`: the first and last offset, or that of a time. And producer ids."""

from __future__ import annotations

from collections.abc import Sequence

from aiohttp import web

from http_api.models.topics import Nothing, OffsetOfTime, OffsetRange, Producer
from http_api.web.bodies import JSON_TYPE, content_type, decode_json, decode_message, raw_reply, read_body
from http_api.web.context import ApiContext, context_of
from http_api.web.limits import SMALL_BODY_BYTES
from http_api.web.query import TOPIC_ID, Query, partition_of, topic_meant
from http_api.web.replies import json_reply
from raftlog.config import MAX_REQUEST_HEAD_BYTES
from raftlog.errors import error_from_code
from raftlog.model import PartitionRecord
from raftlog.wire import (
    CONTENT_TYPE,
    TIMESTAMP_EARLIEST,
    TIMESTAMP_LATEST,
    FoundOffset,
    OffsetQuery,
    OffsetsRequest,
)

OFFSETS_TIMEOUT_S = 30.0
ALLOCATE_TIMEOUT_S = 30.0
QUERY = (TOPIC_ID, "timestamp", "isolation")
ISOLATION = {"read_uncommitted": 0, "read_committed": 1}


def isolation_of(query: Query) -> int:
    """Return the wire's isolation: 1 unless the reader asks for uncommitted records."""
    return ISOLATION[query.choice("isolation", ISOLATION, "read_committed")]


async def read_offsets(request: web.Request) -> web.StreamResponse:
    """Return the earliest and latest offset of a partition, or the offset of a time."""
    context = context_of(request)
    query = Query(request, QUERY)
    time, isolation = query.timestamp("timestamp"), isolation_of(query)
    topic = topic_meant(request, context.service)
    partition = partition_of(request, context.service, topic)
    if time is None:
        both = (TIMESTAMP_EARLIEST, TIMESTAMP_LATEST)
        earliest, latest = await find_offsets_of(context, partition, both, isolation)
        return json_reply(OffsetRange(earliest.offset, latest.offset, latest.leader_epoch))
    found = await find_offset(context, partition, time, isolation)
    if found.offset < 0:
        return json_reply(OffsetOfTime(None, None, found.leader_epoch))
    return json_reply(OffsetOfTime(found.offset, found.timestamp_ms, found.leader_epoch))


async def find_offsets(request: web.Request) -> web.StreamResponse:
    """Answer an `OffsetsRequest`."""
    context = context_of(request)
    Query(request)
    content_type(request, allowed=(CONTENT_TYPE,))
    message, _ = decode_message(await read_body(request, context, MAX_REQUEST_HEAD_BYTES), OffsetsRequest)
    return raw_reply(await context.finish(context.service.offsets(message), OFFSETS_TIMEOUT_S))


async def allocate_producer(request: web.Request) -> web.StreamResponse:
    """Return a producer id that is not in use."""
    context = context_of(request)
    Query(request)
    body = await read_body(request, context, SMALL_BODY_BYTES)
    if body:
        content_type(request, allowed=(JSON_TYPE,))
        decode_json(body, Nothing)
    producer_id, epoch = await context.finish(context.service.allocate_producer_id(), ALLOCATE_TIMEOUT_S)
    return json_reply(Producer(producer_id, epoch))


async def find_offset(context: ApiContext, partition: PartitionRecord, time: int, isolation: int = 1) -> FoundOffset:
    """Return the offset of a time (or `TIMESTAMP_EARLIEST`, `TIMESTAMP_LATEST`) in one partition. Raises
    `RaftlogError`."""
    (found,) = await find_offsets_of(context, partition, (time,), isolation)
    return found


async def find_offsets_of(
    context: ApiContext, partition: PartitionRecord, times: Sequence[int], isolation: int = 1
) -> list[FoundOffset]:
    """Return several offsets; with `isolation` 1 up to the last stable offset."""
    number = partition.topic_partition
    queries = [OffsetQuery(number.topic_id, number.partition, time) for time in times]
    answer = await context.finish(
        context.service.offsets(OffsetsRequest(0, queries, isolation=isolation)), OFFSETS_TIMEOUT_S
    )
    for found in answer.partitions:
        if found.error:
            raise error_from_code(found.error, found.detail, found.leader)
    return answer.partitions
