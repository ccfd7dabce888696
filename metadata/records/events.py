"""Events: the changes of the cluster image, for consumers that keep a copy of a part of it.

Each event carries the whole new record, so a consumer replaces records and never patches them. The events of one log
entry are applied together; those of `diff` (after a snapshot) lead from one state to the other in the same way.

In one entry the ends of a commit (`EndsCommitted`) precede the outcome: a copy that applies an entry in pieces never
knows that a transaction is committed without knowing which of its records are (S13).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from raftlog.security.acls import AclRule
from raftlog.transactions import TransactionKey

from .groups import CommittedOffset, GroupRecord
from .instances import InstanceEvent
from .leases import LeaseEvent
from .owners import Owned, OwnedIds, OwnedName
from .security import QuotaRecord, TokenRecord, UserRecord
from .tickets import RecoveryTicket
from .transactions import Block, NamedProducer

INITIAL_FEATURE_LEVEL = 1
"""The feature level of a cluster whose quorum has decided nothing yet."""


class FeatureLevelChanged(msgspec.Struct, frozen=True):
    """The finalized feature level of the cluster."""

    level: int


class TimeAdvanced(msgspec.Struct, frozen=True):
    """The cluster's time. The event is repeated even if the time has not moved: the receiver may extrapolate from it
    for a while.
    """

    time: ClusterTime


class ThrottleChanged(msgspec.Struct, frozen=True):
    """The rates at which moves may copy, on every broker."""

    throttle: ReplicationThrottle


class BrokerChanged(msgspec.Struct, frozen=True):
    """A broker registered, was fenced or unfenced."""

    record: BrokerRecord


class BrokerRemoved(msgspec.Struct, frozen=True):
    """An operator unregistered a broker that had stopped and held nothing. `incarnation` was its last."""

    broker_id: BrokerId
    incarnation: Incarnation


class TopicChanged(msgspec.Struct, frozen=True):
    """A topic is new, grew or has other settings. The events of its new partitions follow."""

    record: TopicRecord


class TopicRemoved(msgspec.Struct, frozen=True):
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


class GroupChanged(msgspec.Struct, frozen=True):
    """A group was created, or its members, targets or owners changed."""

    record: GroupRecord


class GroupRemoved(msgspec.Struct, frozen=True):
    """A group and its offsets were deleted."""

    group_id: str


class OffsetsCommitted(msgspec.Struct, frozen=True):
    """Offsets that a group committed; its offsets of other partitions stay."""

    group_id: str
    offsets: Mapping[TopicPartition, CommittedOffset]


class OffsetsRemoved(msgspec.Struct, frozen=True):
    """Offsets that expired or whose topic was deleted."""

    group_id: str
    partitions: Sequence[TopicPartition]


GroupEvent: TypeAlias = GroupChanged | GroupRemoved | OffsetsCommitted | OffsetsRemoved


class ProducerIdsTaken(msgspec.Struct, frozen=True):
    """Every producer id below `below` has been granted, for whatever purpose."""

    below: ProducerId


class ProducerChanged(msgspec.Struct, frozen=True):
    """A named producer is new, began again, or ended a transaction."""

    record: NamedProducer


class ProducerRemoved(msgspec.Struct, frozen=True):
    """A named producer expired."""

    transactional_id: str


class BlockChanged(msgspec.Struct, frozen=True):
    """A block was opened or retired, or some of its ids were decided."""

    record: Block


class BlockRemoved(msgspec.Struct, frozen=True):
    """A block expired."""

    first: ProducerId


class EndsCommitted(msgspec.Struct, frozen=True):
    """Ends that are committed and not marked yet; one commit may bring several of these events."""

    ends: Mapping[TopicPartition, Mapping[TransactionKey, Offset]]


class EndsForgotten(msgspec.Struct, frozen=True):
    """Ends whose markers are below the high watermark, or whose partition was deleted."""

    topic_partition: TopicPartition
    keys: Sequence[TransactionKey]


class PositionMoved(msgspec.Struct, frozen=True):
    """A named position was raised."""

    name: str
    value: int


class PositionRemoved(msgspec.Struct, frozen=True):
    """An operator removed a named position."""

    name: str


class PartsStaged(msgspec.Struct, frozen=True):
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


class OwnerChanged(msgspec.Struct, frozen=True):
    """A record belongs to this principal from now on; empty: to none. Precedes the producer ids that it is about."""

    kind: Owned
    name: OwnedName
    owner: str


class ProducerIdsOwned(msgspec.Struct, frozen=True):
    """The range of producer ids with this first one is now this; without an owner, it is no longer remembered."""

    ids: OwnedIds


OwnerEvent: TypeAlias = OwnerChanged | ProducerIdsOwned


class UserChanged(msgspec.Struct, frozen=True):
    """A user is new, or its password or standing changed."""

    record: UserRecord


class UserRemoved(msgspec.Struct, frozen=True):
    """A user was removed. The events of its tokens precede."""

    name: str


class TokenChanged(msgspec.Struct, frozen=True):
    """A token is new."""

    record: TokenRecord


class TokenRemoved(msgspec.Struct, frozen=True):
    """A token was revoked, has expired, or its user was removed."""

    token_id: str


class RulesChanged(msgspec.Struct, frozen=True):
    """Rules that were not there are there now, and others no longer. All other rules stay."""

    added: tuple[AclRule, ...]
    removed: tuple[AclRule, ...]


class QuotaChanged(msgspec.Struct, frozen=True):
    """The limits of a user or address were set."""

    record: QuotaRecord


class QuotaRemoved(msgspec.Struct, frozen=True):
    """A user or address has no limits of its own any more."""

    entity: str


class SecurityBegun(msgspec.Struct, frozen=True):
    """The first record of a user, token, rule or quota was made: it is too late for a first administrator."""


SecurityEvent: TypeAlias = (
    UserChanged | UserRemoved | TokenChanged | TokenRemoved | RulesChanged | QuotaChanged | QuotaRemoved | SecurityBegun
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
    | InstanceEvent
    | LeaseEvent
    | TransactionEvent
    | OwnerEvent
    | SecurityEvent
)
