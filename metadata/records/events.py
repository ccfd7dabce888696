"""What changed in the cluster image: facts for whoever keeps a copy of a part of it.

Each event carries the whole new record, so that a follower replaces and never patches. The events of one log entry are
applied together; those of `diff` (after a snapshot) lead from one state to the other in the same way.

In one entry the ends of a commit (`EndsCommitted`) come before the outcome: a copy that takes an entry over piece by
piece never knows that a transaction is committed without knowing what of it is meant (S13).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from raftlog.model import (
    BrokerId,
    BrokerRecord,
    ClusterTime,
    Incarnation,
    Offset,
    PartitionRecord,
    ProducerId,
    ReplicationThrottle,
    TopicId,
    TopicPartition,
    TopicRecord,
)
from raftlog.transactions import TransactionKey

from .groups import CommittedOffset, GroupRecord
from .tickets import RecoveryTicket
from .transactions import Block, NamedProducer

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


@dataclass(frozen=True, slots=True)
class GroupChanged:
    """A group is new, or its members, targets or owners are others."""

    record: GroupRecord


@dataclass(frozen=True, slots=True)
class GroupRemoved:
    """A group is no more, and nor are its offsets."""

    group_id: str


@dataclass(frozen=True, slots=True)
class OffsetsCommitted:
    """Of one group; those not named here stay."""

    group_id: str
    offsets: Mapping[TopicPartition, CommittedOffset]


@dataclass(frozen=True, slots=True)
class OffsetsRemoved:
    """They expired, or their topic is no more."""

    group_id: str
    partitions: Sequence[TopicPartition]


GroupEvent: TypeAlias = GroupChanged | GroupRemoved | OffsetsCommitted | OffsetsRemoved


@dataclass(frozen=True, slots=True)
class ProducerIdsTaken:
    """Every producer id below was granted, for whatever purpose."""

    below: ProducerId


@dataclass(frozen=True, slots=True)
class ProducerChanged:
    """A named producer is new, began again, or ended a transaction."""

    record: NamedProducer


@dataclass(frozen=True, slots=True)
class ProducerRemoved:
    """Nobody used the name for long."""

    transactional_id: str


@dataclass(frozen=True, slots=True)
class BlockChanged:
    """A block is new, retired, or some of its ids are decided."""

    record: Block


@dataclass(frozen=True, slots=True)
class BlockRemoved:
    """It expired."""

    first: ProducerId


@dataclass(frozen=True, slots=True)
class EndsCommitted:
    """Committed, and not marked yet; there may be several of these for one commit."""

    ends: Mapping[TopicPartition, Mapping[TransactionKey, Offset]]


@dataclass(frozen=True, slots=True)
class EndsForgotten:
    """Their markers are below the high watermark, or the partition is no more."""

    topic_partition: TopicPartition
    keys: Sequence[TransactionKey]


@dataclass(frozen=True, slots=True)
class PositionMoved:
    """A named counter went up."""

    name: str
    value: int


@dataclass(frozen=True, slots=True)
class PositionRemoved:
    """An operator had a named counter forgotten."""

    name: str


@dataclass(frozen=True, slots=True)
class PartsStaged:
    """So many parts of a commit to come are there; 0: they are dropped."""

    commit_id: bytes
    count: int


TransactionEvent: TypeAlias = (
    ProducerIdsTaken
    | ProducerChanged
    | ProducerRemoved
    | BlockChanged
    | BlockRemoved
    | EndsCommitted
    | EndsForgotten
    | PositionMoved
    | PositionRemoved
    | PartsStaged
)


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
