"""The parts of a snapshot's body: each fact as an array of its fields, with conversions from and to the records.

Each element of a potentially large collection is encoded on its own and embedded as bytes: encoding and decoding can
pause between any two of them (`encoder.py`).
"""

from __future__ import annotations

import msgspec

from metadata.commands.fields import WireStruct
from metadata.commands.results import CommandResult
from metadata.image.client_sessions import Seen
from metadata.image.image import ClusterImage
from metadata.records.tickets import RecoveryTicket
from raftlog.model import (
    BrokerId,
    BrokerRecord,
    DirectoryId,
    Endpoint,
    Incarnation,
    LeaderEpoch,
    PartitionEpoch,
    PartitionRecord,
    ProducerId,
    TopicId,
    TopicPartition,
)


class PackedBroker(WireStruct, frozen=True):
    broker_id: BrokerId
    incarnation: Incarnation
    directory_id: DirectoryId
    start_number: int
    api: tuple[str, int]
    data: tuple[str, int]
    rack: str
    fenced: bool
    starting: bool
    feature_level: int


class PackedPartition(WireStruct, frozen=True):
    replicas: tuple[BrokerId, ...]
    leader: BrokerId
    leader_incarnation: Incarnation
    leader_epoch: LeaderEpoch
    partition_epoch: PartitionEpoch
    isr: tuple[BrokerId, ...]
    commit_set: tuple[BrokerId, ...]
    min_insync_replicas: int
    tickets: tuple[RecoveryTicket, ...]
    adding_replicas: tuple[BrokerId, ...] = ()
    target_replicas: tuple[BrokerId, ...] = ()
    unclean_leader_epochs: tuple[LeaderEpoch, ...] = ()
    let_go: bool = False


class PackedTopic(WireStruct, frozen=True):
    topic_id: TopicId
    name: str
    replication_factor: int
    configs: tuple[tuple[str, str], ...]
    partitions: tuple[msgspec.Raw, ...]
    """Each a `PackedPartition`, encoded on its own, as the topics are: decoding all at once would take too long."""


class PackedTopicWithCreation(PackedTopic, frozen=True):
    created_index: int = 0


class PackedAnswer(WireStruct, frozen=True):
    session_id: bytes
    sequence: int
    index: int
    result: CommandResult


class PackedSession(WireStruct, frozen=True):
    session_id: bytes
    upto: int
    ahead: tuple[int, ...]
    last_index: int
    floor_index: int


class Body(WireStruct, frozen=True):
    index: int
    feature_level: int
    next_producer_id: ProducerId
    brokers: tuple[PackedBroker, ...]
    topics: tuple[msgspec.Raw, ...]
    """Each a `PackedTopic`."""
    answers: tuple[msgspec.Raw, ...]
    """Each an `PackedAnswer`."""
    forgotten_index: int
    groups: tuple[msgspec.Raw, ...] = ()
    """Each a `PackedGroup`."""
    throttle: tuple[int | None, int | None] = (None, None)
    sessions: tuple[PackedSession, ...] = ()


class BodyWithTransactions(Body, frozen=True):
    transactions: msgspec.Raw = msgspec.Raw()
    """The transactions as `transactions.py` encodes them."""


class BodyWithTime(BodyWithTransactions, frozen=True):
    """The body of feature level 5."""

    time: tuple[int, int, int] = (0, 0, 0)
    """A `ClusterTime`."""
    short_of_room: tuple[BrokerId, ...] = ()
    """The brokers that are short of room."""


class BodyWithSecurity(BodyWithTime, frozen=True):
    """The body from feature level 6 on."""

    security: msgspec.Raw = msgspec.Raw()
    """Users, tokens, rules and quotas as `security.py` encodes them."""
    owners: msgspec.Raw = msgspec.Raw()
    """Owners as `owners.py` encodes them; empty if there are none."""


class BodyWithInstances(BodyWithSecurity, frozen=True):
    """The body from feature level 7 on."""

    instances: msgspec.Raw = msgspec.Raw()
    """HTTP consumer instances as `instances.py` encodes them."""
    leases: msgspec.Raw = msgspec.Raw(b"\x90")
    """Leases as `leases.py` encodes them; without them, none."""


def pack_session(session_id: bytes, seen: Seen) -> PackedSession:
    return PackedSession(session_id, seen.upto, tuple(sorted(seen.ahead)), seen.last_index, seen.floor_index)


def unpack_session(packed: PackedSession) -> Seen:
    return Seen(packed.upto, set(packed.ahead), packed.last_index, packed.floor_index)


def pack_broker(state: ClusterImage, broker: BrokerRecord) -> PackedBroker:
    return PackedBroker(
        broker_id=broker.broker_id,
        incarnation=broker.incarnation,
        directory_id=broker.directory_id,
        start_number=broker.start_number,
        api=(broker.api.host, broker.api.port),
        data=(broker.data.host, broker.data.port),
        rack=broker.rack,
        fenced=broker.fenced,
        starting=broker.broker_id in state.starting,
        feature_level=broker.feature_level,
    )


def unpack_broker(packed: PackedBroker) -> BrokerRecord:
    return BrokerRecord(
        broker_id=packed.broker_id,
        incarnation=packed.incarnation,
        directory_id=packed.directory_id,
        start_number=packed.start_number,
        api=Endpoint(*packed.api),
        data=Endpoint(*packed.data),
        rack=packed.rack,
        fenced=packed.fenced,
        feature_level=packed.feature_level,
    )


def pack_partition(record: PartitionRecord, tickets: tuple[RecoveryTicket, ...]) -> PackedPartition:
    fields = msgspec.structs.asdict(record)
    del fields["topic_partition"], fields["not_eligible"]
    return PackedPartition(**fields, tickets=tickets)


def unpack_partition(topic_partition: TopicPartition, packed: PackedPartition) -> PartitionRecord:
    fields = msgspec.structs.asdict(packed)
    tickets: tuple[RecoveryTicket, ...] = fields.pop("tickets")
    not_eligible = tuple(ticket.broker_id for ticket in tickets)
    return PartitionRecord(**fields, topic_partition=topic_partition, not_eligible=not_eligible)
