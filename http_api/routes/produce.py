"""`POST /v1/topics/{topic}/records` and `POST /v1/produce`: appends of records, or of whole batches.

A request is parsed and packed as a whole before anything is sent to the broker: bad input appends nothing (S11). After
that, batches of several partitions are appended independently, so some may fail; then the answer is a problem, and its
member `batches` has the outcome of each. The raw path answers 200 with an error for each partition instead, where
native clients expect it.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple

import msgspec
from aiohttp import web

from http_api.records.identities import Identity, Nobody
from http_api.records.pack import PackedBatch, Target, pack
from http_api.records.parse import RecordColumns, RecordOptions, parse_json, parse_ndjson, parse_octets, parse_text
from http_api.records.together import Appended, join_columns, part_of
from http_api.web.bodies import JSON_TYPE, content_type, raw_reply, read_body, read_message
from http_api.web.call import Call
from http_api.web.context import WRITE, ApiContext, outcome_unknown
from http_api.web.limits import GATHERED_BODY_BYTES, OFFSETS_LISTED, SLICE_RECORDS
from http_api.web.preferences import applied, wait_ms
from http_api.web.problems import check_parts, error_member, error_of
from http_api.web.query import integer, timestamp
from http_api.web.replies import encoded_reply, json_reply
from http_api.web.topics import TOPIC_ID, partition_numbered, topic_meant
from http_api.web.tracing import trace_of_request
from raftlog import json_values as codec
from raftlog.api.records import ProducedBatch, ProducedRecords, RecordPosition
from raftlog.config import DEFAULT_PRODUCE_TIMEOUT_MS, MAX_PRODUCE_TIMEOUT_MS
from raftlog.errors import InvalidRequest, RaftlogError
from raftlog.model import Acks, TopicPartition, TopicRecord
from raftlog.trace_context import with_trace
from raftlog.wire import ProducedPartition, ProducePartition, ProduceRequest, ProduceResponse, split_body

from .conditions import (
    check_log_end,
    check_together,
    expected_end_offset,
    idempotency_key,
    keyed_request,
    named_producer,
    sticky_of,
)

NDJSON_TYPES = ("application/x-ndjson", "application/ndjson", "application/jsonl", "application/x-jsonlines")
TEXT_TYPE = "text/plain"
OCTETS_TYPE = "application/octet-stream"
RECORD_TYPES = (JSON_TYPE, *NDJSON_TYPES, TEXT_TYPE, OCTETS_TYPE)

QUERY = (
    TOPIC_ID,
    "partition",
    "acks",
    "timeout_ms",
    "offsets",
    "key",
    "key_base64",
    "timestamp",
    "producer_id",
    "producer_epoch",
    "sequence",
    "transactional",
)
REPEATABLE = ("header",)
_ACKS = {"all": Acks.ALL, "-1": Acks.ALL, "1": Acks.LEADER, "0": Acks.NONE}
_POSITION_COST = 64
"""Listing a record's offset takes about as long as parsing this number of bytes."""
GRACE_S = 10.0
"""Seconds beyond `timeout_ms`, the broker's own deadline, before the API gives up."""


