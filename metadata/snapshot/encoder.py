"""The cluster image as bytes: positional fields, nothing pickled, nothing derived.

    4 bytes  magic "RLMS"
    u32      version
    u32      CRC-32 of the body (from version 9 on of magic, version and body)
    ...      body: a msgpack array (`Body`)

Integers of the header are big-endian. Indexes and the marks of partitions are rebuilt from the rest, so they cannot
disagree with it. A changed body is a new version; old versions are read for as long as a cluster may hold one.

Encoding and decoding go in steps of a few milliseconds, since there may be a hundred thousand partitions and a million
committed offsets.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Generator
from dataclasses import replace
from typing import TypeVar

import msgspec

from metadata.image.image import ClusterImage
from raftlog.errors import RemoteProtocolError
from raftlog.model import ClusterTime, ReplicationThrottle, TopicPartition, TopicRecord
from raftlog.ports import Buffer

from .format import (
    Body,
    BodyWithInstances,
    BodyWithSecurity,
    BodyWithTime,
    BodyWithTransactions,
    PackedAnswer,
    PackedPartition,
    PackedTopic,
    PackedTopicWithCreation,
    pack_broker,
    pack_partition,
    pack_session,
    unpack_broker,
    unpack_partition,
    unpack_session,
)
from .groups import PackedGroup, pack_group, unpack_group
from .instances import pack_instances, unpack_instances
from .leases import pack_leases, unpack_leases
from .owners import pack_owners, unpack_owners
from .security import pack_security, unpack_security
from .transactions import pack_transactions, unpack_transactions

T = TypeVar("T")

MAGIC = b"RLMS"
VERSION = 11
"""The newest version.

Version 1 has no reassignments and no unclean elections: its partitions end with their tickets. Version 2 has no groups,
no throttle and no flag for a replica removed in a partition's leader epoch, and only the last answers of client
sessions. Version 4 has no transactions; version 8 has no creation index of topics and no cluster time; version 9 has no
users, tokens, rules and quotas; version 10 has no HTTP consumer instances. The numbers between 2 and 8 are unused: one
flipped bit, which their CRC does not cover, would make one version of another. From 9 on the CRC covers the version,
too.
"""
VERSION_FEATURE_LEVEL = 7
"""The level from which the newest version is written, since every node can read it."""
VERSION_WITH_SECURITY = 10
SECURITY_VERSION_FEATURE_LEVEL = 6
"""The level from which that version is written, up to the level of the newest."""
VERSION_WITH_TIME = 9
TIME_VERSION_FEATURE_LEVEL = 5
"""The level from which that version is written, up to the level of the newest."""
VERSION_WITH_TRANSACTIONS = 8
"""The version written below both levels if there are transactions."""
VERSION_WITHOUT_TRANSACTIONS = 4
"""The version written below both levels if there are no transactions."""
_KNOWN = (
    1,
    2,
    VERSION_WITHOUT_TRANSACTIONS,
    VERSION_WITH_TRANSACTIONS,
    VERSION_WITH_TIME,
    VERSION_WITH_SECURITY,
    VERSION,
)
_UNDECODABLE = (msgspec.MsgspecError, ValueError, RecursionError)
FIRST_WITH_CHECKED_VERSION = 9
_HEADER = struct.Struct(">4sII")
_CRC_BYTES = 4
"""The size of the CRC at the header's end, in bytes."""

PARTITIONS_PER_STEP = 250
"""Some milliseconds of work: heartbeats are sent between two steps."""

ANSWERS_PER_STEP = 1_000
"""Likewise."""


CRC_BYTES_PER_STEP = 1024 * 1024
"""Likewise."""


class UnknownSnapshot(RemoteProtocolError):
    """A snapshot of a newer version: this node must stop and report the version."""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Body)
