"""A member of a group whose offsets move with a transaction's outputs: consume, transform, produce, exactly once (S13).

What is named is everything that was handed out and not committed: from the offset that the group had (R5: refused
where that is not current) to the position, by this member in its incarnation and generation. A partition that was taken
away with something in between makes what was made of it nobody's: then no transaction may commit, not even one that
names all the others, since its outputs hold what somebody else is going to read again. `seek_to_committed` begins anew.

What is *not* here: the decision, and who is fenced (the cluster), reading (`group_reading.py`).
"""

from __future__ import annotations

from collections.abc import Iterable

from raftlog.errors import InvalidRequest

from .group_api import GroupApi, GroupPartition
from .group_membership import GroupMembership, no_member
from .group_reading import GroupReading
from .transaction_api import ConsumedOffsets, ConsumedRange

NOTHING_COMMITTED = -1


class GroupTransactions:
    """The part of a `GroupConsumer` that is about transactions."""

    _auto_commit: float | None
    _generation: int
    _group: GroupApi
    _membership: GroupMembership
    _reading: GroupReading
    _session: int

    def __init__(self, group_id: str) -> None:
        self._group_id = group_id
        self._committed: dict[GroupPartition, int] = {}
        """What is known to be committed of what it reads."""
        self._processed: dict[GroupPartition, int] = {}
        """Positions when the present `poll` was called: what was handed out before counts as processed."""
        self._began: dict[GroupPartition, int] = {}
        """Where it began in what it reads."""
        self._left: set[GroupPartition] = set()
        """Taken away when something of it was handed out and not committed."""

    def consumed(self) -> ConsumedOffsets:
        """Everything that was handed out and is not committed: for `Transaction.send_offsets`. Automatic commits must
        be off. Raises `InvalidRequest` (`stale_generation`: a partition was taken away meanwhile; `unknown_member`)."""
        if self._auto_commit is not None:
            told = "a consumer whose offsets are committed by transactions has enable_auto_commit=False"
            raise InvalidRequest("invalid_config", told)
        if self._left:
            gone = ", ".join(map(str, sorted(self._left)[:5]))
            told = f"{gone} was taken from this consumer before what it had handed out was committed"
            raise InvalidRequest("stale_generation", f"{told}: abort, and read on after `seek_to_committed`")
        if not self._reading.positions:
            return ConsumedOffsets(self._group_id, ())  # perhaps it is no member yet, and nothing was handed out
        current = self._membership.current
        if current is None or self._membership.session != self._session:
            raise no_member(self._membership.last_error)
        ranges = [
            ConsumedRange(partition.topic_id, partition.partition, start, position)
            for partition, position in sorted(self._reading.positions.items())
            if (start := self._committed.get(partition, NOTHING_COMMITTED)) != position
        ]
        generation = max(self._generation, 0)
        return ConsumedOffsets(self._group_id, tuple(ranges), current.member_id, current.incarnation, generation)

    def consumed_is_committed(self, offsets: ConsumedOffsets) -> None:
        """That is committed now."""
        ends = {(one.topic_id, one.partition): one.end for one in offsets.ranges}
        for partition in self._reading.positions:
            end = ends.get((partition.topic_id, partition.partition))
            if end is not None:
                self._committed[partition] = end

    async def seek_to_committed(self) -> None:
        """Go back, in all that it reads, to what the group has committed by now (S7); where that is nothing, to where
        this consumer began. After a transaction that was aborted: what it had consumed comes again."""
        positions = self._reading.positions
        told = await self._group.committed() if positions else []  # before it is a member there may be no group
        known = {one.group_partition: one.offset for one in told if one.offset is not None}
        for partition, position in list(positions.items()):
            self._committed.pop(partition, None)
            if partition in known:
                self._committed[partition] = known[partition]
            offset = known.get(partition, self._began[partition])
            self._processed[partition] = offset
            if offset != position:
                self._reading.seek(partition, offset)
        self._left.clear()

    def _forget_committed(self, partitions: Iterable[GroupPartition]) -> None:
        """These are about to be read no more."""
        for partition in partitions:
            position = self._reading.positions.get(partition)
            began = self._began.pop(partition, position)
            if position is not None and position != self._committed.pop(partition, began):
                self._left.add(partition)
