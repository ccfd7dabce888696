"""Answers to members of consumer groups, as this node's view has the group."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from metadata.view import ClusterView
from metadata.view import CommittedOffset as ViewedOffset
from raftlog.errors import InvalidRequest
from raftlog.model import TopicId, TopicPartition
from raftlog.wire import AssignedTopic, CommittedOffset, GroupOffsetsResponse, MembershipResponse


def membership_of(
    view: ClusterView, correlation_id: int, group_id: str, member_id: str, incarnation: int
) -> MembershipResponse:
    """Return the membership. Raises `InvalidRequest` if it is not, or no longer, a member."""
    group = view.groups.group(group_id)
    member = None if group is None else group.members.get(member_id)
    if group is None or member is None:
        raise InvalidRequest("unknown_member", f"group {group_id!r} has no member {member_id!r}: it must join again")
    if member.incarnation != incarnation:
        raise InvalidRequest("member_fenced", f"member {member_id!r} joined again, as {member.incarnation}")
    assigned, revoking = _by_topic(view, member.assigned), _by_topic(view, member.revoking)
    return MembershipResponse(correlation_id, incarnation, member.generation, group.state.value, assigned, revoking)


def offsets_of(
    view: ClusterView, correlation_id: int, committed: Mapping[TopicPartition, ViewedOffset]
) -> GroupOffsetsResponse:
    """Return a group's committed offsets in the partitions that exist."""
    found: list[CommittedOffset] = []
    for where, one in committed.items():
        topic = view.topic_by_id(where.topic_id)
        if topic is not None and where.partition < topic.partition_count:
            found.append(
                CommittedOffset(where.topic_id, topic.name, where.partition, one.offset, one.leader_epoch, one.metadata)
            )
    return GroupOffsetsResponse(correlation_id, found)


def _by_topic(view: ClusterView, partitions: Iterable[TopicPartition]) -> list[AssignedTopic]:
    """Return the partitions grouped by topic, in their order; deleted topics are left out."""
    found: dict[TopicId, AssignedTopic] = {}
    for partition in partitions:
        topic = view.topic_by_id(partition.topic_id)
        if topic is not None:
            empty = AssignedTopic(topic.topic_id, topic.name, [])
            found.setdefault(topic.topic_id, empty).partitions.append(partition.partition)
    return list(found.values())