_decoder_with_transactions = msgspec.msgpack.Decoder(BodyWithTransactions)
_decoder_with_time = msgspec.msgpack.Decoder(BodyWithTime)
_decoder_with_security = msgspec.msgpack.Decoder(BodyWithSecurity)
_decoder_with_instances = msgspec.msgpack.Decoder(BodyWithInstances)
_topic_decoder = msgspec.msgpack.Decoder(PackedTopicWithCreation)
_partition_decoder = msgspec.msgpack.Decoder(PackedPartition)
_group_decoder = msgspec.msgpack.Decoder(PackedGroup)
_answer_decoder = msgspec.msgpack.Decoder(PackedAnswer)


def encode_snapshot(state: ClusterImage) -> bytes:
    """Encode the state. Equal states give equal bytes."""
    encoder = SnapshotEncoder(state)
    while True:
        packed = encoder.step()
        if packed is not None:
            return packed


class SnapshotEncoder:
    """The encoding of a state, a slice at a time; changes applied meanwhile are not included.

    Records are never modified, only replaced, so copies of the dictionaries that hold them are a copy of the state.
    """

    def __init__(self, state: ClusterImage) -> None:
        self._topics = [state.topics[topic_id] for topic_id in sorted(state.topics)]
        self._groups = [state.groups.by_id[group_id] for group_id in sorted(state.groups.by_id)]
        self._offsets = state.groups.copy_offsets()
        self._answers = list(state.sessions.answers.items())
        self._partitions = state.partitions.copy()
        self._tickets = state.tickets.copy()
        self._version = _version_of(state)
        lacks_transactions = self._version == VERSION_WITHOUT_TRANSACTIONS
        self._transactions = None if lacks_transactions else pack_transactions(state.transactions)
        self._security = pack_security(state.security)
        self._owners = pack_owners(state.owners)
        self._instances = pack_instances(state.instances)
        self._leases = pack_leases(state.leases)
        self._short_of_room = tuple(b for b in sorted(state.brokers) if state.brokers[b].short_of_room)
        self._time = (state.time.now_ms, state.time.began_ms, state.time.agreed_ms)
        self._body = Body(
            index=state.index,
            feature_level=state.feature_level,
            next_producer_id=state.next_producer_id,
            brokers=tuple(pack_broker(state, state.brokers[broker_id]) for broker_id in sorted(state.brokers)),
            topics=(),
            answers=(),
            forgotten_index=state.sessions.forgotten_index,
            sessions=tuple(pack_session(name, seen) for name, seen in state.sessions.seen.items()),
            throttle=(state.throttle.leader_rate, state.throttle.follower_rate),
        )
        self._steps = self._pack()

    def step(self) -> bytes | None:
        """Encode another slice. Returns all the bytes once complete."""
        try:
            next(self._steps)
        except StopIteration as done:
            whole: bytes = done.value
            return whole
        return None

    def _pack(self) -> Generator[None, None, bytes]:
        encode_one = _encoder.encode
        topics = yield from self._pack_topics()
        groups = yield from self._pack_groups()
        answers: list[msgspec.Raw] = []
        for start in range(0, len(self._answers), ANSWERS_PER_STEP):
            some = self._answers[start : start + ANSWERS_PER_STEP]
            answers += [msgspec.Raw(encode_one(PackedAnswer(*key, *answer))) for key, answer in some]
            if len(some) == ANSWERS_PER_STEP:
                yield
        yield
        whole = msgspec.structs.replace(self._body, topics=tuple(topics), answers=tuple(answers), groups=tuple(groups))
        if self._transactions is not None:
            transactions = yield from self._transactions
            fields = {**msgspec.structs.asdict(whole), "transactions": transactions}
            if self._version >= VERSION_WITH_TIME:
                fields |= {"time": self._time, "short_of_room": self._short_of_room}
            if self._version >= VERSION_WITH_SECURITY:
                fields |= {"security": (yield from self._security), "owners": (yield from self._owners)}
            if self._version == VERSION:
                instances, leases = (yield from self._instances), (yield from self._leases)
                whole = BodyWithInstances(**fields, instances=instances, leases=leases)
            elif self._version == VERSION_WITH_SECURITY:
                whole = BodyWithSecurity(**fields)
            elif self._version == VERSION_WITH_TIME:
                whole = BodyWithTime(**fields)
            else:
                whole = BodyWithTransactions(**fields)
        body = _encoder.encode(whole)
        yield
        crc = yield from _crc(self._version, body)
        return b"".join((_HEADER.pack(MAGIC, self._version, crc), body))

    def _pack_topics(self) -> Generator[None, None, list[msgspec.Raw]]:
        topics: list[msgspec.Raw] = []
        done = 0
        for topic in self._topics:
            partitions: list[msgspec.Raw] = []
            for number in range(topic.partition_count):
                name = TopicPartition(topic.topic_id, number)
                packed = pack_partition(self._partitions[name], self._tickets.get(name, ()))
                partitions.append(msgspec.Raw(_encoder.encode(packed)))
                done += 1
                if done % PARTITIONS_PER_STEP == 0:
                    yield
            topics.append(msgspec.Raw(_encoder.encode(self._pack_topic(topic, tuple(partitions)))))
        return topics

    def _pack_topic(self, topic: TopicRecord, partitions: tuple[msgspec.Raw, ...]) -> PackedTopic:
        if self._version < VERSION_WITH_TIME:
            return PackedTopic(
                topic_id=topic.topic_id,
                name=topic.name,
                replication_factor=topic.replication_factor,
                configs=topic.configs,
                partitions=partitions,
            )
        return PackedTopicWithCreation(
            topic_id=topic.topic_id,
            name=topic.name,
            replication_factor=topic.replication_factor,
            configs=topic.configs,
            partitions=partitions,
            created_index=topic.created_index,
        )

    def _pack_groups(self) -> Generator[None, None, list[msgspec.Raw]]:
        groups: list[msgspec.Raw] = []
        left = PARTITIONS_PER_STEP
        for group in self._groups:
            packed = pack_group(group, self._offsets.get(group.group_id, {}))
            groups.append(msgspec.Raw(_encoder.encode(packed)))
            left -= 1 + len(packed.offsets) + sum(len(member.owned) for member in packed.members)
            if left <= 0:
                left = PARTITIONS_PER_STEP
                yield
        return groups


