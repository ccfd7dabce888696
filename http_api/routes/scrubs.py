"""Scrubbing of this node's replicas: start, and progress. Other nodes answer for their own."""

from __future__ import annotations

from aiohttp import web

from http_api.models.scrubs import Scrub, ScrubFinding, StartScrub
from http_api.web.bodies import read_json
from http_api.web.context import ApiContext, context_of
from http_api.web.query import Query
from http_api.web.replies import json_reply
from raftlog.errors import InvalidRequest
from raftlog.model import TopicPartition


async def start_scrub(request: web.Request) -> web.StreamResponse:
    context = context_of(request)
    Query(request)
    asked = await read_json(request, context, StartScrub)
    context.service.scrubs.scrub_now(await _wanted(context, asked))
    return json_reply(_progress(context), status=202)


async def describe_scrub(request: web.Request) -> web.StreamResponse:
    context = context_of(request)
    Query(request)
    return json_reply(_progress(context))


async def _wanted(context: ApiContext, asked: StartScrub) -> list[TopicPartition]:
    """Return the wanted partitions. Raises `InvalidRequest`, and `RetriableError` if one is unknown here and the quorum
    does not answer."""
    view = context.service.view
    if asked.topic is None:
        if asked.partition is not None:
            raise InvalidRequest("invalid_request", "a partition without its topic")
        return [record.topic_partition for record in view.partitions()]
    topic = view.topic(asked.topic)
    if topic is None or (asked.partition or 0) >= topic.partition_count:
        await context.catch_up(f"partition {asked.partition or 0} of topic {asked.topic[:249]!r}")
        topic = view.topic(asked.topic)
    if topic is None:
        raise InvalidRequest("unknown_topic", f"there is no topic {asked.topic!r}")
    if asked.partition is None:
        return [record.topic_partition for record in view.partitions_of(topic.topic_id)]
    if asked.partition >= topic.partition_count:
        raise InvalidRequest("unknown_partition", f"there is no partition {asked.topic}/{asked.partition}")
    return [TopicPartition(topic.topic_id, asked.partition)]


def _progress(context: ApiContext) -> Scrub:
    found = context.service.scrubs.scrub_progress()
    findings = [
        ScrubFinding(topic.name, tp.partition, detail)
        for tp, detail in found.findings
        if (topic := context.service.view.topic_by_id(tp.topic_id)) is not None
    ]
    return Scrub(
        context.service.node_id,
        found.running,
        found.replicas,
        found.replicas_done,
        found.total_bytes,
        found.bytes_read,
        findings,
    )
