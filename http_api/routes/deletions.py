"""`POST /v1/topics/{topic}/delete-records`: deletion of the records below an offset, partition by partition."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from http_api.models.topics import DeletedRecords, DeleteRecords, PartitionDeletion
from http_api.web.bodies import read_json
from http_api.web.context import context_of
from http_api.web.problems import ApiError, error_member, partly, worst
from http_api.web.query import TOPIC_ID, Query, topic_meant, unknown_partition
from http_api.web.replies import json_reply
from raftlog.errors import InvalidRequest, RaftlogError, error_from_code
from raftlog.model import TopicRecord
from raftlog.wire import UP_TO_HIGH_WATERMARK, DeletedPartition, DeleteRecordsPartition, DeleteRecordsRequest

QUERY = (TOPIC_ID,)
ANSWER_GRACE_S = 5.0
"""Seconds beyond `timeout_ms`, for finding leaders and forwarding the request."""


async def delete_records(request: web.Request) -> web.StreamResponse:
    """Delete records; answers once every in-sync replica of every partition has the deletion on disk. Idempotent."""
    context = context_of(request)
    Query(request, QUERY)
    topic = topic_meant(request, context.service)
    asked = await read_json(request, context, DeleteRecords)
    wanted = DeleteRecordsRequest(0, asked.timeout_ms, _partitions(topic, asked))
    deletion = context.service.delete_records(wanted)
    answer = await context.finish(deletion, asked.timeout_ms / 1000 + ANSWER_GRACE_S)
    outcomes = [_outcome(one) for one in answer.partitions]
    errors = [_error(one) for one in answer.partitions if one.error]
    if errors:
        detail = f"{len(errors)} of {len(outcomes)} partitions failed: {worst(errors).detail}"
        members: dict[str, Any] = {"partitions": outcomes, **partly(errors, len(outcomes))}
        raise ApiError(worst(errors).code, detail, members=members)
    return json_reply(DeletedRecords(topic.name, outcomes))


def _partitions(topic: TopicRecord, asked: DeleteRecords) -> list[DeleteRecordsPartition]:
    """Raises `InvalidRequest`."""
    found: dict[int, DeleteRecordsPartition] = {}
    for one in asked.partitions:
        if one.partition >= topic.partition_count:
            raise unknown_partition(topic, one.partition)
        if one.partition in found:
            raise InvalidRequest("invalid_request", f"partition {one.partition} is named twice")
        before = UP_TO_HIGH_WATERMARK if isinstance(one.before, str) else one.before
        found[one.partition] = DeleteRecordsPartition(topic.topic_id, one.partition, before)
    return list(found.values())


def _outcome(told: DeletedPartition) -> PartitionDeletion:
    if told.error:
        return PartitionDeletion(told.partition, error=error_member(_error(told)))
    return PartitionDeletion(told.partition, told.log_start_offset)


def _error(told: DeletedPartition) -> RaftlogError:
    return error_from_code(told.error, told.detail, told.leader)
