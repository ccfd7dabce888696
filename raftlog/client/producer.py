"""`Producer`: records in, deliveries out.

`send` is an ordinary call: it puts the record into the batch that is being filled and returns that batch's delivery,
without waiting for anything. Two things follow. It must be called on the loop that the producer belongs to, and a loop
that only sends never lets answers in: something has to be awaited now and then (`drain`, a delivery, anything).

Four ways to send, from the fastest to the most convenient:

* `send_many`: whole columns, lists or pyarrow arrays.
* `send`: one record, no waiting. `RetriableError` (`overloaded`) when the buffer is full: `await drain()` and go on.
* `send_wait`: the same, but waits for room instead of raising.
* `send_and_wait`: the same record by record: awaiting it gives the record's own offset.

With `acks=all` (the default) a producer is idempotent: whatever happens on the way, an acknowledged record is in the
log once, after those that were sent to its partition before it (S1).

What is *not* here: batches (`accumulator.py`), retries (`sequencer.py`), connections (`sender.py`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from operator import index
from ssl import SSLContext
from types import TracebackType
from typing import Any, TypeAlias

from raftlog.config import check_topic_name
from raftlog.errors import InvalidRequest, RetriableError
from raftlog.model import Acks
from raftlog.partitioner import partition_for_key

from .accumulator_batch import UNASSIGNED, Batch, Headers, ParkedRecord
from .api import HttpApi
from .delivery import DeliveryFuture, RecordDelivery, RecordMetadata
from .many import ColumnQueue, check_columns
from .metadata import check_partition
from .producer_settings import (
    DEFAULT_BATCH_BYTES,
    DEFAULT_BUFFER_BYTES,
    DEFAULT_DELIVERY_TIMEOUT_MS,
    DEFAULT_REQUEST_TIMEOUT_MS,
    ProducerSettings,
    parse_acks,
    parse_codec,
    parse_idempotent,
)
from .sender import Sender

HeadersArgument: TypeAlias = Headers | Mapping[str, bytes | None]

MAX_TIMESTAMP_MS = 2**62
REMEMBERED_KEYS = 50_000
"""Of one topic."""


class Producer:
    """Sends records to topics. Belongs to one event loop; `close` it, or use it with `async with`."""

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        *,
        acks: Acks | int | str = Acks.ALL,
        compression: str = "none",
        linger_ms: float = 5.0,
        batch_bytes: int = DEFAULT_BATCH_BYTES,
        max_in_flight: int = 5,
        buffer_bytes: int = DEFAULT_BUFFER_BYTES,
        delivery_timeout_ms: float = DEFAULT_DELIVERY_TIMEOUT_MS,
        request_timeout_ms: float = DEFAULT_REQUEST_TIMEOUT_MS,
        idempotent: bool | None = None,
        ssl: SSLContext | None = None,
    ) -> None:
        """`bootstrap`: API addresses, `"host:port,host:port"`. `acks`: `"all"`, 1 or 0. `compression`: `"none"`,
        `"gzip"`, `"snappy"`, `"lz4"` or `"zstd"`. `linger_ms`: how long a batch waits for more records.
        `batch_bytes`: where a batch is full. `max_in_flight`: requests a broker. `buffer_bytes`: memory for records
        that are not acknowledged. `delivery_timeout_ms`: after which a batch fails. `idempotent`: None means with
        acks=all. `ssl`: for a cluster whose data listeners speak TLS, such as
        `ssl.create_default_context(cafile="authority.pem")`. Raises `InvalidRequest` for settings that cannot be.
        """
        level = parse_acks(acks)
        self._settings = ProducerSettings(
            acks=level,
            codec=parse_codec(compression),
            linger=linger_ms / 1000,
            batch_bytes=batch_bytes,
            max_in_flight=max_in_flight,
            buffer_bytes=buffer_bytes,
            delivery_timeout=delivery_timeout_ms / 1000,
            request_timeout=request_timeout_ms / 1000,
            idempotent=parse_idempotent(idempotent, level),
        )
        self._api = HttpApi(bootstrap, ssl)
        self._sender: Sender | None = None
        self._open: dict[Any, Batch[DeliveryFuture]] = {}
        """The accumulator's, once there is one."""
        self._key_partitions = _KeyPartitions()
        self._sealed_some = False
        self._closed = False

    # --- One record ---------------------------------------------------------------------------------------------------

    def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: HeadersArgument | None = None,
    ) -> DeliveryFuture:
        """Queue one record; returns the delivery of the batch that it is in (of itself alone where it has a key and the
        topic is not known yet).

        The partition is `partition`, else the key's (Kafka's murmur2), else the one with the least to do. A record
        without timestamp gets the time at which its batch was begun, at most `linger_ms` and 100 ms ago. A value of
        None is a tombstone.

        Raises `RetriableError` (`overloaded` when the buffer is full, `shutting_down`), `InvalidRequest`
        (`batch_too_large`, `unknown_partition`, `invalid_topic_name`) and `TypeError`; then nothing was queued.
        """
        if key is None and partition is None and timestamp_ms is None and headers is None and value.__class__ is bytes:
            batch = self._open.get(topic)
            if batch is not None:
                room = batch.room - batch.row_bytes - len(value)
                if room >= 0:
                    batch.room = room
                    batch.values.append(value)
                    return batch.delivery
        return self._queue(topic, value, key, partition, timestamp_ms, headers).delivery

    async def send_wait(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: HeadersArgument | None = None,
    ) -> DeliveryFuture:
        """As `send`, but waits for room where the buffer is full, and lets answers in now and then."""
        while True:
            if self._sealed_some:
                self._sealed_some = False
                await asyncio.sleep(0)
            try:
                return self.send(topic, value, key, partition, timestamp_ms, headers)
            except RetriableError as error:
                if error.code != "overloaded":
                    raise
            await self._started().room()

    def send_and_wait(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: HeadersArgument | None = None,
    ) -> Coroutine[Any, Any, RecordMetadata]:
        """Send one record; what this returns is to be awaited for where the record is, once it is acknowledged.

        The record is on its way at once, so many may be in flight without a task for each: collect what the calls
        return, then await one after the other. (Only where the buffer is full it is sent when awaited.) Raises as
        `send` does, apart from `overloaded`, and with the error that ended its delivery. Giving up waiting does not
        take the record back.
        """
        if key is None and partition is None and timestamp_ms is None and headers is None and value.__class__ is bytes:
            batch = self._open.get(topic)
            if batch is not None:
                room = batch.room - batch.row_bytes - len(value)
                if room >= 0:
                    batch.room = room
                    batch.values.append(value)
                    return RecordDelivery(batch.delivery, len(batch.values) - 1, None)
        try:
            took = self._queue(topic, value, key, partition, timestamp_ms, headers)
        except RetriableError as error:
            if error.code != "overloaded":
                raise
            return self._send_later(topic, value, key, partition, timestamp_ms, headers)
        return RecordDelivery(took.delivery, took.count - 1, timestamp_ms)

    # --- Many records -------------------------------------------------------------------------------------------------

    async def send_many(
        self,
        topic: str,
        values: Sequence[bytes | None] | Any,
        *,
        keys: Sequence[bytes | None] | Any = None,
        partition: int | None = None,
        timestamps: Sequence[int] | Any = None,
    ) -> list[DeliveryFuture]:
        """Queue whole columns: lists, or pyarrow arrays of binary, string (`timestamps`: timestamp or int64). Records
        keep their order within each partition. Returns, once all are queued, the deliveries of their batches, which
        may hold other records too.

        Columns are checked before anything is queued. Raises `InvalidRequest` (`batch_too_large`,
        `unknown_partition`, lengths that differ, an unknown topic) and `TypeError`; waits for room as long as it takes.
        """
        await check_columns(values, keys, timestamps)
        sender = self._started()
        if not sender.accumulator.partition_count(topic):
            await sender.topic_known(check_topic_name(topic))
        queue = ColumnQueue(sender, topic, self._settings.linger)
        await queue.put(values, keys, timestamps, partition)
        return list(queue.deliveries)

    # --- Waiting ------------------------------------------------------------------------------------------------------

    async def drain(self) -> None:
        """Let answers in; returns when less than half of the buffer is in use."""
        await asyncio.sleep(0)
        await self._started().room()

    async def flush(self) -> None:
        """Send everything now; returns when all that was sent before this call is acknowledged.

        Raises the error of the first batch that failed since the last flush and whose error nobody has seen.
        """
        if self._sender is not None:
            sender = self._sender
            sender.accumulator.seal_all()
            sender.pump()
            for delivery in sender.unfinished():
                await delivery.settled()
            failed = [delivery for delivery in sender.failed if not delivery.observed]
            sender.failed.clear()
            if failed:
                failed[0].result()

    async def prepare(self, topic: str) -> None:
        """Find out about a topic beforehand, so that the first record need not wait for that. Raises `InvalidRequest`
        (`unknown_topic`) or, when the cluster cannot be reached within the delivery timeout, `RetriableError`."""
        await self._started().topic_known(check_topic_name(topic))

    async def close(self, *, flush: bool = True) -> None:
        """Flush, then let go of all connections. Raises as `flush` does, closed all the same. Closing twice is fine.

        Without `flush` (or when it is cancelled) what is not acknowledged fails as `shutting_down` if it certainly is
        not in the log, otherwise as `outcome_unknown`.
        """
        if self._closed:
            return
        try:
            if flush:
                await self.flush()
        finally:
            self._closed = True
            async with AsyncExitStack() as stack:
                stack.push_async_callback(self._api.close)
                if self._sender is not None:
                    stack.push_async_callback(self._sender.close)

    async def __aenter__(self) -> Producer:
        self._started()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close(flush=kind is None)

    @property
    def buffered_bytes(self) -> int:
        """Memory that records which are not acknowledged occupy; at most about `buffer_bytes`."""
        return 0 if self._sender is None else self._sender.accumulator.buffered_bytes

    # --- Inside -------------------------------------------------------------------------------------------------------

    def _started(self) -> Sender:
        if self._closed:
            raise RetriableError("shutting_down", "the producer is closed")
        if self._sender is None:
            self._sender = Sender(self._api, self._settings)
            self._open = self._sender.accumulator.open
        return self._sender

    def _queue(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int | None,
        timestamp_ms: int | None,
        headers: HeadersArgument | None,
    ) -> Batch[DeliveryFuture] | ParkedRecord[DeliveryFuture]:
        """`send` without its shortcut. Returns what took the record, as its last one."""
        sender = self._started()
        accumulator = sender.accumulator
        value, key = _as_bytes("value", value), _as_bytes("key", key)
        partition = None if partition is None else index(partition)
        timestamp_ms = None if timestamp_ms is None else index(timestamp_ms)
        if timestamp_ms is not None and not 0 <= timestamp_ms <= MAX_TIMESTAMP_MS:
            raise InvalidRequest("timestamp_out_of_range", f"{timestamp_ms} is no time in milliseconds since 1970")
        pairs = None if not headers else _headers(headers)
        count = accumulator.partition_count(topic)
        now = sender.now()
        if not count:
            check_topic_name(topic)
            if partition is not None or key is not None:
                place = UNASSIGNED if partition is None else partition
                record = accumulator.park(topic, value, key, place, timestamp_ms, pairs)
                sender.arm(now + self._settings.linger)
                return record
        if partition is not None:
            check_partition(topic, partition, count)
            place = partition
        else:
            place = UNASSIGNED if key is None else self._key_partitions.find(topic, key, count)
        try:
            batch = accumulator.append(topic, value, key, place, timestamp_ms, pairs, now, time.time_ns() // 1_000_000)
        finally:
            if accumulator.has_sealed:
                self._sealed_some = True
                sender.pump()
        if batch.count == 1:
            sender.arm(now + self._settings.linger)
        return batch

    async def _send_later(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int | None,
        timestamp_ms: int | None,
        headers: HeadersArgument | None,
    ) -> RecordMetadata:
        """`send_and_wait` where the buffer was full."""
        while True:
            await self._started().room()
            try:
                took = self._queue(topic, value, key, partition, timestamp_ms, headers)
            except RetriableError as error:
                if error.code != "overloaded":
                    raise
            else:
                return await RecordDelivery(took.delivery, took.count - 1, timestamp_ms)


class _KeyPartitions:
    """The partitions of keys seen before: hashing one takes longer than all the rest of a send."""

    def __init__(self) -> None:
        self._of_topic: dict[str, tuple[int, dict[bytes, int]]] = {}
        """Topic → number of partitions, and each key's."""

    def find(self, topic: str, key: bytes, count: int) -> int:
        known_count, known = self._of_topic.get(topic, (0, {}))
        if known_count != count or len(known) >= REMEMBERED_KEYS:
            known = {}
            self._of_topic[topic] = (count, known)
        partition = known.get(key)
        if partition is None:
            partition = known[key] = partition_for_key(key, count)
        return partition


def _as_bytes(name: str, content: Any) -> bytes | None:
    if content is None or content.__class__ is bytes:
        return content
    if isinstance(content, bytes | bytearray | memoryview):
        return bytes(content)
    raise TypeError(f"a {name} must be bytes or None, not {type(content).__name__}")


def _headers(headers: HeadersArgument) -> Headers:
    pairs = list(headers.items() if isinstance(headers, Mapping) else headers)
    for name, content in pairs:
        if not isinstance(name, str):
            raise TypeError(f"a header's name must be str, not {type(name).__name__}")
        _as_bytes("header", content)
    return pairs
