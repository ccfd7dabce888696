"""Committed offsets of consumer groups: read (with lag), commit, delete, and seek with a plan.

Reads are linearizable (S7): a consumer that was just assigned a partition continues exactly at its predecessor's last
accepted commit (S8).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from aiohttp import web

from http_api.web.bodies import read_json
from http_api.web.call import Call
from http_api.web.listing import describable
from http_api.web.query import check_timestamp
from http_api.web.replies import encoded_reply, json_reply
from http_api.web.topics import partition_numbered, topic_named
from metadata.view import ClusterView, CommittedOffset, GroupRecord
from raftlog import wire
from raftlog.api import groups as documents
from raftlog.errors import InvalidRequest, RaftlogError, RetriableError, error_from_code
from raftlog.json_values import encode
from raftlog.model import TopicId, TopicPartition
from raftlog.security.acls import Operation, Resource, ResourceType

from .groups import group_name, group_of
from .offsets import ISOLATION, Held, find_many, isolation_of, ranges_of

_ROW_COST = 128
"""A row takes about as long as parsing this number of bytes."""


QUERY = ("lag", "isolation")


async def read_offsets(call: Call) -> web.StreamResponse:
    """Return the offsets of every partition in which the group has committed or that a member owns. Lag counts to the
    last stable offset, or to the high watermark if the group reads uncommitted records."""
    with_lag = call.query.choice("lag", ("true", "false"), "false") == "true"
    isolation = isolation_of(call)
    group = await group_of(call)
    rows = await offset_rows(call, group, with_lag=with_lag, isolation=isolation)
    return await encoded_reply(call, _ROW_COST * len(rows), encode, documents.GroupOffsets(group.group_id, rows))


async def offset_rows(
    call: Call, group: GroupRecord, *, with_lag: bool, isolation: int = 1
) -> list[documents.GroupOffsetInfo]:
    """Return a row for every partition in which the group has committed or that a member owns, of the topics that the
    caller may describe, by topic and partition."""
    view = call.view
    committed = dict(view.groups.offsets(group.group_id))
    owners = {partition: member.member_id for member in group.members.values() for partition in member.owned}
    known = [partition for partition in {**committed, **owners} if view.partition(partition) is not None]
    partitions = await _describable(call, known)
    ranges = await ranges_of(call, partitions, isolation) if with_lag else {}

    def rows() -> list[documents.GroupOffsetInfo]:
        partitions.sort(key=lambda tp: (_topic_name(view, tp), tp.partition))
        return [_row(view, tp, committed.get(tp), ranges.get(tp), owners.get(tp)) for tp in partitions]

    return await call.context.threads.run(_ROW_COST * len(partitions), rows)


async def commit_offsets(call: Call) -> web.StreamResponse:
    """Commit all offsets or none. An offset lower than the committed one changes nothing and is not an error (S8)."""
    asked = await read_json(call, documents.CommitOffsets)
    _check_named(call, (one.topic for one in asked.offsets if one.topic_id is None))
    offsets = await _by_topic_id(call, asked.offsets)
    commit = wire.CommitOffsetsRequest(
        0, group_name(call), asked.member_id, asked.incarnation, asked.generation, offsets
    )
    call.check_request(commit)
    await call.context.decided(partial(call.service.groups.commit, commit, principal=call.principal))
    return web.Response(status=204)


async def delete_offsets(call: Call) -> web.StreamResponse:
    """Delete the group's offsets in some partitions, which no member may have, or only return them."""
    asked = await read_json(call, documents.DeleteOffsets)
    _check_named(call, (one.topic for one in asked.topics))
    group = await group_of(call)
    view = call.view
    committed = dict(view.groups.offsets(group.group_id))
    partitions = [partition for partition in _named(view, asked.topics) if partition in committed]
    deleted = [_row(view, partition, committed[partition], None, None) for partition in partitions]
    if not partitions:
        raise InvalidRequest("not_found", f"group {group.group_id!r} has committed no offset there")
    if not asked.plan:
        await call.context.decided(partial(call.service.groups.delete_offsets, group.group_id, partitions))
    return json_reply(documents.DeletedOffsets(group.group_id, not asked.plan, deleted))


