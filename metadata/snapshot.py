"""The cluster image as bytes: every field by name of its place, nothing pickled, nothing derived.

    4 bytes  magic "RLMS"
    u32      version
    u32      CRC-32 of the body
    ...      body: a msgpack array (`_Body`)

Integers of the header are big-endian. Indexes and the marks of partitions are rebuilt from the rest, so they cannot
disagree with it. A changed body is a new version; old versions are read for as long as a cluster may hold one.
"""

from __future__ import annotations

import struct
import zlib
from typing import Any

import msgspec

from raftlog.errors import RemoteProtocolError
from raftlog.model import (
    BrokerId,
    BrokerRecord,
    DirectoryId,
    Endpoint,
    Incarnation,
    LeaderEpoch,
    Offset,
    PartitionEpoch,
    PartitionRecord,
    ProducerId,
    ReplicationThrottle,
    TopicId,
    TopicPartition,
    TopicRecord,
)
from raftlog.ports import Buffer

from .commands import CommandResult
from .groups.snapshot import PackedGroup, pack_group, unpack_group
from .image_elections import RecoveryTicket
from .image_state import ImageState

MAGIC = b"RLMS"
VERSION = 4
"""1 knew no reassignments and no unclean elections: its partitions end with their tickets. 2 knew no groups and no
throttle, and not whether a replica was let go in a partition's leader epoch. There is no 3: one flipped bit, which the
CRC does not cover, would make a 1 or 2 of it."""
_HEADER = struct.Struct(">4sII")

PARTITIONS_PER_STEP = 500
"""Some milliseconds of work: heartbeats leave between two steps. A topic is packed whole."""


class UnknownSnapshot(RemoteProtocolError):
    """A snapshot of a newer version: this node must stop, and says which version it met."""


class _Part(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """Base of everything in the body."""


class _Broker(_Part, frozen=True):
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


class _Ticket(_Part, frozen=True):
    broker_id: BrokerId
    incarnation: Incarnation
    directory_id: DirectoryId
    has_directory: bool
    last_epoch: LeaderEpoch
    stable_end_offset: Offset


class _Partition(_Part, frozen=True):
    replicas: tuple[BrokerId, ...]
    leader: BrokerId
    leader_incarnation: Incarnation
    leader_epoch: LeaderEpoch
    partition_epoch: PartitionEpoch
    isr: tuple[BrokerId, ...]
    commit_set: tuple[BrokerId, ...]
    min_insync_replicas: int
    tickets: tuple[_Ticket, ...]
    adding_replicas: tuple[BrokerId, ...] = ()
    target_replicas: tuple[BrokerId, ...] = ()
    unclean_leader_epochs: tuple[LeaderEpoch, ...] = ()
    let_go: bool = False


class _Topic(_Part, frozen=True):
    topic_id: TopicId
    name: str
    replication_factor: int
    configs: tuple[tuple[str, str], ...]
    partitions: tuple[_Partition, ...]


class _Answer(_Part, frozen=True):
    session_id: bytes
    sequence: int
    index: int
    result: CommandResult


class _Body(_Part, frozen=True):
    index: int
    feature_level: int
    next_producer_id: ProducerId
    brokers: tuple[_Broker, ...]
    topics: tuple[_Topic, ...]
    answers: tuple[_Answer, ...]
    forgotten_index: int
    groups: tuple[PackedGroup, ...] = ()
    throttle: tuple[int | None, int | None] = (None, None)


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Body)


def encode(state: ImageState) -> bytes:
    """Equal states give equal bytes."""
    encoder = SnapshotEncoder(state)
    while True:
        packed = encoder.step()
        if packed is not None:
            return packed


class SnapshotEncoder:
    """A state on its way to bytes, a slice at a time: what is applied meanwhile is not in it.

    Records are never changed, only replaced, so copies of the dictionaries that hold them are a copy of the state.
    """

    def __init__(self, state: ImageState) -> None:
        self._topics = [state.topics[topic_id] for topic_id in sorted(state.topics, reverse=True)]
        """Still to be packed, the last one first."""
        self._packed: list[msgspec.Raw] = []
        self._groups = [state.groups[group_id] for group_id in sorted(state.groups, reverse=True)]
        """The same of groups."""
        self._packed_groups: list[msgspec.Raw] = []
        self._offsets = state.copy_offsets()
        self._partitions = state.partitions.copy()
        self._tickets = state.tickets.copy()
        self._body = _Body(
            index=state.index,
            feature_level=state.feature_level,
            next_producer_id=state.next_producer_id,
            brokers=tuple(_pack_broker(state, state.brokers[broker_id]) for broker_id in sorted(state.brokers)),
            topics=(),
            answers=tuple(_Answer(*key, *answer) for key, answer in state.answers.items()),
            forgotten_index=state.forgotten_index,
            throttle=(state.throttle.leader_rate, state.throttle.follower_rate),
        )

    def step(self) -> bytes | None:
        """Pack some more topics, then groups. Returns the whole when there are none left."""
        left = PARTITIONS_PER_STEP
        while self._topics and left > 0:
            topic = self._topics.pop()
            self._packed.append(msgspec.Raw(_encoder.encode(self._pack(topic))))
            left -= topic.partition_count + 1
        while self._groups and left > 0:
            group = self._groups.pop()
            packed_group = pack_group(group, self._offsets.get(group.group_id, {}))
            self._packed_groups.append(msgspec.Raw(_encoder.encode(packed_group)))
            left -= 1 + len(packed_group.offsets) + sum(len(member.owned) for member in packed_group.members)
        if self._topics or self._groups:
            return None
        packed: Any = tuple(self._packed)  # topics as bytes are written as they are
        groups: Any = tuple(self._packed_groups)
        body = _encoder.encode(msgspec.structs.replace(self._body, topics=packed, groups=groups))
        return _HEADER.pack(MAGIC, VERSION, zlib.crc32(body)) + body

    def _pack(self, topic: TopicRecord) -> _Topic:
        names = (TopicPartition(topic.topic_id, number) for number in range(topic.partition_count))
        partitions = tuple(_pack_partition(self._partitions[name], self._tickets.get(name, ())) for name in names)
        return _Topic(topic.topic_id, topic.name, topic.replication_factor, topic.configs, partitions)