async def produce_records(call: Call) -> web.StreamResponse:
    """Append records given as JSON, JSON lines, text or octets."""
    acks = _ACKS[call.query.choice("acks", _ACKS, "all")]
    preferred_ms = wait_ms(call.request, MAX_PRODUCE_TIMEOUT_MS) if call.query.text("timeout_ms") is None else None
    longest_ms = preferred_ms or DEFAULT_PRODUCE_TIMEOUT_MS
    timeout_ms = call.query.integer("timeout_ms", 1, MAX_PRODUCE_TIMEOUT_MS, longest_ms)
    listed = call.query.choice("offsets", ("auto", "each", "ranges"), "auto")
    media_type = content_type(call, allowed=RECORD_TYPES)
    options = _record_options(call, media_type)
    expected = expected_end_offset(call)
    target = _target(call)
    key = idempotency_key(call)
    producer = named_producer(call)
    check_together(call, acks, key, producer, expected)
    if key is not None:
        target = msgspec.structs.replace(target, sticky=sticky_of(key, target.topic))
    body = await read_body(call)

    parse = partial(_parse, media_type, body, options)
    if key is None and producer is None and expected < 0:
        appended = await append_records(call, body, parse, target, acks, timeout_ms)
    else:
        identity: Identity = producer or Nobody()
        if key is not None:
            identity = keyed_request(call, target.topic, key, media_type, body)
        packed = await parse_and_pack(call, body, parse, target, identity)
        if (expected >= 0 or producer is not None) and len(packed) != 1:
            raise InvalidRequest(
                "invalid_request",
                f"with If-Match or producer_id, the records must be one batch of one partition, not {len(packed)}",
            )
        answer = await append(call, target.topic, packed, acks, timeout_ms, expected)
        appended = Appended(packed, answer.partitions)
    if acks is Acks.NONE:
        return json_reply(_sent(target.topic, appended.batches), status=202)
    batches = [_outcome(one, told) for one, told in zip(appended.batches, appended.told, strict=True)]
    check_log_end(appended.told)
    check_parts("batches", batches, appended.told)  # a retry of the whole would append the successful ones again
    count = sum(batch.record_count for batch in batches)
    document = ProducedRecords(target.topic.name, count, batches)
    headers = applied(preferred_ms or None)
    if len(appended.told) == 1:
        headers["ETag"] = f'"{appended.told[0].base_offset + count}"'
    if listed == "ranges" or (listed == "auto" and count > OFFSETS_LISTED):
        return json_reply(document, headers=headers)
    response = await encoded_reply(call, _POSITION_COST * count, _with_offsets, document, appended)
    response.headers.update(headers)
    return response


async def append_records(
    call: Call,
    body: bytes,
    parse: Callable[[], RecordColumns],
    target: Target,
    acks: Acks,
    timeout_ms: int,
) -> Appended:
    """Append the records of a body, of which `parse` makes columns. Small requests of a caller that arrive while others
    are appended share a batch with them. Raises `InvalidRequest` before anything is appended."""
    if len(body) > GATHERED_BODY_BYTES or acks is Acks.NONE:
        packed = await parse_and_pack(call, body, parse, target)
        return Appended(packed, (await append(call, target.topic, packed, acks, timeout_ms)).partitions)
    columns = _traced(call, parse)()
    kind = (call.caller, target.topic.topic_id, target.partition, acks, timeout_ms)
    small = _Small(call, columns, target, acks, timeout_ms)
    appended: Appended = await call.context.appends.join(kind, small, _append_together)
    return appended


class _Small(NamedTuple):
    """A small request. Those that share an append differ in call and columns, and perhaps in the target's sticky
    partition."""

    call: Call
    columns: RecordColumns
    target: Target
    acks: Acks
    timeout_ms: int


async def _append_together(requests: list[_Small]) -> Sequence[Appended | RaftlogError]:
    """Append the records of several requests in shared batches. One that cannot be packed fails alone (S11)."""
    call, _, target, acks, timeout_ms = requests[-1]
    columns = join_columns([one.columns for one in requests]) if len(requests) > 1 else requests[0].columns
    try:
        packed = await _pack_columns(call, 0, lambda: columns, target)
    except RaftlogError as error:
        if len(requests) == 1:
            return [error]
        return [outcome for one in requests for outcome in await _append_together([one])]
    write = asyncio.current_task()
    assert write is not None
    for one in requests:
        one.call.request[WRITE] = write
    try:
        async with asyncio.timeout(timeout_ms / 1000 + GRACE_S):
            answer = await _produced(call, target.topic, packed, acks, timeout_ms)
    except TimeoutError:
        raise outcome_unknown(timeout_ms / 1000 + GRACE_S) from None
    appended = Appended(packed, answer.partitions)
    if len(requests) == 1:
        return [appended]
    counts = [len(one.columns) for one in requests]
    return [part_of(appended, end - count, count) for end, count in zip(accumulate(counts), counts, strict=True)]


async def append(
    call: Call,
    topic: TopicRecord,
    packed: Sequence[PackedBatch],
    acks: Acks,
    timeout_ms: int,
    expected_end_offset: int = -1,
) -> ProduceResponse:
    """Append batches to a topic. It completes whatever becomes of the client. The answer has an entry for each batch,
    which may be an error. `expected_end_offset`: the offset that the only batch must get; -1: any."""
    appended = _produced(call, topic, packed, acks, timeout_ms, expected_end_offset)
    return await call.context.finish(appended, timeout_ms / 1000 + GRACE_S, holder=call.request)