async def seek(call: Call) -> web.StreamResponse:
    """Plan a seek of a group without members and, unless only the plan was requested, carry it out."""
    asked = await read_json(call, documents.SeekGroup)
    name = group_name(call)
    _check_named(call, (one.topic for one in asked.topics or ()))
    await call.catch_up(f"group {name!r}")
    view = call.view
    _check_partitions(call, (TopicPartition(TopicId(bytes.fromhex(one.topic_id)), 0) for one in asked.planned))
    group = view.groups.group(name)
    epoch = group.epoch if group is not None else -1
    committed = {partition: one.offset for partition, one in view.groups.offsets(name).items()}
    if asked.topics is None and group is None and asked.to != "planned":
        raise InvalidRequest("unknown_group", f"there is no group {name!r}: to create it, name the topics")
    if group is not None and group.members:
        detail = f"group {name!r} has {len(group.members)} members: stop them first"
        raise InvalidRequest("group_not_empty", detail)
    if asked.to == "planned":
        plan = await _as_planned(call, asked, committed)
    else:
        if asked.topics is None:
            partitions = await _describable(call, sorted(committed))
            _check_partitions(call, partitions)
        else:
            partitions = _named(view, asked.topics)
        plan = await _plan(call, asked, [tp for tp in partitions if view.partition(tp) is not None], committed)
    if not asked.plan:
        await _carry_out(call, name, epoch, plan)
    return json_reply(documents.SoughtGroup(name, not asked.plan, plan))


async def _carry_out(call: Call, name: str, epoch: int, plan: list[documents.SoughtOffset]) -> None:
    """Set the planned offsets in parts, because a command is bounded. Raises as `reset`, and `RetriableError`
    (`outcome_unknown`) if a part fails after others: its own error, that nothing was applied, would be false for
    those."""
    for first in range(0, len(plan), documents.MAX_OFFSETS_PER_REQUEST):
        part = plan[first : first + documents.MAX_OFFSETS_PER_REQUEST]
        offsets = [wire.OffsetToCommit(bytes.fromhex(one.topic_id), one.partition, one.new_offset) for one in part]
        expected = [-1 if one.offset is None else one.offset for one in part]
        reset = partial(call.service.groups.reset, name, epoch, offsets, expected, principal=call.principal)
        try:
            await call.context.decided(reset)
        except RaftlogError as error:
            if not first:
                raise
            done = f"{first} of {len(plan)} offsets of group {name!r} were set before a part failed"
            raise RetriableError("outcome_unknown", f"{done}: {error.detail}; make a new plan") from None
        created = call.service.view.groups.group(name)
        epoch = created.epoch if created is not None else epoch


async def _plan(
    call: Call,
    asked: documents.SeekGroup,
    partitions: list[TopicPartition],
    committed: Mapping[TopicPartition, int],
) -> list[documents.SoughtOffset]:
    view, isolation = call.service.view, ISOLATION[asked.isolation]
    ranges = await ranges_of(call, partitions, isolation)
    times: dict[TopicPartition, int] = {}
    if asked.to in ("timestamp", "duration"):
        time = asked.value if asked.to == "timestamp" else call.context.clock_ms() - asked.value
        time = check_timestamp("value", time)
        queries = [wire.OffsetQuery(tp.topic_id, tp.partition, time) for tp in partitions]
        for found in await find_many(call, queries, isolation):
            if found.error:
                raise error_from_code(found.error, found.detail, found.leader)
            times[TopicPartition(TopicId(found.topic_id), found.partition)] = found.offset
    plan = []
    for partition in partitions:
        topic, current = _topic_name(view, partition), committed.get(partition)
        held = _held(ranges, partition, topic)
        new = new_offset(asked.to, asked.value, current, held, times.get(partition, -1))
        plan.append(_sought(topic, partition, current, new, held))
    return plan


async def _as_planned(
    call: Call, asked: documents.SeekGroup, committed: Mapping[TopicPartition, int]
) -> list[documents.SoughtOffset]:
    """Return the plan that the user confirmed, if it still applies. Raises `InvalidRequest` (`offset_moved`,
    `offset_out_of_range`)."""
    rows = {TopicPartition(TopicId(bytes.fromhex(one.topic_id)), one.partition): one for one in asked.planned}
    if not rows or len(rows) != len(asked.planned):
        raise InvalidRequest("invalid_request", "a plan must name at least one partition, and each only once")
    view = call.service.view
    ranges = await ranges_of(call, rows, ISOLATION[asked.isolation])
    plan = []
    for partition, row in rows.items():
        where, current = f"{row.topic}/{row.partition}", committed.get(partition)
        if view.partition(partition) is None:
            raise InvalidRequest("unknown_partition", f"{where} no longer exists: make a new plan")
        held = _held(ranges, partition, row.topic)
        if current != row.offset:
            detail = f"{where}: {current} is committed, but the plan was made at {row.offset}: make a new one"
            raise InvalidRequest("offset_moved", detail)
        if not held.start <= row.new_offset <= held.end:
            detail = f"{where}: {row.new_offset} is not between {held.start} and {held.end} now: make a new plan"
            raise InvalidRequest("offset_out_of_range", detail)
        plan.append(_sought(_topic_name(view, partition), partition, current, row.new_offset, held))
    return plan


