"""The positions of one HTTP consumer under one epoch: what its client has been given, and what comes next.

A position moves only by **confirmed delivery**: the node that faces the client confirms a range when the client's TCP
has acknowledged its last byte, and the range is taken only if it continues the position under the same grant. A read
begins at the position, so what was cut, or not confirmed, comes again; nothing is skipped. A partition that is lost and
granted again starts at the committed offset.

At most one request at a time holds the positions (a *lease*), so that two answers do not carry the same records.
That is for economy only: a lease that ends too early, or is never settled, costs a repetition and nothing else.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from raftlog.model import TopicPartition


class Delivered(msgspec.Struct, frozen=True, array_like=True):
    """A range of offsets that was given to the client, whole or not at all."""

    topic_id: bytes
    partition: int
    granted: int
    start: int
    end: int


class Position(msgspec.Struct):
    """The next offset of one partition."""

    offset: int
    granted: int
    """The entry that granted the partition."""
    delivered: bool = False
    """Whether anything was delivered since the grant or the last seek: only then there is something to commit."""


class Positions:
    """The positions of one instance, from the beginning of an epoch to its end."""

    def __init__(self) -> None:
        self._grants: dict[TopicPartition, int] = {}
        self._positions: dict[TopicPartition, Position] = {}
        self._lease = 0
        self._is_lent = False

    # --- Partitions --------------------------------------------------------------------------------------------------

    def grant(self, grants: Mapping[TopicPartition, int]) -> None:
        """Replace the partitions, each with the entry that granted it. Positions of other grants are dropped."""
        self._grants = dict(grants)
        kept = {tp: one for tp, one in self._positions.items() if self._grants.get(tp) == one.granted}
        self._positions = kept

    @property
    def missing(self) -> dict[TopicPartition, int]:
        """The granted partitions without a position, with their grants."""
        return {tp: granted for tp, granted in self._grants.items() if tp not in self._positions}

    def start(self, partition: TopicPartition, granted: int, offset: int) -> None:
        """Set the first position of a partition, unless it has one or is no longer under this grant."""
        if self._grants.get(partition) == granted and partition not in self._positions:
            self._positions[partition] = Position(offset, granted)

    def seek(self, partition: TopicPartition, offset: int, expected: int | None = None) -> bool:
        """Move a position, if it is `expected` (None: wherever it is). Returns False if the partition is not granted,
        or the position elsewhere."""
        granted = self._grants.get(partition)
        known = self._positions.get(partition)
        if granted is None or (expected is not None and (known is None or known.offset != expected)):
            return False
        self._positions[partition] = Position(offset, granted)
        return True

    # --- Reading -----------------------------------------------------------------------------------------------------

    @property
    def is_lent(self) -> bool:
        """Whether a request holds the positions."""
        return self._is_lent

    def lend(self) -> int:
        """Give the positions to a request, and return the lease's number."""
        assert not self._is_lent, "the positions are lent already"
        self._lease += 1
        self._is_lent = True
        return self._lease

    def settle(self, lease: int, delivered: Iterable[Delivered]) -> None:
        """End a lease, if it is the present one, and take what was delivered, as far as it continues a position."""
        for one in delivered:
            partition = TopicPartition(one.topic_id, one.partition)  # type: ignore[arg-type]
            known = self._positions.get(partition)
            if known is not None and known.granted == one.granted and known.offset == one.start < one.end:
                known.offset = one.end
                known.delivered = True
        if lease == self._lease:
            self._is_lent = False

    @property
    def present(self) -> dict[TopicPartition, Position]:
        """The positions of all partitions that have one."""
        return dict(self._positions)

    @property
    def delivered(self) -> dict[TopicPartition, int]:
        """The positions up to which something was delivered: what an empty commit commits."""
        return {tp: one.offset for tp, one in self._positions.items() if one.delivered}
