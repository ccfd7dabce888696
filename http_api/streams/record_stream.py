"""One stream of records, from its first event to its last."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import msgspec
from aiohttp import web

from http_api.records.page import PageOptions, weight
from http_api.routes.fetch import GRACE_S, SLOW_S, join
from http_api.routes.offsets import find_many
from http_api.service.access import Usage
from http_api.web import limits
from http_api.web.call import Call
from metadata.view import TopicChanged, TopicRemoved
from raftlog.errors import InvalidRequest, RaftlogError, RetriableError, error_from_code
from raftlog.model import TopicId, TopicPartition, TopicRecord
from raftlog.ports import Part, release_regions
from raftlog.security.acls import Operation, Resource, ResourceType
from raftlog.wire import (
    TIMESTAMP_LATEST,
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FoundOffset,
    OffsetQuery,
    message_length,
)

from . import events
from .asked import Asked
from .cursor import MAX_PARTITIONS, MAX_TOPICS
from .pages import EncodedRecords, PageStream, SharedPages
from .positions import StreamPositions
from .progress import ReaderProgress
from .senders import Sender, waiting_bytes
from .waits import Waits

MAX_ANSWER_BYTES = 1024 * 1024
"""The most stored bytes that wait for a reader."""
MAX_PARTITION_BYTES = 256 * 1024
PAUSE_PER_STREAM_S = 0.000_1
"""The pause of each stream behind an event, for each stream of the node: an event costs about as long, so that all
streams together take about one core, however often records arrive."""
SMALL_ANSWER_BYTES = 64 * 1024
"""Larger answers belong to a reader that catches up, which does not pause."""
REST_S = 0.5
"""The time before a partition that has failed is asked again, in seconds."""
LONG_REST_S = 10.0
"""The same after an error that no retry cures."""


class RecordStream:
    """A stream. Its caller, its sender, and where it stands."""

    def __init__(self, call: Call, asked: Asked, sender: Sender, waits: Waits, shared: SharedPages) -> None:
        self._call = call
        self._context = call.context
        self._asked = asked
        self._sender = sender
        self._waits = waits
        self._shared = shared
        self._positions = StreamPositions(asked.start, asked.offsets, asked.cursor)
        self._left = asked.max_records
        self._ended: RaftlogError | None = None
        """The error that ends the stream, as soon as it is known."""
        self._written = 0
        self._stuck: set[TopicPartition] = set()
        loop = asyncio.get_running_loop()
        self._clock: Callable[[], float] = loop.time
        self._progress = ReaderProgress(call.context.limits.write_timeout_s, loop.time())
        self._must_match = True
        self._beat_at = loop.time() + asked.heartbeat_s
        self._ends_at = loop.time() + asked.duration_s

    # --- What ends it ------------------------------------------------------------------------------------------------

    def check_rights(self) -> None:
        """Raise `InvalidRequest` (`authorization_failed`) if the caller may no longer read one of the topics (S12)."""
        call = self._call
        self._must_match = True  # A topic that matches the pattern may have become readable.
        self._waits.wake()
        call.check_again()
        for name in {*self._asked.names, *self._positions.names}:
            call.check(Operation.READ, Resource(ResourceType.TOPIC, name))

    def end(self, error: RaftlogError) -> None:
        """End the stream with an error. Earlier records that the reader has not taken do not follow (S12)."""
        self._ended = error
        transport = self._call.request.transport
        if transport is not None and transport.get_write_buffer_size():
            transport.abort()
        self._waits.wake()

    def on_view(self, index: int, changes: Sequence[object]) -> None:
        """Look for topics again, if some have changed."""
        for one in changes:
            match one:
                case TopicChanged(topic) if self._asked.names_topic(topic.name):
                    self._must_match = True
                case TopicRemoved(_, name) if self._asked.names_topic(name):
                    self._must_match = True
        if self._must_match:
            self._waits.wake()

    # --- Its life ----------------------------------------------------------------------------------------------------

    async def run(self) -> web.StreamResponse:
        """Send events until the client leaves, its credential or a right ends, the node stops, or everything that was
        asked for was sent. Raises `TimeoutError` if the client does not read."""
        await self._sender.open()
        try:
            error = await self._send_all()
        except RaftlogError as failed:
            error = failed
        if not self._sender.has_left:
            await self._emit(events.END, events.end(error))
        return await self._sender.finish()

    async def _send_all(self) -> RaftlogError | None:
        """Send events; returns why there are no more."""
        while self._left and not self._sender.has_left and self._clock() < self._ends_at:
            if self._ended is not None:
                return self._ended
            if self._context.closing:
                return RetriableError("shutting_down", "the node is shutting down: go on at another one")
            if self._must_match:
                await self._match()
            await self._find_starts()
            await self._beat()
            await self._pay()
            found = await self._waits.run(self._fetch, self._patience() + GRACE_S)
            if found is not None:
                size = message_length(found[1])
                await self._send_fetched(*found)
                if 0 < size < SMALL_ANSWER_BYTES:
                    await self._waits.pause(PAUSE_PER_STREAM_S * self._context.streams)
        return None

    def _patience(self) -> float:
        """Return the seconds until something else is due."""
        now = self._clock()
        wakes_at = self._positions.wakes_at(now)
        due = min(self._beat_at, self._ends_at, self._beat_at if wakes_at is None else wakes_at)
        return max(due - now, 0.001)

    async def _beat(self) -> None:
        """Send a heartbeat if it is time, and look whether the reader is there."""
        now = self._clock()
        if now < self._beat_at:
            return
        if self._progress.is_stalled(now, self._written, waiting_bytes(self._call.request)):
            raise TimeoutError
        await self._emit(events.HEARTBEAT, b"{}")

    async def _pay(self) -> None:
        """Wait while the caller is in debt of its quota."""
        delay_s = self._call.service.access.delay_s(self._call.caller, Usage.BYTES_OUT)
        if delay_s > 0:
            await self._waits.pause(min(delay_s, self._patience()))

    async def _emit(self, kind: str, members: bytes) -> None:
        event = self._sender.shape(kind, self._positions.cursor(), members)
        self._written += len(event)
        await self._sender.send(event)
        self._beat_at = self._clock() + self._asked.heartbeat_s

    # --- Topics ------------------------------------------------------------------------------------------------------

    def _wanted(self) -> list[TopicRecord]:
        """Return the topics that exist now and that the request wants. Those of a pattern must be readable."""
        asked, may = self._asked, self._call.may
        named = [topic for name in sorted(asked.names) if (topic := self._call.view.topic(name)) is not None]
        if asked.matches is None:
            return named
        matching = [
            topic
            for topic in self._call.view.topics()
            if topic.name not in asked.names
            and asked.matches(topic.name)
            and may(Operation.READ, ResourceType.TOPIC, topic.name)
        ]
        return named + matching

    def check_width(self) -> None:
        """Raise `InvalidRequest` if the stream would read more topics or partitions than one stream may."""
        wanted = self._wanted()
        partitions = sum(topic.partition_count for topic in wanted)
        if len(wanted) > MAX_TOPICS or partitions > MAX_PARTITIONS:
            raise InvalidRequest(
                "invalid_request",
                f"a stream reads at most {MAX_TOPICS} topics with {MAX_PARTITIONS} partitions, not {len(wanted)} with "
                f"{partitions}: use several streams",
            )

    async def _match(self) -> None:
        self._must_match = False
        self.check_width()
        for gone in self._positions.match(self._wanted()):
            await self._emit(events.LEFT, events.left(gone.name, gone.topic_id))
        # Partitions with a position from the beginning have joined as well.
        await self._tell_joined([])

    async def _find_starts(self) -> None:
        """Look up where partitions begin whose start is a time. Those that cannot tell are asked again later."""
        unknown = self._positions.without_start(self._clock())
        if not unknown:
            return
        queries = [OffsetQuery(one.topic_id, one.partition, time) for one, time in unknown]
        found = await find_many(self._call, queries, self._asked.isolation)
        behind = [place for place, one in enumerate(found) if not one.error and one.offset < 0]
        if behind:  # No record is as new as that: begin at the end.
            latest = [OffsetQuery(*_place(found[place]), TIMESTAMP_LATEST) for place in behind]
            for place, end in zip(behind, await find_many(self._call, latest, self._asked.isolation), strict=True):
                found[place] = end
        resumed = []
        for (partition, _), told in zip(unknown, found, strict=True):
            if told.error:
                self._positions.rest(partition, self._clock() + REST_S)
            else:
                self._positions.resume_at(partition, told.offset)
                resumed.append(partition)
        await self._tell_joined(resumed)

    async def _tell_joined(self, partitions: Sequence[TopicPartition]) -> None:
        """Send an event for each topic of which partitions are read from now on."""
        by_topic: dict[TopicId, list[tuple[int, int]]] = {}
        for one in [*self._positions.take_joined(), *partitions]:
            by_topic.setdefault(one.topic_id, []).append((one.partition, self._positions.position(one)))
        for topic_id, starts in by_topic.items():
            name = self._positions.name_of(topic_id)
            await self._emit(events.JOINED, events.joined(name, topic_id, sorted(starts)))

    # --- Records -----------------------------------------------------------------------------------------------------

    async def _fetch(self) -> tuple[FetchResponse, list[Part]] | None:
        now = self._clock()
        wanted = self._positions.to_fetch(now)
        patience_s = self._patience()
        if not wanted:
            await asyncio.sleep(patience_s)
            return None
        asked = [FetchPartition(one.topic_id, one.partition, offset, MAX_PARTITION_BYTES) for one, offset in wanted]
        message = FetchRequest(0, int(patience_s * 1000), 1, MAX_ANSWER_BYTES, asked, self._asked.isolation)
        try:
            return await self._call.partitions.fetch(message)
        except RetriableError:
            await asyncio.sleep(REST_S)
            return None

    async def _send_fetched(self, answer: FetchResponse, parts: list[Part]) -> None:
        size = message_length(parts)
        if self._ended is not None:
            release_regions(parts)
            return
        try:
            self._context.hold(self._call.request, size)
        except RetriableError:
            release_regions(parts)
            await self._waits.pause(REST_S)
            return
        try:
            body = memoryview(await self._context.finish(join(self._context, parts), GRACE_S))
            for fetched in answer.partitions:
                batches, body = body[: fetched.length], body[fetched.length :]
                partition = TopicPartition(TopicId(fetched.topic_id), fetched.partition)
                if self._ended is not None or not self._left:
                    return
                if fetched.error:
                    await self._failed(partition, fetched)
                elif fetched.length:
                    self._stuck.discard(partition)
                    await self._send_records(partition, fetched, bytes(batches))
        finally:
            self._context.drop(self._call.request, size)

    async def _failed(self, partition: TopicPartition, fetched: FetchedPartition) -> None:
        """Deal with an error of one partition."""
        error = error_from_code(fetched.error, fetched.detail, fetched.leader)
        if error.code in ("authorization_failed", "unauthenticated"):
            raise error
        name, position = self._positions.name_of(partition.topic_id), self._positions.position(partition)
        if error.code == "offset_out_of_range" and fetched.high_watermark >= 0:
            # Retention has deleted the position, or an unclean election.
            there = fetched.log_start_offset if position < fetched.log_start_offset else fetched.high_watermark
            self._positions.resume_at(partition, there)
            place = (name, partition.topic_id, partition.partition)
            await self._emit(events.MOVED, events.moved(*place, position, there))
            return
        gone = error.code in ("unknown_topic", "unknown_partition")
        self._must_match = self._must_match or gone
        is_final = not error.retriable and not gone
        self._positions.rest(partition, self._clock() + (LONG_REST_S if is_final else REST_S))
        if is_final and partition not in self._stuck:
            self._stuck.add(partition)
            await self._emit(events.STUCK, events.stuck(name, partition.topic_id, partition.partition, error))

    async def _send_records(self, partition: TopicPartition, fetched: FetchedPartition, batches: bytes) -> None:
        offset = self._positions.position(partition)
        aborted = tuple(map(msgspec.structs.astuple, fetched.aborted))
        key = (self._asked.formats, offset, aborted, batches) if self._left >= limits.MAX_READ_RECORDS else None
        known = None if key is None else self._shared.find(key)
        if known is not None:
            await self._send_piece(partition, fetched, known)
            return
        options = PageOptions(
            max_records=min(self._left, limits.MAX_READ_RECORDS),
            max_bytes=limits.MAX_READ_BYTES,
            rows=self._asked.rows,
            lines=False,
        )
        threads, cost = self._context.threads, weight(batches)
        found = await threads.run(cost, PageStream, batches, offset, options, fetched.aborted)
        if found.is_over():  # Markers of transactions, or aborted records.
            self._positions.advance(partition, found.next_offset)
            return
        piece = await threads.run(cost, found.next)
        if not found.is_over():
            await self._send_pieces(partition, fetched, piece, found, cost)
            return
        if key is not None:
            self._shared.keep(key, len(batches), piece)
        await self._send_piece(partition, fetched, piece)

    async def _send_pieces(
        self,
        partition: TopicPartition,
        fetched: FetchedPartition,
        piece: EncodedRecords,
        rest: PageStream,
        cost: int,
    ) -> None:
        """Send records piece by piece: the next one is encoded when the reader has taken the one before."""
        decoded, loop = self._context.decoded, asyncio.get_running_loop()
        try:
            while self._ended is None:
                decoded.use(rest)
                slow = loop.call_later(SLOW_S, decoded.end, rest)
                try:
                    await self._send_piece(partition, fetched, piece)
                finally:
                    slow.cancel()
                if rest.is_over():
                    return
                piece = await self._context.threads.run(cost, rest.next)
        finally:
            decoded.end(rest)

    async def _send_piece(self, partition: TopicPartition, fetched: FetchedPartition, piece: EncodedRecords) -> None:
        name = self._positions.name_of(partition.topic_id)
        self._positions.advance(partition, piece.next_offset)
        self._left -= piece.count
        place = (name, partition.topic_id, partition.partition)
        members = events.records(*place, piece.next_offset, fetched.high_watermark, piece.records)
        await self._emit(events.RECORDS, members)


def _place(found: FoundOffset) -> tuple[bytes, int]:
    return found.topic_id, found.partition