def _produced(
    call: Call,
    topic: TopicRecord,
    packed: Sequence[PackedBatch],
    acks: Acks,
    timeout_ms: int,
    expected_end_offset: int = -1,
) -> Coroutine[Any, Any, ProduceResponse]:
    sent = ProduceRequest(
        correlation_id=0,
        acks=acks,
        timeout_ms=timeout_ms,
        partitions=[
            ProducePartition(
                topic.topic_id,
                one.partition,
                len(one.batch),
                idempotency_key=one.idempotency_key,
                expected_end_offset=expected_end_offset,
            )
            for one in packed
        ],
    )
    return call.partitions.produce(sent, [memoryview(one.batch) for one in packed])


async def produce_batches(call: Call) -> web.StreamResponse:
    """Append the batches of a `ProduceRequest`."""
    message, body = await read_message(call, ProduceRequest)
    if message.timeout_ms > MAX_PRODUCE_TIMEOUT_MS:
        message = msgspec.structs.replace(message, timeout_ms=MAX_PRODUCE_TIMEOUT_MS)
    batches = split_body(body, [partition.length for partition in message.partitions])
    answer = await call.context.finish(
        call.partitions.produce(message, batches), message.timeout_ms / 1000 + GRACE_S, holder=call.request
    )
    return raw_reply(answer)


async def parse_and_pack(
    call: Call, body: bytes, parse: Callable[[], RecordColumns], target: Target, identity: Identity | None = None
) -> list[PackedBatch]:
    """Return the batches of a body, of which `parse` makes columns. If a record names a partition unknown here, the
    view catches up first. The records carry the trace of the request, unless they carry another. Raises
    `InvalidRequest`."""
    return await _pack_columns(call, 4 * len(body), _traced(call, parse), target, identity)


def _traced(call: Call, parse: Callable[[], RecordColumns]) -> Callable[[], RecordColumns]:
    """Return `parse` for records that carry the trace of the request, unless they carry another."""
    trace = trace_of_request(call.request)
    if trace is None:
        return parse

    def traced() -> RecordColumns:
        columns = parse()
        columns.headers = [with_trace(headers, trace) for headers in columns.headers]
        return columns

    return traced


async def _pack_columns(
    call: Call,
    cost: int,
    columns: Callable[[], RecordColumns],
    target: Target,
    identity: Identity | None = None,
) -> list[PackedBatch]:
    context = call.context

    def batches(target: Target) -> list[PackedBatch]:
        return pack(columns(), target, context.clock_ms(), identity or Nobody())

    try:
        return await context.threads.run(cost, batches, target)
    except InvalidRequest as error:
        if error.code != "unknown_partition":
            raise
        await call.catch_up(f"a partition of topic {target.topic.name!r}")
        topic = call.view.topic_by_id(target.topic.topic_id)
        if topic is None or topic.partition_count == target.topic.partition_count:
            raise
    grown = msgspec.structs.replace(target, topic=topic)
    return await context.threads.run(cost, batches, grown)


def _parse(media_type: str, body: bytes, options: RecordOptions) -> RecordColumns:
    if media_type == JSON_TYPE:
        return parse_json(body)
    if media_type in NDJSON_TYPES:
        return parse_ndjson(body)
    if media_type == TEXT_TYPE:
        return parse_text(body, options)
    return parse_octets(body, options)


# --- What the request says -------------------------------------------------------------------------------------------


def _target(call: Call) -> Target:
    topic = topic_meant(call)
    named = _either(call, "partition", "X-Raftlog-Partition")
    partition = None if named is None else integer("partition", named, 0, 2**31 - 1)
    return target_in(call, topic, partition)


def target_in(call: Call, topic: TopicRecord, partition: int | None) -> Target:
    """Return the destination of records for a topic, of which those that name no partition go to this one, if it is
    given. Raises `InvalidRequest` (`unknown_partition`)."""
    config = call.view.topic_config(topic.topic_id)
    assert config is not None, "the view has a topic without its settings"
    if partition is not None:
        partition_numbered(topic, partition)
    max_ahead_ms = config.message_timestamp_after_max_ms if config.message_timestamp_type == "CreateTime" else None
    return Target(topic, config.max_message_bytes, partition, _sticky_partition(call.context, topic), max_ahead_ms)


