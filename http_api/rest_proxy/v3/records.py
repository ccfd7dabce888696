"""`POST .../records`: a stream of records, each answered in order while it goes on. `POST .../records:batch`: a few.

The records that have arrived while the ones before were being appended are appended together, so a fast client gets
large batches and a slow one short answers. The status is 200 once a record was answered: the errors of later ones are
in their own answers. Text that is not JSON ends the stream, because nothing tells where the next record begins.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Annotated, NamedTuple

import msgspec
from aiohttp import web
from msgspec import Meta

from http_api.records.json_stream import ObjectSplitter
from http_api.records.pack import PackedBatch
from http_api.rest_proxy.errors import V3_CODES, RestRefusal, error_code_of_record, status_and_code
from http_api.routes.produce import append, target_in
from http_api.web.bodies import JSON_TYPE, body_pieces, content_type, read_json
from http_api.web.call import Call
from http_api.web.limits import MAX_RECORD_JSON_BYTES, SLICE_RECORDS
from http_api.web.problems import error_of
from http_api.web.replies import json_reply, write_in_time
from http_api.web.topics import topic_of
from http_api.web.tracing import trace_of_request
from raftlog.config import DEFAULT_PRODUCE_TIMEOUT_MS, MIB
from raftlog.errors import InvalidRequest, RaftlogError
from raftlog.json_values import encode
from raftlog.model import Acks
from raftlog.wire import ProducedPartition

from .entries import DataOut, Entry, EntryIn, pack_valid, parse, ready
from .resources import check_cluster

MAX_ENTRIES = 10
"""Records in a batch (Confluent's bound)."""
BAD_BATCH = 42208
MAX_ARRIVED_BYTES = 1 * MIB
"""JSON of a stream's records that wait for an append."""
_ANSWER_COST = 128
"""An answer takes about as long as parsing this number of bytes."""


class Appended(msgspec.Struct, omit_defaults=True, kw_only=True):
    """The answer to a record that was appended."""

    id: str | None = None
    error_code: int
    cluster_id: str
    topic_name: str
    partition_id: int
    offset: int
    timestamp: str
    key: DataOut | None = None
    value: DataOut | None = None


class Failed(msgspec.Struct, omit_defaults=True, kw_only=True):
    """The answer to a record that was not appended, or perhaps not."""

    id: str | None = None
    error_code: int
    message: str


class BatchEntry(EntryIn, forbid_unknown_fields=True, kw_only=True):
    """A record of a batch, with a name for its answer."""

    id: Annotated[str, Meta(min_length=1, max_length=80)]


class ProduceBatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The request to append a few records."""

    entries: list[BatchEntry]


class BatchOutcome(msgspec.Struct, frozen=True):
    """The answers to a batch's records."""

    successes: list[Appended]
    failures: list[Failed]


async def produce_records(call: Call) -> web.StreamResponse:
    """Append the records of a body as they arrive, and answer each."""
    check_cluster(call)
    topic_of(call)
    content_type(call, allowed=(JSON_TYPE,))
    response = web.StreamResponse(headers={"Content-Type": JSON_TYPE})
    arrivals = _Arrivals(call)
    reading = asyncio.create_task(arrivals.read())
    try:
        while entries := await arrivals.take():
            await _send(call, response, await _append(call, entries))
        await reading
        if not response.prepared:
            raise arrivals.fault or InvalidRequest("invalid_request", "the body has no records")
        if arrivals.fault is not None:
            await _send(call, response, [_failed(arrivals.fault)])
    except RaftlogError as error:
        if not response.prepared:
            raise
        await _send(call, response, [_failed(error)])
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
    await response.write_eof()
    return response


class _Arrivals:
    """The records of a stream that have arrived and are not appended yet: those that arrive during an append share the
    next one."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._splitter = ObjectSplitter(MAX_RECORD_JSON_BYTES)
        self._entries: list[Entry | InvalidRequest] = []
        self._bytes = 0
        """The size of the pieces that they came in."""
        self._held = 0
        self._arrived = asyncio.Event()
        self._taken = asyncio.Event()
        self._ended = False
        self.fault: RaftlogError | None = None
        """The reason why nothing behind the records that were taken can be read."""

    async def read(self) -> None:
        """Read the body to its end, ahead of the appends by a bounded number of records."""
        call, splitter = self._call, self._splitter
        try:
            async for piece in body_pieces(call):
                self._hold(splitter.waiting + len(piece) + self._bytes)
                objects = splitter.feed(piece)
                if objects:
                    self._entries += await call.context.threads.run(4 * len(piece), parse, objects)
                    self._bytes += len(piece)
                    self._arrived.set()
                if splitter.fault is not None:
                    break
                while self._bytes > MAX_ARRIVED_BYTES or len(self._entries) > SLICE_RECORDS:
                    self._taken.clear()
                    await self._taken.wait()
            splitter.end()
            self.fault = splitter.fault
        except RaftlogError as error:
            self.fault = error
        finally:
            self._ended = True
            self._arrived.set()

    async def take(self) -> list[Entry | InvalidRequest]:
        """Return what has arrived, at least one record; none at the end."""
        while not self._entries and not self._ended:
            self._arrived.clear()
            await self._arrived.wait()
        entries, self._entries, self._bytes = self._entries, [], 0
        self._taken.set()
        return entries

    def _hold(self, needed: int) -> None:
        if needed > self._held:
            self._call.context.hold(self._call.request, needed - self._held)
            self._held = needed


async def produce_batch(call: Call) -> web.StreamResponse:
    """Append up to ten records, and answer all at once."""
    check_cluster(call)
    topic_of(call)
    asked = await read_json(call, ProduceBatch)
    names = [one.id for one in asked.entries]
    if not 1 <= len(names) <= MAX_ENTRIES or len(set(names)) < len(names):
        raise RestRefusal(422, BAD_BATCH, f"a batch has 1 to {MAX_ENTRIES} entries, each with an id of its own")
    entries: list[Entry | InvalidRequest] = []
    for one in asked.entries:
        try:
            entries.append(ready(one))
        except InvalidRequest as error:
            entries.append(error)
    outcome = BatchOutcome([], [])
    for name, told in zip(names, await _append(call, entries), strict=True):
        told.id = name
        if isinstance(told, Appended):
            outcome.successes.append(told)
        else:
            outcome.failures.append(told)
    return json_reply(outcome, status=207)


async def _append(call: Call, entries: Sequence[Entry | InvalidRequest]) -> list[Appended | Failed]:
    """Append the valid ones of some records. Return an answer for each, in order."""
    context = call.context
    target, now_ms = target_in(call, topic_of(call), None), context.clock_ms()
    trace = trace_of_request(call.request)
    size = sum(len(one.value or b"") for one in entries if isinstance(one, Entry))
    checked, places, packed = await context.threads.run(4 * size, pack_valid, entries, target, now_ms, trace)
    if any(isinstance(one, InvalidRequest) and one.code == "unknown_partition" for one in checked):
        await call.catch_up(f"a partition of topic {target.topic.name!r}")
        target = target_in(call, topic_of(call), None)
        checked, places, packed = await context.threads.run(4 * size, pack_valid, entries, target, now_ms, trace)
    if not packed:
        return [_failed(one) if isinstance(one, InvalidRequest) else _UNKNOWN for one in checked]
    told = await append(call, target.topic, packed, Acks.ALL, DEFAULT_PRODUCE_TIMEOUT_MS)
    outcome = _Outcome(call.service.cluster_id, target.topic.name, now_ms, checked, places, packed, told.partitions)
    return await context.threads.run(_ANSWER_COST * len(checked), _answers, outcome)


class _Outcome(NamedTuple):
    """The outcome of some records."""

    cluster_id: str
    topic_name: str
    now_ms: int
    checked: Sequence[Entry | InvalidRequest]
    places: Sequence[int]
    """Where the records that were packed are among the checked ones."""
    packed: Sequence[PackedBatch]
    told: Sequence[ProducedPartition]


def _answers(outcome: _Outcome) -> list[Appended | Failed]:
    """Return an answer for each record, in order."""
    answers: list[Appended | Failed] = [
        _failed(one) if isinstance(one, InvalidRequest) else _UNKNOWN for one in outcome.checked
    ]
    for batch, told in zip(outcome.packed, outcome.told, strict=True):
        error = error_of(told)
        for offset, index in enumerate(batch.records, told.base_offset):
            place = outcome.places[index]
            if error is not None:
                answers[place] = Failed(error_code=error_code_of_record(error), message=error.detail)
                continue
            one = outcome.checked[place]
            assert isinstance(one, Entry)
            given_ms = outcome.now_ms if one.timestamp_ms is None else one.timestamp_ms
            answers[place] = Appended(
                error_code=200,
                cluster_id=outcome.cluster_id,
                topic_name=outcome.topic_name,
                partition_id=batch.partition,
                offset=offset,
                timestamp=_iso(told.log_append_time_ms if told.log_append_time_ms >= 0 else given_ms),
                key=one.shown_key,
                value=one.shown_value,
            )
    return answers


_UNKNOWN = Failed(error_code=500, message="the record has no outcome")


async def _send(call: Call, response: web.StreamResponse, answers: Sequence[Appended | Failed]) -> None:
    """Write answers, each on a line. Raises `ConnectionResetError` if the client does not read them in time."""
    if not response.prepared:
        await response.prepare(call.request)
    text = await call.context.threads.run(_ANSWER_COST * len(answers), _lines, answers)
    try:
        await write_in_time(response, call.context, text)
    except TimeoutError:
        if call.request.transport is not None:
            call.request.transport.abort()
        raise ConnectionResetError("the client did not read the answers in time") from None


def _lines(answers: Sequence[Appended | Failed]) -> bytes:
    return b"".join([encode(one) + b"\r\n" for one in answers])


def _failed(error: RaftlogError) -> Failed:
    return Failed(error_code=status_and_code(error, V3_CODES)[1], message=error.detail)


@lru_cache(maxsize=256)
def _iso(milliseconds: int) -> str:
    """Return a time as ISO 8601 writes it, in UTC. Most records of a stream have the same."""
    try:
        time = datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (ValueError, OverflowError):
        return str(milliseconds)
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
