"""`POST /v1/fetch` and `GET /v1/topics/{topic}/partitions/{partition}/records`: stored batches, or records.

The raw path sends the broker's parts: bytes in memory through aiohttp, regions of files by `sendfile` without a copy in
Python, unless the connection is encrypted or the file has no descriptor; then they are read in a thread. Each piece
has a deadline, so a stalled reader does not hold files and memory indefinitely.
"""

from __future__ import annotations

import asyncio
from collections import deque

import msgspec
import structlog
from aiohttp import web

from http_api.records.page import Page, PageOptions, join_parts, page, read_region, release, weight
from http_api.web.bodies import JSON_TYPE, content_type, decode_message, read_body
from http_api.web.context import ApiContext, context_of
from http_api.web.limits import (
    DEFAULT_READ_BYTES,
    DEFAULT_READ_RECORDS,
    MAX_READ_BYTES,
    MAX_READ_RECORDS,
    PIECE_BYTES,
    SMALL_REGION_BYTES,
)
from http_api.web.negotiation import negotiate
from http_api.web.problems import ApiError
from http_api.web.query import MAX_OFFSET, TOPIC_ID, Query, integer, partition_of, timestamp, topic_meant
from http_api.web.replies import bulk_reply, write_deadline, write_in_time
from raftlog.config import MAX_FETCH_BYTES, MAX_FETCH_WAIT_MS, MAX_REQUEST_HEAD_BYTES
from raftlog.errors import RaftlogError, RetriableError, error_from_code
from raftlog.json_values import FORMATS
from raftlog.json_values import encode as encode_json
from raftlog.model import EARLIEST, LATEST, PartitionRecord, TopicRecord
from raftlog.ports import Buffer, FileRegion, Part, part_length
from raftlog.system.zero_copy import can_send_region, send_region
from raftlog.wire import (
    CONTENT_TYPE,
    TIMESTAMP_EARLIEST,
    TIMESTAMP_LATEST,
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    encode,
    message_length,
)

from .offsets import find_offset, isolation_of

NDJSON_TYPE = "application/x-ndjson"
QUERY = (
    TOPIC_ID,
    "offset",
    "min_bytes",
    "max_bytes",
    "max_wait_ms",
    "max_records",
    "isolation",
    "key_format",
    "value_format",
)
_GRACE_S = 10.0
"""Seconds beyond `max_wait_ms`, the broker's own deadline, before the API gives up."""

_log = structlog.get_logger(__name__)


class _Records(msgspec.Struct):
    topic: str
    partition: int
    records: msgspec.Raw
    next_offset: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    leader_epoch: int


async def fetch_batches(request: web.Request) -> web.StreamResponse:
    """Answer a `FetchRequest`; the answer is streamed, and its length is known."""
    context = context_of(request)
    Query(request)
    content_type(request, allowed=(CONTENT_TYPE,))
    message, _ = decode_message(await read_body(request, context, MAX_REQUEST_HEAD_BYTES), FetchRequest)
    message = msgspec.structs.replace(
        message,
        max_wait_ms=min(message.max_wait_ms, MAX_FETCH_WAIT_MS),
        max_bytes=min(message.max_bytes, MAX_FETCH_BYTES),
    )
    answer, parts = await _fetch(context, message)
    return await _stream(request, context, encode(answer, parts))


async def read_records(request: web.Request) -> web.StreamResponse:
    """Return records of one partition as JSON or JSON lines."""
    context = context_of(request)
    query = Query(request, QUERY)
    media_type = negotiate(request, (JSON_TYPE, NDJSON_TYPE))
    topic = topic_meant(request, context.service)
    partition = partition_of(request, context.service, topic)
    max_bytes = query.integer("max_bytes", 1, MAX_READ_BYTES, DEFAULT_READ_BYTES)
    min_bytes = query.integer("min_bytes", 0, MAX_READ_BYTES, 1)
    max_wait_ms = query.integer("max_wait_ms", 0, MAX_FETCH_WAIT_MS, 0)
    isolation = isolation_of(query)
    options = PageOptions(
        max_records=query.integer("max_records", 1, MAX_READ_RECORDS, DEFAULT_READ_RECORDS),
        max_bytes=max_bytes,
        show_key=FORMATS[query.choice("key_format", FORMATS, "auto")],
        show_value=FORMATS[query.choice("value_format", FORMATS, "auto")],
        lines=media_type == NDJSON_TYPE,
    )
    text = query.text("offset")
    offset = await _first_offset(context, partition, EARLIEST if text is None else text, isolation)
    asked = FetchPartition(topic.topic_id, partition.topic_partition.partition, offset, max_bytes)
    answer, parts = await _fetch(context, FetchRequest(0, max_wait_ms, min_bytes, max_bytes, [asked], isolation))
    fetched = answer.partitions[0]
    if fetched.error:
        release(parts)
        raise _error_of(fetched)
    batches = await context.finish(_join(context, parts), _GRACE_S)
    context.hold(request, len(batches))
    found = await context.threads.run(weight(batches), page, batches, offset, options, fetched.aborted)
    return await _records_reply(request, context, topic, fetched, found, lines=options.lines)


async def _fetch(context: ApiContext, message: FetchRequest) -> tuple[FetchResponse, list[Part]]:
    """Return the broker's answer. A disconnect of the client cancels the fetch, and closing the API ends it."""
    deadline = asyncio.timeout(message.max_wait_ms / 1000 + _GRACE_S)
    context.polls.add(deadline)
    try:
        async with deadline:
            return await context.service.fetch(message)
    except TimeoutError:
        if context.closing:
            raise RetriableError("shutting_down", "the node is shutting down") from None
        raise RetriableError("request_timed_out", f"no answer {_GRACE_S:.0f} s after the longest wait") from None
    finally:
        context.polls.discard(deadline)


