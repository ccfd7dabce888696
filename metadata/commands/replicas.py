"""Commands about single replicas and leaderships: what an operator asks for, and what a broker reports of its own.

A reassignment (KIP-455) has two steps, so that any number may be asked for at once while few move data: first the
record gets its target (`AlterReassignments`), later the controller lets the move begin (`BeginMoves`): the replicas to
add are added and fetch. It completes by itself, in the command by which the last target replica is in sync and a
target replica leads.

A registration tells what recovery found at a start; `ReportLoss` tells what was found since: damage on the disk. Only
when it is accepted may the replica be cut back to what is good, because only then nobody counts on the rest (S6, S9).

`RenewLeadership` is for a replica that led, was thrown away in the middle of it, and was opened again from its disk.
What it had in memory and pushed to followers in that leader epoch is gone, so it must not lead in it any more: another
batch would get the offset of one that a follower has (S4). The next epoch begins from what is on its disk, like after
any election.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec

from raftlog.model import ReplicationThrottle, TopicPartition

from .fields import (
    BrokerIdField,
    IncarnationField,
    LeaderEpochField,
    Part,
    PartitionEpochField,
    PartitionField,
    TopicIdField,
)

MAX_REASSIGNMENTS_PER_COMMAND = 512
"""One entry asks for many moves and stays small."""

MAX_TARGET_REPLICAS = 32

THROTTLE_FEATURE_LEVEL = 2
"""From which on `ThrottleReassignments` is proposed."""

REPLACEMENT_FEATURE_LEVEL = 4
"""From which on a target may take the place of one whose move has begun. The command is the same: by the level that the
state machine is at, all nodes decide alike what it does."""

RENEWAL_FEATURE_LEVEL = 5
"""From which on `RenewLeadership` may be proposed."""

RateField: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=2**62)]
"""Bytes a second."""


class Reassignment(Part, frozen=True):
    """Where a partition's replicas are to be, the preferred leader first; empty: cancel what is under way."""

    topic_id: TopicIdField
    partition: PartitionField
    partition_epoch: PartitionEpochField
    target_replicas: Annotated[tuple[BrokerIdField, ...], msgspec.Meta(max_length=MAX_TARGET_REPLICAS)]

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic_id, self.partition)


class Move(Part, frozen=True):
    """A reassignment that waits and may begin, if the partition is still at `partition_epoch`."""

    topic_id: TopicIdField
    partition: PartitionField
    partition_epoch: PartitionEpochField

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic_id, self.partition)


class AlterReassignments(Part, frozen=True, tag="alter_reassignments.1"):
    """Reassignments, each decided on its own. Answered by `ReassignmentsAltered`."""

    reassignments: Annotated[tuple[Reassignment, ...], msgspec.Meta(max_length=MAX_REASSIGNMENTS_PER_COMMAND)]


class ThrottleReassignments(Part, frozen=True, tag="throttle_reassignments.1"):
    """`AlterReassignments`, and from then on all moves copy at these rates, until no reassignment is left. Without
    reassignments of its own it changes the rates of those that there are. Answered by `ReassignmentsAltered`."""

    reassignments: Annotated[tuple[Reassignment, ...], msgspec.Meta(max_length=MAX_REASSIGNMENTS_PER_COMMAND)]
    leader_rate: RateField | None
    follower_rate: RateField | None

    @property
    def throttle(self) -> ReplicationThrottle:
        return ReplicationThrottle(self.leader_rate, self.follower_rate)


class BeginMoves(Part, frozen=True, tag="begin_moves.1"):
    """The controller's: these reassignments add their replicas now. Answered by `ReassignmentsAltered`."""

    moves: Annotated[tuple[Move, ...], msgspec.Meta(max_length=MAX_REASSIGNMENTS_PER_COMMAND)]


class UnregisterBroker(Part, frozen=True, tag="unregister_broker.1"):
    """Forget a broker that stopped and has no replica any more. Answered by `Done`; idempotent."""

    broker_id: BrokerIdField
    incarnation: IncarnationField


class ElectUnclean(Part, frozen=True, tag="elect_unclean.1"):
    """The operator's last resort: make `candidate` the leader although acknowledged records may be lost by it.

    Refused while anybody may lead without loss. Answered by `Done`.
    """

    topic_id: TopicIdField
    partition: PartitionField
    candidate: BrokerIdField
    incarnation: IncarnationField
    partition_epoch: PartitionEpochField

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic_id, self.partition)


class ReportLoss(Part, frozen=True, tag="report_loss.1"):
    """This life of the broker cannot vouch for its replica any more, found in this leader epoch. Answered by `Done`:
    it leads no longer, left the ISR, and counts for nothing until it is added again, in a later leader epoch."""

    topic_id: TopicIdField
    partition: PartitionField
    broker_id: BrokerIdField
    incarnation: IncarnationField
    leader_epoch: LeaderEpochField

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic_id, self.partition)


class RenewLeadership(Part, frozen=True, tag="renew_leadership.1"):
    """This life of the broker leads in this leader epoch, cannot go on in it, and could in the next one. Answered by
    `Done`: it leads again, in that."""

    topic_id: TopicIdField
    partition: PartitionField
    broker_id: BrokerIdField
    incarnation: IncarnationField
    leader_epoch: LeaderEpochField

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic_id, self.partition)
