"""Batching: records come in one at a time or by the column, and leave in batches. A pure core.

Records without a key wait in one open batch per topic. It gets its partition when it is sealed: the one with the
smallest backlog. Records with a key or an explicit partition wait in one open batch per partition. A batch is sealed
when the next record does not fit, when it is `linger` old and could be sent at once, or on a flush.

There are two budgets. A batch counts down its `room`, the encoded bytes that it may still take; estimates are never
below what `record_batch.encode` produces, before compression. The buffer counts memory, which exceeds the bytes sent
(each record is a Python object). A batch gets its room in small grants, and each grant also pays for the objects added
since the last one. So the hot path, which `Producer.send` inlines, is one subtraction and one `append`.

Invariant: `buffered_bytes` is the sum of the reservations of all batches (and parked records) that are here or handed
out; it is at most `buffer_bytes` plus one grant per batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic

from raftlog.errors import InvalidRequest, RetriableError

from .batch import (
    FRAME_BYTES,
    UNASSIGNED,
    Batch,
    Columns,
    D,
    Headers,
    ParkedRecord,
    Slot,
    payload_bytes,
    payload_lengths,
    row_bytes_of,
    rows_that_fit,
)

RECORD_MEMORY_BYTES = 48
"""Memory of a record's Python objects beside their bytes, in bytes."""
PARKED_MEMORY_BYTES = 400
"""The same for a record that waits with its own future."""
GRANT_BYTES = 8192
"""Size of one grant of room, in bytes.

It is small, so that many open batches can share the buffer, and large enough for its cost per record to be negligible.
"""

OPEN_AT_MOST = 0.1
"""Seconds that a batch stays open after it is due, if it could not be sent yet.

Under load, batches thus fill up instead of multiplying, and the one timestamp that their records share is accurate to a
tenth of a second.
"""


GATHER_AT_MOST = 0.005
"""Seconds that a due batch waits for an answer from its broker, if only that keeps it from being sent.

No longer than a producer lingers by default, so that a slow disk is not waited for twice.
"""


