"""What a fetcher knows of its readers without looking at all of them. A pure core.

Each call is about one reader and costs the same, however many there are: who has something to hand out, who failed, how
much is fetched ahead, who wants to be asked for and at which leader. `notice` is to be called whenever a reader may
have changed; until then the books are behind.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import islice

from .reader import PartitionReader


class ReaderBooks:
    """Invariant, for readers that were noticed since they changed: `ready` are those with something fetched ahead,
    `failed` those with an error, `buffered_bytes` is the sum of theirs."""

    def __init__(self) -> None:
        self.ready: dict[PartitionReader, None] = {}
        """In the order in which they are served."""
        self.failed: dict[PartitionReader, None] = {}
        self.buffered_bytes = 0
        self._touched: dict[PartitionReader, None] = {}
        self._counted: dict[PartitionReader, int] = {}
        self._wanting: dict[int, dict[PartitionReader, None]] = {}
        """Leader → who is to be asked for there, in order."""
        self._wanting_at: dict[PartitionReader, int] = {}

    def notice(self, reader: PartitionReader) -> None:
        """Bring the books up to it, and have it looked at."""
        size = reader.buffered_bytes
        self.buffered_bytes += size - self._counted.get(reader, 0)
        self._counted[reader] = size
        if reader.buffered:
            self.ready[reader] = None
        else:
            self.ready.pop(reader, None)
        if reader.error is not None:
            self.failed[reader] = None
        else:
            self.failed.pop(reader, None)
        self._touched[reader] = None

    def forget(self, reader: PartitionReader) -> None:
        """It is nobody's any more."""
        self.buffered_bytes -= self._counted.pop(reader, 0)
        for book in (self.ready, self.failed, self._touched):
            book.pop(reader, None)
        self.unwant(reader)

    def next_ready(self, paused: Collection[int]) -> PartitionReader | None:
        """Whose turn it is, paused partitions apart; the next call gives the next one."""
        ready = (reader for reader in self.ready if reader.partition not in paused) if paused else self.ready
        reader = next(iter(ready), None)
        if reader is not None:
            del self.ready[reader]
            if len(reader.buffered) > 1:
                self.ready[reader] = None
        return reader

    def take_touched(self) -> list[PartitionReader]:
        """Who was noticed since the last call."""
        touched, self._touched = list(self._touched), {}
        return touched

    # --- Who is to be asked for ---

    def want(self, reader: PartitionReader) -> None:
        """At its leader."""
        if self._wanting_at.get(reader) != reader.leader:
            self.unwant(reader)
            self._wanting_at[reader] = reader.leader
            self._wanting.setdefault(reader.leader, {})[reader] = None

    def unwant(self, reader: PartitionReader) -> None:
        leader = self._wanting_at.pop(reader, None)
        if leader is not None:
            wanting = self._wanting[leader]
            del wanting[reader]
            if not wanting:
                del self._wanting[leader]

    def leaders(self) -> list[int]:
        """Where somebody is to be asked for."""
        return list(self._wanting)

    def wanting_count(self, leader: int) -> int:
        return len(self._wanting.get(leader, ()))

    def wanting(self, leader: int, most: int) -> list[PartitionReader]:
        """Those who wanted it first."""
        return list(islice(self._wanting.get(leader, ()), most))
