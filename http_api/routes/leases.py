"""Leases of ranges of records: get some, acknowledge them, and what is not acknowledged goes to somebody else.

A lease is taken in two steps: the records are read, and then the quorum gives their range to the caller, unless another
has it meanwhile; then nothing was lost but the read.
"""

from __future__ import annotations

import asyncio
from typing import TypeVar

import msgspec
from aiohttp import web

from http_api.records.page import Page, PageOptions, native_rows, page, weight
from http_api.service.access import Usage
from http_api.service.leases import Claim, LeaseName
from http_api.web import limits
from http_api.web.bodies import JSON_TYPE, content_type, decode_json, read_body, read_json
from http_api.web.call import Call
from http_api.web.preferences import wait_ms
from http_api.web.quotas import spend
from http_api.web.replies import json_reply
from http_api.web.topics import topic_named
from raftlog import wire
from raftlog.api import leases as documents
from raftlog.errors import InvalidRequest, RaftlogError, RetriableError, error_from_code
from raftlog.json_values import FORMATS, encode
from raftlog.model import TopicId, TopicPartition, TopicRecord
from raftlog.security.acls import Operation, Resource, ResourceType

from .fetch import GRACE_S, check_of, fetch, join, page_reply
from .groups import group_name
from .offsets import find_many

CHANGE_TIMEOUT_S = 30.0
POLL_MS = 1_000
"""A wait for new records ends after this time, to look for leases that are over."""
PAUSE_S = 0.2
MAX_PARTITIONS = 1_000
"""The most partitions of one request."""
MAX_LISTED = 10_000
READ_COMMITTED = 1
_RECORDS = b'"\x00records\x00"'
"""The place of the records in a document that is encoded without them: text that JSON never contains."""

T = TypeVar("T", documents.AcknowledgeLease, documents.RenewLease)


async def take_lease(call: Call) -> web.StreamResponse:
    """Return a lease with its records, or none."""
    group_id = group_name(call)
    asked = await read_json(call, documents.TakeLease)
    preferred_ms = wait_ms(call.request, documents.MAX_LEASE_WAIT_MS)
    topics = await _topics(call, asked.topics)
    taking = _Taking(call, group_id, topics, asked)
    loop = asyncio.get_running_loop()
    ends = loop.time() + (asked.max_wait_ms or preferred_ms or 0) / 1000
    while True:
        left_ms = int(1000 * (ends - loop.time()))
        found = await taking.attempt(min(max(left_ms, 0), POLL_MS))
        if found is not None:
            return await taking.answer(*found)
        if loop.time() >= ends:
            return json_reply(documents.LeaseAnswer(None))
        if call.context.closing:
            raise RetriableError("shutting_down", "the node is shutting down")


async def acknowledge_lease(call: Call) -> web.StreamResponse:
    """Acknowledge records of a lease."""
    group_id, name = group_name(call), _named(call)
    asked = await _read_optional(call, documents.AcknowledgeLease)
    work = call.service.leases.acknowledge(group_id, name, asked.offset, call.principal)
    committed = await call.context.finish(work, CHANGE_TIMEOUT_S)
    return json_reply(documents.AcknowledgedLease(committed))


async def renew_lease(call: Call) -> web.StreamResponse:
    """Give the holder of a lease more time."""
    group_id, name = group_name(call), _named(call)
    asked = await _read_optional(call, documents.RenewLease)
    await call.context.finish(
        call.service.leases.renew(group_id, name, asked.lease_ms, call.principal), CHANGE_TIMEOUT_S
    )
    return web.Response(status=204)


async def release_lease(call: Call) -> web.StreamResponse:
    """Give a lease back: its records go to somebody else at once."""
    work = call.service.leases.renew(group_name(call), _named(call), 0, call.principal)
    await call.context.finish(work, CHANGE_TIMEOUT_S)
    return web.Response(status=204)


async def list_leases(call: Call) -> web.StreamResponse:
    """List a group's leases in topics that the caller may describe."""
    group_id = group_name(call)
    await call.catch_up(f"group {group_id!r}")
    found = []
    for one in call.service.leases.of_group(group_id)[:MAX_LISTED]:
        place, held = one.record.partition, one.held
        topic = call.view.topic_by_id(place.topic_id)
        if topic is None or not call.may(Operation.DESCRIBE, ResourceType.TOPIC, topic.name):
            continue
        name = str(LeaseName(place, held.lease_id))
        found.append(
            documents.OutstandingLease(
                topic.name,
                topic.topic_id.hex(),
                place.partition,
                name,
                held.start,
                held.end,
                held.lease_ms,
                held.deliveries,
                one.left_ms,
            )
        )
    return json_reply(documents.OutstandingLeases(found))


