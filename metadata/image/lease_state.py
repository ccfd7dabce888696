"""Leases as the image holds them. Only the methods that write here change anything, and each notes an event."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from metadata.records.groups import CommittedOffset
from metadata.records.leases import LeasedPartition, LeaseEvent, Leases, LeasesChanged, LeasesRemoved
from raftlog.model import TopicPartition


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

    def offsets_moved(self, group_id: str, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        """Remove the leases of partitions in which the group has another offset now: a reset, or a commit by something
        else, has ended them."""
        known = self.of_group(group_id)
        # Sorted: a node that began from a snapshot holds them in another order.
        for partition in sorted(one for one in offsets if one in known) if known else ():
            if known[partition].committed != offsets[partition].offset:
                self.remove(known[partition])

    def end(self, group_id: str, partitions: Iterable[TopicPartition]) -> None:
        """Remove the leases of some partitions."""
        known = self.of_group(group_id)
        for partition in sorted({one for one in partitions if one in known}):
            self.remove(known[partition])

    def _uncount(self, record: LeasedPartition) -> None:
        known = self.of_partition(record.group_id, record.partition)
        if known is not None:
            self._of_principal[known.principal] -= 1
            if not self._of_principal[known.principal]:
                del self._of_principal[known.principal]

    def _change(self, event: LeaseEvent) -> None:
        self.on_event(event)
        self._note(event)
