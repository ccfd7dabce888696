"""An index over a fetcher's readers, so that no operation has to scan all of them. A pure core.

Each call concerns one reader and has constant cost, however many there are: which readers have data or have failed, how
much is prefetched, and which ones want to be requested at which leader. `notice` must be called whenever a reader may
have changed; until then the index is stale.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import islice

from .reader import PartitionReader


class ReaderIndex:
    """The index.

    Invariant, for readers noticed since their last change: `ready` are those with prefetched data, `failed` those with
    an error, `buffered_bytes` is the sum of theirs.
    """

    def __init__(self) -> None:
        self.ready: dict[PartitionReader, None] = {}
        """Readers with data, in the order of service."""
        self.failed: dict[PartitionReader, None] = {}
        self.buffered_bytes = 0
        self._touched: dict[PartitionReader, None] = {}
        self._counted: dict[PartitionReader, int] = {}
        self._wanting: dict[int, dict[PartitionReader, None]] = {}
        """Readers to request, in order, by leader."""
        self._wanting_at: dict[PartitionReader, int] = {}

    def notice(self, reader: PartitionReader) -> None:
        """Update the index for this reader, and mark it as touched."""
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
        """Remove the reader from the index."""
        self.buffered_bytes -= self._counted.pop(reader, 0)
        for book in (self.ready, self.failed, self._touched):
            book.pop(reader, None)
        self.unwant(reader)

    def next_ready(self, paused: Collection[int]) -> PartitionReader | None:
        """Return the next reader with data that is not paused, in round-robin order."""
        ready = (reader for reader in self.ready if reader.partition not in paused) if paused else self.ready
        reader = next(iter(ready), None)
        if reader is not None:
            del self.ready[reader]
            if len(reader.buffered) > 1:
                self.ready[reader] = None
        return reader

    def take_touched(self) -> list[PartitionReader]:
        """Return the readers noticed since the last call."""
        touched, self._touched = list(self._touched), {}
        return touched

    # --- Readers to request -------

    def want(self, reader: PartitionReader) -> None:
        """Queue the reader to be requested at its leader."""
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
        """Return the leaders at which readers wait to be requested."""
        return list(self._wanting)

    def wanting_count(self, leader: int) -> int:
        return len(self._wanting.get(leader, ()))

    def wanting(self, leader: int, most: int) -> list[PartitionReader]:
        """Return up to `most` readers that wait there, the first ones first."""
        return list(islice(self._wanting.get(leader, ()), most))
