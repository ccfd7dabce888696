"""`POST /v1/fetch` and `GET /v1/topics/{topic}/partitions/{partition}/records`: stored batches, or records.

The raw path sends the broker's parts: bytes in memory through aiohttp, regions of files by `sendfile` without a copy in
Python, unless the connection is encrypted or the file has no descriptor; then they are read in a thread. Each piece
has a deadline, so a stalled reader does not hold files and memory indefinitely.
"""

from __future__ import annotations

import asyncio
import base64
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec
import structlog
from aiohttp import web

from http_api.records.arrow_page import ARROW_TYPE, PARQUET_TYPE, ArrowPageEncoder
from http_api.records.page import Page, PageEncoder, PageOptions, join_parts, native_rows, page, read_region, weight
from http_api.service.access import Usage
from http_api.web import limits
from http_api.web.bodies import JSON_TYPE, read_message
from http_api.web.call import Call
from http_api.web.compression import coding_of
from http_api.web.context import ApiContext
from http_api.web.limits import OFFLOAD_BYTES
from http_api.web.negotiation import negotiate
from http_api.web.preferences import applied, wait_ms
from http_api.web.problems import ApiError
from http_api.web.query import MAX_OFFSET, integer, timestamp
from http_api.web.replies import bulk_reply, write_deadline, write_in_time
from http_api.web.revocation import Revocation, cut_when_revoked
from http_api.web.topics import TOPIC_ID, partition_of, topic_meant
from raftlog import wire
from raftlog.api.records import ReadRecords
from raftlog.config import MAX_FETCH_BYTES, MAX_FETCH_WAIT_MS, MAX_REQUEST_HEAD_BYTES
from raftlog.errors import InvalidRequest, RaftlogError, RetriableError, error_from_code
from raftlog.json_values import FORMATS, encode
from raftlog.model import EARLIEST, LATEST, PartitionRecord, TopicId, TopicRecord
from raftlog.ports import Buffer, FileRegion, Part, part_length, release_regions
from raftlog.records.record_filter import COLUMNS, RecordFilter
from raftlog.security.acls import Operation, Resource, ResourceType
from raftlog.system.zero_copy import can_send_region, send_region

from .offsets import find_offset, isolation_of

