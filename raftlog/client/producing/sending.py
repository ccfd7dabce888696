"""The sending calls that a `Producer` and a `Transaction` share.

`send` is a plain call: it puts the record into the open batch and returns that batch's delivery, without waiting. Two
things follow. It must be called on the event loop that its object belongs to, and a program that only sends never lets
its loop process answers: it has to await something now and then (`drain`, a delivery, anything).

The ways to send one record repeat its parameters: passing them on as `*args` and `**kwargs` would take half as long as
the whole rest of a send.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from operator import index
from typing import Any, TypeAlias

from raftlog.client.cluster.metadata import check_partition
from raftlog.client.times import milliseconds_of
from raftlog.config import check_topic_name
from raftlog.errors import InvalidRequest, RetriableError
from raftlog.partitioner import partition_for_key
from raftlog.trace_context import TraceContext, with_trace

from .batch import UNASSIGNED, Batch, Headers, ParkedRecord
from .columns import ColumnQueue, check_columns
from .delivery import DeliveryFuture, RecordDelivery, RecordMetadata
from .sender import Sender

CurrentTrace: TypeAlias = Callable[[], TraceContext | None]
HeadersArgument: TypeAlias = Headers | Mapping[str, bytes | None]

MAX_TIMESTAMP_MS = 2**62
REMEMBERED_KEYS = 50_000
"""Limit of remembered keys per topic."""


Queued: TypeAlias = Batch[DeliveryFuture] | ParkedRecord[DeliveryFuture]


class RecordSending:
    """Base of classes that send records.

    A subclass provides the sender: `_started`.
    """

    def __init__(self, linger: float, key_partitions: KeyPartitions, trace_context: CurrentTrace | None) -> None:
        """`linger` is in seconds; `trace_context` is the setting."""
        self._linger = linger
        self.trace_context = trace_context
        self._open: dict[Any, Batch[DeliveryFuture]] = {}
        """The accumulator's open batches, as long as records may be appended to them directly."""
        self._key_partitions = key_partitions
        self._sealed_some = False

    def _started(self) -> Sender:
        """Return the sender. Raises the `RaftlogError` for which nothing may be sent."""
        raise NotImplementedError

    @contextmanager
    def _sending_columns(self) -> Iterator[None]:
        """Enclose each call of `send_many`."""
        yield

    # --- One record ---------------------------------------------------------------------------------------------------

    def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        partition: int | None = None,
        timestamp_ms: int | datetime | None = None,
        headers: HeadersArgument | None = None,
    ) -> DeliveryFuture:
        """Queue one record and return the delivery of its batch.

        The record gets a delivery of its own if it has a key or a partition and the topic is not known yet. The
        partition is `partition`, else the key's (Kafka's murmur2), else the one with the smallest backlog. A record
        without a timestamp gets the time at which its batch was opened, at most `linger_ms` plus 100 ms ago. A
        `datetime` needs a time zone. A value of None is a tombstone.

        Raises `RetriableError` (`overloaded`: the buffer is full), `ClientClosed`, `InvalidRequest` (`batch_too_large`,
        `unknown_partition`, `invalid_topic_name`) and `TypeError`; then nothing was queued.
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

    async def send_when_room(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        partition: int | None = None,
        timestamp_ms: int | datetime | None = None,
        headers: HeadersArgument | None = None,
    ) -> DeliveryFuture:
        """Send as `send` does, but wait for room if the buffer is full, and yield to the loop now and then."""
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
        timestamp_ms: int | datetime | None = None,
        headers: HeadersArgument | None = None,
    ) -> Coroutine[Any, Any, RecordMetadata]:
        """Send one record; awaiting the result returns the record's place in the log once it is acknowledged.

        The record is sent at once, so any number may be in flight without a task for each: collect the results of the
        calls, then await one after the other. (Only if the buffer is full is the record sent when the result is
        awaited.) Raises as `send` does, except `overloaded`, and the error that ended the delivery. A caller that stops
        waiting does not take the record back.
        """
        if key is None and partition is None and timestamp_ms is None and headers is None and value.__class__ is bytes:
            batch = self._open.get(topic)
            if batch is not None:
                room = batch.room - batch.row_bytes - len(value)
                if room >= 0:
                    batch.room = room
                    batch.values.append(value)
                    return RecordDelivery(batch.delivery, len(batch.values) - 1, None)
        timestamp_ms = _milliseconds(timestamp_ms)
        try:
            took = self._queue(topic, value, key, partition, timestamp_ms, headers)
        except RetriableError as error:
            if error.code != "overloaded":
                raise
            queue = partial(self._queue, topic, value, key, partition, timestamp_ms, headers)
            return self._send_later(queue, timestamp_ms)
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
        """Queue whole columns, and return the deliveries of their batches once all are queued.

        Columns are lists, or pyarrow arrays of binary or string (`timestamps`: timestamp or int64). Records keep their
        order within each partition; their batches may contain other records, too.

        Columns are checked before anything is queued. Raises `InvalidRequest` (`batch_too_large`, `unknown_partition`,
        lengths that differ, an unknown topic) and `TypeError`; waits for room without a time limit.
        """
        with self._sending_columns():
            largest = await check_columns(values, keys, timestamps)
            sender = self._started()
            if not sender.accumulator.partition_count(topic):
                await sender.topic_known(check_topic_name(topic))
            queue = ColumnQueue(sender, topic, self._linger)
            await queue.put(values, keys, timestamps, partition, largest)
            return list(queue.deliveries)

    async def drain(self) -> None:
        """Let the loop process answers; return when less than half of the buffer is in use."""
        await asyncio.sleep(0)
        await self._started().room()

    # --- Inside -------------------------------------------------------------------------------------------------------

    def _open_directly(self, sender: Sender) -> None:
        """Let records be appended to the open batches of this sender directly, if they need not be looked at."""
        self._open = sender.accumulator.open if self.trace_context is None else {}

    def _queue(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int | None,
        timestamp_ms: int | datetime | None,
        headers: HeadersArgument | None,
    ) -> Queued:
        """Send without the shortcut. Return the batch or parked record that contains the record as its last one."""
        sender = self._started()
        accumulator = sender.accumulator
        value, key = _as_bytes("value", value), _as_bytes("key", key)
        partition = None if partition is None else index(partition)
        timestamp_ms = _milliseconds(timestamp_ms)
        if timestamp_ms is not None and not 0 <= timestamp_ms <= MAX_TIMESTAMP_MS:
            raise InvalidRequest("timestamp_out_of_range", f"{timestamp_ms} is not a time in milliseconds since 1970")
        pairs = None if not headers else _headers(headers)
        if self.trace_context is not None and (trace := self.trace_context()) is not None:
            pairs = with_trace(pairs or (), trace)
        count = accumulator.partition_count(topic)
        now = sender.now()
        if not count:
            check_topic_name(topic)
            if partition is not None or key is not None:
                place = UNASSIGNED if partition is None else partition
                record = accumulator.park(topic, value, key, place, timestamp_ms, pairs)
                sender.arm(now + self._linger)
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
            sender.arm(now + self._linger)
        return batch

    async def _send_later(self, queue: Callable[[], Queued], timestamp_ms: int | None) -> RecordMetadata:
        """Send a record of `send_and_wait` that found the buffer full."""
        while True:
            await self._started().room()
            try:
                took = queue()
            except RetriableError as error:
                if error.code != "overloaded":
                    raise
            else:
                return await RecordDelivery(took.delivery, took.count - 1, timestamp_ms)


class KeyPartitions:
    """The partitions of keys seen before: hashing a key takes longer than the rest of a send."""

    def __init__(self) -> None:
        self._of_topic: dict[str, tuple[int, dict[bytes, int]]] = {}
        """Number of partitions, and each key's partition, by topic."""

    def find(self, topic: str, key: bytes, count: int) -> int:
        """Return the partition of this key among `count` partitions."""
        known_count, known = self._of_topic.get(topic, (0, {}))
        if known_count != count or len(known) >= REMEMBERED_KEYS:
            known = {}
            self._of_topic[topic] = (count, known)
        partition = known.get(key)
        if partition is None:
            partition = known[key] = partition_for_key(key, count)
        return partition


def _milliseconds(timestamp: int | datetime | None) -> int | None:
    if timestamp is None or timestamp.__class__ is int:
        return timestamp
    return milliseconds_of(timestamp) if isinstance(timestamp, datetime) else index(timestamp)


def _as_bytes(name: str, content: Any) -> bytes | None:
    if content is None or content.__class__ is bytes:
        return content
    if isinstance(content, bytes | bytearray | memoryview):
        return bytes(content)
    how = {str: ": encode it, as in text.encode()"}.get(type(content), "")
    raise TypeError(f"a {name} must be bytes or None, not {type(content).__name__}{how}")


def _headers(headers: HeadersArgument) -> Headers:
    pairs = list(headers.items() if isinstance(headers, Mapping) else headers)
    for name, content in pairs:
        if not isinstance(name, str):
            raise TypeError(f"a header's name must be str, not {type(name).__name__}")
        _as_bytes("header", content)
    return pairs
