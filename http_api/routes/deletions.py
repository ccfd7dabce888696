"""`POST /v1/topics/{topic}/delete-records`: deletion of the records below an offset, partition by partition."""

from __future__ import annotations

from aiohttp import web

from http_api.web.bodies import read_json
from http_api.web.call import Call
from http_api.web.problems import check_parts, error_member, error_of
from http_api.web.replies import json_reply
from http_api.web.topics import TOPIC_ID, partition_numbered, topic_meant
from raftlog.api.topics import DeletedRecords, DeleteRecords, PartitionDeletion
from raftlog.errors import InvalidRequest
from raftlog.model import TopicRecord
from raftlog.wire import UP_TO_HIGH_WATERMARK, DeletedPartition, DeleteRecordsPartition, DeleteRecordsRequest

QUERY = (TOPIC_ID,)
ANSWER_GRACE_S = 5.0
"""Seconds beyond `timeout_ms`, for finding leaders and forwarding the request."""


async def delete_records(call: Call) -> web.StreamResponse:
    """Delete records; answers once every in-sync replica of every partition has the deletion on disk. Idempotent."""
    topic = topic_meant(call)
    asked = await read_json(call, DeleteRecords)
    wanted = DeleteRecordsRequest(0, asked.timeout_ms, _partitions(topic, asked))
    deletion = call.partitions.delete_records(wanted)
    answer = await call.context.finish(deletion, asked.timeout_ms / 1000 + ANSWER_GRACE_S)
    outcomes = [_outcome(one) for one in answer.partitions]
    check_parts("partitions", outcomes, answer.partitions)
    return json_reply(DeletedRecords(topic.name, outcomes))


def _partitions(topic: TopicRecord, asked: DeleteRecords) -> list[DeleteRecordsPartition]:
    """Raises `InvalidRequest`."""
    found: dict[int, DeleteRecordsPartition] = {}
    for one in asked.partitions:
        partition_numbered(topic, one.partition)
        if one.partition in found:
            raise InvalidRequest("invalid_request", f"partition {one.partition} is named twice")
        before = UP_TO_HIGH_WATERMARK if isinstance(one.before, str) else one.before
        found[one.partition] = DeleteRecordsPartition(topic.topic_id, one.partition, before)
    return list(found.values())


def _outcome(told: DeletedPartition) -> PartitionDeletion:
    error = error_of(told)
    if error is not None:
        return PartitionDeletion(told.partition, error=error_member(error))
    return PartitionDeletion(told.partition, told.log_start_offset)