def decode_snapshot_in_steps(packed: Buffer) -> Generator[None, None, ClusterImage]:
    """Decode a snapshot in steps of a topic or a bounded number of partitions; it emits no events."""
    state = ClusterImage()
    body = yield from _open(packed)
    state.index = body.index
    state.feature_level = body.feature_level
    state.next_producer_id = body.next_producer_id
    state.sessions.forgotten_index = body.forgotten_index
    state.throttle = ReplicationThrottle(*body.throttle)
    if isinstance(body, BodyWithTime):
        state.time = ClusterTime(*body.time)
    short_of_room = body.short_of_room if isinstance(body, BodyWithTime) else ()
    for broker in body.brokers:
        state.put_broker(replace(unpack_broker(broker), short_of_room=broker.broker_id in short_of_room))
        if broker.starting:
            state.starting.add(broker.broker_id)
    done = 0
    for packed_topic in body.topics:
        topic = _decode(_topic_decoder, packed_topic)
        state.put_topic(
            TopicRecord(
                topic_id=topic.topic_id,
                name=topic.name,
                partition_count=len(topic.partitions),
                replication_factor=topic.replication_factor,
                configs=topic.configs,
                created_index=topic.created_index,
            )
        )
        for number, packed_partition in enumerate(topic.partitions):
            partition = _decode(_partition_decoder, packed_partition)
            record = unpack_partition(TopicPartition(topic.topic_id, number), partition)
            state.put_partition(record, partition.tickets)
            done += 1
            if done % PARTITIONS_PER_STEP == 0:
                state.take_events()
                yield
    if isinstance(body, BodyWithSecurity) and bytes(body.owners):
        # Before the groups: the offsets are counted by owner.
        yield from _checked(state, unpack_owners(state, body.owners))
    for packed_group in body.groups:
        unpack_group(state.groups, _decode(_group_decoder, packed_group))
        yield
    for number, packed_answer in enumerate(body.answers, start=1):
        answer = _decode(_answer_decoder, packed_answer)
        state.sessions.answers[answer.session_id, answer.sequence] = (answer.index, answer.result)
        if number % ANSWERS_PER_STEP == 0:
            yield
    if isinstance(body, BodyWithTransactions):
        yield from _checked(state, unpack_transactions(state.transactions, body.transactions))
    if isinstance(body, BodyWithSecurity):
        yield from _checked(state, unpack_security(state.security, body.security))
    if isinstance(body, BodyWithInstances):
        yield from _checked(state, unpack_instances(state.instances, body.instances))
        yield from _checked(state, unpack_leases(state.leases, body.leases))
    for session in body.sessions:
        state.sessions.seen[session.session_id] = unpack_session(session)
    if not body.sessions:
        state.sessions.derive_seen()
    state.take_events()
    return state


