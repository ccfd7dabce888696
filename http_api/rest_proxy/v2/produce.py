"""`POST /topics/{topic}` and `POST /topics/{topic}/partitions/{partition}`: appends of records.

A body is parsed and packed as a whole before anything is sent to the broker: bad input appends nothing (S11). Each
record is acknowledged once all in-sync replicas have it on disk. Where a batch failed, the entries of its records have
an error, and the answer is still 200: so it is in all REST proxies, and clients look at each entry.
"""

from __future__ import annotations

import msgspec
from aiohttp import web

from http_api.records.together import Appended
from http_api.rest_proxy.errors import error_code_of_record
from http_api.routes.produce import append_records, target_in
from http_api.web.bodies import read_body
from http_api.web.call import Call
from http_api.web.limits import SLICE_RECORDS
from http_api.web.problems import error_of
from http_api.web.replies import bulk_reply
from http_api.web.topics import partition_of, topic_of
from raftlog.config import DEFAULT_PRODUCE_TIMEOUT_MS
from raftlog.json_values import encode
from raftlog.model import Acks

from .embedded import parse
from .media_types import answer_type, format_of_body

_ENTRY_COST = 128
"""An entry of the answer takes about as long as parsing this number of bytes."""


class RecordOutcome(msgspec.Struct, gc=False):
    """The place of an appended record, or the error of one that was not."""

    partition: int | None
    offset: int | None
    error_code: int | None = None
    error: str | None = None


class ProduceOutcome(msgspec.Struct):
    """The answer to a produce request, with an entry for each record, in order."""

    offsets: msgspec.Raw
    key_schema_id: None = None
    value_schema_id: None = None


async def produce_records(call: Call) -> web.StreamResponse:
    """Append records to the partitions that they or their keys choose."""
    return await _produce(call, None)


async def produce_to_partition(call: Call) -> web.StreamResponse:
    """Append records to one partition."""
    return await _produce(call, partition_of(call, topic_of(call)).topic_partition.partition)


async def _produce(call: Call, partition: int | None) -> web.StreamResponse:
    media_type = answer_type(call.request)
    embedded = format_of_body(call)
    target = target_in(call, topic_of(call), partition)
    body = await read_body(call)
    appended = await append_records(
        call, body, lambda: parse(body, embedded, partition), target, Acks.ALL, DEFAULT_PRODUCE_TIMEOUT_MS
    )
    count = sum(len(one.records) for one in appended.batches)
    told = await call.context.threads.run(_ENTRY_COST * count, _outcomes, count, appended)
    return await bulk_reply(call, told, media_type)


def _outcomes(count: int, appended: Appended) -> bytes:
    entries: list[RecordOutcome | None] = [None] * count
    for one, partition in zip(appended.batches, appended.told, strict=True):
        error = error_of(partition)
        if error is not None:
            failed = RecordOutcome(None, None, error_code_of_record(error), error.detail)
            for index in one.records:
                entries[index] = failed
        else:
            for offset, index in enumerate(one.records, partition.base_offset):
                entries[index] = RecordOutcome(one.partition, offset)
    # In slices: a call that encodes holds the GIL.
    slices = [encode(entries[start : start + SLICE_RECORDS])[1:-1] for start in range(0, count, SLICE_RECORDS)]
    return encode(ProduceOutcome(msgspec.Raw(b"[" + b",".join(slices) + b"]")))
