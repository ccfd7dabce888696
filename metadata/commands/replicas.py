"""Commands about single replicas and leaderships: an operator's requests, and a broker's reports of its own replicas.

A reassignment (KIP-455) has two steps, so that any number may be requested at once while few move data: first the
record gets its target (`AlterReassignments`), later the controller lets the move begin (`BeginMoves`): the replicas to
add are added and fetch. It completes by itself, in the command by which the last target replica is in sync and a target
replica leads.

A registration reports what recovery found at a start; `ReportLoss` reports disk damage found later. The replica may be
truncated to its valid part only once the report is accepted, because only then no other replica counts on the rest (S6,
S9).

`RenewLeadership` is for a leader replica that was discarded while it led and was reopened from its disk. Data that it
had in memory and sent to followers in that leader epoch is gone, so it must not lead in that epoch any more: another
batch would get the offset of one that a follower has (S4). The next epoch begins from what is on its disk, as after any
election.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec

from raftlog.model import ReplicationThrottle

from .fields import (
    BrokerIdField,
    IncarnationField,
    LeaderEpochField,
    OfIncarnation,
    OfPartition,
    PartitionEpochField,
    WireStruct,
)

MAX_REASSIGNMENTS_PER_COMMAND = 512
"""Reassignments in one command: an entry stays small."""

MAX_TARGET_REPLICAS = 32

THROTTLE_FEATURE_LEVEL = 2
"""The level from which `ThrottleReassignments` may be proposed."""

REPLACEMENT_FEATURE_LEVEL = 4
"""The level from which a target may replace one whose move has begun.

The command is unchanged: all nodes decide by the state machine's level, and so alike, what it does.
"""

RENEWAL_FEATURE_LEVEL = 5
"""The level from which `RenewLeadership` may be proposed."""

RateField: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=2**62)]
"""Bytes a second."""


class Reassignment(OfPartition, frozen=True):
    """The target replicas of a partition, the preferred leader first; empty: cancel the reassignment."""

    partition_epoch: PartitionEpochField
    target_replicas: Annotated[tuple[BrokerIdField, ...], msgspec.Meta(max_length=MAX_TARGET_REPLICAS)]


class Move(OfPartition, frozen=True):
    """A waiting reassignment that may begin, if the partition is still at `partition_epoch`."""

    partition_epoch: PartitionEpochField


class AlterReassignments(WireStruct, frozen=True, tag="alter_reassignments.1"):
    """Reassignments, each decided on its own. Answered by `ReassignmentsAltered`."""

    reassignments: Annotated[tuple[Reassignment, ...], msgspec.Meta(max_length=MAX_REASSIGNMENTS_PER_COMMAND)]


class ThrottleReassignments(WireStruct, frozen=True, tag="throttle_reassignments.1"):
    """`AlterReassignments` with rates at which all moves copy from then on, until no reassignment is left.

    Without reassignments of its own it changes the rates of the existing ones. Answered by `ReassignmentsAltered`.
    """

    reassignments: Annotated[tuple[Reassignment, ...], msgspec.Meta(max_length=MAX_REASSIGNMENTS_PER_COMMAND)]
    leader_rate: RateField | None
    follower_rate: RateField | None

    @property
    def throttle(self) -> ReplicationThrottle:
        return ReplicationThrottle(self.leader_rate, self.follower_rate)


class BeginMoves(WireStruct, frozen=True, tag="begin_moves.1"):
    """The controller's start of reassignments: they add their replicas now. Answered by `ReassignmentsAltered`."""

    moves: Annotated[tuple[Move, ...], msgspec.Meta(max_length=MAX_REASSIGNMENTS_PER_COMMAND)]


class UnregisterBroker(OfIncarnation, frozen=True, tag="unregister_broker.1"):
    """Removes a broker that has stopped and has no replicas left. Answered by `Done`; idempotent."""


class ElectUnclean(OfPartition, frozen=True, tag="elect_unclean.1"):
    """The operator's last resort: make `candidate` the leader although acknowledged records may be lost by it.

    Refused while any replica may lead without loss. Answered by `Done`.
    """

    candidate: BrokerIdField
    incarnation: IncarnationField
    partition_epoch: PartitionEpochField


class ReportLoss(OfPartition, frozen=True, tag="report_loss.1"):
    """Reports that an incarnation cannot vouch for its replica any more, found in this leader epoch.

    Answered by `Done`: it no longer leads, has left the ISR, and does not count until it is added again, in a later
    leader epoch.
    """

    broker_id: BrokerIdField
    incarnation: IncarnationField
    leader_epoch: LeaderEpochField


class RenewLeadership(OfPartition, frozen=True, tag="renew_leadership.1"):
    """Renews the leadership of an incarnation that leads in this leader epoch and can continue only in the next one.

    Answered by `Done`: it leads in the next epoch.
    """

    broker_id: BrokerIdField
    incarnation: IncarnationField
    leader_epoch: LeaderEpochField
