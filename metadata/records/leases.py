"""Leases of ranges of records, as the quorum agreed on them.

A group without members may be read by *leases*: somebody gets the records of a range for a time, acknowledges them, and
what is not acknowledged goes to somebody else. The group's committed offset is the lowest that is not acknowledged.

The image holds no times: when a lease is over is for the node to say that wants its range, and a lease that is taken
over has another id, which fences its former holder. So no clock can lose a record, or acknowledge one for another.

A record is never modified, only replaced.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise

import msgspec

from raftlog.model import TopicPartition

NO_LEASE = -1


class LeasedRange(msgspec.Struct, frozen=True, array_like=True):
    """Records that somebody has and has not acknowledged: `[start, end)`."""

    start: int
    end: int
    lease_id: int
    lease_ms: int
    """The time for which its holder has it, in milliseconds from `renewed` on; 0: it was given back."""
    renewed: int
    """The entry that last gave the holder time."""
    deliveries: int = 1
    """How many holders have had the records, this one included."""


class LeasedPartition(msgspec.Struct, frozen=True):
    """The leases of one group in one partition.

    Invariant: the ranges are sorted and disjoint, none is empty, each has another id, all lie in `[committed,
    next_offset)`, and the first begins at `committed`. There is at least one.
    """

    group_id: str
    partition: TopicPartition
    committed: int
    """The group's committed offset. A reset, or a commit by something else, ends the leases."""
    next_offset: int
    """The first offset that no lease has had."""
    ranges: tuple[LeasedRange, ...]
    principal: str = ""
    """The principal that took the first lease; empty: none."""

    def find(self, lease_id: int) -> LeasedRange | None:
        """Return the range of a lease, or None."""
        return next((one for one in self.ranges if one.lease_id == lease_id), None)

    def is_sound(self) -> bool:
        """Return whether the invariant holds."""
        ranges = self.ranges
        return (
            bool(ranges)
            and ranges[0].start == self.committed
            and all(one.start < one.end for one in ranges)
            and all(one.end <= other.start for one, other in pairwise(ranges))
            and ranges[-1].end <= self.next_offset
            and len({one.lease_id for one in ranges}) == len(ranges)
        )


class LeasesChanged(msgspec.Struct, frozen=True):
    """A lease was taken, renewed, given back, or partly acknowledged."""

    record: LeasedPartition


class LeasesRemoved(msgspec.Struct, frozen=True):
    """No lease is left of a group in a partition."""

    group_id: str
    partition: TopicPartition


LeaseEvent = LeasesChanged | LeasesRemoved


class Leases:
    """Every lease as of some index. Only the feeder calls `on_event`."""

    def __init__(self) -> None:
        self._by_group: dict[str, dict[TopicPartition, LeasedPartition]] = {}
        self.count = 0
        """The number of all records."""

    def of_partition(self, group_id: str, partition: TopicPartition) -> LeasedPartition | None:
        """Return the leases of a group in a partition, or None if there are none."""
        return self._by_group.get(group_id, {}).get(partition)

    def of_group(self, group_id: str) -> Mapping[TopicPartition, LeasedPartition]:
        """Return the leases of a group by partition."""
        return self._by_group.get(group_id, {})

    def records(self) -> Iterator[LeasedPartition]:
        """Yield all records, by group and partition."""
        for group_id in sorted(self._by_group):
            yield from (record for _, record in sorted(self._by_group[group_id].items()))

    def on_event(self, event: LeaseEvent) -> None:
        match event:
            case LeasesChanged(record):
                known = self._by_group.setdefault(record.group_id, {})
                self.count += record.partition not in known
                known[record.partition] = record
            case LeasesRemoved(group_id, partition):
                known = self._by_group.get(group_id, {})
                if known.pop(partition, None) is not None:
                    self.count -= 1
                    if not known:
                        del self._by_group[group_id]
