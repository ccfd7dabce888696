"""How far a member of a group is in what it reads: where it began, what counts as processed, what is committed (S13).

What a transaction names is everything that was handed out and not committed: from the offset that the group had (R5:
refused where that is not current) to the position. A partition that was taken away with something in between makes
what was made of it nobody's: then no transaction may commit, not even one that names all the others, since its outputs
hold what somebody else is going to read again. Going back to what is committed begins anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from raftlog.client.transactions.api import ConsumedOffsets, ConsumedRange
from raftlog.errors import InvalidRequest

from .api import GroupPartition

NOTHING_COMMITTED = -1


class GroupProgress:
    """Of one member. `positions`, wherever it is asked for: what is read, and the next offset to hand out."""

    def __init__(self) -> None:
        self.committed: dict[GroupPartition, int] = {}
        """What is known to be committed of what it reads."""
        self.processed: dict[GroupPartition, int] = {}
        """Positions when the present `poll` was called: what was handed out before counts as processed."""
        self.began: dict[GroupPartition, int] = {}
        """Where it began in what it reads."""
        self.left: set[GroupPartition] = set()
        """Taken away when something of it was handed out and not committed."""

    def begin(self, starts: Mapping[GroupPartition, int]) -> None:
        """These are read from now on, from these offsets."""
        self.began.update(starts)
        self.processed.update(starts)

    def uncommitted(self, offsets: Mapping[GroupPartition, int]) -> dict[GroupPartition, int]:
        """Of these offsets those that are not known to be committed. What it began with and went no further counts,
        too: where "latest" was is found nowhere else."""
        return {partition: offset for partition, offset in offsets.items() if self.committed.get(partition) != offset}

    def processed_of(self, ends: Mapping[GroupPartition, int]) -> dict[GroupPartition, int]:
        """How far these are processed, at most to these ends."""
        return {one: min(offset, self.processed[one]) for one, offset in ends.items() if one in self.processed}

    def check_kept(self) -> None:
        """Raises `InvalidRequest` (`stale_generation`) where a partition was taken away meanwhile."""
        if self.left:
            gone = ", ".join(map(str, sorted(self.left)[:5]))
            told = f"{gone} was taken from this consumer before what it had handed out was committed"
            raise InvalidRequest("stale_generation", f"{told}: abort, and read on after `seek_to_committed`")

    def ranges(self, positions: Mapping[GroupPartition, int]) -> tuple[ConsumedRange, ...]:
        """Everything that was handed out and is not committed."""
        return tuple(
            ConsumedRange(partition.topic_id, partition.partition, start, position)
            for partition, position in sorted(positions.items())
            if (start := self.committed.get(partition, NOTHING_COMMITTED)) != position
        )

    def consumed_is_committed(self, offsets: ConsumedOffsets, positions: Iterable[GroupPartition]) -> None:
        """That is committed now."""
        ends = {(one.topic_id, one.partition): one.end for one in offsets.ranges}
        for partition in positions:
            end = ends.get((partition.topic_id, partition.partition))
            if end is not None:
                self.committed[partition] = end

    def go_back(
        self, positions: Mapping[GroupPartition, int], known: Mapping[GroupPartition, int]
    ) -> dict[GroupPartition, int]:
        """To what the group has committed, as it is known now, or to where this member began. Returns where to seek."""
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
        """These are about to be read no more."""
        for partition in partitions:
            position = positions.get(partition)
            began = self.began.pop(partition, position)
            if position is not None and position != self.committed.pop(partition, began):
                self.left.add(partition)
