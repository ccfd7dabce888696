"""Events: the changes of the cluster image, for consumers that keep a copy of a part of it.

Each event carries the whole new record, so a consumer replaces records and never patches them. The events of one log
entry are applied together; those of `diff` (after a snapshot) lead from one state to the other in the same way.

In one entry the ends of a commit (`EndsCommitted`) precede the outcome: a copy that applies an entry in pieces never
knows that a transaction is committed without knowing which of its records are (S13).
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
"""The feature level of a cluster whose quorum has decided nothing yet."""


@dataclass(frozen=True, slots=True)
class FeatureLevelChanged:
    """The finalized feature level of the cluster."""

    level: int


@dataclass(frozen=True, slots=True)
class TimeAdvanced:
    """The cluster's time. The event is repeated even if the time has not moved: the receiver may extrapolate from it
    for a while.
    """

    time: ClusterTime


@dataclass(frozen=True, slots=True)
class ThrottleChanged:
    """The rates at which moves may copy, on every broker."""

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
    """A topic and all its partitions were deleted; there is no event for each partition."""

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
    """A group was created, or its members, targets or owners changed."""

    record: GroupRecord


@dataclass(frozen=True, slots=True)
class GroupRemoved:
    """A group and its offsets were deleted."""

    group_id: str


@dataclass(frozen=True, slots=True)
class OffsetsCommitted:
    """Offsets that a group committed; its offsets of other partitions stay."""

    group_id: str
    offsets: Mapping[TopicPartition, CommittedOffset]


@dataclass(frozen=True, slots=True)
class OffsetsRemoved:
    """Offsets that expired or whose topic was deleted."""

    group_id: str
    partitions: Sequence[TopicPartition]


GroupEvent: TypeAlias = GroupChanged | GroupRemoved | OffsetsCommitted | OffsetsRemoved


@dataclass(frozen=True, slots=True)
class ProducerIdsTaken:
    """Every producer id below `below` has been granted, for whatever purpose."""

    below: ProducerId


@dataclass(frozen=True, slots=True)
class ProducerChanged:
    """A named producer is new, began again, or ended a transaction."""

    record: NamedProducer


@dataclass(frozen=True, slots=True)
class ProducerRemoved:
    """A named producer expired."""

    transactional_id: str


@dataclass(frozen=True, slots=True)
class BlockChanged:
    """A block was opened or retired, or some of its ids were decided."""

    record: Block


@dataclass(frozen=True, slots=True)
class BlockRemoved:
    """A block expired."""

    first: ProducerId


@dataclass(frozen=True, slots=True)
class EndsCommitted:
    """Ends that are committed and not marked yet; one commit may bring several of these events."""

    ends: Mapping[TopicPartition, Mapping[TransactionKey, Offset]]


@dataclass(frozen=True, slots=True)
class EndsForgotten:
    """Ends whose markers are below the high watermark, or whose partition was deleted."""

    topic_partition: TopicPartition
    keys: Sequence[TransactionKey]


@dataclass(frozen=True, slots=True)
class PositionMoved:
    """A named position was raised."""

    name: str
    value: int


@dataclass(frozen=True, slots=True)
class PositionRemoved:
    """An operator removed a named position."""

    name: str


@dataclass(frozen=True, slots=True)
class PartsStaged:
    """The number of staged parts of a commit; 0 means that they were dropped."""

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