class Accumulator(Generic[D]):
    """All open batches of a producer, and its memory budget."""

    def __init__(
        self, *, batch_bytes: int, max_batch_bytes: int, buffer_bytes: int, linger: float, new_delivery: Callable[[], D]
    ) -> None:
        """Configure the limits.

        `batch_bytes`: size at which a batch is full; `max_batch_bytes`: limit of a single record; `linger`: seconds.
        """
        assert FRAME_BYTES < batch_bytes <= max_batch_bytes <= buffer_bytes
        self.open: dict[Slot, Batch[D]] = {}
        """Open batches, in the order in which they were opened."""
        self.buffered_bytes = 0
        self.buffer_bytes = buffer_bytes
        self._batch_bytes = batch_bytes
        self._max_batch_bytes = max_batch_bytes
        self._linger = linger
        self._new_delivery = new_delivery
        self._sealed: list[Batch[D]] = []
        self._parked: dict[str, list[ParkedRecord[D]]] = {}
        self._topics: dict[str, tuple[int, int]] = {}
        """Number of partitions and `max.message.bytes`, by topic name."""
        self._unknown: dict[str, None] = {}

    # --- Records in ---------------------------------------------------------------------------------------------------

    def append(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int,
        timestamp_ms: int | None,
        headers: Headers | None,
        now: float,
        wall_ms: int,
        *,
        force: bool = False,
    ) -> Batch[D]:
        """Append a record, and return the batch that contains it as its last one.

        Raises `InvalidRequest` (`batch_too_large`) and `RetriableError` (`overloaded`: the buffer is full).
        """
        payload = payload_bytes(value, key, headers)
        slot = _slot(topic, partition)
        shape = (key is not None, timestamp_ms is not None, bool(headers))
        batch = self._batch_with_room(slot, payload, shape, now, wall_ms, force)
        batch.add(value, key, timestamp_ms, headers)
        return batch

    def extend(self, topic: str, columns: Columns, start: int, now: float, wall_ms: int) -> tuple[Batch[D], int]:
        """Append as many records from position `start` on as fit into the open batch, at least one.

        Returns the batch and the number of records; raises as `append` does, without having appended any.
        """
        one = columns.part(start, start + 1)
        (first,) = payload_lengths(one.values, one.keys)
        shape = (columns.keys is not None, columns.timestamps is not None, False)
        batch = self._batch_with_room(_slot(topic, columns.partition), first, shape, now, wall_ms, False, spend=False)
        memory = batch.ungranted + (batch.count - batch.counted) * RECORD_MEMORY_BYTES
        affordable = self.buffered_bytes + memory <= self.buffer_bytes
        room = batch.room + (batch.ungranted if affordable else 0)
        count, payload = rows_that_fit(columns, start, room, batch.row_bytes)
        assert count
        cost = payload + count * batch.row_bytes
        if cost > batch.room:
            self._grant(batch, cost - batch.room, False)
        batch.room -= cost
        batch.add_many(columns.part(start, start + count))
        return batch, count

    def add_columns(self, topic: str, columns: Columns, payload: int, now: float, wall_ms: int) -> Batch[D]:
        """Make a sealed batch of whole columns (pyarrow arrays) with `payload` bytes of values and keys.

        An open batch for the same destination is sealed first. Raises as `append` does, without having taken anything.
        """
        partition, values, keys, timestamps = columns
        slot = _slot(topic, partition)
        size = payload + columns.rows * row_bytes_of(columns)
        limit = self.limits(topic)[1]
        if size > limit:
            raise _too_large(topic, size, limit)
        if self.buffered_bytes + size > self.buffer_bytes:
            raise self._overloaded()
        if slot in self.open:
            self._seal(slot)
        batch = Batch(topic, partition, size, self._new_delivery(), now, wall_ms, values, keys, timestamps)
        batch.counted = columns.rows
        batch.ungranted = 0
        self._reserve(batch, size)
        self._sealed.append(batch)
        return batch

    def park(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int,
        timestamp_ms: int | None,
        headers: Headers | None,
    ) -> ParkedRecord[D]:
        """Keep a record until its topic is known (`topic_known`). Raises `RetriableError` (`overloaded`)."""
        reserved = payload_bytes(value, key, headers) + PARKED_MEMORY_BYTES
        if self.buffered_bytes + reserved > self.buffer_bytes:
            raise self._overloaded()
        self.buffered_bytes += reserved
        self._unknown[topic] = None
        record = ParkedRecord(value, key, partition, timestamp_ms, headers, self._new_delivery(), reserved)
        self._parked.setdefault(topic, []).append(record)
        return record

    # --- Topics -------------------------------------------------------------------------------------------------------

    def partition_count(self, topic: str) -> int:
        """Return the number of partitions; 0 while the topic is not known."""
        return self._topics.get(topic, (0, 0))[0]

    def limits(self, topic: str) -> tuple[int, int]:
        """Return the size at which a batch of this topic is full, and the limit of a single record, in bytes."""
        largest = min(self._topics.get(topic, (0, self._max_batch_bytes))[1], self._max_batch_bytes)
        return min(self._batch_bytes, largest) - FRAME_BYTES, largest - FRAME_BYTES

    def topic_known(self, topic: str, partition_count: int, max_message_bytes: int) -> list[ParkedRecord[D]]:
        """Set a topic's number of partitions and batch limit, and return the records that waited for it.

        Those are no longer counted as buffered: the caller appends them (`force`) before anything else.
        """
        self._topics[topic] = (partition_count, max_message_bytes)
        self._unknown.pop(topic, None)
        return self._unpark(topic)

    def topic_gone(self, topic: str) -> tuple[list[Batch[D]], list[ParkedRecord[D]]]:
        """Forget a topic that cannot be sent to, and return everything that waits for it.

        Batches stay reserved until `release`.
        """
        self._topics.pop(topic, None)
        self._unknown.pop(topic, None)
        for slot in [slot for slot, batch in self.open.items() if batch.topic == topic]:
            self._seal(slot)
        gone = [batch for batch in self._sealed if batch.topic == topic]
        self._sealed = [batch for batch in self._sealed if batch.topic != topic]
        return gone, self._unpark(topic)

    def drop_all(self) -> tuple[list[Batch[D]], list[ParkedRecord[D]]]:
        """Return everything that waits, for every topic. Batches stay reserved until `release`."""
        self.seal_all()
        dropped, self._sealed = self._sealed, []
        self._unknown.clear()
        return dropped, [record for topic in list(self._parked) for record in self._unpark(topic)]

    def topics_wanted(self) -> list[str]:
        """Return the unknown topics that records wait for."""
        return list(self._unknown)

    def topics(self) -> list[str]:
        """Return the topics of all waiting batches and records."""
        return list(dict.fromkeys([*(batch.topic for batch in self.waiting()), *self._parked]))

    # --- Batches out --------------------------------------------------------------------------------------------------

    @property
    def has_sealed(self) -> bool:
        return bool(self._sealed)

    def seal_due(self, now: float, sendable: Callable[[str, int, bool], bool]) -> None:
        """Seal batches that are `linger` old and can be sent, or have waited long enough.

        `sendable(topic, partition, patient)`: whether a batch would be sent at once; `patient`: the batch may still
        wait for an answer.
        """
        due = []
        for slot, batch in self.open.items():
            age = now - batch.opened_at
            if age < self._linger:
                break
            waited = age - self._linger
            if waited >= OPEN_AT_MOST or sendable(batch.topic, batch.partition, waited < GATHER_AT_MOST):
                due.append(slot)
        for slot in due:
            self._seal(slot)

    def seal_all(self) -> None:
        """Seal all open batches, for a flush."""
        for slot in list(self.open):
            self._seal(slot)

    def next_due(self, now: float) -> float | None:
        """Return the time of the next `seal_due` call, if nothing happens before."""
        earliest: float | None = None
        for batch in self.open.values():
            due = batch.opened_at + self._linger
            passed = due <= now
            if passed:
                due += GATHER_AT_MOST if now < due + GATHER_AT_MOST else OPEN_AT_MOST
            earliest = due if earliest is None else min(earliest, due)
            if not passed:
                break
        return earliest

    def take_sealed(self, choose: Callable[[str, int], int]) -> list[Batch[D]]:
        """Take the sealed batches of known topics, in the order of sealing.

        `choose(topic, partition_count)` picks the partition if none was given.
        """
        taken, waiting = [], []
        for batch in self._sealed:
            count = self.partition_count(batch.topic)
            if not count:
                waiting.append(batch)
                continue
            if batch.partition == UNASSIGNED:
                batch.partition = choose(batch.topic, count)
            taken.append(batch)
        self._sealed = waiting
        return taken

    def release(self, batch: Batch[D]) -> None:
        """Release the memory of a finished batch."""
        self.buffered_bytes -= batch.reserved
        batch.reserved = 0

    def waiting(self) -> Iterator[Batch[D]]:
        """Iterate over the batches that were not taken yet."""
        yield from self._sealed
        yield from self.open.values()

    def parked(self) -> Iterator[ParkedRecord[D]]:
        for records in self._parked.values():
            yield from records

    # --- Room ---------------------------------------------------------------------------------------------------------

    def _batch_with_room(
        self,
        slot: Slot,
        payload: int,
        shape: tuple[bool, bool, bool],
        now: float,
        wall_ms: int,
        force: bool,
        *,
        spend: bool = True,
    ) -> Batch[D]:
        """Return the slot's open batch with room for one more record; deduct that room, unless not `spend`."""
        batch = self.open.get(slot)
        if batch is not None:
            row_bytes = batch.row_bytes_with(*shape)
            growth = (row_bytes - batch.row_bytes) * batch.count
            need = growth + row_bytes + payload
            if need > batch.room + batch.ungranted:
                self._seal(slot)
                batch = None
        if batch is None:
            topic, partition = (slot, UNASSIGNED) if isinstance(slot, str) else slot
            full, largest = self.limits(topic)
            batch = Batch(topic, partition, full, self._new_delivery(), now, wall_ms)
            row_bytes = batch.row_bytes_with(*shape)
            growth, need = 0, row_bytes + payload
            if need > full:
                if need > largest:
                    raise _too_large(topic, need, largest)
                batch.capacity = batch.ungranted = need
            self._grant(batch, need, force)
            self.open[slot] = batch
            if topic not in self._topics:
                self._unknown[topic] = None
        elif need > batch.room:
            self._grant(batch, need - batch.room, force)
        batch.row_bytes = row_bytes
        batch.room -= need if spend else growth
        return batch

    def _grant(self, batch: Batch[D], missing: int, force: bool) -> None:
        """Grant the batch `missing` bytes of room, or `GRANT_BYTES` if that is more."""
        granted = min(max(missing, GRANT_BYTES), batch.ungranted)
        memory = granted + (batch.count - batch.counted) * RECORD_MEMORY_BYTES
        if self.buffered_bytes + memory > self.buffer_bytes and not force:
            raise self._overloaded()
        self._reserve(batch, memory)
        batch.counted = batch.count
        batch.room += granted
        batch.ungranted -= granted

    def _seal(self, slot: Slot) -> None:
        batch = self.open.pop(slot)
        self._reserve(batch, (batch.count - batch.counted) * RECORD_MEMORY_BYTES - batch.room)
        batch.counted = batch.count
        batch.capacity -= batch.room + batch.ungranted
        batch.room = batch.ungranted = 0
        self._sealed.append(batch)

    def _reserve(self, batch: Batch[D], memory: int) -> None:
        batch.reserved += memory
        self.buffered_bytes += memory

    def _unpark(self, topic: str) -> list[ParkedRecord[D]]:
        records = self._parked.pop(topic, [])
        self.buffered_bytes -= sum(record.reserved for record in records)
        return records

    def _overloaded(self) -> RetriableError:
        return RetriableError(
            "overloaded",
            f"the producer's buffer of {self.buffer_bytes} bytes is full: await drain() or use send_when_room()",
        )


def _slot(topic: str, partition: int) -> Slot:
    return topic if partition == UNASSIGNED else (topic, partition)


def _too_large(topic: str, size: int, limit: int) -> InvalidRequest:
    return InvalidRequest("batch_too_large", f"{size} bytes exceed the batch limit of topic {topic}: {limit}")