def _sticky_partition(context: ApiContext, topic: TopicRecord) -> int:
    """Return the partition for records without a key: round robin, skipping partitions without a leader."""
    view, count = context.service.view, topic.partition_count
    turn = context.next_turn()
    for step in range(count):
        record = view.partition(TopicPartition(topic.topic_id, (turn + step) % count))
        if record is not None and record.has_leader:
            return (turn + step) % count
    return turn % count


def _record_options(call: Call, media_type: str) -> RecordOptions:
    """Return key, timestamp and headers of text and octets, from the query or from HTTP headers."""
    key = _either(call, "key", "X-Raftlog-Key")
    key_base64 = _either(call, "key_base64", "X-Raftlog-Key-Base64")
    time = _either(call, "timestamp", "X-Raftlog-Timestamp")
    headers = [*call.query.texts("header"), *call.request.headers.getall("X-Raftlog-Header", [])]
    if media_type not in {TEXT_TYPE, OCTETS_TYPE}:
        if headers or not key is key_base64 is time is None:
            raise InvalidRequest(
                "invalid_request",
                "in JSON, give key, timestamp and headers in each record, not in the query or in HTTP headers",
            )
        return RecordOptions()
    if key is not None and key_base64 is not None:
        raise InvalidRequest("invalid_request", "key and key_base64 are both given")
    return RecordOptions(
        key=_bytes_of_base64(key_base64) if key is None else _octets(key),
        timestamp_ms=None if time is None else timestamp("timestamp", time),
        headers=tuple(map(_record_header, headers)),
    )


def _either(call: Call, name: str, header: str) -> str | None:
    """Return a query parameter or the header of the same meaning. Raises `InvalidRequest` if both are given."""
    given = [*call.query.texts(name), *call.request.headers.getall(header, [])]
    if len(given) > 1:
        raise InvalidRequest("invalid_request", f"{name} is given {len(given)} times (query parameter or {header})")
    return given[0] if given else None


def _bytes_of_base64(text: str | None) -> bytes | None:
    if text is None:
        return None
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidRequest("invalid_request", f"key_base64: {error}") from None


def _record_header(text: str) -> tuple[str, bytes | None]:
    """Parse `name=value`."""
    name, mark, value = text.partition("=")
    if not mark:
        raise InvalidRequest("invalid_request", f"a header must be given as name=value, not {text[:64]!r}")
    return _octets(name).decode(), _octets(value)


def _octets(text: str) -> bytes:
    """Return the UTF-8 bytes. Raises `InvalidRequest` if the text came from other bytes."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidRequest("invalid_request", f"{text[:64]!a} is not UTF-8") from None


# --- What the answer says --------------------------------------------------------------------------------------------


def _sent(topic: TopicRecord, packed: Sequence[PackedBatch]) -> ProducedRecords:
    """Return the answer to a request with `acks=0`."""
    batches = [ProducedBatch(one.partition, len(one.records)) for one in packed]
    return ProducedRecords(topic.name, sum(batch.record_count for batch in batches), batches)


def _outcome(packed: PackedBatch, told: ProducedPartition) -> ProducedBatch:
    count = len(packed.records)
    error = error_of(told)
    if error is not None:
        return ProducedBatch(packed.partition, count, error=error_member(error))
    appended_at = told.log_append_time_ms if told.log_append_time_ms >= 0 else None
    return ProducedBatch(packed.partition, count, told.base_offset, appended_at)


def _with_offsets(document: ProducedRecords, appended: Appended) -> bytes:
    """Return the answer with partition and offset of every record, in the order of the request."""
    count = document.record_count
    positions: list[RecordPosition | None] = [None] * count
    for one, partition in zip(appended.batches, appended.told, strict=True):
        for offset, index in enumerate(one.records, partition.base_offset):
            positions[index] = RecordPosition(one.partition, offset)
    # In slices: a call that encodes holds the GIL.
    slices = [codec.encode(positions[start : start + SLICE_RECORDS])[1:-1] for start in range(0, count, SLICE_RECORDS)]
    offsets = msgspec.Raw(b"[" + b",".join(slices) + b"]")
    return codec.encode(msgspec.structs.replace(document, offsets=offsets))
