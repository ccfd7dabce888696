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
from collections.abc import Generator
from typing import Any, TypeVar

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
from .groups.records import GroupRecord
from .groups.snapshot import PackedGroup, pack_group, unpack_group
from .image_elections import RecoveryTicket
from .image_sessions import Seen
from .image_state import ImageState

T = TypeVar("T")

MAGIC = b"RLMS"
VERSION = 4
"""1 knew no reassignments and no unclean elections: its partitions end with their tickets. 2 knew no groups and no
throttle, not whether a replica was let go in a partition's leader epoch, and of client sessions their last answers
only. There is no 3: one flipped bit, which the CRC does not cover, would make a 1 or 2 of it."""
_HEADER = struct.Struct(">4sII")

PARTITIONS_PER_STEP = 250
"""Some milliseconds of work: heartbeats leave between two steps."""

ANSWERS_PER_STEP = 2_000
"""Likewise."""


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
    partitions: tuple[msgspec.Raw, ...]
    """Each a `_Partition`, coded on its own, as the topics are: all of them at once would take too long."""


class _Answer(_Part, frozen=True):
    session_id: bytes
    sequence: int
    index: int
    result: CommandResult


class _Session(_Part, frozen=True):
    session_id: bytes
    upto: int
    ahead: tuple[int, ...]
    last_index: int
    floor_index: int


class _Body(_Part, frozen=True):
    index: int
    feature_level: int
    next_producer_id: ProducerId
    brokers: tuple[_Broker, ...]
    topics: tuple[msgspec.Raw, ...]
    """Each a `_Topic`."""
    answers: tuple[_Answer, ...]
    forgotten_index: int
    groups: tuple[PackedGroup, ...] = ()
    throttle: tuple[int | None, int | None] = (None, None)
    sessions: tuple[_Session, ...] = ()


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Body)
_topic_decoder = msgspec.msgpack.Decoder(_Topic)
_partition_decoder = msgspec.msgpack.Decoder(_Partition)


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
        self._packed_partitions: list[msgspec.Raw] = []
        """Of the topic that is being packed."""
        self._answers = list(state.sessions.answers.items())
        self._packed_answers: list[_Answer] = []
        self._partitions = state.partitions.copy()
        self._tickets = state.tickets.copy()
        self._body = _Body(
            index=state.index,
            feature_level=state.feature_level,
            next_producer_id=state.next_producer_id,
            brokers=tuple(_pack_broker(state, state.brokers[broker_id]) for broker_id in sorted(state.brokers)),
            topics=(),
            answers=(),
            forgotten_index=state.sessions.forgotten_index,
            sessions=tuple(_pack_session(name, seen) for name, seen in state.sessions.seen.items()),
            throttle=(state.throttle.leader_rate, state.throttle.follower_rate),
        )

    def step(self) -> bytes | None:
        """Pack some more. Returns the whole when nothing is left."""
        left = PARTITIONS_PER_STEP
        while self._topics and left > 0:
            left -= self._pack_some(self._topics[-1], left)
        while self._groups and left > 0:
            left -= self._pack_group(self._groups.pop())
        if self._topics or self._groups:
            return None
        if self._answers:
            some, self._answers = self._answers[:ANSWERS_PER_STEP], self._answers[ANSWERS_PER_STEP:]
            self._packed_answers += [_Answer(*key, *answer) for key, answer in some]
            if self._answers:
                return None
        topics, answers = tuple(self._packed), tuple(self._packed_answers)
        groups: Any = tuple(self._packed_groups)  # as bytes they are written as they are
        body = _encoder.encode(msgspec.structs.replace(self._body, topics=topics, answers=answers, groups=groups))
        return _HEADER.pack(MAGIC, VERSION, zlib.crc32(body)) + body

    def _pack_some(self, topic: TopicRecord, most: int) -> int:
        """Go on with a topic, and be done with it at its last partition. Returns how much work it was."""
        first = len(self._packed_partitions)
        for number in range(first, min(first + most, topic.partition_count)):
            name = TopicPartition(topic.topic_id, number)
            packed = _encoder.encode(_pack_partition(self._partitions[name], self._tickets.get(name, ())))
            self._packed_partitions.append(msgspec.Raw(packed))
        done = len(self._packed_partitions)
        if done == topic.partition_count:
            partitions, self._packed_partitions = tuple(self._packed_partitions), []
            whole = _Topic(topic.topic_id, topic.name, topic.replication_factor, topic.configs, partitions)
            self._packed.append(msgspec.Raw(_encoder.encode(whole)))
            self._topics.pop()
        return done - first + 1

    def _pack_group(self, group: GroupRecord) -> int:
        """Returns how much work it was."""
        packed = pack_group(group, self._offsets.get(group.group_id, {}))
        self._packed_groups.append(msgspec.Raw(_encoder.encode(packed)))
        return 1 + len(packed.offsets) + sum(len(member.owned) for member in packed.members)


def decode_in_steps(state: ImageState, packed: Buffer) -> Generator[None, None, None]:
    """Fill an empty state, a topic or so many partitions at a time; it brings no events. Raises `RemoteProtocolError`
    (`UnknownSnapshot` for a newer version's)."""
    body = _open(packed)
    state.index = body.index
    state.feature_level = body.feature_level
    state.next_producer_id = body.next_producer_id
    state.sessions.forgotten_index = body.forgotten_index
    state.throttle = ReplicationThrottle(*body.throttle)
    for broker in body.brokers:
        state.put_broker(_unpack_broker(broker))
        if broker.starting:
            state.starting.add(broker.broker_id)
    for packed_topic in body.topics:
        topic = _decode(_topic_decoder, packed_topic)
        state.put_topic(
            TopicRecord(topic.topic_id, topic.name, len(topic.partitions), topic.replication_factor, topic.configs)
        )
        for number, packed_partition in enumerate(topic.partitions):
            partition = _decode(_partition_decoder, packed_partition)
            tickets = tuple(_unpack_ticket(ticket) for ticket in partition.tickets)
            state.put_partition(_unpack_partition(TopicPartition(topic.topic_id, number), partition), tickets)
            if number % PARTITIONS_PER_STEP == 0:
                state.take_events()
                yield
    for group in body.groups:
        unpack_group(state, group)
        yield
    for answer in body.answers:
        state.sessions.answers[answer.session_id, answer.sequence] = (answer.index, answer.result)
    for session in body.sessions:
        state.sessions.seen[session.session_id] = _unpack_session(session)
    if not body.sessions:
        state.sessions.derive_seen()
    state.take_events()


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
    return _decode(_decoder, body)


def _decode(decoder: msgspec.msgpack.Decoder[T], packed: Buffer) -> T:
    try:
        return decoder.decode(packed)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise RemoteProtocolError(f"malformed snapshot: {error}") from None


def _pack_session(session_id: bytes, seen: Seen) -> _Session:
    return _Session(session_id, seen.upto, tuple(sorted(seen.ahead)), seen.last_index, seen.floor_index)


def _unpack_session(packed: _Session) -> Seen:
    return Seen(packed.upto, set(packed.ahead), packed.last_index, packed.floor_index)


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
