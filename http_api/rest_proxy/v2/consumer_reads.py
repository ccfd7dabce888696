"""`GET /consumers/{group}/instances/{instance}/records`: the next records of a consumer.

The consumer's owner lends its positions; this node reads, answers, and waits until the client's TCP has acknowledged
the last byte. Only then the positions move: an answer that was cut, by whatever, comes again, and an empty commit can
commit nothing that the client may not have got (S8).
"""

from __future__ import annotations

import asyncio
import contextlib

from aiohttp import web

from http_api.records.page import Page, PageEncoder, PageOptions, page
from http_api.rest_proxy.errors import RestRefusal
from http_api.routes.fetch import GRACE_S, check_of, fetch, join
from http_api.routes.groups import group_name
from http_api.routes.offsets import OFFSETS_TIMEOUT_S
from http_api.service.instances import Lease, LentPartition
from http_api.web.call import Call
from http_api.web.delivery import is_delivered, was_delivered
from http_api.web.limits import MAX_READ_BYTES, MAX_READ_RECORDS
from http_api.web.replies import write_in_time
from http_api.web.revocation import cut_when_revoked
from metadata.view import InstanceRecord
from raftlog.config import MIB
from raftlog.errors import RaftlogError, error_from_code
from raftlog.model import Offset, TopicPartition
from raftlog.wire import TIMESTAMP_EARLIEST, TIMESTAMP_LATEST, FetchPartition, FetchRequest, OffsetQuery, OffsetsRequest

from .consumers import COMPAT_HEADER, MAX_WAIT_MS, instance_name, known_instance_of
from .embedded import can_show, rows_of
from .media_types import EMBEDDED, METADATA_TYPES, records_type, type_of
from .records import check_shown

QUERY = ("timeout", "max_bytes")
DEFAULT_MAX_BYTES = 4 * MIB
OTHER_FORMAT = 40601
ASSIGNMENT_PAUSE_S = 0.05
"""Time between two looks for partitions, while the group is being balanced."""
READ_COMMITTED = 1


async def read_records(call: Call) -> web.StreamResponse:
    """Return records as soon as there are enough, at the latest after `timeout` milliseconds."""
    record = await known_instance_of(call)
    media_type = _media_type(call, record)
    wait_ms = call.query.integer("timeout", 0, MAX_WAIT_MS, record.settings.wait_ms)
    max_bytes = call.query.integer("max_bytes", 1, MAX_READ_BYTES, DEFAULT_MAX_BYTES)
    loop = asyncio.get_running_loop()
    ends = loop.time() + wait_ms / 1000
    while True:
        lease = await _lend(call, wait_ms)
        reading = Reading(call, lease, max_bytes)
        try:
            left_s = max(0.0, ends - loop.time())
            if not lease.partitions and left_s > ASSIGNMENT_PAUSE_S and lease.waits_for_partitions:
                body = None
            else:
                body = await reading.read(int(left_s * 1000))
            if body is not None:
                return await reading.send(body, media_type)
        finally:
            await reading.settle()
        await asyncio.sleep(ASSIGNMENT_PAUSE_S)


def _media_type(call: Call, record: InstanceRecord) -> str:
    own = record.settings.embedded
    embedded, media_type = records_type(call.request, own)
    if embedded != own:
        raise RestRefusal(406, OTHER_FORMAT, f"the consumer's format is {own}: accept {type_of(own)}")
    assert media_type in (type_of(own), *METADATA_TYPES) and own in EMBEDDED
    return media_type


async def _lend(call: Call, wait_ms: int) -> Lease:
    lent = call.service.instances.lend(group_name(call), instance_name(call), wait_ms)
    return await call.context.finish(lent, OFFSETS_TIMEOUT_S)