class _Taking:
    """One request for a lease."""

    def __init__(self, call: Call, group_id: str, topics: list[TopicRecord], asked: documents.TakeLease) -> None:
        self._call = call
        self._group_id = group_id
        self._asked = asked
        self._topics = {topic.topic_id: topic for topic in topics}
        self._partitions = [
            TopicPartition(topic.topic_id, number) for topic in topics for number in range(topic.partition_count)
        ]
        if len(self._partitions) > MAX_PARTITIONS:
            told = f"a lease is taken from at most {MAX_PARTITIONS} partitions, not {len(self._partitions)}"
            raise InvalidRequest("invalid_request", told)
        self._read_from: dict[TopicPartition, tuple[int, int]] = {}
        """Partition → start of a claim, and the offset behind what holds no records for it."""
        self._starts: dict[TopicPartition, int] = {}

    async def attempt(self, wait_ms: int) -> tuple[Claim, LeaseName, Page, int] | None:
        """Try to take a range, waiting for new records if there is none."""
        claims = self._call.service.leases.claims(self._group_id, self._partitions)
        over = [one for one in claims if one.replaces >= 0]
        fresh = [one for one in claims if one.replaces < 0]
        for claim in over:
            found = await self._read_and_take([claim], 0)
            if found is not None:
                return found
        if self._asked.start == "latest":
            fresh = await self._begun(fresh)
        if not fresh:
            await asyncio.sleep(min(wait_ms / 1000, PAUSE_S))
            return None
        first = self._call.context.next_turn() % len(fresh)
        return await self._read_and_take(fresh[first:] + fresh[:first], wait_ms)

    async def _begun(self, claims: list[Claim]) -> list[Claim]:
        """Commit the present ends of partitions in which the group has committed nothing: otherwise the next request
        would find later ones, and skip what is between. Returns the claims that have begun."""
        new = [one.partition for one in claims if one.start is None]
        await self._find_starts(new)
        call, leases = self._call, self._call.service.leases
        begun = [
            leases.begin(self._group_id, one, self._starts[one], call.principal) for one in new if one in self._starts
        ]
        for work in begun:
            await call.context.finish(work, CHANGE_TIMEOUT_S)
        partitions = [one.partition for one in claims]
        return [one for one in leases.claims(self._group_id, partitions) if one.start is not None and one.replaces < 0]

    async def _read_and_take(self, claims: list[Claim], wait_ms: int) -> tuple[Claim, LeaseName, Page, int] | None:
        await self._find_starts([one.partition for one in claims if one.start is None])
        placed = [(one, self._start_of(one)) for one in claims]
        known = [(one, start) for one, start in placed if start is not None]
        if not known:
            await asyncio.sleep(min(wait_ms / 1000, PAUSE_S))
            return None
        most = limits.DEFAULT_READ_BYTES
        partitions = [
            wire.FetchPartition(one.partition.topic_id, one.partition.partition, self._place(one, start), most)
            for one, start in known
        ]
        message = wire.FetchRequest(0, wait_ms, 1, most, partitions, READ_COMMITTED)
        answer, parts = await fetch(self._call, message)
        stored = await self._call.context.finish(join(self._call.context, parts), GRACE_S)
        self._call.context.hold_answer(self._call.request, len(stored), refusable=True)
        errors: list[RaftlogError] = []
        begins = 0
        for (claim, start), fetched in zip(known, answer.partitions, strict=True):
            batches, begins = stored[begins : begins + fetched.length], begins + fetched.length
            if fetched.error:
                errors += self._failed(claim, start, fetched)
            elif batches:
                found = await self._take_page(claim, start, fetched, batches)
                if found is not None:
                    return found
        if len(errors) == len(known):
            raise errors[0]
        return None

    async def _take_page(
        self, claim: Claim, start: int, fetched: wire.FetchedPartition, batches: bytes
    ) -> tuple[Claim, LeaseName, Page, int] | None:
        cost, options = weight(batches), self._options(claim)
        found = await self._call.context.threads.run(
            cost, page, batches, self._place(claim, start), options, fetched.aborted
        )
        if found.records:
            name = await self._take(claim, start, found.next_offset)
            return None if name is None else (claim, name, found, cost)
        self._read_from[claim.partition] = (start, found.next_offset)
        if claim.end is not None and found.next_offset >= claim.end:
            await self._drop(claim, start)
        return None

    def _options(self, claim: Claim) -> PageOptions:
        asked = self._asked
        return PageOptions(
            max_records=asked.max_records,
            max_bytes=limits.DEFAULT_READ_BYTES,
            rows=native_rows(FORMATS[asked.key_format], FORMATS[asked.value_format]),
            lines=False,
            end_offset=claim.end,
        )

    def _start_of(self, claim: Claim) -> int | None:
        return self._starts.get(claim.partition) if claim.start is None else claim.start

    def _place(self, claim: Claim, start: int) -> int:
        known = self._read_from.get(claim.partition)
        return known[1] if known is not None and known[0] == start else start

    def _failed(self, claim: Claim, start: int, fetched: wire.FetchedPartition) -> list[RaftlogError]:
        """Deal with a partition that gave an error. Returns it, unless reading goes on behind it."""
        if fetched.error == "offset_out_of_range" and start < fetched.log_start_offset:
            # Retention has removed what the claim begins with.
            self._read_from[claim.partition] = (start, fetched.log_start_offset)
            return []
        return [error_from_code(fetched.error, fetched.detail, fetched.leader)]

    async def _take(self, claim: Claim, start: int, end: int) -> LeaseName | None:
        """Take a range; None if another has it meanwhile."""
        leases, call = self._call.service.leases, self._call
        end = end if claim.end is None else min(end, claim.end)
        # Only a lease is a decision of the quorum: a request that finds nothing costs it nothing.
        spend(call.caller, call.service.access, {Usage.METADATA_COMMANDS: 1})
        try:
            work = leases.take(claim, start, end, self._asked.lease_ms, call.principal)
            return await call.context.finish(work, CHANGE_TIMEOUT_S)
        except RetriableError as error:
            if error.code != "lease_moved":
                raise
            await call.catch_up(f"group {self._group_id!r}")
            return None

    async def _drop(self, claim: Claim, start: int) -> None:
        """Acknowledge a range whose lease is over, and whose records do not exist any more."""
        assert claim.end is not None
        name = await self._take(claim, start, claim.end)
        if name is not None:
            work = self._call.service.leases.acknowledge(self._group_id, name, claim.end, self._call.principal)
            await self._call.context.finish(work, CHANGE_TIMEOUT_S)

    async def _find_starts(self, partitions: list[TopicPartition]) -> None:
        """Look up where partitions begin in which the group has committed nothing."""
        unknown = [one for one in partitions if one not in self._starts]
        if not unknown:
            return
        time = wire.TIMESTAMP_EARLIEST if self._asked.start == "earliest" else wire.TIMESTAMP_LATEST
        queries = [wire.OffsetQuery(one.topic_id, one.partition, time) for one in unknown]
        for one, found in zip(unknown, await find_many(self._call, queries, READ_COMMITTED), strict=True):
            if not found.error:
                self._starts[one] = found.offset

    async def answer(self, claim: Claim, name: LeaseName, found: Page, cost: int) -> web.StreamResponse:
        """Answer a lease with its records, to a caller that may still read them."""
        call, place = self._call, claim.partition
        check_of(call, [place.topic_id])()
        topic = self._topics[TopicId(place.topic_id)]
        start = self._start_of(claim)
        assert start is not None, "a lease was taken without a start"
        end = found.next_offset if claim.end is None else min(found.next_offset, claim.end)
        taken = documents.TakenLease(
            topic.name,
            topic.topic_id.hex(),
            place.partition,
            str(name),
            start,
            end,
            self._asked.lease_ms,
            claim.deliveries,
            msgspec.Raw(_RECORDS),
        )
        head, _, tail = encode(documents.LeaseAnswer(taken)).partition(_RECORDS)
        return await page_reply(call, found, self._options(claim), cost, JSON_TYPE, {}, head + b"[", b"]" + tail)


async def _topics(call: Call, names: list[str]) -> list[TopicRecord]:
    """Return the named topics, which the caller must be allowed to read. Raises `InvalidRequest`."""
    names = list(dict.fromkeys(names))
    for name in names:
        call.check(Operation.READ, Resource(ResourceType.TOPIC, name))
    missing = next((name for name in names if call.view.topic(name) is None), None)
    if missing is not None:
        await call.catch_up(f"topic {missing[:249]!r}")
    return [topic_named(call.view, name) for name in names]


async def _read_optional(call: Call, model: type[T]) -> T:
    """Return the body as a model; without a body, its defaults."""
    body = await read_body(call, limits.SMALL_BODY_BYTES)
    if not body:
        return model()
    content_type(call, allowed=(JSON_TYPE,))
    return decode_json(body, model)


def _named(call: Call) -> LeaseName:
    """Return the lease in the path, whose topic the caller must be allowed to read."""
    name = LeaseName.parse(call.segment("lease"))
    topic = call.view.topic_by_id(name.partition.topic_id)
    if topic is not None:
        call.check(Operation.READ, Resource(ResourceType.TOPIC, topic.name))
    return name
