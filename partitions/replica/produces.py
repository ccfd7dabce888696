"""The produces that wait at a leader: for its in-sync replicas, or for the batches before them.

`UnreplicatedProduces`: what a leader appended and its in-sync replicas do not all have yet, the bytes that bounds
count, and who waits. Every batch above the high watermark is counted, whatever its `acks`: a partition whose followers
are gone takes a bounded number of bytes and batches and then says `overloaded`. Only `acks=all` waits here; an
acknowledgement leaves this queue when the high watermark has passed the batch's end, and no other way except with an
error.

`Parking`: batches of idempotent producers that came ahead of their turn, kept for a moment until the ones before them
come. Requests over HTTP/1.1 use several connections and overtake one another; after a failover the resends of one
producer arrive in any order. Up to five batches of a producer wait, for a bounded time, and are then refused as if they
had not been kept: nothing of them was appended, so the refusal is certain. Whose own patience ends before that is told
at its end: of a mere timeout a producer whose batches are no longer in the log, so that nobody knows it, could not make
anything, and would send them again for ever (S10).
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass

from partitions.producers.state import Ahead
from raftlog.config import MAX_UNREPLICATED_BYTES
from raftlog.model import Offset, ProducerId

from .effects import Acknowledge, IncomingBatch

MAX_UNREPLICATED_BATCHES = 65_536
"""Small batches cost memory, too: about 200 bytes each here."""

MAX_WAITING = 65_536
"""Requests that wait in one partition: resends of one batch are requests of their own."""

PARKED_PER_PRODUCER = 5
"""As many as a producer may have in flight."""

PARKED_BYTES_MAX = 16 * 1024 * 1024
"""Of all producers of one partition."""

PARK_SECONDS = 1.0
"""Overtaking is a matter of milliseconds; a resend after a failover takes up to some hundred."""


class UnreplicatedProduces:
    """Invariant: `unreplicated_bytes` is the sum of the batches' bytes; batch ends rise."""

    def __init__(self, bytes_max: int = MAX_UNREPLICATED_BYTES) -> None:
        self._bytes_max = bytes_max
        self._batches: deque[tuple[Offset, int]] = deque()
        self._waiting: list[tuple[Offset, int, Acknowledge]] = []
        """A heap by (end offset, order of arrival)."""
        self._arrivals = 0
        self.unreplicated_bytes = 0

    def has_room(self, batch_bytes: int) -> bool:
        """Whether one more batch of this size may be appended. An empty queue takes any batch."""
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
        """A batch of this leadership now ends the log."""
        self._batches.append((end_offset, batch_bytes))
        self.unreplicated_bytes += batch_bytes

    def wait(self, end_offset: Offset, acknowledge: Acknowledge) -> None:
        """Give this out once the high watermark has reached `end_offset`."""
        self._arrivals += 1
        heapq.heappush(self._waiting, (end_offset, self._arrivals, acknowledge))

    def advance(self, high_watermark: Offset) -> list[Acknowledge]:
        """The high watermark is here now: whose batches are all replicated."""
        while self._batches and self._batches[0][0] <= high_watermark:
            self.unreplicated_bytes -= self._batches.popleft()[1]
        due = []
        while self._waiting and self._waiting[0][0] <= high_watermark:
            due.append(heapq.heappop(self._waiting)[2])
        return due

    def abandon(self) -> list[Acknowledge]:
        """Those still waiting, in the order of the log; they will not be acknowledged here."""
        waiting = [entry[2] for entry in sorted(self._waiting, key=lambda entry: entry[:2])]
        self._waiting.clear()
        return waiting

    def __str__(self) -> str:
        return f"unreplicated={self.unreplicated_bytes} batches={len(self._batches)} waiting={len(self._waiting)}"


@dataclass(slots=True)
class ParkedBatch:
    """A batch, why it cannot be appended now, and until when it is kept (monotonic seconds)."""

    batch: IncomingBatch
    ahead: Ahead
    until: float


class Parking:
    """The parked batches of one partition, in the order they came."""

    def __init__(self) -> None:
        self._parked: dict[ProducerId, list[ParkedBatch]] = {}
        self._bytes = 0

    def park(self, batch: IncomingBatch, ahead: Ahead, now: float) -> bool:
        """Keep it; False where there is no room for it."""
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
        """What is parked of this producer; not to be changed by the caller."""
        return self._parked.get(producer_id, [])

    def leave(self, parked: ParkedBatch) -> None:
        """It is appended or refused now."""
        producer_id = ProducerId(parked.batch.header.producer_id)
        rest = [other for other in self._parked[producer_id] if other is not parked]
        if rest:
            self._parked[producer_id] = rest
        else:
            del self._parked[producer_id]
        self._bytes -= parked.batch.header.total_bytes

    def expire(self, now: float) -> list[ParkedBatch]:
        """Those whose time is over, which leave."""
        late = [parked for parked in self._all() if parked.until <= now]
        for parked in late:
            self.leave(parked)
        return late

    def clear(self) -> list[ParkedBatch]:
        """All of them, which leave."""
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