NDJSON_TYPE = "application/x-ndjson"
COLUMN_QUERY = ("columns", "key", "key_base64", "end_offset", "start_timestamp", "end_timestamp")
"""Parameters of records as columns."""
QUERY = (
    *COLUMN_QUERY,
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
IMMUTABLE = "private, max-age=3600, immutable"
"""An hour: deleted records must not live on in caches for longer (RFC 8246, RFC 9111)."""
_KINDS = {JSON_TYPE: "", NDJSON_TYPE: "-lines", ARROW_TYPE: "-arrow", PARQUET_TYPE: "-parquet"}
"""The part of an entity tag that differs by media type."""
GRACE_S = 10.0
"""Seconds beyond `max_wait_ms`, the broker's own deadline, before the API gives up."""

SLOW_S = 0.1
"""Seconds after which a client that has not taken a slice is slow."""
_RECORDS = b'"\x00records\x00"'
"""The place of the records in a document that is encoded without them: text that JSON never contains."""

_log = structlog.get_logger(__name__)


async def fetch_batches(call: Call) -> web.StreamResponse:
    """Answer a `FetchRequest`; the answer is streamed, and its length is known."""
    message, _ = await read_message(call, wire.FetchRequest, MAX_REQUEST_HEAD_BYTES)
    message = msgspec.structs.replace(
        message,
        max_wait_ms=min(message.max_wait_ms, MAX_FETCH_WAIT_MS),
        max_bytes=min(message.max_bytes, MAX_FETCH_BYTES),
    )
    answer, parts = await fetch(call, message)
    read = [one.topic_id for one in answer.partitions if not one.error]
    return await _stream(call, wire.encode(answer, parts), check_of(call, read))


async def read_records(call: Call) -> web.StreamResponse:
    """Return records of one partition as JSON or JSON lines, or as columns: an Arrow stream or a Parquet file."""
    media_type = negotiate(call.request, (JSON_TYPE, NDJSON_TYPE, ARROW_TYPE, PARQUET_TYPE))
    columns = _columns_of(call, is_wanted=media_type in (ARROW_TYPE, PARQUET_TYPE))
    topic = topic_meant(call)
    partition = partition_of(call, topic)
    max_bytes = call.query.integer("max_bytes", 1, limits.MAX_READ_BYTES, limits.DEFAULT_READ_BYTES)
    min_bytes = call.query.integer("min_bytes", 0, limits.MAX_READ_BYTES, 1)
    preferred_ms = wait_ms(call.request, MAX_FETCH_WAIT_MS) if call.query.text("max_wait_ms") is None else None
    max_wait_ms = call.query.integer("max_wait_ms", 0, MAX_FETCH_WAIT_MS, preferred_ms or 0)
    isolation = isolation_of(call)
    options = PageOptions(
        max_records=call.query.integer("max_records", 1, limits.MAX_READ_RECORDS, limits.DEFAULT_READ_RECORDS),
        max_bytes=max_bytes,
        rows=native_rows(
            FORMATS[call.query.choice("key_format", FORMATS, "auto")],
            FORMATS[call.query.choice("value_format", FORMATS, "auto")],
        ),
        lines=media_type == NDJSON_TYPE,
    )
    text = call.query.text("offset")
    offset = await _first_offset(call, partition, EARLIEST if text is None else text, isolation)
    asked = wire.FetchPartition(topic.topic_id, partition.topic_partition.partition, offset, max_bytes)
    message = wire.FetchRequest(0, max_wait_ms, min_bytes, max_bytes, [asked], isolation)
    answer, parts = await fetch(call, message)
    fetched = answer.partitions[0]
    found, cost = await plan_page(call, fetched, parts, offset, options)
    headers = applied(preferred_ms)
    if is_immutable(call, topic, fetched, found, text):
        tag = f'W/"{topic.topic_id.hex()}-{fetched.partition}-{offset}-{found.next_offset}{_KINDS[media_type]}"'
        headers |= {"Cache-Control": IMMUTABLE, "ETag": tag, "Vary": "Accept, Accept-Encoding, Authorization"}
        if tag in call.request.headers.get("If-None-Match", ""):
            return web.Response(status=304, headers=headers)
    if columns is not None:
        return await _columns_reply(call, fetched, found, columns, media_type, cost, headers)
    return await _records_reply(call, topic, fetched, found, options, cost, headers)


def is_immutable(
    call: Call, topic: TopicRecord, fetched: wire.FetchedPartition, found: Page, offset: str | None
) -> bool:
    """Return whether the same request gets the same records for as long as they exist. The address must name the
    topic's life and a number; the page must be full, so that no later record belongs to it; and no compaction may
    remove records from its middle. (What is read lies below the high watermark or the last stable offset, where offsets
    and records never change: S1, S2.) Retention may remove them as a whole, hence the bounded age."""
    if offset is None or not offset.isdecimal() or TOPIC_ID not in call.request.query or not found.records:
        return False
    config = call.view.topic_config(topic.topic_id)
    if config is None or config.compacts:
        return False
    committed = fetched.last_stable_offset if isolation_of(call) else fetched.high_watermark
    return 0 <= found.next_offset < committed


def _columns_of(call: Call, *, is_wanted: bool) -> tuple[Sequence[str], RecordFilter] | None:
    """Return the names of the columns and the filter that the query asks for; None if records are not wanted as
    columns. Raises `InvalidRequest`."""
    query = call.query
    given = [name for name in COLUMN_QUERY if query.text(name) is not None]
    if not is_wanted:
        if given:
            raise InvalidRequest("invalid_request", f"{given[0]} is for {ARROW_TYPE} and {PARQUET_TYPE}: see Accept")
        return None
    asked = query.text("columns")
    names = COLUMNS if asked is None else asked.split(",")
    unknown = [name for name in names if name not in COLUMNS]
    if unknown or len(set(names)) < len(names):
        known = ", ".join(COLUMNS)
        raise InvalidRequest("invalid_request", f"columns must be some of {known}, each once, not {unknown or names}")
    key, key_base64 = query.text("key"), query.text("key_base64")
    if key is not None and key_base64 is not None:
        raise InvalidRequest("invalid_request", "key and key_base64 exclude each other")
    end_offset = query.text("end_offset")
    where = RecordFilter(
        None if key is None else key.encode("utf-8", "surrogateescape"),
        None if end_offset is None else integer("end_offset", end_offset, 0, MAX_OFFSET),
        query.timestamp("start_timestamp"),
        query.timestamp("end_timestamp"),
    )
    if key_base64 is not None:
        try:
            where = msgspec.structs.replace(where, key=base64.b64decode(key_base64, validate=True))
        except ValueError as error:
            raise InvalidRequest("invalid_request", f"key_base64 is not base64: {error}") from None
    return names, where


async def _columns_reply(
    call: Call,
    fetched: wire.FetchedPartition,
    found: Page,
    columns: tuple[Sequence[str], RecordFilter],
    media_type: str,
    cost: int,
    more_headers: Mapping[str, str],
) -> web.StreamResponse:
    """Answer a page as columns. Its next offset is that of the page, or of the filter's end: records that do not fit
    count as read."""
    names, where = columns
    places = _places(fetched, found)
    if where.end_offset is not None:
        places["next_offset"] = min(places["next_offset"], where.end_offset)
    # Parquet compresses its own columns.
    coding = coding_of(call.request.headers.get("Accept-Encoding", "")) if media_type == ARROW_TYPE else ""
    encoder = await call.context.threads.run(
        OFFLOAD_BYTES + 1, ArrowPageEncoder, found, names, where, media_type, coding
    )
    return await _send_page(
        call, _streamed(media_type, {**_place_headers(places), **more_headers}, coding), encoder, cost
    )


async def fetch(call: Call, message: wire.FetchRequest) -> tuple[wire.FetchResponse, list[Part]]:
    """Return the broker's answer; its regions must be released. A disconnect of the client cancels the fetch. Closing
    the API ends it, and so does the loss of the caller's credential or right, without another record."""
    deadline = asyncio.timeout(message.max_wait_ms / 1000 + GRACE_S)
    context, revoked = call.context, Revocation(deadline)
    unwatch = call.watch(revoked)
    context.polls.add(deadline)
    try:
        async with deadline:
            answer, parts = await call.partitions.fetch(message)
        if revoked.error is not None:
            release_regions(parts)
            raise revoked.error
        return answer, parts
    except TimeoutError:
        if revoked.error is not None:
            raise revoked.error from None
        if context.closing:
            raise RetriableError("shutting_down", "the node is shutting down") from None
        raise RetriableError("request_timed_out", f"no answer {GRACE_S:.0f} s after the longest wait") from None
    finally:
        unwatch()
        context.polls.discard(deadline)


async def plan_page(
    call: Call, fetched: wire.FetchedPartition, parts: list[Part], offset: int, options: PageOptions
) -> tuple[Page, int]:
    """Return the plan of a page of one fetched partition, whose bytes are counted as held, and the cost of encoding it.
    Raises the error of the partition."""
    if fetched.error:
        release_regions(parts)
        raise _error_of(fetched)
    batches = await call.context.finish(join(call.context, parts), GRACE_S)
    call.context.hold(call.request, len(batches))
    cost = weight(batches)
    return await call.context.threads.run(cost, page, batches, offset, options, fetched.aborted), cost


# --- Records ---------------------------------------------------------------------------------------------------------


async def join(context: ApiContext, parts: list[Part]) -> bytes:
    """Return the bytes of a fetched body in one piece. Its regions are released here, on the event loop's thread."""
    try:
        return await context.threads.run(4 * wire.message_length(parts), join_parts, parts)
    finally:
        release_regions(parts)


async def _first_offset(call: Call, partition: PartitionRecord, text: str, isolation: int) -> int:
    """Return the first offset for `offset=`."""
    if text not in {EARLIEST, LATEST} and not text.startswith("@"):
        return integer("offset (earliest, latest, @milliseconds or a number)", text, 0, MAX_OFFSET)
    if text == EARLIEST:
        return (await find_offset(call, partition, wire.TIMESTAMP_EARLIEST)).offset
    if text != LATEST:
        found = await find_offset(call, partition, timestamp("offset", text[1:]), isolation)
        if found.offset >= 0:
            return found.offset
    return (await find_offset(call, partition, wire.TIMESTAMP_LATEST, isolation)).offset


async def _records_reply(
    call: Call,
    topic: TopicRecord,
    fetched: wire.FetchedPartition,
    found: Page,
    options: PageOptions,
    cost: int,
    more_headers: Mapping[str, str],
) -> web.StreamResponse:
    places = _places(fetched, found)
    headers = {**_place_headers(places), **more_headers}
    head, tail = b"", b""
    if not options.lines:
        document = encode(ReadRecords(topic.name, fetched.partition, msgspec.Raw(_RECORDS), **places))
        head, _, tail = document.partition(_RECORDS)
        head, tail = head + b"[", b"]" + tail
    media_type = NDJSON_TYPE if options.lines else JSON_TYPE
    return await page_reply(call, found, options, cost, media_type, headers, head, tail)


def _places(fetched: wire.FetchedPartition, found: Page) -> dict[str, int]:
    stable = fetched.last_stable_offset if fetched.last_stable_offset >= 0 else fetched.high_watermark
    return {
        "next_offset": found.next_offset,
        "high_watermark": fetched.high_watermark,
        "last_stable_offset": stable,
        "log_start_offset": fetched.log_start_offset,
        "leader_epoch": fetched.leader_epoch,
    }


def _place_headers(places: Mapping[str, int]) -> dict[str, str]:
    return {f"X-Raftlog-{name.replace('_', '-').title()}": str(place) for name, place in places.items()}


async def page_reply(
    call: Call,
    found: Page,
    options: PageOptions,
    cost: int,
    media_type: str,
    headers: Mapping[str, str],
    head: bytes = b"",
    tail: bytes = b"",
) -> web.StreamResponse:
    """Answer a page between a head and a tail: a large one slice by slice."""
    if found.is_slice:
        body = await call.context.threads.run(cost, PageEncoder(found, options, head=head, tail=tail).next)
        call.context.hold(call.request, len(body))
        return await bulk_reply(call, body, media_type, headers)
    coding = coding_of(call.request.headers.get("Accept-Encoding", ""))
    encoder = PageEncoder(found, options, head=head, tail=tail, coding=coding)
    return await _send_page(call, _streamed(media_type, headers, coding), encoder, cost)


def _streamed(media_type: str, headers: Mapping[str, str], coding: str) -> web.StreamResponse:
    more = {"Content-Type": media_type, **({"Content-Encoding": coding} if coding else {})}
    return web.StreamResponse(headers={"Vary": "Accept-Encoding", **headers, **more})


def check_of(call: Call, topic_ids: Iterable[bytes]) -> Callable[[], None]:
    """Return the check whether the caller may still read topics that it could read (`Call.watch`)."""
    topics = [topic for one in dict.fromkeys(topic_ids) if (topic := call.view.topic_by_id(TopicId(one))) is not None]

    def check() -> None:
        call.check_again()
        if call.service.access.rules_version != call.rules_version:
            for topic in topics:
                call.check(Operation.READ, Resource(ResourceType.TOPIC, topic.name))

    return check


async def _send_page(
    call: Call, response: web.StreamResponse, encoder: PageEncoder | ArrowPageEncoder, cost: int
) -> web.StreamResponse:
    """Send a page slice by slice: the next one is encoded when the client has taken the one before, in turn with the
    pages of others. A client that reads slowly holds no decoded batch."""
    request, context = call.request, call.context
    transport, loop = request.transport, asyncio.get_running_loop()
    try:
        with cut_when_revoked(call):
            while not encoder.ended:
                context.decoded.use(encoder)
                piece = await context.threads.run(cost, encoder.next)
                if not response.prepared:
                    await response.prepare(request)
                if piece:
                    context.service.access.charge(call.caller, Usage.BYTES_OUT, len(piece))
                    slow = loop.call_later(SLOW_S, context.decoded.end, encoder)
                    try:
                        await write_in_time(response, context, piece)
                    finally:
                        slow.cancel()
            await response.write_eof()
    except (RaftlogError, TimeoutError) as error:
        if not response.prepared:
            raise
        # A page that ends early must not look like a whole one.
        if transport is not None:
            transport.abort()
        _log.info("fetch_cut_short", error=str(error) or "the client read too slowly")
        raise ConnectionResetError("the answer was cut short") from error
    except BaseException:
        if transport is not None:
            transport.abort()
        raise
    finally:
        context.decoded.end(encoder)
    return response


def _error_of(fetched: wire.FetchedPartition) -> RaftlogError:
    if fetched.error == "offset_out_of_range":
        members = {"log_start_offset": fetched.log_start_offset, "high_watermark": fetched.high_watermark}
        return ApiError(fetched.error, fetched.detail, members=members)
    return error_from_code(fetched.error, fetched.detail, fetched.leader)


# --- Batches ---------------------------------------------------------------------------------------------------------


async def _stream(call: Call, parts: list[Part], still_allowed: Callable[[], None]) -> web.StreamResponse:
    """Send an answer of these parts, unless the caller loses its credential or its right meanwhile. Every region is
    released exactly once, also after an error."""
    request, context = call.request, call.context
    response = web.StreamResponse(headers={"Content-Type": wire.CONTENT_TYPE})
    response.content_length = wire.message_length(parts)
    rest: deque[Part] = deque(parts)
    transport = request.transport
    try:
        with cut_when_revoked(call, still_allowed):
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
        if isinstance(error, RaftlogError) and not response.prepared:
            raise  # The caller has lost its credential or its right already.
        # The length was announced, so a shortened answer must not look like a whole one.
        if transport is not None:
            transport.abort()
        if isinstance(error, RaftlogError | TimeoutError):
            _log.info("fetch_cut_short", error=str(error) or "the client read too slowly")
            raise ConnectionResetError("the answer was cut short") from error
        raise
    finally:
        release_regions(tuple(rest))
    return response


def _take_small(rest: deque[Part]) -> bytes | None:
    """Join the leading small parts: thousands of them must not become thousands of system calls. None if the first part
    is large."""
    pieces: list[Buffer] = []
    room = limits.PIECE_BYTES
    while rest and part_length(rest[0]) <= min(limits.SMALL_REGION_BYTES, room):
        part = rest[0]
        pieces.append(read_region(part) if isinstance(part, FileRegion) else part)
        room -= part_length(part)
        release_regions((rest.popleft(),))
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
        for start in range(0, region.length, limits.PIECE_BYTES):
            length = min(limits.PIECE_BYTES, region.length - start)
            piece = await asyncio.to_thread(read_region, region, start, length)
            await write_in_time(response, context, piece)
    finally:
        region.release()
