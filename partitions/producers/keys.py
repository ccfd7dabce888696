"""The idempotency keys of one partition: each is a producer of one batch (`raftlog/idempotency.py`).

Keys have a bound of their own, so that they never take the room of producers, nor these theirs. At the bound a leader
refuses new keys (`overloaded`): to forget one that may come again would append its records twice. A key expires like a
producer, when this replica has been in service for `producer.id.expiration.ms` since.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from raftlog.model import ProducerId

from .entries import DROPPED_BEYOND, ProducerEntry


class KnownKeys:
    """The known keys, by the producer ids that stand for them, the oldest first.

    Invariant: they take at most `DROPPED_BEYOND` times the bound.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: OrderedDict[ProducerId, ProducerEntry] = OrderedDict()
        self.size_bytes = 0

    def get(self, producer_id: ProducerId) -> ProducerEntry | None:
        """Return what a key appended, or None."""
        return self._entries.get(producer_id)

    def items(self) -> Iterator[tuple[ProducerId, ProducerEntry]]:
        """Iterate over all of them."""
        return iter(self._entries.items())

    def __len__(self) -> int:
        return len(self._entries)

    def has_room(self, size_bytes: int) -> bool:
        """Return whether there is room for a new key of this size."""
        return self.size_bytes + size_bytes <= self._max_bytes

    def remember(self, producer_id: ProducerId, entry: ProducerEntry) -> None:
        """Know a key as the newest. The log is the truth: a key beyond the bound drops the oldest."""
        known = self._entries.pop(producer_id, None)
        self.size_bytes += entry.size_bytes - (0 if known is None else known.size_bytes)
        self._entries[producer_id] = entry
        while self.size_bytes > DROPPED_BEYOND * self._max_bytes and len(self._entries) > 1:
            self._drop_first()

    def forget_expired(self, before_ms: float, most: int) -> None:
        """Forget the keys that appended before this time of service, at most `most` of them."""
        for _ in range(most):
            if not self._entries or next(iter(self._entries.values())).appended_at_ms > before_ms:
                return
            self._drop_first()

    def _drop_first(self) -> None:
        _, entry = self._entries.popitem(last=False)
        self.size_bytes -= entry.size_bytes
