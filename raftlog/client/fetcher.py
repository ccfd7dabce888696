"""The shell around the readers of one topic: asks leaders for batches, ahead of what the user has taken.

Every partition is in at most one question; a question is a long poll to one broker about all of its partitions that
want more and are in no other question. So partitions that are idle wait in one long poll while busy ones are asked for
again and again. What is fetched ahead is bounded: `prefetch_bytes` over all partitions and an equal share of it each.

When a leader moves, dies or is silent for longer than the long poll, metadata is asked again, and reading goes on at
`fetch_offset` with whoever leads then.

What is *not* here: what an answer may look like (`reader.py`), the user's calls (`consumer.py`).
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from raftlog.config import KIB, MIB
from raftlog.errors import CODES, CorruptBatch, InvalidRequest, RaftlogError, error_from_code
from raftlog.wire import ErrorResponse, FetchedPartition, FetchPartition, FetchRequest, FetchResponse, Response

from .api import HttpApi, blames_caller
from .metadata import ClusterMetadata, TopicDescription
from .offsets import StartFinder
from .reader import PartitionReader, Start
from .refresher import MetadataRefresher
from .topic_readers import UNKNOWN_TOPIC_GRACE, TopicReaders
from .transport import FETCH_PATH, Connection, Transport
from .waiters import Waiters

logger = logging.getLogger("raftlog.client")

REQUEST_BYTES = 4 * MIB
PARTITION_BYTES = 2 * MIB
SMALLEST_SHARE = 64 * KIB
MAX_QUESTIONS = 4
"""Open at one broker."""
BACKOFF_MIN = 0.02
BACKOFF_MAX = 0.1
LATE_ANSWER = 0.5
"""Seconds beyond the long poll after which the leaders are asked for again."""
LATE_AGAIN = 0.2
"""Seconds between asking, as long as the answer is late."""
ANSWER_GRACE = 10.0
"""Seconds beyond the long poll after which the connection is given up."""
WATCH_INTERVAL = 0.1
NEW_PARTITIONS_INTERVAL = 60.0
"""Seconds between looks for partitions that were added."""

Question: TypeAlias = "list[tuple[PartitionReader, int]]"
"""Readers and the numbers under which they were asked."""


@dataclass(frozen=True, slots=True)
class FetcherSettings:
    """A consumer's settings. Times in seconds."""

    prefetch_bytes: int
    max_wait: float
    min_bytes: int
    on_out_of_range: str
    """`"error"`, `"earliest"` or `"latest"`."""
    isolation: int
    """1: only what is committed."""