# --- Records ---------------------------------------------------------------------------------------------------------


async def _join(context: ApiContext, parts: list[Part]) -> bytes:
    """Return the bytes of a fetched body in one piece. Its regions are released here, on the event loop's thread."""
    try:
        return await context.threads.run(4 * message_length(parts), join_parts, parts)
    finally:
        release(parts)


async def _first_offset(context: ApiContext, partition: PartitionRecord, text: str, isolation: int) -> int:
    """Return the first offset for `offset=`."""
    if text not in {EARLIEST, LATEST} and not text.startswith("@"):
        return integer("offset (earliest, latest, @milliseconds or a number)", text, 0, MAX_OFFSET)
    if text == EARLIEST:
        return (await find_offset(context, partition, TIMESTAMP_EARLIEST)).offset
    if text != LATEST:
        found = await find_offset(context, partition, timestamp("offset", text[1:]), isolation)
        if found.offset >= 0:
            return found.offset
    return (await find_offset(context, partition, TIMESTAMP_LATEST, isolation)).offset


async def _records_reply(
    request: web.Request,
    context: ApiContext,
    topic: TopicRecord,
    fetched: FetchedPartition,
    found: Page,
    *,
    lines: bool,
) -> web.Response:
    stable = fetched.last_stable_offset if fetched.last_stable_offset >= 0 else fetched.high_watermark
    headers = {
        "X-Raftlog-Next-Offset": str(found.next_offset),
        "X-Raftlog-High-Watermark": str(fetched.high_watermark),
        "X-Raftlog-Last-Stable-Offset": str(stable),
        "X-Raftlog-Log-Start-Offset": str(fetched.log_start_offset),
        "X-Raftlog-Leader-Epoch": str(fetched.leader_epoch),
    }
    body = found.body(lines=lines)
    context.hold(request, len(body))
    if lines:
        return await bulk_reply(request, context, body, NDJSON_TYPE, headers)
    document = _Records(
        topic=topic.name,
        partition=fetched.partition,
        records=msgspec.Raw(body),
        next_offset=found.next_offset,
        high_watermark=fetched.high_watermark,
        last_stable_offset=stable,
        log_start_offset=fetched.log_start_offset,
        leader_epoch=fetched.leader_epoch,
    )
    return await bulk_reply(request, context, encode_json(document), JSON_TYPE, headers)


def _error_of(fetched: FetchedPartition) -> RaftlogError:
    if fetched.error == "offset_out_of_range":
        members = {"log_start_offset": fetched.log_start_offset, "high_watermark": fetched.high_watermark}
        return ApiError(fetched.error, fetched.detail, members=members)
    return error_from_code(fetched.error, fetched.detail, fetched.leader)


# --- Batches ---------------------------------------------------------------------------------------------------------


async def _stream(request: web.Request, context: ApiContext, parts: list[Part]) -> web.StreamResponse:
    """Send an answer of these parts. Every region is released exactly once, also after an error."""
    response = web.StreamResponse(headers={"Content-Type": CONTENT_TYPE})
    response.content_length = message_length(parts)
    rest: deque[Part] = deque(parts)
    transport = request.transport
    try:
        await response.prepare(request)
        while rest:
            if transport is None or transport.is_closing():
                raise ConnectionResetError("the client left")
            small = _take_small(rest)
            if small is not None:
                await write_in_time(response, context, small)
            else:
                await _send_part(response, context, transport, rest.popleft())
            await asyncio.sleep(0)  # Writes that need not wait would never yield to the event loop.
        await response.write_eof()
    except BaseException as error:
        # The length was announced, so a shortened answer must not look like a whole one.
        if transport is not None:
            transport.abort()
        if isinstance(error, RaftlogError | TimeoutError):
            _log.info("fetch_cut_short", error=str(error) or "the client read too slowly")
            raise ConnectionResetError("the answer was cut short") from error
        raise
    finally:
        release(tuple(rest))
    return response


def _take_small(rest: deque[Part]) -> bytes | None:
    """Join the leading small parts: thousands of them must not become thousands of system calls. None if the first part
    is large."""
    pieces: list[Buffer] = []
    room = PIECE_BYTES
    while rest and part_length(rest[0]) <= min(SMALL_REGION_BYTES, room):
        part = rest[0]
        pieces.append(read_region(part) if isinstance(part, FileRegion) else part)
        room -= part_length(part)
        release((rest.popleft(),))
    return b"".join(pieces) if pieces else None


async def _send_part(
    response: web.StreamResponse, context: ApiContext, transport: asyncio.WriteTransport, part: Part
) -> None:
    if not isinstance(part, FileRegion):
        await write_in_time(response, context, part)
    elif can_send_region(transport, part):
        await send_region(transport, part, timeout=write_deadline(context, part.length))
    else:
        await _write_region(response, context, part)


async def _write_region(response: web.StreamResponse, context: ApiContext, region: FileRegion) -> None:
    """Write a region in pieces through Python: the connection is encrypted, or the file has no descriptor."""
    try:
        for start in range(0, region.length, PIECE_BYTES):
            length = min(PIECE_BYTES, region.length - start)
            piece = await asyncio.to_thread(read_region, region, start, length)
            await write_in_time(response, context, piece)
    finally:
        region.release()
