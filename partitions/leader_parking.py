"""Batches of idempotent producers that came ahead of their turn, kept for a moment until the ones before them come.

Requests over HTTP/1.1 use several connections and overtake one another; after a failover the resends of one producer
arrive in any order. Up to five batches of a producer wait, for a bounded time, and are then refused as if they had not
been kept: nothing of them was appended, so the refusal is certain. Whose own patience ends before that is told at
its end: of a mere timeout a producer whose batches are no longer in the log, so that nobody knows it, could not make
anything, and would send them again for ever (S10).

What is *not* here: which batch is in turn (`producer_state.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

from raftlog.model import ProducerId

from .effects import IncomingBatch
from .producer_state import Ahead

PARKED_PER_PRODUCER = 5
"""As many as a producer may have in flight."""

PARKED_BYTES_MAX = 16 * 1024 * 1024
"""Of all producers of one partition."""

PARK_SECONDS = 1.0
"""Overtaking is a matter of milliseconds; a resend after a failover takes up to some hundred."""


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