def _open(packed: Buffer) -> Generator[None, None, Body]:
    view = memoryview(packed).cast("B")
    if view.nbytes < _HEADER.size:
        raise RemoteProtocolError(f"{view.nbytes} bytes are no snapshot")
    magic, version, crc = _HEADER.unpack_from(view)
    if magic != MAGIC:
        raise RemoteProtocolError("this is not a snapshot of the metadata")
    if version > VERSION:
        raise UnknownSnapshot(f"a snapshot of version {version}, newer than {VERSION}; this node must be upgraded")
    body = view[_HEADER.size :]
    if version not in _KNOWN or (yield from _crc(version, body)) != crc:
        raise RemoteProtocolError("the snapshot is damaged")
    if version == VERSION:
        return _decode(_decoder_with_instances, body)
    if version == VERSION_WITH_SECURITY:
        return _decode(_decoder_with_security, body)
    if version == VERSION_WITH_TIME:
        return _decode(_decoder_with_time, body)
    if version == VERSION_WITH_TRANSACTIONS:
        return _decode(_decoder_with_transactions, body)
    return _decode(_decoder, body)


def _version_of(state: ClusterImage) -> int:
    """Return the oldest version that holds all of the state: nodes of the cluster's feature level can read it."""
    if state.feature_level >= VERSION_FEATURE_LEVEL:
        return VERSION
    if state.feature_level >= SECURITY_VERSION_FEATURE_LEVEL:
        return VERSION_WITH_SECURITY
    if state.feature_level >= TIME_VERSION_FEATURE_LEVEL:
        return VERSION_WITH_TIME
    return VERSION_WITHOUT_TRANSACTIONS if state.transactions.is_empty else VERSION_WITH_TRANSACTIONS


def _crc(version: int, body: Buffer) -> Generator[None, None, int]:
    view = memoryview(body)
    crc = 0
    if version >= FIRST_WITH_CHECKED_VERSION:
        crc = zlib.crc32(_HEADER.pack(MAGIC, version, 0)[:-_CRC_BYTES])
    for start in range(0, view.nbytes, CRC_BYTES_PER_STEP):
        crc = zlib.crc32(view[start : start + CRC_BYTES_PER_STEP], crc)
        yield
    return crc


def _checked(state: ClusterImage, steps: Generator[None, None, None]) -> Generator[None, None, None]:
    """Run the steps that decode a part of the state. Raises `RemoteProtocolError` for invalid bytes."""
    while True:
        try:
            next(steps)
        except StopIteration:
            return
        except _UNDECODABLE as error:
            raise RemoteProtocolError(f"malformed snapshot: {error}") from None
        state.take_events()
        yield


def _decode(decoder: msgspec.msgpack.Decoder[T], packed: Buffer) -> T:
    try:
        return decoder.decode(packed)
    except _UNDECODABLE as error:
        raise RemoteProtocolError(f"malformed snapshot: {error}") from None
