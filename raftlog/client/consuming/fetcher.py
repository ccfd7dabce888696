"""The shell around the readers of one topic: it requests batches from the leaders ahead of the program.

Every partition is in at most one request, and each broker is asked about all of its partitions at once, idle and busy
ones (`channels.py`). Prefetched data is bounded: `prefetch_bytes` over all partitions, and an equal share of it for
each.

Readers that have changed are *touched*, and only those are examined, so an answer about one of ten thousand partitions
costs as much as about one of ten. Readers that want data but cannot be requested yet (no connection, no room) are in
the index (`reader_index.py`) as *wanting*.

If a leader moves, dies or is silent for longer than the long poll, metadata is refreshed, and reading continues at
`fetch_offset` with the new leader.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from itertools import islice

from raftlog.api.topics import TopicDescription
from raftlog.client.cluster.any_node import blames_caller
from raftlog.client.cluster.api import HttpApi
from raftlog.client.cluster.connection_security import blames_credential
from raftlog.client.cluster.metadata import ClusterMetadata
from raftlog.client.cluster.outage import Outage
from raftlog.client.cluster.refresher import MetadataRefresher
from raftlog.client.cluster.transport import Transport
from raftlog.client.cluster.waiters import Waiters
from raftlog.client.settings import ConsumerSettings
from raftlog.errors import CODES, CorruptBatch, RaftlogError, RetriableError

from .channels import Answer, Calls, Channel, Channels
from .counts import ReadCounts
from .fetch_budget import PARTITION_BYTES, FetchBudget
from .offsets import StartFinder
from .reader import PartitionReader, Start
from .reader_index import ReaderIndex
from .topic_readers import UNKNOWN_TOPIC_GRACE, TopicReaders, take_refusal

logger = logging.getLogger("raftlog.client")

MAX_NAMED = 4_000
"""Limit of partitions in one request: a broker processes them within one iteration of its loop."""
BACKOFF_MIN = 0.02
BACKOFF_MAX = 0.1
LATE_ANSWER = 0.5
"""Seconds beyond the long poll after which metadata is refreshed."""
LATE_AGAIN = 0.2
"""Seconds between refreshes while an answer is late."""
WATCH_INTERVAL = 0.1
NEW_PARTITIONS_INTERVAL = 60.0
"""Seconds between checks for added partitions."""


@dataclass(frozen=True, slots=True)
class FetcherFacts:
    """Counts of a fetcher."""

    buffered_bytes: int
    """Bytes fetched ahead of the program."""
    requested_bytes: int
    """Bytes that the budget has granted to open polls."""
    open_bytes: int
    """Bytes that the channels count for their open polls."""
    open_polls: int


class Fetcher:
    """Fetches one topic's partitions.

    Belongs to one event loop; `close` it.
    """

    def __init__(
        self,
        api: HttpApi,
        topic: str,
        partitions: Sequence[int] | None,
        start: Mapping[int, Start] | Start,
        settings: ConsumerSettings,
        topic_id: bytes = b"",
    ) -> None:
        """`partitions`, `start` and `topic_id` are those of `TopicReaders`."""
        self._api = api
        self._topic = topic
        self.topic = TopicReaders(topic, partitions, start, topic_id)
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self.metadata = ClusterMetadata(api, {topic: topic_id.hex()} if topic_id else None)
        self.readers = self.topic.readers
        self.counts = ReadCounts()
        """The counts of what is fetched; the owner may replace them by its own."""
        self.error: RaftlogError | None = None
        """The error that keeps everything from being read."""
        self.last_error: RaftlogError | None = None
        """The last failure, for error texts."""
        self._transport = Transport(self._connection_changed, api, self._world_failed)
        self._refresher = MetadataRefresher(api, self.metadata, self._refreshed, self._world_failed)
        self._finder = StartFinder(api, self._found, self._finding_failed, settings.isolation_level)
        self._books = ReaderIndex()
        self._seeking: dict[PartitionReader, None] = {}
        """Readers that look up their start offset."""
        self._resting: dict[PartitionReader, None] = {}
        """Readers that back off."""
        self._asked_at: dict[PartitionReader, Channel] = {}
        self._channels = Channels(
            settings, Calls(self._on_answer, self._on_failed, self._on_poll_over), self._loop.time
        )
        self._budget = FetchBudget(settings.prefetch_bytes)
        self._short = False
        """Whether a reader could not be requested because the budget is used up."""
        self._answers = 0
        self._outage = Outage(f"consumer of topic {topic}")
        self._unknown_since: float | None = None
        self.changed = Waiters()
        """Woken when a record may be ready, or something has failed."""
        self._timer: asyncio.TimerHandle | None = None
        self._asked_late_at = self._looked_at = self._loop.time()
        self._closed = False
        self._watch = self._loop.call_later(WATCH_INTERVAL, self._on_watch)
        self._refresher.ask([topic])

    def facts(self) -> FetcherFacts:
        """Return what is buffered and requested now, for status and tests."""
        channels = self._channels.all()
        return FetcherFacts(
            buffered_bytes=self._books.buffered_bytes,
            requested_bytes=self._budget.asked_bytes,
            open_bytes=sum(channel.open_bytes for channel in channels),
            open_polls=sum(channel.open_polls for channel in channels),
        )

    # --- For the consumer ---------------------------------------------------------------------------------------------

    @property
    def located(self) -> bool:
        """Whether every partition's position is known."""
        return bool(self.readers) and all(reader.looking_for is None for reader in self.readers.values())

    def check(self) -> None:
        """Raise the error that stops a partition, once everything before it was handed out."""
        if self.error is not None:
            raise self.error
        for reader in self._books.failed:
            if reader.error is not None and reader.position >= reader.fetch_offset and not self._is_paused(reader):
                raise reader.error

    def next_ready(self) -> PartitionReader | None:
        """Return the next reader with data, in round-robin order."""
        return self._books.next_ready(self.topic.paused)

    def took(self, reader: PartitionReader | None = None) -> None:
        """Record that data was taken or a seek happened, in this reader or (None) in any; then request more."""
        if reader is None:
            self._notice_each(self.readers.values())
        elif self.readers.get(reader.partition) is reader:
            self._books.notice(reader)
            if reader.error is None and self._has_enough(reader, self._share) and not self._short:
                return  # nothing to request because of it, as after most batches
        self.pump()

    def assign(self, starts: Mapping[int, Start]) -> None:
        """Read exactly these partitions (`TopicReaders.assign`)."""
        dropped, again = self.topic.assign(starts, self._loop.time())
        for reader in dropped:
            self._forget(reader)
        if again:
            self._refresher.ask([self._topic])
        self.error = self.error or self.topic.error
        self._notice_each(self.readers.values())
        self.pump()

    def pauses_changed(self, partitions: Iterable[int]) -> None:
        """Record that these partitions were paused or resumed."""
        self._notice_each(self.readers[partition] for partition in partitions if partition in self.readers)
        self.changed.wake()
        self.pump()

    async def close(self) -> None:
        self._closed = True
        for timer in (self._watch, self._timer):
            if timer is not None:
                timer.cancel()
        self.changed.wake()
        async with AsyncExitStack() as stack:
            for part in (self._finder, self._refresher, self._transport):
                stack.push_async_callback(part.close)

    # --- Requests -----------------------------------------------------------------------------------------------------

    def pump(self) -> None:
        """Request everything that is wanted and not in a request yet. Never blocks."""
        if self._closed or self.error is not None:
            return
        try:
            self._pump()
        except Exception as error:  # without this, nothing would be requested any more, and `poll` would wait forever
            logger.exception("fetching failed")
            self.error = RaftlogError("internal_error", f"the consumer has stopped reading because of a bug: {error!r}")
            self.changed.wake()

    def _pump(self) -> None:
        self._notice_each(self._channels.leave_lost())
        now, share = self._loop.time(), self._share
        for reader in self._books.take_touched():
            self._look(reader, now, share)
        if self._seeking:
            self._finder.find(self.topic.topic_id, self._seeking)
        self._short = False
        for leader in self._books.leaders():
            while self._ask(leader):
                pass
        for channel in self._channels.all():
            if channel.needs_poll and not channel.connection.throttled:
                self._poll(channel, [])
        self._wake_at(min((reader.not_before for reader in self._resting), default=None))

    def _look(self, reader: PartitionReader, now: float, share: int) -> None:
        """Move one reader to the set that it belongs to now."""
        self._seeking.pop(reader, None)
        self._resting.pop(reader, None)
        if reader.asked is None and (channel := self._asked_at.pop(reader, None)) is not None:
            channel.drop(reader)
        if reader.error is not None or self._has_enough(reader, share) or self._is_paused(reader):
            self._books.unwant(reader)
        elif reader.looking_for is not None:
            self._books.unwant(reader)
            self._seeking[reader] = None
        elif reader.not_before > now:
            self._books.unwant(reader)
            self._resting[reader] = None
        elif reader.leader < 0:
            self._books.unwant(reader)
            self._refresher.ask([self._topic])
            self._unserved(RetriableError("leader_not_available", f"{self._topic}/{reader.partition} has no leader"))
        else:
            self._books.want(reader)

    def _has_enough(self, reader: PartitionReader, share: int) -> bool:
        """Whether the reader has data enough.

        It is not requested after each batch: few large answers cost a fraction of many small ones, on both sides.
        """
        return reader.asked is not None or reader.buffered_bytes > share // 2

    @property
    def _share(self) -> int:
        """One partition's share of the prefetch budget, in bytes."""
        return self._budget.share(len(self.readers))

    def _ask(self, leader: int) -> bool:
        """Request wanting readers at a leader; return whether there may be more to request there."""
        connection = self._transport.connection(leader)
        if connection is None:
            self._dial(leader)
            return False
        if connection.throttled:
            return False
        channel = self._channels.to(connection)
        least = self._books.wanting_count(leader) * min(PARTITION_BYTES, self._share // 2)
        if channel.is_full:
            return False
        if not self._budget.has_room(least, self._books.buffered_bytes):
            self._short = True
            return False
        readers = self._books.wanting(leader, MAX_NAMED)
        if not self._poll(channel, readers):
            return False
        for reader in readers:
            self._books.unwant(reader)
            self._asked_at[reader] = channel
        return self._books.wanting_count(leader) > 0

    def _poll(self, channel: Channel, readers: Sequence[PartitionReader]) -> bool:
        """Send a poll if there is room for it, and return whether it was sent."""
        share = self._share
        # A leader exceeds the byte limit for a large batch only if that batch is the first of its answer.
        in_turn = sorted(readers, key=lambda reader: reader.served)
        asked = [(reader, min(PARTITION_BYTES, share - reader.buffered_bytes)) for reader in in_turn]
        max_bytes = self._budget.grant(
            sum(most for _, most in asked),
            channel.waiting_bytes,
            open_bytes=channel.open_bytes,
            brokers=len(self._channels),
            buffered=self._books.buffered_bytes,
        )
        if not max_bytes:
            self._short = True
            return False
        channel.poll(self.topic.topic_id, asked, max_bytes)
        return True

    def _dial(self, leader: int) -> None:
        endpoint = self.metadata.data_endpoint(leader)
        if endpoint is not None:
            self._transport.dial(leader, endpoint)
        else:
            self._refresher.ask([self._topic])

    # --- Answers ------------------------------------------------------------------------------------------------------

    def _on_answer(self, reader: PartitionReader, answer: Answer, body: memoryview) -> None:
        if answer.error:
            self.last_error = take_refusal(reader, answer, self._settings.on_out_of_range)
            self.counts.retried(answer.error)
            self._back_off(reader)
        else:
            self._accept(reader, answer, body)
        self._books.notice(reader)

    def _on_failed(self, reader: PartitionReader, error: RaftlogError) -> None:
        if not CODES[error.code].retriable:
            reader.error = error
        self._back_off(reader)
        self._books.notice(reader)

    def _on_poll_over(self, max_bytes: int, error: RaftlogError | None) -> None:
        self._budget.over(max_bytes)
        self._answers += 1
        if error is not None:
            self.last_error = error
            self.counts.retried(error.code)
            self._unserved(error)
            self._loop.call_soon(self.pump)
        else:
            self._served()
            self.pump()
        self.changed.wake()

    def _accept(self, reader: PartitionReader, answer: Answer, body: memoryview) -> None:
        known = len(reader.buffered)
        try:
            end = answer.last_stable_offset if self._settings.isolation_level else answer.high_watermark
            reader.accept(body, answer.high_watermark, answer.log_start_offset, end, answer.aborted)
            reader.failures = 0
            if body.nbytes:
                reader.served = self._answers
        except CorruptBatch as error:
            logger.warning("%s: a fetched batch is damaged: %s", reader, error.detail)
            where = f"{reader.topic}/{reader.partition} at offset {reader.position} from broker {reader.leader}"
            reader.corrupt(CorruptBatch(f"{where}: {error.detail}"))
            self._back_off(reader)
        if body.nbytes:
            records = [batch.header.record_count for batch in islice(reader.buffered, known, None)]
            self.counts.fetched(self._topic, body.nbytes, records)

    def _back_off(self, reader: PartitionReader) -> None:
        pause = min(BACKOFF_MIN * 2 ** min(reader.failures, 10), BACKOFF_MAX)
        reader.failures += 1
        reader.not_before = self._loop.time() + pause * random.uniform(0.75, 1.0)
        self._refresher.ask([self._topic])

    # --- Metadata -----------------------------------------------------------------------------------------------------

    def _refreshed(self, answers: Mapping[str, TopicDescription | RaftlogError]) -> None:
        now = self._loop.time()
        for answer in answers.values():
            if isinstance(answer, TopicDescription):
                self._unknown_since = None
                self._looked_at = now
                if self.topic.described(answer, now):
                    self._api.prefer_another()
                    self._refresher.ask([self._topic])
                self.error = self.error or self.topic.error
            elif not blames_caller(answer):
                self.last_error = answer
                self._unserved(answer)
                self._refresher.ask([self._topic])
            else:
                self._unknown_since = now if self._unknown_since is None else self._unknown_since
                if answer.code != "unknown_topic" or now - self._unknown_since >= UNKNOWN_TOPIC_GRACE:
                    self.error = answer
                else:
                    self._refresher.ask([self._topic])
        self._notice_each(self.readers.values())
        self.changed.wake()
        self.pump()

    def _forget(self, reader: PartitionReader) -> None:
        self._books.forget(reader)
        self._seeking.pop(reader, None)
        self._resting.pop(reader, None)
        if (channel := self._asked_at.pop(reader, None)) is not None:
            channel.drop(reader)

    def _is_paused(self, reader: PartitionReader) -> bool:
        return reader.partition in self.topic.paused

    def _world_failed(self, error: RaftlogError) -> None:
        self.last_error = error
        self._unserved(error)
        if blames_credential(error):
            self.error = self.error or error
            self.changed.wake()

    def _finding_failed(self, error: RaftlogError) -> None:
        self._world_failed(error)
        if blames_caller(error) and error.code not in ("unknown_topic", "unknown_partition"):
            self.error = error
        self._refresher.ask([self._topic])

    def _unserved(self, error: RaftlogError) -> None:
        if not self._closed and (text := self._outage.failed(error, self._loop.time())) is not None:
            logger.warning("%s", text)

    def _served(self) -> None:
        if (text := self._outage.succeeded(self._loop.time())) is not None:
            logger.warning("%s", text)

    def _found(self) -> None:
        self._notice_each(self._seeking)
        self.changed.wake()
        self.pump()

    def _notice_each(self, readers: Iterable[PartitionReader]) -> None:
        for reader in list(readers):
            self._books.notice(reader)

    def _connection_changed(self, node_id: int) -> None:
        if self._transport.connection(node_id) is None:
            self._refresher.ask([self._topic])
        self.pump()

    # --- Time ---------------------------------------------------------------------------------------------------------

    def _on_watch(self) -> None:
        self._watch = self._loop.call_later(WATCH_INTERVAL, self._on_watch)
        now = self._loop.time()
        silent = self._transport.late(now - self._settings.max_wait - LATE_ANSWER)
        if silent and now - self._asked_late_at >= LATE_AGAIN:
            self._asked_late_at = now
            self._refresher.ask([self._topic])
        if now - self._looked_at >= NEW_PARTITIONS_INTERVAL:
            self._refresher.ask([self._topic])

    def _wake_at(self, due: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if due is None else self._loop.call_at(due, self._on_rested)

    def _on_rested(self) -> None:
        self._notice_each(self._resting)
        self.pump()