def _held(ranges: Mapping[TopicPartition, Held], partition: TopicPartition, topic: str) -> Held:
    """Raises `RetriableError` for a partition without a leader."""
    if partition not in ranges:
        raise RetriableError("leader_not_available", f"{topic}/{partition.partition} has no leader now: retry later")
    return ranges[partition]


def _sought(topic: str, partition: TopicPartition, current: int | None, new: int, held: Held) -> documents.SoughtOffset:
    topic_id = partition.topic_id.hex()
    return documents.SoughtOffset(topic, topic_id, partition.partition, current, new, held.start, held.end)


def new_offset(to: str, value: int, current: int | None, held: Held, at_time: int) -> int:
    """Return the group's new offset, within the partition's range. `at_time`: the offset of the first record at the
    given time, -1 if there is none. Raises `InvalidRequest`."""
    match to:
        case "earliest":
            wanted = held.start
        case "latest":
            wanted = held.end
        case "offset":
            wanted = value
        case "shift":
            if current is None:
                raise InvalidRequest("invalid_request", "shift needs a committed offset in every partition")
            wanted = current + value
        case _:
            wanted = at_time if at_time >= 0 else held.end
    return min(max(wanted, held.start), held.end)


async def _by_topic_id(call: Call, asked: Sequence[documents.OffsetToCommit]) -> list[wire.OffsetToCommit]:
    """Return the offsets to commit, by topic id. A name means the topic that the quorum knows by it at present (S7):
    this node's view may still have a deleted one. Raises `InvalidRequest`."""
    named = next((one.topic for one in asked if one.topic_id is None), None)
    if named is not None:
        await call.catch_up(f"topic {named!r}")
    offsets: list[wire.OffsetToCommit] = []
    topic_id, last = TopicId(b""), None
    for one in asked:
        # Most requests repeat one topic.
        name = (one.topic_id, one.topic)
        if name != last:
            topic_id, last = _topic_id(call.service.view, one), name
        offsets.append(wire.OffsetToCommit(topic_id, one.partition, one.offset, one.leader_epoch, one.metadata))
    return offsets


def _topic_id(view: ClusterView, one: documents.OffsetToCommit) -> TopicId:
    """Raises `InvalidRequest`."""
    if one.topic_id is not None:
        return TopicId(bytes.fromhex(one.topic_id))
    return topic_named(view, one.topic).topic_id


def _check_named(call: Call, topics: Iterable[str]) -> None:
    """Raise `InvalidRequest` (`authorization_failed`) for a topic that the caller may not read, whether it exists or
    not."""
    for name in dict.fromkeys(topics):
        call.check(Operation.READ, Resource(ResourceType.TOPIC, name))


def _check_partitions(call: Call, partitions: Iterable[TopicPartition]) -> None:
    """Raise `InvalidRequest` (`authorization_failed`) for a partition of a topic that the caller may not read."""
    topics = map(call.view.topic_by_id, {partition.topic_id: None for partition in partitions})
    _check_named(call, (topic.name for topic in topics if topic is not None))


async def _describable(call: Call, partitions: Sequence[TopicPartition]) -> list[TopicPartition]:
    """Return the partitions of topics that the caller may describe. The others are left out, like those of topics that
    do not exist."""
    topic_ids = {partition.topic_id for partition in partitions}
    shown = set(await describable(call, ResourceType.TOPIC, topic_ids, partial(_name_of, call.view)))
    return [partition for partition in partitions if partition.topic_id in shown]


def _named(view: ClusterView, topics: list[documents.SeekTopic]) -> list[TopicPartition]:
    """Raises `InvalidRequest`."""
    found: dict[TopicPartition, None] = {}
    for named in topics:
        topic = topic_named(view, named.topic)
        for number in range(topic.partition_count) if named.partitions is None else named.partitions:
            found[partition_numbered(topic, number)] = None
    return list(found)


def _row(
    view: ClusterView,
    partition: TopicPartition,
    committed: CommittedOffset | None,
    held: Held | None,
    owner: str | None,
) -> documents.GroupOffsetInfo:
    lag = max(0, held.end - committed.offset) if committed is not None and held is not None else None
    return documents.GroupOffsetInfo(
        _topic_name(view, partition),
        partition.topic_id.hex(),
        partition.partition,
        committed.offset if committed is not None else None,
        committed.leader_epoch if committed is not None else -1,
        committed.metadata if committed is not None else "",
        committed.commit_timestamp_ms if committed is not None else None,
        held.start if held is not None else None,
        held.end if held is not None else None,
        lag,
        owner,
    )


def _topic_name(view: ClusterView, partition: TopicPartition) -> str:
    return _name_of(view, partition.topic_id)


def _name_of(view: ClusterView, topic_id: TopicId) -> str:
    topic = view.topic_by_id(topic_id)
    return topic.name if topic is not None else ""
