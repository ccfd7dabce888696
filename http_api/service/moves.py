"""What the HTTP API asks of the broker about moving replicas and leaderships: the second half of its port.

`raftlog/broker/changes/moves.py` is the real one. What fails for one partition is in the answers, since one request
names many; what fails for all is raised.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from raftlog.errors import RaftlogError
from raftlog.model import BrokerId, ReplicationThrottle, TopicPartition


@dataclass(frozen=True, slots=True)
class WantedReassignment:
    """Where a partition's replicas are to be, the preferred leader first; None: where they were before."""

    topic_partition: TopicPartition
    target_replicas: tuple[BrokerId, ...] | None


@dataclass(frozen=True, slots=True)
class SuggestedMove:
    """A partition's replicas as they are and as a plan wants them, the preferred leader first."""

    topic_partition: TopicPartition
    replicas: tuple[BrokerId, ...]
    target_replicas: tuple[BrokerId, ...]


@dataclass(frozen=True, slots=True)
class LocalReplica:
    """One replica on the node that was asked."""

    topic_partition: TopicPartition
    size_bytes: int
    log_end_offset: int
    role: str
    """`leader`, `follower`, `idle` or `offline`."""


class MoveService(Protocol):
    """Plans, reassignments, elections and brokers that go."""

    async def plan(self, drain: Sequence[BrokerId]) -> list[SuggestedMove]:
        """Moves that empty these brokers; with none named, moves that balance the cluster. Changes nothing. Raises
        `InvalidRequest` for what cannot be drained."""
        ...

    async def reassign(
        self, wanted: Sequence[WantedReassignment], throttle: ReplicationThrottle | None = None
    ) -> list[RaftlogError | None]:
        """Ask for these, or cancel them. None: decided. With a `throttle` all moves copy at its rates from now on,
        until none is left; with nothing wanted it changes the rates of what is under way. Raises `InvalidRequest`
        (`no_reassignment_in_progress`) where nothing is, `RetriableError` where the quorum does not answer."""
        ...

    async def elect_preferred(self, asked: Sequence[TopicPartition]) -> list[RaftlogError | None]:
        """Give each to the first of its replicas, where that is in sync. None: it leads."""
        ...

    async def elect_unclean(
        self, asked: Sequence[TopicPartition], candidate: BrokerId | None
    ) -> list[RaftlogError | None]:
        """Give each to a live replica, although records may be lost by it: `candidate`, or whoever reported the
        greatest log. None: it leads."""
        ...

    async def unregister(self, broker_id: BrokerId) -> None:
        """Forget a broker that stopped and holds nothing. Raises `InvalidRequest` or `RetriableError`."""
        ...

    def replicas(self) -> list[LocalReplica]:
        """The replicas on this node, sorted."""
        ...
