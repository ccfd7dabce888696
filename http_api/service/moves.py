"""The broker's port for moving replicas and leaderships.

`raftlog/broker/changes/moves.py` implements it. A request names many partitions: the failure of one is part of the
answers, and a failure of all is raised.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from raftlog.api.moves import MoveInfo, ReplicaInfo
from raftlog.errors import RaftlogError
from raftlog.model import BrokerId, ReplicationThrottle, TopicPartition


class MoveService(Protocol):
    """Plans, reassignments, elections, and the removal of brokers."""

    async def plan(self, drain: Sequence[BrokerId]) -> list[MoveInfo]:
        """Return moves that empty these brokers, or that balance the cluster if none is named. Changes nothing. Raises
        `InvalidRequest` if a broker cannot be drained."""

    async def reassign(
        self,
        wanted: Mapping[TopicPartition, tuple[BrokerId, ...] | None],
        throttle: ReplicationThrottle | None = None,
    ) -> list[RaftlogError | None]:
        """Start reassignments to the `wanted` replicas, the preferred leader first, or cancel them (None). The answers
        are in the same order; None for a partition means decided. With a `throttle`, all moves copy at its
        rates until none is left; with nothing wanted, only the rates of the moves in progress change. Raises
        `InvalidRequest` (`no_reassignment_in_progress`) if there are none, and `RetriableError` if the quorum does
        not answer."""

    async def elect_preferred(self, asked: Sequence[TopicPartition]) -> list[RaftlogError | None]:
        """Elect the first replica of each partition, if it is in sync. None for a partition: it leads."""

    async def elect_unclean(
        self, asked: Sequence[TopicPartition], candidate: BrokerId | None
    ) -> list[RaftlogError | None]:
        """Elect a live replica of each partition at the risk of losing records: `candidate`, or the one that reported
        the longest log. None for a partition: it leads."""

    async def unregister(self, broker_id: BrokerId) -> None:
        """Remove a broker that has stopped and holds no replica. Raises `InvalidRequest` or `RetriableError`."""

    def replicas(self) -> list[ReplicaInfo]:
        """Return the replicas on this node, sorted."""
