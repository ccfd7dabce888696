"""How far a group member has come: where it began, what counts as processed, what is committed (S13).

A transaction covers everything that was handed out and not committed: from the group's committed offset (R5: refused if
that is not current) to the position. If a partition was taken away with uncommitted records in between, no transaction
may commit, not even one that covers only the other partitions: its outputs would include records that another member is
going to read again. Seeking back to the committed offsets clears that state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from raftlog.api.groups import GroupPartition
from raftlog.api.transactions import ConsumedOffsets, ConsumedRange
from raftlog.errors import InvalidRequest

NOTHING_COMMITTED = -1


class GroupProgress:
    """Progress of one member.

    Parameter `positions`: the partitions being read, with the next offset to hand out.
    """

    def __init__(self) -> None:
        self.committed: dict[GroupPartition, int] = {}
        """Offsets known to be committed, for the partitions being read."""
        self.processed: dict[GroupPartition, int] = {}
        """Positions at the start of the current `poll`: everything handed out before counts as processed."""
        self.began: dict[GroupPartition, int] = {}
        """Start offsets of the partitions being read."""
        self.left: set[GroupPartition] = set()
        """Partitions taken away while they had records handed out and not committed."""

    def begin(self, starts: Mapping[GroupPartition, int]) -> None:
        """Begin reading these partitions at these offsets."""
        self.began.update(starts)
        self.processed.update(starts)

    def uncommitted(self, offsets: Mapping[GroupPartition, int]) -> dict[GroupPartition, int]:
        """Return those of the offsets that are not known to be committed.

        A start offset that has not moved counts, too: the offset that "latest" meant is stored nowhere else.
        """
        return {partition: offset for partition, offset in offsets.items() if self.committed.get(partition) != offset}

    def processed_of(self, ends: Mapping[GroupPartition, int]) -> dict[GroupPartition, int]:
        """Return how far these partitions are processed, capped at the given ends."""
        return {one: min(offset, self.processed[one]) for one, offset in ends.items() if one in self.processed}

    def check_kept(self) -> None:
        """Raise `InvalidRequest` (`stale_generation`) if a partition with uncommitted records was taken away."""
        if self.left:
            gone = ", ".join(map(str, sorted(self.left)[:5]))
            told = f"{gone} was revoked from this consumer before its last records were committed"
            raise InvalidRequest("stale_generation", f"{told}: abort, then call `seek_to_committed` before reading on")

    def ranges(self, positions: Mapping[GroupPartition, int]) -> tuple[ConsumedRange, ...]:
        """Return the ranges that were handed out and are not committed."""
        return tuple(
            ConsumedRange(partition.topic_id, partition.partition, start, position)
            for partition, position in sorted(positions.items())
            if (start := self.committed.get(partition, NOTHING_COMMITTED)) != position
        )

    def consumed_is_committed(self, offsets: ConsumedOffsets, positions: Iterable[GroupPartition]) -> None:
        """Record that a transaction has committed `offsets`."""
        ends = {(one.topic_id, one.partition): one.end for one in offsets.ranges}
        for partition in positions:
            end = ends.get((partition.topic_id, partition.partition))
            if end is not None:
                self.committed[partition] = end

    def go_back(
        self, positions: Mapping[GroupPartition, int], known: Mapping[GroupPartition, int]
    ) -> dict[GroupPartition, int]:
        """Reset the progress to the committed offsets `known`, or to the start where nothing is committed.

        Returns the offsets to seek to.
        """
        sought: dict[GroupPartition, int] = {}
        for partition, position in positions.items():
            self.committed.pop(partition, None)
            if partition in known:
                self.committed[partition] = known[partition]
            offset = known.get(partition, self.began[partition])
            self.processed[partition] = offset
            if offset != position:
                sought[partition] = offset
        self.left.clear()
        return sought

    def forget(self, partitions: Iterable[GroupPartition], positions: Mapping[GroupPartition, int]) -> None:
        """Drop the progress of partitions that will no longer be read."""
        for partition in partitions:
            position = positions.get(partition)
            began = self.began.pop(partition, position)
            if position is not None and position != self.committed.pop(partition, began):
                self.left.add(partition)
