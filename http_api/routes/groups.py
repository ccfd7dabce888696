"""Consumer groups: list, describe, join, heartbeat, leave, delete.

A membership consists of three calls: join once, a heartbeat every few seconds, leave at the end. Every answer to a
heartbeat has the partitions that the member may read and those that it must release; it names the released ones in its
next heartbeat.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable

from aiohttp import web

from http_api.models.groups import (
    AssignedTopic,
    GroupDescription,
    Groups,
    GroupSummary,
    Heartbeat,
    JoinGroup,
    MemberDescription,
    Membership,
    ReleasedTopic,
)
from http_api.models.topics import known
from http_api.service.groups import WantedMembership
from http_api.web.bodies import JSON_TYPE, read_json
from http_api.web.context import DECISION_TIMEOUT_S, ApiContext, context_of
from http_api.web.query import Query, integer
from http_api.web.replies import bulk_reply, json_reply
from metadata.view import ClusterView, GroupRecord, MemberRecord, in_order
from raftlog.errors import InvalidRequest
from raftlog.json_values import encode
from raftlog.model import TopicId, TopicPartition

MAX_NAME_LENGTH = 255
MAX_INCARNATION = 2**62
"""The greatest incarnation that a command can carry."""
_GROUP_COST = 256
"""Listing a group, or describing a member, takes about as long as parsing this number of bytes."""
_PARTITION_COST = 32
"""The same for a partition of its assignment."""


async def list_groups(request: web.Request) -> web.StreamResponse:
    context = context_of(request)
    Query(request)
    groups = context.service.view.groups.groups()
    body = await context.threads.run(_GROUP_COST * len(groups), _list, groups)
    return await bulk_reply(request, context, body, JSON_TYPE, {})


async def describe_group(request: web.Request) -> web.StreamResponse:
    context = context_of(request)
    Query(request)
    group = await group_of(request, context)
    partitions = sum(len(member.owned) + len(member.target) for member in group.members.values())
    cost = _GROUP_COST * len(group.members) + _PARTITION_COST * partitions
    body = await context.threads.run(cost, _describe, context.service.view, group)
    return await bulk_reply(request, context, body, JSON_TYPE, {})


async def delete_group(request: web.Request) -> web.StreamResponse:
    """Delete the group with its offsets."""
    context = context_of(request)
    Query(request)
    await context.finish(context.service.groups.delete(group_name(request)), DECISION_TIMEOUT_S)
    return web.Response(status=204)


async def join_group(request: web.Request) -> web.StreamResponse:
    context = context_of(request)
    Query(request)
    asked = await read_json(request, context, JoinGroup)
    member_id = _name("a member", asked.member_id) if asked.member_id else _new_member_id(asked.client_id)
    wanted = WantedMembership(
        group_name(request),
        member_id,
        asked.instance_id,
        asked.client_id,
        request.remote or "",
        tuple(asked.topics),
        asked.pattern,
        asked.assignor,
        asked.session_timeout_ms,
        asked.rebalance_timeout_ms,
    )
    incarnation = await context.finish(context.service.groups.join(wanted), DECISION_TIMEOUT_S)
    return json_reply(_membership(context.service.view, wanted.group_id, member_id, incarnation), status=201)


async def heartbeat(request: web.Request) -> web.StreamResponse:
    """Answer a heartbeat: decide the releases, renew the session at the coordinator, return the present assignment."""
    context = context_of(request)
    Query(request)
    asked = await read_json(request, context, Heartbeat)
    group_id, member_id = group_name(request), _member_name(request)
    groups = context.service.groups
    # A stale node would return an assignment that is no longer valid.
    if context.service.view.index < max(asked.incarnation, asked.generation):
        await context.catch_up(f"member {member_id!r}")
    if asked.released:
        given_up = _released(asked.released)
        release = groups.release(group_id, member_id, asked.incarnation, asked.generation, given_up)
        await context.finish(release, DECISION_TIMEOUT_S)
    # It has no partial effect, and a deadline of its own.
    await groups.heartbeat(group_id, member_id, asked.incarnation)
    return json_reply(_membership(context.service.view, group_id, member_id, asked.incarnation))


async def leave_group(request: web.Request) -> web.StreamResponse:
    context = context_of(request)
    text = Query(request, ("incarnation",)).text("incarnation")
    if text is None:
        raise InvalidRequest("invalid_request", "which incarnation leaves must be said: ?incarnation=")
    incarnation = integer("incarnation", text, 0, MAX_INCARNATION)
    leave = context.service.groups.leave(group_name(request), _member_name(request), incarnation)
    await context.finish(leave, DECISION_TIMEOUT_S)
    return web.Response(status=204)


def group_name(request: web.Request) -> str:
    """Return the group in the path. Raises `InvalidRequest`."""
    return _name("a group", request.match_info["group"])


async def group_of(request: web.Request, context: ApiContext) -> GroupRecord:
    """Return the group's present state (S7). Raises `InvalidRequest("unknown_group")`."""
    name = group_name(request)
    await context.catch_up(f"group {name!r}")
    group = context.service.view.groups.group(name)
    if group is None:
        raise InvalidRequest("unknown_group", f"there is no group {name!r}")
    return group


