"""Moves of replicas and leaderships: plans, reassignments, elections; and the replicas of one node."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from .base import NodeNumber, OfPartition, PartitionNumber, Request
from .problems import PartitionError

MAX_PARTITIONS_PER_REQUEST = 1_000
MAX_REPLICAS = 32
MAX_BROKERS = 1_000

Rate = Annotated[int, Meta(ge=1, le=2**62)]
"""Bytes per second."""

_KAFKAS_NAMES = {
    "leader_rate": "leader.replication.throttled.rate",
    "follower_rate": "follower.replication.throttled.rate",
}


class NamedPartition(Request, frozen=True):
    topic: str
    partition: PartitionNumber


class Reassignment(NamedPartition, frozen=True):
    replicas: Annotated[list[NodeNumber], Meta(min_length=1, max_length=MAX_REPLICAS)] | None = None
    """None cancels the reassignment."""


class ThrottleInfo(msgspec.Struct, frozen=True, rename=_KAFKAS_NAMES):
    """Limits for reassignment traffic, in bytes per second per broker; None: unlimited."""

    leader_rate: Rate | None = None
    """Limit of what a broker sends, to all receivers together."""
    follower_rate: Rate | None = None
    """Limit of what a broker receives, from all senders together."""


class Throttle(ThrottleInfo, frozen=True, forbid_unknown_fields=True):
    """The same in a request."""


class AlterReassignments(Request, frozen=True):
    reassignments: Annotated[list[Reassignment], Meta(max_length=MAX_PARTITIONS_PER_REQUEST)]
    throttle: Throttle | None = None
    """None leaves the throttle unchanged."""


class Plan(Request, frozen=True):
    drain: Annotated[list[NodeNumber], Meta(max_length=MAX_BROKERS)] = []


class Elect(Request, frozen=True):
    partitions: Annotated[list[NamedPartition], Meta(max_length=MAX_PARTITIONS_PER_REQUEST)]
    kind: Literal["preferred", "unclean"] = "preferred"
    candidate: NodeNumber | None = None
    accept_data_loss: bool = False


class PartitionOutcome(OfPartition, frozen=True, omit_defaults=True):
    """The outcome of one partition of a request; `error` is None if it succeeded."""

    error: PartitionError | None = None


class PartitionOutcomes(msgspec.Struct, frozen=True):
    partitions: list[PartitionOutcome]


class ReassignmentInfo(OfPartition, frozen=True):
    """A partition that is being moved or is queued for it."""

    replicas: list[int]
    target_replicas: list[int]
    adding_replicas: list[int] = []
    removing_replicas: list[int] = []
    isr: list[int] = []
    leader: int | None = None
    moving: bool = False
    """False while it is queued."""


class Reassignments(msgspec.Struct, frozen=True):
    reassignments: list[ReassignmentInfo]
    throttle: ThrottleInfo = ThrottleInfo()


class MoveInfo(OfPartition, frozen=True):
    """A partition's current and planned replicas, the preferred leader first."""

    replicas: list[int]
    target_replicas: list[int]
    leader: int | None = None

    @property
    def adding(self) -> list[int]:
        """Brokers that would receive a copy."""
        return [broker for broker in self.target_replicas if broker not in self.replicas]


class PlannedMoves(msgspec.Struct, frozen=True):
    moves: list[MoveInfo]


class ReplicaInfo(OfPartition, frozen=True):
    """One replica on one node."""

    size_bytes: int
    log_end_offset: int
    role: str
    """`leader`, `follower`, `idle` or `offline`."""


class Replicas(msgspec.Struct, frozen=True):
    replicas: list[ReplicaInfo]
