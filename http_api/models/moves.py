"""JSON bodies about moving replicas and leaderships: the schemas of `openapi.json`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

MAX_PARTITIONS_PER_REQUEST = 1_000
MAX_REPLICAS = 32
MAX_BROKERS = 1_000

BrokerNumber = Annotated[int, Meta(ge=0, le=2**31 - 1)]
PartitionNumber = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class Reassignment(msgspec.Struct, forbid_unknown_fields=True):
    topic: str
    partition: PartitionNumber
    replicas: Annotated[list[BrokerNumber], Meta(min_length=1, max_length=MAX_REPLICAS)] | None = None
    """None cancels the reassignment."""


Rate = Annotated[int, Meta(ge=1, le=2**62)]
"""Bytes per second."""

_KAFKAS_NAMES = {
    "leader_rate": "leader.replication.throttled.rate",
    "follower_rate": "follower.replication.throttled.rate",
}


class Throttle(msgspec.Struct, forbid_unknown_fields=True, rename=_KAFKAS_NAMES):
    """The rates of moves; None for unlimited."""

    leader_rate: Rate | None = None
    follower_rate: Rate | None = None


class AlterReassignments(msgspec.Struct, forbid_unknown_fields=True):
    reassignments: Annotated[list[Reassignment], Meta(max_length=MAX_PARTITIONS_PER_REQUEST)]
    throttle: Throttle | None = None
    """None leaves the throttle unchanged."""


class Plan(msgspec.Struct, forbid_unknown_fields=True):
    drain: Annotated[list[BrokerNumber], Meta(max_length=MAX_BROKERS)] = []


class NamedPartition(msgspec.Struct, forbid_unknown_fields=True):
    topic: str
    partition: PartitionNumber


class Elect(msgspec.Struct, forbid_unknown_fields=True):
    partitions: Annotated[list[NamedPartition], Meta(max_length=MAX_PARTITIONS_PER_REQUEST)]
    kind: Literal["preferred", "unclean"] = "preferred"
    candidate: BrokerNumber | None = None
    accept_data_loss: bool = False


class PartitionOutcome(msgspec.Struct, omit_defaults=True):
    """The outcome of a request for one partition; `error` is set if it was refused."""

    topic: str
    partition: int
    error: dict[str, Any] | None = None


class PartitionOutcomes(msgspec.Struct):
    partitions: list[PartitionOutcome]


class ReassignmentDescription(msgspec.Struct):
    topic: str
    partition: int
    replicas: tuple[int, ...]
    target_replicas: tuple[int, ...]
    adding_replicas: tuple[int, ...]
    removing_replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int | None
    moving: bool
    """False if the move waits to begin."""


class Reassignments(msgspec.Struct):
    reassignments: list[ReassignmentDescription]
    throttle: Throttle


class PlannedMove(msgspec.Struct):
    topic: str
    partition: int
    replicas: tuple[int, ...]
    target_replicas: tuple[int, ...]
    leader: int | None


class PlannedMoves(msgspec.Struct):
    moves: list[PlannedMove]


class Replica(msgspec.Struct):
    topic: str
    partition: int
    size_bytes: int
    log_end_offset: int
    role: str


class Replicas(msgspec.Struct):
    replicas: list[Replica]
