"""What a leader appended and its in-sync replicas do not all have yet: the bytes that bounds count, and who waits.

Every batch above the high watermark is counted, whatever its `acks`: a partition whose followers are gone takes a
bounded number of bytes and batches and then says `overloaded`. Only `acks=all` waits here; an acknowledgement leaves
this queue when the high watermark has passed the batch's end, and no other way except with an error.

What is *not* here: whether a batch may be appended at all (`leader.py`), the fsync of `acks=1` (inside `Append`),
deadlines of requests (`driver.py`: an entry whose requester gave up stays until its batch is replicated).
"""

from __future__ import annotations

import heapq
from collections import deque

from raftlog.config import MAX_UNREPLICATED_BYTES
from raftlog.model import Offset

from .effects import Acknowledge

MAX_UNREPLICATED_BATCHES = 65_536
"""Small batches cost memory, too: about 200 bytes each here."""

MAX_WAITING = 65_536
"""Requests that wait in one partition: resends of one batch are requests of their own."""


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
