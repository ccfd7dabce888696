"""Consumer groups: list, describe, join, heartbeat, leave, delete.

A membership consists of three calls: join once, a heartbeat every few seconds, leave at the end. Every answer to a
heartbeat has the partitions that the member may read and those that it must release; it names the released ones in its
next heartbeat.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from functools import partial
from itertools import chain
from operator import attrgetter

from aiohttp import web

from http_api.service.groups import check_name
from http_api.web.bodies import read_json
from http_api.web.call import Call
from http_api.web.listing import describable
from http_api.web.query import integer
from http_api.web.replies import document_of, encoded_reply, json_reply, known
from metadata.view import ClusterView, GroupRecord, MemberRecord, in_order
from raftlog import wire
from raftlog.api import groups as documents
from raftlog.errors import InvalidRequest
from raftlog.json_values import encode
from raftlog.model import TopicId, TopicPartition
from raftlog.security.acls import Operation, ResourceType

from .offsets import ISOLATION, ranges_of

LIST_QUERY = ("lag",)
MOST_WITH_LAG = 100
"""The most groups whose lag a list has."""
MOST_OFFSETS_WITH_LAG = 5_000
"""The most committed offsets that are compared for it."""
MAX_INCARNATION = 2**62
"""The greatest incarnation that a command can carry."""
_GROUP_COST = 256
"""Listing a group, or describing a member, takes about as long as parsing this number of bytes."""
_PARTITION_COST = 32
"""The same for a partition of its assignment."""


async def list_groups(call: Call) -> web.StreamResponse:
    """List the groups; with `lag=true`, the lag of the first `MOST_WITH_LAG` of them, over topics that the caller may
    describe."""
    with_lag = call.query.choice("lag", ("true", "false"), "false") == "true"
    groups = await describable(call, ResourceType.GROUP, call.view.groups.groups(), attrgetter("group_id"))
    lags = await _lags(call, groups[:MOST_WITH_LAG]) if with_lag else {}
    return await encoded_reply(call, _GROUP_COST * len(groups), _list, groups, lags)


async def _lags(call: Call, groups: Iterable[GroupRecord]) -> dict[str, int]:
    """Return group → lag, from one question about all partitions in which the groups have committed."""
    view = call.view
    visible: dict[TopicId, bool] = {}
    committed: list[tuple[str, TopicPartition, int]] = []
    for group in groups:
        for tp, offset in view.groups.offsets(group.group_id).items():
            topic = view.topic_by_id(tp.topic_id)
            if tp.topic_id not in visible:
                visible[tp.topic_id] = topic is not None and call.may(
                    Operation.DESCRIBE, ResourceType.TOPIC, topic.name
                )
            if visible[tp.topic_id] and len(committed) < MOST_OFFSETS_WITH_LAG:
                committed.append((group.group_id, tp, offset.offset))
    partitions = dict.fromkeys(tp for _, tp, _ in committed if view.partition(tp) is not None)
    ranges = await ranges_of(call, partitions, ISOLATION["read_committed"])
    lags: dict[str, int] = {}
    for name, tp, at in committed:
        if tp in ranges:
            lags[name] = lags.get(name, 0) + max(0, ranges[tp].end - at)
    return lags


async def describe_group(call: Call) -> web.StreamResponse:
    group = await group_of(call)
    partitions = sum(len(member.owned) + len(member.target) for member in group.members.values())
    cost = _GROUP_COST * len(group.members) + _PARTITION_COST * partitions
    hidden = await _hidden_topics(call, group)
    return await encoded_reply(call, cost, _describe, call.view, group, hidden)


async def delete_group(call: Call) -> web.StreamResponse:
    """Delete the group with its offsets."""
    name = group_name(call)
    await call.context.decided(partial(call.service.groups.delete, name))
    return web.Response(status=204)


async def join_group(call: Call) -> web.StreamResponse:
    asked = await read_json(call, documents.JoinGroup)
    member_id = check_name("a member", asked.member_id) if asked.member_id else _new_member_id(asked.client_id)
    join = wire.JoinGroupRequest(
        0,
        group_name(call),
        member_id,
        asked.instance_id,
        asked.client_id,
        asked.topics,
        asked.pattern,
        asked.assignor,
        asked.session_timeout_ms,
        asked.rebalance_timeout_ms,
    )
    call.check_request(join)
    joined = await call.context.decided(
        partial(call.service.groups.join, join, call.request.remote or "", principal=call.principal)
    )
    return json_reply(documents.MembershipInfo.of(join.group_id, member_id, joined), status=201)


async def heartbeat(call: Call) -> web.StreamResponse:
    """Answer a heartbeat with the present assignment."""
    asked = await read_json(call, documents.Heartbeat)
    group_id, member_id = group_name(call), _member_name(call)
    released = [wire.ReleasedTopic(bytes.fromhex(one.topic_id), one.partitions) for one in asked.released]
    beat = wire.MemberHeartbeatRequest(0, group_id, member_id, asked.incarnation, asked.generation, released)
    heard = await call.context.decided(partial(call.service.groups.heartbeat, beat))
    return json_reply(documents.MembershipInfo.of(group_id, member_id, heard))


async def leave_group(call: Call) -> web.StreamResponse:
    text = call.query.text("incarnation")
    if text is None:
        raise InvalidRequest(
            "invalid_request", "the query parameter incarnation is missing: name the incarnation that leaves"
        )
    incarnation = integer("incarnation", text, 0, MAX_INCARNATION)
    leave = wire.LeaveGroupRequest(0, group_name(call), _member_name(call), incarnation)
    await call.context.decided(partial(call.service.groups.leave, leave))
    return web.Response(status=204)


def group_name(call: Call) -> str:
    """Return the group in the path. Raises `InvalidRequest`."""
    return check_name("a group", call.segment("group"))


async def group_of(call: Call) -> GroupRecord:
    """Return the group's present state (S7). Raises `InvalidRequest("unknown_group")`."""
    name = group_name(call)
    await call.catch_up(f"group {name!r}")
    group = call.view.groups.group(name)
    if group is None:
        raise InvalidRequest("unknown_group", f"there is no group {name!r}")
    return group


