"""The produces that wait at a leader: for its in-sync replicas, or for earlier batches of their producer.

`UnreplicatedProduces` holds what the leader appended and not all in-sync replicas have yet: the byte counts for the
bounds, and the waiting requests. Every batch above the high watermark counts, whatever its `acks`: if the followers of
a partition are gone, it accepts a bounded number of bytes and batches and then answers `overloaded`. Only `acks=all`
waits here. An acknowledgement leaves the queue when the high watermark has passed the batch's end, or with an error.

`OutOfOrderBatches` keeps batches of idempotent producers that arrived ahead of their turn until the missing ones
arrive. Requests over HTTP/1.1 use several connections and overtake one another; after a failover the resends of one
producer arrive in any order. Up to five batches of a producer wait, for a bounded time, and are then refused as if they
had never been parked: nothing of them was appended, so the refusal is definite. If a request's own deadline expires
first, the producer gets the same definite error, not a timeout: after a timeout, a producer whose state has been
evicted would retry forever (S10).
"""

from __future__ import annotations

import heapq
from collections import deque

import msgspec

from partitions.producers.state import Ahead
from raftlog.config import MAX_UNREPLICATED_BYTES
from raftlog.model import Offset, ProducerId

from .effects import Acknowledge, IncomingBatch

MAX_UNREPLICATED_BATCHES = 65_536
"""Bound on the batches: each costs about 200 bytes here, however small it is."""

MAX_WAITING = 65_536
"""Bound on the requests that wait in one partition: each resend of a batch is a request of its own."""

PARKED_PER_PRODUCER = 5
"""The number of batches that a producer may have in flight."""

PARKED_BYTES_MAX = 16 * 1024 * 1024
"""Bound on the bytes over all producers of one partition."""

PARK_SECONDS = 1.0
"""How long a batch is parked: overtaking takes milliseconds, a resend after a failover up to some hundred."""


class UnreplicatedProduces:
    """The batches above the high watermark, and the requests that wait for it.

    Invariant: `unreplicated_bytes` is the sum of the batches' bytes; batch ends rise.
    """

    def __init__(self, bytes_max: int = MAX_UNREPLICATED_BYTES) -> None:
        self._bytes_max = bytes_max
        self._batches: deque[tuple[Offset, int]] = deque()
        self._waiting: list[tuple[Offset, int, Acknowledge]] = []
        """A heap by (end offset, order of arrival)."""
        self._arrivals = 0
        self.unreplicated_bytes = 0

    def has_room(self, batch_bytes: int) -> bool:
        """Whether one more batch of this size may be appended. An empty queue accepts a batch of any size."""
        if not self._batches:
            return self.may_wait
        return (
            self.unreplicated_bytes + batch_bytes <= self._bytes_max
            and len(self._batches) < MAX_UNREPLICATED_BATCHES
            and self.may_wait
        )

    @property
    def may_wait(self) -> bool:
        """Whether one more request may wait."""
        return len(self._waiting) < MAX_WAITING

    def appended(self, end_offset: Offset, batch_bytes: int) -> None:
        """Count a batch of this leadership that now ends the log."""
        self._batches.append((end_offset, batch_bytes))
        self.unreplicated_bytes += batch_bytes

    def wait(self, end_offset: Offset, acknowledge: Acknowledge) -> None:
        """Return this acknowledgement from `advance` once the high watermark has reached `end_offset`."""
        self._arrivals += 1
        heapq.heappush(self._waiting, (end_offset, self._arrivals, acknowledge))

    def advance(self, high_watermark: Offset) -> list[Acknowledge]:
        """Drop the batches below the new high watermark, and return the acknowledgements that are due."""
        while self._batches and self._batches[0][0] <= high_watermark:
            self.unreplicated_bytes -= self._batches.popleft()[1]
        due = []
        while self._waiting and self._waiting[0][0] <= high_watermark:
            due.append(heapq.heappop(self._waiting)[2])
        return due

    def abandon(self) -> list[Acknowledge]:
        """Remove and return the waiting acknowledgements, in the order of the log; the caller rejects them."""
        waiting = [entry[2] for entry in sorted(self._waiting, key=lambda entry: entry[:2])]
        self._waiting.clear()
        return waiting

    def __str__(self) -> str:
        return f"unreplicated={self.unreplicated_bytes} batches={len(self._batches)} waiting={len(self._waiting)}"


class ParkedBatch(msgspec.Struct):
    """A batch, why it cannot be appended now, and its deadline (monotonic seconds)."""

    batch: IncomingBatch
    ahead: Ahead
    until: float


class OutOfOrderBatches:
    """The parked batches of one partition, in order of arrival."""

    def __init__(self) -> None:
        self._parked: dict[ProducerId, list[ParkedBatch]] = {}
        self._bytes = 0

    def park(self, batch: IncomingBatch, ahead: Ahead, now: float) -> bool:
        """Park the batch; return False if there is no room for it."""
        producer_id = ProducerId(batch.header.producer_id)
        parked = self._parked.get(producer_id, [])
        size = batch.header.total_bytes
        if len(parked) >= PARKED_PER_PRODUCER or self._bytes + size > PARKED_BYTES_MAX:
            return False
        until = min(now + PARK_SECONDS, batch.deadline)
        self._parked.setdefault(producer_id, parked).append(ParkedBatch(batch, ahead, until))
        self._bytes += size
        return True

    def of(self, producer_id: ProducerId) -> list[ParkedBatch]:
        """Return the parked batches of this producer, which the caller must not change."""
        return self._parked.get(producer_id, [])

    def leave(self, parked: ParkedBatch) -> None:
        """Remove a batch that has been appended or refused."""
        producer_id = ProducerId(parked.batch.header.producer_id)
        rest = [other for other in self._parked[producer_id] if other is not parked]
        if rest:
            self._parked[producer_id] = rest
        else:
            del self._parked[producer_id]
        self._bytes -= parked.batch.header.total_bytes

    def expire(self, now: float) -> list[ParkedBatch]:
        """Remove and return the batches whose deadline has passed."""
        late = [parked for parked in self._all() if parked.until <= now]
        for parked in late:
            self.leave(parked)
        return late

    def clear(self) -> list[ParkedBatch]:
        """Remove and return all batches."""
        every = self._all()
        self._parked.clear()
        self._bytes = 0
        return every

    def _all(self) -> list[ParkedBatch]:
        return [parked for of_producer in self._parked.values() for parked in of_producer]

    def __str__(self) -> str:
        return f"parked={len(self)} bytes={self._bytes}"

    def __len__(self) -> int:
        return sum(len(of_producer) for of_producer in self._parked.values())