class Reading:
    """One lease: what is read under it, sent and confirmed."""

    def __init__(self, call: Call, lease: Lease, max_bytes: int) -> None:
        self._call = call
        self.lease = lease
        self._max_bytes = max_bytes
        self.ends: dict[TopicPartition, Offset] = {}
        """Where the answer ends in each partition."""
        self.written = False
        self.delivered = False

    async def read(self, wait_ms: int) -> bytes:
        """Return the answer's body."""
        call, lease = self._call, self.lease
        if not lease.partitions:
            return b"[]"
        asked = [
            FetchPartition(one.partition.topic_id, one.partition.partition, one.offset, self._max_bytes)
            for one in lease.partitions
        ]
        min_bytes = max(1, lease.record.settings.min_bytes)
        answer, parts = await fetch(call, FetchRequest(0, wait_ms, min_bytes, self._max_bytes, asked, READ_COMMITTED))
        stored = await call.context.finish(join(call.context, parts), GRACE_S)
        call.context.hold(call.request, len(stored))
        pieces: list[bytes] = []
        begins, room, first = 0, self._max_bytes, None
        for one, fetched in zip(lease.partitions, answer.partitions, strict=True):
            batches, begins = stored[begins : begins + fetched.length], begins + fetched.length
            if fetched.error == "offset_out_of_range":
                await self._reset(one)
                continue
            if fetched.error:
                first = first or error_from_code(fetched.error, fetched.detail, fetched.leader)
                continue
            if room <= 0 or not batches:
                continue
            options = self._options(one, room)
            found = await call.context.threads.run(
                4 * len(batches), page, batches, one.offset, options, fetched.aborted
            )
            if found.hidden and not found.records and not pieces:
                first = first or self._not_shown(found, one)
            if found.records:
                pieces.append(await self._encoded(found, options, len(batches)))
            room -= found.size
            if found.next_offset > one.offset:
                self.ends[one.partition] = Offset(found.next_offset)
        if not pieces and first is not None:
            raise first
        return b"[" + b",".join(pieces) + b"]"

    async def _encoded(self, found: Page, options: PageOptions, cost: int) -> bytes:
        encoder = PageEncoder(found, options)
        pieces = []
        while not encoder.ended:
            piece = await self._call.context.threads.run(4 * cost, encoder.next)
            self._call.context.hold(self._call.request, len(piece))
            pieces.append(piece)
        return b"".join(pieces)

    def _options(self, one: LentPartition, room: int) -> PageOptions:
        topic = self._call.view.topic_by_id(one.partition.topic_id)
        name = topic.name if topic is not None else ""
        embedded = self.lease.record.settings.embedded
        rows = rows_of(name, one.partition.partition, embedded)
        return PageOptions(MAX_READ_RECORDS, room, rows, lines=False, can_show=can_show(embedded))

    def _not_shown(self, found: Page, one: LentPartition) -> RaftlogError:
        try:
            check_shown(found, self.lease.record.settings.embedded, f"partition {one.partition}")
        except RestRefusal as error:
            return error
        raise AssertionError("a hidden record can be shown")

    async def _reset(self, one: LentPartition) -> None:
        """Begin again in a partition whose records at the position were deleted, as the consumer's settings say."""
        call, record = self._call, self.lease.record
        time = TIMESTAMP_EARLIEST if record.settings.offset_reset == "earliest" else TIMESTAMP_LATEST
        query = OffsetQuery(one.partition.topic_id, one.partition.partition, time)
        answer = await call.context.finish(
            call.partitions.offsets(OffsetsRequest(0, [query], isolation=1)), OFFSETS_TIMEOUT_S
        )
        (found,) = answer.partitions
        if found.error:
            raise error_from_code(found.error, found.detail, found.leader)
        offsets = {one.partition: Offset(found.offset)}
        await call.service.instances.seek(record.group_id, record.name, offsets, expected=self.lease)

    async def send(self, body: bytes, media_type: str) -> web.StreamResponse:
        """Send the answer, unless the caller loses its credential or its right to a topic in it meanwhile, and wait
        until the client has acknowledged it."""
        call = self._call
        still_allowed = check_of(call, [one.topic_id for one in self.ends])
        response = web.StreamResponse(headers={"Content-Type": media_type, COMPAT_HEADER: call.context.rest_compat})
        response.content_length = len(body)
        try:
            with cut_when_revoked(call, still_allowed):
                await response.prepare(call.request)
                await write_in_time(response, call.context, body)
                await response.write_eof()
            self.written = True
            self.delivered = bool(self.ends) and await is_delivered(call.request)
        except TimeoutError:
            if call.request.transport is not None:
                call.request.transport.abort()
            raise ConnectionResetError("the client did not read the answer in time") from None
        return response

    async def settle(self) -> None:
        """End the lease. Records that the client has not confirmed come again."""
        delivered = self.delivered or (self.written and was_delivered(self._call.request))
        settled = self._call.service.instances.settle(self.lease, self.ends if delivered else {})
        with contextlib.suppress(RaftlogError):  # the owner has changed: the positions are those of another now
            await self._call.context.finish(settled, OFFSETS_TIMEOUT_S)