def decode_into(state: ImageState, packed: Buffer) -> None:
    """Fill an empty state. Raises `RemoteProtocolError` (`UnknownSnapshot` for a newer version's)."""
    body = _open(packed)
    state.index = body.index
    state.feature_level = body.feature_level
    state.next_producer_id = body.next_producer_id
    state.forgotten_index = body.forgotten_index
    state.throttle = ReplicationThrottle(*body.throttle)
    for broker in body.brokers:
        state.put_broker(_unpack_broker(broker))
        if broker.starting:
            state.starting.add(broker.broker_id)
    for topic in body.topics:
        state.put_topic(
            TopicRecord(topic.topic_id, topic.name, len(topic.partitions), topic.replication_factor, topic.configs)
        )
        for number, partition in enumerate(topic.partitions):
            tickets = tuple(_unpack_ticket(ticket) for ticket in partition.tickets)
            state.put_partition(_unpack_partition(TopicPartition(topic.topic_id, number), partition), tickets)
    for group in body.groups:
        unpack_group(state, group)
    for answer in body.answers:
        state.answers[answer.session_id, answer.sequence] = (answer.index, answer.result)


def _open(packed: Buffer) -> _Body:
    view = memoryview(packed).cast("B")
    if view.nbytes < _HEADER.size:
        raise RemoteProtocolError(f"{view.nbytes} bytes are no snapshot")
    magic, version, crc = _HEADER.unpack_from(view)
    if magic != MAGIC:
        raise RemoteProtocolError("this is not a snapshot of the metadata")
    if version > VERSION:
        raise UnknownSnapshot(f"a snapshot of version {version}, newer than {VERSION}; this node must be upgraded")
    body = view[_HEADER.size :]
    if version < 1 or zlib.crc32(body) != crc:
        raise RemoteProtocolError("the snapshot is damaged")
    try:
        return _decoder.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise RemoteProtocolError(f"malformed snapshot: {error}") from None


def _pack_broker(state: ImageState, broker: BrokerRecord) -> _Broker:
    return _Broker(
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


def _unpack_broker(packed: _Broker) -> BrokerRecord:
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


def _pack_partition(record: PartitionRecord, tickets: tuple[RecoveryTicket, ...]) -> _Partition:
    return _Partition(
        replicas=record.replicas,
        leader=record.leader,
        leader_incarnation=record.leader_incarnation,
        leader_epoch=record.leader_epoch,
        partition_epoch=record.partition_epoch,
        isr=record.isr,
        commit_set=record.commit_set,
        min_insync_replicas=record.min_insync_replicas,
        tickets=tuple(_pack_ticket(ticket) for ticket in tickets),
        adding_replicas=record.adding_replicas,
        target_replicas=record.target_replicas,
        unclean_leader_epochs=record.unclean_leader_epochs,
        let_go=record.let_go,
    )


def _unpack_partition(topic_partition: TopicPartition, packed: _Partition) -> PartitionRecord:
    return PartitionRecord(
        topic_partition=topic_partition,
        replicas=packed.replicas,
        leader=packed.leader,
        leader_incarnation=packed.leader_incarnation,
        leader_epoch=packed.leader_epoch,
        partition_epoch=packed.partition_epoch,
        isr=packed.isr,
        commit_set=packed.commit_set,
        min_insync_replicas=packed.min_insync_replicas,
        not_eligible=tuple(ticket.broker_id for ticket in packed.tickets),
        adding_replicas=packed.adding_replicas,
        target_replicas=packed.target_replicas,
        unclean_leader_epochs=packed.unclean_leader_epochs,
        let_go=packed.let_go,
    )


def _pack_ticket(ticket: RecoveryTicket) -> _Ticket:
    return _Ticket(
        broker_id=ticket.broker_id,
        incarnation=ticket.incarnation,
        directory_id=ticket.directory_id,
        has_directory=ticket.has_directory,
        last_epoch=ticket.last_epoch,
        stable_end_offset=ticket.stable_end_offset,
    )


def _unpack_ticket(packed: _Ticket) -> RecoveryTicket:
    return RecoveryTicket(
        broker_id=packed.broker_id,
        incarnation=packed.incarnation,
        directory_id=packed.directory_id,
        has_directory=packed.has_directory,
        last_epoch=packed.last_epoch,
        stable_end_offset=packed.stable_end_offset,
    )
