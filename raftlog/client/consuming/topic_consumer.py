"""`TopicConsumer`: reads the partitions of one topic by offset.

The consumer keeps its positions in memory and stores them nowhere: pass `start` to continue where a program stopped. It
returns only records that all in-sync replicas have (S3), in offset order, each record once, across leader changes and
node failures.

There are three ways to read: `poll` (a list of records), `async for record in consumer`, and `batches` (whole batches,
with their columns as lists or Arrow: the fastest way). They share the positions and may be mixed.

Records that are already fetched can be read without waiting, so a program that reads without pause would starve its
event loop. These calls therefore yield to the loop now and then, and batches that take long to decode are decoded on a
thread. The cursor owns the batch before decoding begins, so a caller that is cancelled meanwhile loses no records.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Self, Unpack

from raftlog.client.cluster.api import HttpApi
from raftlog.client.cluster.connection_security import ConnectionSecurity
from raftlog.client.cluster.metadata import TOPIC_ID
from raftlog.client.keywords import ConsumerKeywords
from raftlog.client.settings import ConsumerSettings, takes
from raftlog.client.times import Seconds, StartTime, seconds_of, start_at
from raftlog.config import KIB, check_topic_name
from raftlog.errors import ClientClosed, CorruptBatch, InvalidRequest, RaftlogError, RetriableError
from raftlog.metrics import client_catalogue as names
from raftlog.metrics.measure import Family
from raftlog.model import EARLIEST
from raftlog.records.batch import Codec

from .counts import ReadCounts
from .fetcher import Fetcher
from .reader import PartitionReader, Start, parse_start
from .records import ConsumedBatch, ConsumerRecord

START_TIMEOUT = 30.0
PAUSE_AFTER = 2000
"""Records after which the consumer yields to the event loop; a batch counts as `BATCH_COST` records more."""
BATCH_COST = 16
WHOLE_BATCH_SHARE = 8
"""Records of a batch that is handed out whole which count as one: its columns cost only a few calls."""
INLINE_RECORDS = 8192
"""Records above which a batch is decoded on a thread: decoding this many takes a few milliseconds."""
INLINE_COMPRESSED_BYTES = 16 * KIB
"""The same limit for compressed batches, in bytes: they may expand a thousandfold."""


class Cursor:
    """A batch taken from a reader and not completely handed out.

    `records` is None until the batch is decoded.
    """

    __slots__ = ("batch", "next", "reader", "records", "version")

    def __init__(self, reader: PartitionReader, batch: ConsumedBatch) -> None:
        self.reader = reader
        self.version = reader.version
        self.batch = batch
        self.records: list[ConsumerRecord] | None = None
        self.next = 0

    @property
    def is_current(self) -> bool:
        """Whether the reader's position is unchanged by a seek since the batch was taken."""
        return self.version == self.reader.version

    @property
    def is_long_work(self) -> bool:
        """Whether decoding the batch would block the event loop for too long."""
        header = self.batch.header
        compressed = header.codec is not Codec.NONE and header.total_bytes > INLINE_COMPRESSED_BYTES
        return compressed or header.record_count > INLINE_RECORDS


