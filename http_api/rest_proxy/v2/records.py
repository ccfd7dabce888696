"""`GET /topics/{topic}/partitions/{partition}/records`: records of one partition from an offset on, without a consumer
(Redpanda's addition to the API)."""

from __future__ import annotations

from aiohttp import web

from http_api.records.page import Page, PageOptions
from http_api.rest_proxy.errors import RestRefusal
from http_api.routes.fetch import fetch, page_reply, plan_page
from http_api.web.call import Call
from http_api.web.limits import DEFAULT_READ_BYTES, MAX_READ_BYTES, MAX_READ_RECORDS
from http_api.web.query import MAX_OFFSET, integer
from http_api.web.topics import partition_of, topic_of
from raftlog.config import MAX_FETCH_WAIT_MS
from raftlog.errors import InvalidRequest
from raftlog.wire import FetchPartition, FetchRequest

from .embedded import can_show, rows_of
from .media_types import records_type

QUERY = ("offset", "timeout", "max_bytes")
DEFAULT_WAIT_MS = 1_000
NOT_IN_FORMAT = 40801
READ_COMMITTED = 1


async def read_records(call: Call) -> web.StreamResponse:
    """Return records as soon as there are any, at the latest after `timeout` milliseconds."""
    embedded, media_type = records_type(call.request)
    topic = topic_of(call)
    number = partition_of(call, topic).topic_partition.partition
    text = call.query.text("offset")
    if text is None:
        raise InvalidRequest("invalid_request", "the query parameter offset is missing: the first offset to read")
    offset = integer("offset", text, 0, MAX_OFFSET)
    wait_ms = call.query.integer("timeout", 0, MAX_FETCH_WAIT_MS, DEFAULT_WAIT_MS)
    max_bytes = call.query.integer("max_bytes", 1, MAX_READ_BYTES, DEFAULT_READ_BYTES)
    options = PageOptions(
        max_records=MAX_READ_RECORDS,
        max_bytes=max_bytes,
        rows=rows_of(topic.name, number, embedded),
        lines=False,
        can_show=can_show(embedded),
    )
    asked = FetchPartition(topic.topic_id, number, offset, max_bytes)
    answer, parts = await fetch(call, FetchRequest(0, wait_ms, 1, max_bytes, [asked], READ_COMMITTED))
    found, cost = await plan_page(call, answer.partitions[0], parts, offset, options)
    check_shown(found, embedded, f"topic {topic.name}, partition {number}")
    return await page_reply(call, found, options, cost, media_type, {}, b"[", b"]")


def check_shown(found: Page, embedded: str, place: str) -> None:
    """Raise `RestRefusal` if the first record cannot be shown in the format."""
    if found.hidden and not found.records:
        raise RestRefusal(
            408,
            NOT_IN_FORMAT,
            f"the record at offset {found.next_offset} of {place} is not {embedded}: read it as binary, "
            "or read on behind it",
        )
