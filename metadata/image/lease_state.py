"""Leases as the image holds them. Only the methods that write here change anything, and each notes an event."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from metadata.records.leases import LeasedPartition, LeaseEvent, Leases, LeasesChanged, LeasesRemoved


class LeasesState(Leases):
    """The image's leases."""

    def __init__(self, note: Callable[[LeaseEvent], None]) -> None:
        super().__init__()
        self._note = note
        self._of_principal: Counter[str] = Counter()
        """Principal → the number of its records; derived."""

    def count_of(self, principal: str) -> int:
        """Return the number of records of a principal."""
        return self._of_principal[principal]

    def put(self, record: LeasedPartition) -> None:
        """Store a record."""
        self._uncount(record)
        self._of_principal[record.principal] += 1
        self._change(LeasesChanged(record))

    def remove(self, record: LeasedPartition) -> None:
        """Remove a record."""
        self._uncount(record)
        self._change(LeasesRemoved(record.group_id, record.partition))

    def _uncount(self, record: LeasedPartition) -> None:
        known = self.of_partition(record.group_id, record.partition)
        if known is not None:
            self._of_principal[known.principal] -= 1
            if not self._of_principal[known.principal]:
                del self._of_principal[known.principal]

    def _change(self, event: LeaseEvent) -> None:
        self.on_event(event)
        self._note(event)