async def _hidden_topics(call: Call, group: GroupRecord) -> frozenset[str]:
    """Return the topics of the group that the caller may not describe. They are left out, like topics that do not
    exist."""
    ids = {tp.topic_id for member in group.members.values() for tp in chain(member.owned, member.target)}
    named = {name for member in group.members.values() for name in member.topics}
    named |= {topic.name for topic in map(call.view.topic_by_id, ids) if topic is not None}
    return frozenset(named.difference(await describable(call, ResourceType.TOPIC, named, str)))


def by_topic(
    view: ClusterView, partitions: Iterable[TopicPartition], hidden: frozenset[str]
) -> list[documents.AssignedTopic]:
    """Return the partitions grouped by topic, in their order; deleted and hidden topics are left out."""
    found: dict[TopicId, documents.AssignedTopic] = {}
    for partition in partitions:
        topic = view.topic_by_id(partition.topic_id)
        if topic is not None and topic.name not in hidden:
            empty = documents.AssignedTopic(topic.name, topic.topic_id.hex(), [])
            found.setdefault(topic.topic_id, empty).partitions.append(partition.partition)
    return list(found.values())


def _member_name(call: Call) -> str:
    return check_name("a member", call.segment("member"))


def _new_member_id(client_id: str) -> str:
    return f"{client_id[:200] or 'consumer'}-{secrets.token_hex(16)}"


def _list(groups: list[GroupRecord], lags: Mapping[str, int]) -> bytes:
    summaries = [
        documents.GroupSummary(g.group_id, g.state.value, g.assignor, len(g.members), lags.get(g.group_id))
        for g in groups
    ]
    return encode(documents.Groups(summaries))


def _describe(view: ClusterView, group: GroupRecord, hidden: frozenset[str]) -> bytes:
    members = [_described(view, group.members[member_id], hidden) for member_id in sorted(group.members)]
    coordinator, state = known(view.controller), group.state.value
    return encode(
        document_of(
            documents.GroupInfo, group, group=group.group_id, state=state, coordinator=coordinator, members=members
        )
    )


def _described(view: ClusterView, member: MemberRecord, hidden: frozenset[str]) -> documents.GroupMemberInfo:
    return document_of(
        documents.GroupMemberInfo,
        member,
        host=member.client_host,
        topics=[name for name in member.topics if name not in hidden],
        assigned=by_topic(view, member.assigned, hidden),
        revoking=by_topic(view, member.revoking, hidden),
        target=by_topic(view, in_order(member.target), hidden),
    )
