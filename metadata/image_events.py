"""What changed in the cluster image: facts for whoever keeps a copy of a part of it.

Each event carries the whole new record, so that a follower replaces and never patches. The events of one log entry are
applied together; those of `diff` (after a snapshot) lead from one state to the other in the same way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from raftlog.model import (
    BrokerId,
    BrokerRecord,
    ClusterTime,
    Incarnation,
    PartitionRecord,
    ReplicationThrottle,
    TopicId,
    TopicPartition,
    TopicRecord,
)

from .groups.events import GroupEvent
from .groups.transaction_events import TransactionEvent
from .image_elections import RecoveryTicket

INITIAL_FEATURE_LEVEL = 1
"""Of a cluster whose quorum has decided nothing yet."""


@dataclass(frozen=True, slots=True)
class FeatureLevelChanged:
    """The finalized feature level of the cluster."""

    level: int


@dataclass(frozen=True, slots=True)
class TimeAdvanced:
    """The cluster's time, told again and again whether it moved or not: who is told may go on from it for a while."""

    time: ClusterTime


@dataclass(frozen=True, slots=True)
class ThrottleChanged:
    """How fast moves may copy, on every broker."""

    throttle: ReplicationThrottle


@dataclass(frozen=True, slots=True)
class BrokerChanged:
    """A broker registered, was fenced or unfenced."""

    record: BrokerRecord


@dataclass(frozen=True, slots=True)
class BrokerRemoved:
    """An operator unregistered a broker that had stopped and held nothing. `incarnation` was its last."""

    broker_id: BrokerId
    incarnation: Incarnation


@dataclass(frozen=True, slots=True)
class TopicChanged:
    """A topic is new, grew or has other settings. The events of its new partitions follow."""

    record: TopicRecord


@dataclass(frozen=True, slots=True)
class TopicRemoved:
    """A topic and all its partitions are no more; there is no event for each of them."""

    topic_id: TopicId
    name: str


class PartitionChanged(msgspec.Struct, frozen=True, gc=False):
    """A partition's record changed. `tickets`: what is known of its members that may not lead (for explanations).

    One entry of the log may bring a hundred thousand of these, hence a struct: no work for the garbage collector.
    """

    record: PartitionRecord
    tickets: tuple[RecoveryTicket, ...] = ()

    @property
    def topic_partition(self) -> TopicPartition:
        return self.record.topic_partition


MetadataEvent: TypeAlias = (
    FeatureLevelChanged
    | TimeAdvanced
    | ThrottleChanged
    | BrokerChanged
    | BrokerRemoved
    | TopicChanged
    | TopicRemoved
    | PartitionChanged
    | GroupEvent
    | TransactionEvent
)
