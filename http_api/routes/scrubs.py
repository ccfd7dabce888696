"""Scrubbing of this node's replicas: start, and progress. Other nodes answer for their own."""

from __future__ import annotations

from aiohttp import web

from http_api.web.bodies import read_json
from http_api.web.call import Call
from http_api.web.replies import json_reply
from http_api.web.topics import partitions_named
from raftlog.api.scrubs import StartScrub
from raftlog.errors import InvalidRequest
from raftlog.model import TopicPartition


async def start_scrub(call: Call) -> web.StreamResponse:
    asked = await read_json(call, StartScrub)
    call.service.scrubs.scrub_now(await _wanted(call, asked))
    return json_reply(call.service.scrubs.progress(), status=202)


async def describe_scrub(call: Call) -> web.StreamResponse:
    return json_reply(call.service.scrubs.progress())


async def _wanted(call: Call, asked: StartScrub) -> list[TopicPartition]:
    """Return the wanted partitions. Raises `InvalidRequest`, and `RetriableError` if one is unknown here and the quorum
    does not answer."""
    view = call.view
    if asked.topic is None:
        if asked.partition is not None:
            raise InvalidRequest("invalid_request", "a partition without its topic")
        return [record.topic_partition for record in view.partitions()]
    named = await partitions_named(call, [(asked.topic, asked.partition or 0)])
    if asked.partition is not None:
        return named
    return [record.topic_partition for record in view.partitions_of(named[0].topic_id)]