class Fetcher:
    """Readers of one topic's partitions. Belongs to one loop; `close` it."""

    def __init__(
        self, api: HttpApi, topic: str, partitions: Sequence[int] | None, start: Mapping[int, Start] | Start,
        settings: FetcherSettings,
    ) -> None:  # fmt: skip
        """`partitions` and `start`: as of `TopicReaders`."""
        self._api = api
        self._topic = topic
        self.topic = TopicReaders(topic, partitions, start)
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self.metadata = ClusterMetadata(api)
        self.readers = self.topic.readers
        self.ready: dict[PartitionReader, None] = {}
        """Readers with something fetched ahead, in the order in which they are served."""
        self.error: RaftlogError | None = None
        """Why nothing can be read at all."""
        self.last_error: RaftlogError | None = None
        """The last thing that went wrong, for people."""
        self._transport = Transport(self._connection_changed, api, self._world_failed)
        self._refresher = MetadataRefresher(api, self.metadata, self._refreshed, self._world_failed)
        self._finder = StartFinder(api, self._found, self._finding_failed, settings.isolation)
        self._questions: dict[int, int] = {}
        """Broker → open questions."""
        self._asked_bytes = 0
        self._answers = 0
        self._unknown_since: float | None = None
        self.changed = Waiters()
        """Woken when something may be ready, or has failed."""
        self._timer: asyncio.TimerHandle | None = None
        self._asked_late_at = self._looked_at = self._loop.time()
        self._closed = False
        self._watch = self._loop.call_later(WATCH_INTERVAL, self._on_watch)
        self._refresher.ask([topic])

    # --- For the consumer ---------------------------------------------------------------------------------------------

    @property
    def located(self) -> bool:
        """Every partition's position is known."""
        return bool(self.readers) and all(reader.looking_for is None for reader in self.readers.values())

    def check(self) -> None:
        """Raises what keeps a partition from being read, once all that came before was handed out."""
        if self.error is not None:
            raise self.error
        for reader in self.readers.values():
            if self._is_paused(reader):
                continue
            if reader.error is not None and reader.position >= reader.fetch_offset:
                raise reader.error

    def next_ready(self) -> PartitionReader | None:
        """The reader whose turn it is; the next call gives the next one."""
        reader = next((reader for reader in self.ready if not self._is_paused(reader)), None)
        if reader is None:
            return None
        del self.ready[reader]
        if len(reader.buffered) > 1:
            self.ready[reader] = None
        return reader

    def took(self) -> None:
        """There is room again, or somebody sought."""
        for reader in [reader for reader in self.ready if not reader.buffered]:
            del self.ready[reader]
        self.pump()

    def assign(self, starts: Mapping[int, Start]) -> None:
        """See `TopicReaders.assign`."""
        dropped, again = self.topic.assign(starts, self._loop.time())
        for reader in dropped:
            self.ready.pop(reader, None)
        if again:
            self._refresher.ask([self._topic])
        self.error = self.error or self.topic.error
        self.pump()

    def resume(self) -> None:
        """Some partitions are paused no more."""
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

    # --- Asking -------------------------------------------------------------------------------------------------------

    def pump(self) -> None:
        """Ask for what is wanted and asked by nobody. Never blocks."""
        if self._closed or self.error is not None:
            return
        now = self._loop.time()
        share = max(self._settings.prefetch_bytes // max(1, len(self.readers)), SMALLEST_SHARE)
        wanting: dict[int, list[PartitionReader]] = {}
        wake_at: float | None = None
        for reader in self.readers.values():
            if reader.error is not None or reader.asked is not None or reader.buffered_bytes >= share:
                continue
            if self._is_paused(reader):
                continue
            if reader.looking_for is not None:
                self._finder.find(self.topic.topic_id, self.readers.values())
            elif reader.not_before > now:
                wake_at = reader.not_before if wake_at is None else min(wake_at, reader.not_before)
            elif reader.leader < 0:
                self._refresher.ask([self._topic])
            else:
                wanting.setdefault(reader.leader, []).append(reader)
        for leader, readers in wanting.items():
            # A leader gives a batch that is larger than asked for only where it is the first of its answer.
            self._ask(leader, sorted(readers, key=lambda reader: reader.served), share)
        self._wake_at(wake_at)

    def _ask(self, leader: int, readers: list[PartitionReader], share: int) -> None:
        connection = self._transport.connection(leader)
        if connection is None:
            self._dial(leader)
            return
        buffered = sum(reader.buffered_bytes for reader in self.readers.values())
        room = self._settings.prefetch_bytes - buffered - self._asked_bytes
        if self._questions.get(leader, 0) >= MAX_QUESTIONS or room <= 0:
            return
        max_bytes = min(REQUEST_BYTES, room)
        question = [(reader, reader.ask()) for reader in readers]
        most = min(PARTITION_BYTES, max_bytes)
        partitions = [
            FetchPartition(
                self.topic.topic_id, r.partition, r.fetch_offset, min(most, share - r.buffered_bytes), r.leader_epoch
            )
            for r in readers
        ]
        settings = self._settings
        self._questions[leader] = self._questions.get(leader, 0) + 1
        self._asked_bytes += max_bytes
        try:
            connection.request(
                FETCH_PATH,
                lambda correlation_id: FetchRequest(
                    correlation_id,
                    int(settings.max_wait * 1000),
                    settings.min_bytes,
                    max_bytes,
                    partitions,
                    settings.isolation,
                ),
                (),
                timeout=settings.max_wait + ANSWER_GRACE,
                answered=partial(self._answered, connection, question, max_bytes),
                lost=partial(self._lost, leader, question, max_bytes),
            )
        except RaftlogError as error:
            self._lost(leader, question, max_bytes, error)

    def _dial(self, leader: int) -> None:
        endpoint = self.metadata.data_endpoint(leader)
        if endpoint is not None:
            self._transport.dial(leader, endpoint)
        else:
            self._refresher.ask([self._topic])

    # --- Answers ------------------------------------------------------------------------------------------------------

    def _answered(
        self, connection: Connection, question: Question, max_bytes: int, response: Response, body: memoryview
    ) -> None:
        self._over(connection.node_id, max_bytes)
        if isinstance(response, ErrorResponse):
            answers = [FetchedPartition(bytes(16), 0, response.error, response.detail) for _ in question]
        elif isinstance(response, FetchResponse) and len(response.partitions) == len(question):
            answers = response.partitions
        else:
            answers = [FetchedPartition(bytes(16), 0, "connection_lost", "an answer to something else")] * len(question)
            connection.close("an answer did not fit its request")
        start = 0
        self._answers += 1
        for (reader, number), answer in zip(question, answers, strict=True):
            piece = body[start : start + answer.length]
            start += answer.length
            if not reader.answered(number):
                continue
            if answer.error:
                self._refused(reader, answer)
            else:
                self._accept(reader, answer, piece)
        self.changed.wake()
        self.pump()

    def _accept(self, reader: PartitionReader, answer: FetchedPartition, body: memoryview) -> None:
        try:
            end = answer.last_stable_offset if self._settings.isolation else answer.high_watermark
            reader.accept(body, answer.high_watermark, answer.log_start_offset, end, answer.aborted)
            reader.failures, reader.unknown_since = 0, None
            if body.nbytes:
                reader.served = self._answers
        except CorruptBatch as error:
            logger.warning("%s: a fetched batch is damaged: %s", reader, error.detail)
            where = f"{reader.topic}/{reader.partition} at offset {reader.position} from broker {reader.leader}"
            reader.corrupt(CorruptBatch(f"{where}: {error.detail}"))
            self._back_off(reader)
        if reader.buffered:
            self.ready[reader] = None

    def _refused(self, reader: PartitionReader, answer: FetchedPartition) -> None:
        error = error_from_code(answer.error, answer.detail, answer.leader)
        self.last_error = error
        now = self._loop.time()
        if error.code == "offset_out_of_range":
            self._out_of_range(reader, answer)
        elif error.code in ("unknown_topic", "unknown_partition"):
            reader.unknown_since = now if reader.unknown_since is None else reader.unknown_since
            if now - reader.unknown_since >= UNKNOWN_TOPIC_GRACE:
                reader.error = error
        elif not CODES[error.code].retriable:
            reader.error = error
        self._back_off(reader)

    def _out_of_range(self, reader: PartitionReader, answer: FetchedPartition) -> None:
        start, end = answer.log_start_offset, answer.high_watermark
        if start <= reader.fetch_offset <= end:
            return  # the broker has caught up since
        if reader.position < reader.fetch_offset:
            return  # first what was fetched; the question is asked again
        detail = f"{reader.topic}/{reader.partition}: offset {reader.fetch_offset} is not between {start} and {end}"
        if self._settings.on_out_of_range == "error":
            reader.error = InvalidRequest("offset_out_of_range", detail)
        else:
            logger.warning("%s; going on at the %s", detail, self._settings.on_out_of_range)
            reader.seek(self._settings.on_out_of_range)

    def _lost(self, leader: int, question: Question, max_bytes: int, error: RaftlogError) -> None:
        self._over(leader, max_bytes)
        self.last_error = error
        for reader, number in question:
            if reader.answered(number):
                self._back_off(reader)
        self._loop.call_soon(self.pump)

    def _over(self, leader: int, max_bytes: int) -> None:
        self._questions[leader] -= 1
        self._asked_bytes -= max_bytes

    def _back_off(self, reader: PartitionReader) -> None:
        pause = min(BACKOFF_MIN * 2 ** min(reader.failures, 10), BACKOFF_MAX)
        reader.failures += 1
        reader.not_before = self._loop.time() + pause * random.uniform(0.75, 1.0)
        self._refresher.ask([self._topic])

    # --- The picture of the cluster -----------------------------------------------------------------------------------

    def _refreshed(self, answers: Mapping[str, TopicDescription | RaftlogError]) -> None:
        now = self._loop.time()
        for answer in answers.values():
            if isinstance(answer, TopicDescription):
                self._unknown_since = None
                self._looked_at = now
                if self.topic.described(answer, now):
                    self._refresher.ask([self._topic])
                self.error = self.error or self.topic.error
            elif not blames_caller(answer):
                self.last_error = answer
                self._refresher.ask([self._topic])
            else:
                self._unknown_since = now if self._unknown_since is None else self._unknown_since
                if answer.code != "unknown_topic" or now - self._unknown_since >= UNKNOWN_TOPIC_GRACE:
                    self.error = answer
                else:
                    self._refresher.ask([self._topic])
        self.changed.wake()
        self.pump()

    def _is_paused(self, reader: PartitionReader) -> bool:
        return reader.partition in self.topic.paused

    def _world_failed(self, error: RaftlogError) -> None:
        self.last_error = error

    def _finding_failed(self, error: RaftlogError) -> None:
        self._world_failed(error)
        if blames_caller(error) and error.code not in ("unknown_topic", "unknown_partition"):
            self.error = error
        self._refresher.ask([self._topic])

    def _found(self) -> None:
        self.changed.wake()
        self.pump()

    def _connection_changed(self, node_id: int) -> None:
        if self._transport.connection(node_id) is None:
            self._refresher.ask([self._topic])
        self.pump()

    # --- Time ---------------------------------------------------------------------------------------------------------

    def _on_watch(self) -> None:
        self._watch = self._loop.call_later(WATCH_INTERVAL, self._on_watch)
        now = self._loop.time()
        late = self._settings.max_wait + LATE_ANSWER
        silent = any(
            connection.oldest_sent_at is not None and now - connection.oldest_sent_at >= late
            for connection in self._transport.connections()
        )
        if silent and now - self._asked_late_at >= LATE_AGAIN:
            self._asked_late_at = now
            self._refresher.ask([self._topic])
        if now - self._looked_at >= NEW_PARTITIONS_INTERVAL:
            self._refresher.ask([self._topic])

    def _wake_at(self, due: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if due is None else self._loop.call_at(due, self.pump)