def by_topic(view: ClusterView, partitions: Iterable[TopicPartition]) -> list[AssignedTopic]:
    """Return the partitions grouped by topic, in their order; deleted topics are left out."""
    found: dict[TopicId, AssignedTopic] = {}
    for partition in partitions:
        topic = view.topic_by_id(partition.topic_id)
        if topic is not None:
            empty = AssignedTopic(topic.name, topic.topic_id.hex(), [])
            found.setdefault(topic.topic_id, empty).partitions.append(partition.partition)
    return list(found.values())


def _member_name(request: web.Request) -> str:
    return _name("a member", request.match_info["member"])


def _name(what: str, name: str) -> str:
    if not 0 < len(name) <= MAX_NAME_LENGTH or not name.isprintable():
        raise InvalidRequest("invalid_request", f"{what} has a name of 1 to {MAX_NAME_LENGTH} printable characters")
    return name


def _new_member_id(client_id: str) -> str:
    return f"{client_id[:200] or 'consumer'}-{secrets.token_hex(16)}"


def _released(released: list[ReleasedTopic]) -> list[TopicPartition]:
    return [
        TopicPartition(TopicId(bytes.fromhex(one.topic_id)), number) for one in released for number in one.partitions
    ]


def _membership(view: ClusterView, group_id: str, member_id: str, incarnation: int) -> Membership:
    """Return the membership. Raises `InvalidRequest` if it is not, or no longer, a member."""
    group = view.groups.group(group_id)
    member = None if group is None else group.members.get(member_id)
    if group is None or member is None:
        raise InvalidRequest("unknown_member", f"group {group_id!r} has no member {member_id!r}: it must join again")
    if member.incarnation != incarnation:
        raise InvalidRequest("member_fenced", f"member {member_id!r} joined again, as {member.incarnation}")
    assigned, revoking = by_topic(view, member.assigned), by_topic(view, member.revoking)
    return Membership(group_id, member_id, incarnation, member.generation, group.state.value, assigned, revoking)


def _list(groups: list[GroupRecord]) -> bytes:
    summaries = [GroupSummary(g.group_id, g.state.value, g.assignor, len(g.members)) for g in groups]
    return encode(Groups(summaries))


def _describe(view: ClusterView, group: GroupRecord) -> bytes:
    members = [_described(view, group.members[member_id]) for member_id in sorted(group.members)]
    coordinator, state = known(view.controller), group.state.value
    return encode(
        GroupDescription(group.group_id, state, group.assignor, group.epoch, group.target_epoch, coordinator, members)
    )


def _described(view: ClusterView, member: MemberRecord) -> MemberDescription:
    return MemberDescription(
        member.member_id,
        member.instance_id,
        member.client_id,
        member.client_host,
        member.incarnation,
        member.generation,
        member.topics,
        member.pattern,
        member.session_timeout_ms,
        member.rebalance_timeout_ms,
        by_topic(view, member.assigned),
        by_topic(view, member.revoking),
        by_topic(view, in_order(member.target)),
    )