class TopicConsumer:
    """Reads one topic.

    A consumer belongs to one event loop. `close` it, or use it with `async with`.
    """

    @takes(ConsumerSettings)
    def __init__(
        self,
        bootstrap: str | Sequence[str],
        topic: str,
        partitions: Sequence[int] | None = None,
        start: StartTime | Mapping[int, StartTime] = EARLIEST,
        *,
        topic_id: str = "",
        settings: ConsumerSettings | None = None,
        **keywords: Unpack[ConsumerKeywords],
    ) -> None:
        """Configure the consumer; nothing is connected yet.

        * `partitions`: the partitions to read; None means all, including those added later.
        * `start`: `"earliest"`, `"latest"`, an offset, a `datetime` with a time zone or `"@<milliseconds since 1970>"`
          (the first record at or after that time), or one of these per partition.
        * `topic_id`: 32 hexadecimal digits. With it, another topic of the same name, deleted before or created after
          this one, is never read.

        The other keywords are the fields of `ConsumerSettings`; they replace those of `settings`. Raises
        `InvalidRequest`.
        """
        self._settings = ConsumerSettings.of(settings, keywords)
        if isinstance(partitions, str | bytes):
            raise InvalidRequest("invalid_request", f"partitions must be a list of numbers, not {partitions!r}")
        begin: Start | dict[int, Start]
        if isinstance(start, Mapping):
            begin = {partition: parse_start(start_at(one)) for partition, one in start.items()}
        else:
            begin = parse_start(start_at(start))
        if partitions is not None and not partitions:
            raise InvalidRequest(
                "invalid_request", "the list of partitions is empty: name at least one, or None for all"
            )
        for partition in partitions or ():
            if not isinstance(partition, int) or partition < 0:
                raise InvalidRequest("invalid_request", f"{partition!r} is not a partition: use integers from 0")
        if topic_id and not TOPIC_ID.fullmatch(topic_id):
            raise InvalidRequest("invalid_request", f"{topic_id!r} is not a topic id: use 32 hexadecimal digits")
        self._topic = check_topic_name(topic)
        self._topic_id = bytes.fromhex(topic_id)
        self._partitions = None if partitions is None else list(dict.fromkeys(partitions))
        self._start: Start | Mapping[int, Start] = begin
        self._api = HttpApi(bootstrap, ConnectionSecurity(self._settings))
        self.counts = ReadCounts()
        """The counts of what is fetched; the owner may replace them by its own before anything is read."""
        self._fetcher: Fetcher | None = None
        self._paused: set[int] = set()
        self._cursor: Cursor | None = None
        self._since_pause = 0
        self._closed = False

    # --- Reading ------------------------------------------------------------------------------------------------------

    async def start(self, timeout: Seconds = START_TIMEOUT) -> None:
        """Locate the topic and the start offsets.

        The other calls do so implicitly; call this to see a failure early. Raises `InvalidRequest` (`unknown_topic`,
        `unknown_partition`), or `RetriableError` after `timeout` seconds.
        """
        fetcher = self._started()
        deadline = asyncio.get_running_loop().time() + seconds_of(timeout)
        while not fetcher.located:
            fetcher.check()
            if not await fetcher.changed.wait(deadline):
                why = fetcher.last_error or self._api.last_error or "no answer"
                raise RetriableError("leader_not_available", f"topic {self._topic} was not found: {why}")
            self._started()
        fetcher.check()

    async def poll(self, max_records: int = 500, timeout: Seconds = 1.0) -> list[ConsumerRecord]:
        """Return up to `max_records` records as soon as there are any, or none after `timeout` seconds.

        Raises `InvalidRequest` (`offset_out_of_range`, `unknown_topic`, ...) or `CorruptBatch`. After an error, the
        partition is not read any further until `seek`.
        """
        records: list[ConsumerRecord] = []
        deadline = asyncio.get_running_loop().time() + seconds_of(timeout)
        while True:
            cursor = await self._next_cursor() if max_records > 0 else None
            while cursor is not None:
                records += self._hand_out(cursor, max_records - len(records))
                cursor = self._another_cursor() if len(records) < max_records else None
            if records or not await self._more(deadline):
                return records

    def __aiter__(self) -> Self:
        """Iterate over the records without end."""
        return self

    async def __anext__(self) -> ConsumerRecord:
        cursor = self._cursor
        if cursor is None or cursor.records is None or cursor.version != cursor.reader.version:
            while (cursor := await self._next_cursor()) is None:
                await self._more(None)
        # The same steps as `_hand_out` for one record, inlined: most records cost no more than this.
        assert cursor.records is not None
        record = cursor.records[cursor.next]
        cursor.next += 1
        if cursor.next < len(cursor.records):
            cursor.reader.position = record.offset + 1
        else:
            self._finish(cursor)
        return record

    async def next_batch(self, timeout: Seconds = 1.0) -> ConsumedBatch | None:
        """Return the next batch of any partition, or None after `timeout` seconds. Raises as `poll` does."""
        deadline = asyncio.get_running_loop().time() + seconds_of(timeout)
        while True:
            await self._pause()
            batch = self._batch_now()
            if batch is not None or not await self._more(deadline):
                return batch

    async def batches(self) -> AsyncIterator[ConsumedBatch]:
        """Iterate over the batches without end."""
        while True:
            await self._pause()
            batch = self._batch_now()
            if batch is None:
                await self._more(None)
            else:
                yield batch

    # --- Positions ----------------------------------------------------------------------------------------------------

    @property
    def positions(self) -> dict[int, int]:
        """Offset of the next record to hand out, by partition, if it is known already."""
        return {p: reader.position for p, reader in self._readers().items() if reader.position >= 0}

    @property
    def high_watermarks(self) -> dict[int, int]:
        """High watermark by partition, from the leader's last answer."""
        return {p: reader.high_watermark for p, reader in self._readers().items() if reader.high_watermark >= 0}

    @property
    def end_offsets(self) -> dict[int, int]:
        """End of the readable records by partition, from the leader's last answer.

        This is the last stable offset or, with `read_uncommitted`, the high watermark.
        """
        return {p: reader.readable_end for p, reader in self._readers().items() if reader.readable_end >= 0}

    @property
    def lag(self) -> dict[int, int]:
        """Number of offsets between the position and the readable end, by partition."""
        return {partition: reader.lag for partition, reader in self._readers().items() if reader.lag is not None}

    @property
    def caught_up(self) -> bool:
        """True if every partition's readable end is known and the position is there.

        `lag` lacks partitions that no leader has answered for yet, so that its sum alone does not tell this.
        """
        readers = self._readers().values()
        return bool(readers) and all(reader.lag == 0 for reader in readers)

    @property
    def prefetched_bytes(self) -> int:
        """Bytes that were fetched ahead of the program."""
        return 0 if self._fetcher is None else self._fetcher.facts().buffered_bytes

    @property
    def metrics(self) -> list[Family]:
        """The consumer's numbers now: prefetched bytes, fetches, retries, lag (`docs/metrics.md`)."""
        return [
            Family.of(names.PREFETCHED, self.prefetched_bytes),
            Family(names.LAG, [((self._topic, str(partition)), lag) for partition, lag in self.lag.items()]),
            *self.counts.families(),
        ]

    async def seek(self, partition: int, start: StartTime) -> None:
        """Continue reading `partition` at `start`, and clear an error that stopped it. Raises `InvalidRequest`."""
        place = parse_start(start_at(start))
        if self._fetcher is None or partition not in self._fetcher.readers:
            await self.start()
        fetcher = self._started()
        reader = fetcher.readers.get(partition)
        if reader is None:
            raise InvalidRequest("unknown_partition", f"partition {partition} is not read by this consumer")
        reader.seek(place)
        fetcher.took(reader)

    def pause(self, partitions: Iterable[int]) -> None:
        """Neither hand out nor fetch these partitions until `resume`. The call is idempotent; positions are kept."""
        paused = set(partitions)
        self._paused |= paused
        cursor = self._cursor
        if cursor is not None and cursor.reader.partition in self._paused:
            self._cursor = None
            cursor.reader.seek(cursor.reader.position)  # The rest of its batch is fetched again.
        if self._fetcher is not None:
            self._fetcher.pauses_changed(paused)

    def resume(self, partitions: Iterable[int]) -> None:
        """Continue with these partitions."""
        resumed = set(partitions)
        self._paused -= resumed
        if self._fetcher is not None:
            self._fetcher.pauses_changed(resumed)

    # For the owner of the assignment (`raftlog/client/groups/reading.py`); neither method waits.

    def assign(self, starts: Mapping[int, int]) -> None:
        """Read exactly these partitions.

        Partitions that are being read continue at their positions; new ones begin at the given offsets.
        """
        self._partitions = sorted(starts)
        self._start = dict(starts)
        self._paused.intersection_update(starts)
        if self._fetcher is not None:
            self._fetcher.assign(self._start)
            if self._cursor is not None and self._cursor.reader not in self._fetcher.readers.values():
                self._cursor = None

    def go_on_at(self, partition: int, offset: int) -> None:
        """Seek to `offset` in an assigned partition, without waiting."""
        reader = self._readers().get(partition)
        if reader is not None and self._fetcher is not None:
            reader.seek(offset)
            self._fetcher.took(reader)
        elif isinstance(self._start, dict):
            self._start[partition] = offset

    async def close(self) -> None:
        """Close all connections. Closing twice is allowed."""
        if self._closed:
            return
        self._closed = True
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._api.close)
            if self._fetcher is not None:
                stack.push_async_callback(self._fetcher.close)

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *error: object) -> None:
        await self.close()

    # --- Inside -------------------------------------------------------------------------------------------------------

    def _started(self) -> Fetcher:
        if self._closed:
            raise ClientClosed("the consumer is closed: create a new one")
        if self._fetcher is None:
            self._fetcher = Fetcher(
                self._api,
                topic=self._topic,
                partitions=self._partitions,
                start=self._start,
                settings=self._settings,
                topic_id=self._topic_id,
            )
            self._fetcher.topic.paused = self._paused
            self._fetcher.counts = self.counts
        return self._fetcher

    def _readers(self) -> dict[int, PartitionReader]:
        return {} if self._fetcher is None else self._fetcher.readers

    async def _more(self, deadline: float | None) -> bool:
        """Wait until the fetcher has something new; return False if the deadline passed first."""
        fetcher = self._started()
        fetcher.check()
        loop = asyncio.get_running_loop()
        there = await fetcher.changed.wait(loop.time() + START_TIMEOUT if deadline is None else deadline)
        self._started()
        return there or deadline is None

    async def _next_cursor(self) -> Cursor | None:
        """Return the current cursor if it has records left, else the next one that has; its records are decoded."""
        while True:
            await self._pause()
            cursor = self._cursor_at_once()
            if cursor is not None or self._cursor is None:
                return cursor
            await self._decode(self._cursor)  # meanwhile, another task may have read or sought

    def _another_cursor(self) -> Cursor | None:
        """Return the next cursor for a caller that already has records, without waiting or raising.

        The caller's records would be lost otherwise; an error is raised again by the next call.
        """
        if self._since_pause >= PAUSE_AFTER:
            return None
        try:
            return self._cursor_at_once()
        except RaftlogError:
            return None

    def _cursor_at_once(self) -> Cursor | None:
        """Return the next cursor, or None if there is none or a thread has to decode it first."""
        while True:
            cursor = self._cursor
            if cursor is None or not cursor.is_current:
                self._cursor = None
                taken = self._take()
                if taken is None:
                    return None
                cursor = self._cursor = Cursor(*taken)
                self._since_pause += cursor.batch.header.record_count + BATCH_COST
            if cursor.records is None and cursor.is_long_work:
                return None
            try:
                cursor.records = cursor.batch.records() if cursor.records is None else cursor.records
            except CorruptBatch as error:
                self._unreadable(cursor, error)
                continue
            if cursor.records:
                return cursor
            self._finish(cursor)

    async def _decode(self, cursor: Cursor) -> None:
        """Decode the cursor's batch on a thread."""
        try:
            cursor.records = await asyncio.get_running_loop().run_in_executor(None, cursor.batch.records)
        except CorruptBatch as error:
            self._unreadable(cursor, error)

    def _unreadable(self, cursor: Cursor, error: CorruptBatch) -> None:
        if self._cursor is cursor and cursor.is_current:
            self._cursor = None
            where = f"{cursor.batch} from broker {cursor.reader.leader}"
            cursor.reader.unreadable(cursor.batch, CorruptBatch(f"{where}: {error.detail}"))
            self._started().took(cursor.reader)

    async def _pause(self) -> None:
        """Yield to the event loop if enough records were handed out since the last yield."""
        if self._since_pause >= PAUSE_AFTER:
            self._since_pause = 0
            await asyncio.sleep(0)

    def _hand_out(self, cursor: Cursor, count: int) -> list[ConsumerRecord]:
        """Take up to `count` records from a decoded cursor that has records left."""
        assert cursor.records is not None
        records = cursor.records[cursor.next : cursor.next + count]
        cursor.next += len(records)
        if cursor.next < len(cursor.records):
            cursor.reader.handed_out(records[-1].offset + 1)
        else:
            self._finish(cursor)
        return records

    def _finish(self, cursor: Cursor) -> None:
        self._cursor = None
        cursor.reader.finished(cursor.batch)

    def _batch_now(self) -> ConsumedBatch | None:
        cursor = self._cursor
        self._cursor = None
        if cursor is not None and cursor.is_current:
            reader, batch = cursor.reader, cursor.batch
            if cursor.records:
                batch.start_offset = cursor.records[cursor.next].offset
        elif (taken := self._take()) is not None:
            reader, batch = taken
            self._since_pause += batch.header.record_count // WHOLE_BATCH_SHARE + BATCH_COST
        else:
            return None
        reader.finished(batch)
        return batch

    def _take(self) -> tuple[PartitionReader, ConsumedBatch] | None:
        fetcher = self._started()
        fetcher.check()
        reader = fetcher.next_ready()
        batch = None if reader is None else reader.take()
        if reader is None or batch is None:
            return None
        fetcher.took(reader)
        return reader, batch
