"""Groups as bytes inside a snapshot: topics by id, everything sorted, nothing derived."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import asdict

from metadata.commands.fields import WireStruct
from metadata.commands.groups import TopicPartitions, pack_partitions, unpack_partitions
from metadata.image.group_state import GroupsState
from metadata.records.groups import CommittedOffset, GroupRecord, MemberRecord, in_order
from raftlog.model import Offset, TopicId, TopicPartition


class _Owned(WireStruct, frozen=True):
    topic_id: TopicId
    partition: int
    granted: int


class _Member(WireStruct, frozen=True):
    member_id: str
    instance_id: str
    incarnation: int
    client_id: str
    client_host: str
    topics: tuple[str, ...]
    pattern: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    generation: int
    owned: tuple[_Owned, ...]
    target: tuple[TopicPartitions, ...]


class _Offset(WireStruct, frozen=True):
    topic_id: TopicId
    partition: int
    offset: Offset
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int


class PackedGroup(WireStruct, frozen=True):
    """A group with its offsets."""

    group_id: str
    epoch: int
    target_epoch: int
    assignor: str
    empty_since_ms: int
    members: tuple[_Member, ...]
    offsets: tuple[_Offset, ...]


def pack_group(group: GroupRecord, offsets: Mapping[TopicPartition, CommittedOffset]) -> PackedGroup:
    """Encode a group. Equal groups give equal bytes."""
    return PackedGroup(
        group.group_id,
        group.epoch,
        group.target_epoch,
        group.assignor,
        group.empty_since_ms,
        tuple(_pack_member(group.members[member_id]) for member_id in sorted(group.members)),
        tuple(_pack_offset(partition, offsets[partition]) for partition in in_order(offsets)),
    )


def unpack_group(state: GroupsState, packed: PackedGroup) -> None:
    """Decode a group into a state that does not have it."""
    members = {member.member_id: _unpack_member(member) for member in packed.members}
    topics = {p.topic_id: None for member in members.values() for p in (*member.owned, *member.target)}
    group = GroupRecord(
        packed.group_id, packed.epoch, packed.target_epoch, packed.assignor, packed.empty_since_ms, members
    )
    state.put_group(group, topics)
    offsets = {
        TopicPartition(one.topic_id, one.partition): CommittedOffset(
            one.offset, one.leader_epoch, one.metadata, one.commit_timestamp_ms
        )
        for one in packed.offsets
    }
    state.put_offsets(packed.group_id, offsets)


def _pack_member(member: MemberRecord) -> _Member:
    owned = tuple(_Owned(p.topic_id, p.partition, member.owned[p]) for p in in_order(member.owned))
    return _Member(**{**asdict(member), "owned": owned, "target": pack_partitions(member.target)})


def _unpack_member(packed: _Member) -> MemberRecord:
    owned = {TopicPartition(one.topic_id, one.partition): one.granted for one in packed.owned}
    return MemberRecord(**{**asdict(packed), "owned": owned, "target": frozenset(unpack_partitions(packed.target))})


def _pack_offset(partition: TopicPartition, committed: CommittedOffset) -> _Offset:
    return _Offset(
        partition.topic_id,
        partition.partition,
        committed.offset,
        committed.leader_epoch,
        committed.metadata,
        committed.commit_timestamp_ms,
    )
