"""Committed offsets of consumer groups: read (with lag), commit, and seek with a plan.

Reads are linearizable (S7): a consumer that was just assigned a partition continues exactly at its predecessor's last
accepted commit (S8).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from aiohttp import web

from http_api.models.groups import (
    MAX_OFFSETS_PER_REQUEST,
    CommitOffsets,
    GroupOffset,
    GroupOffsets,
    OffsetToCommit,
    SeekGroup,
    SeekTopic,
    SoughtGroup,
    SoughtOffset,
)
from http_api.service.groups import WantedOffset
from http_api.web.bodies import JSON_TYPE, read_json
from http_api.web.context import DECISION_TIMEOUT_S, ApiContext, context_of
from http_api.web.query import Query, check_timestamp, unknown_partition
from http_api.web.replies import bulk_reply, json_reply
from metadata.view import ClusterView, CommittedOffset
from raftlog.errors import InvalidRequest, RaftlogError, RetriableError, error_from_code
from raftlog.json_values import encode
from raftlog.model import TopicId, TopicPartition
from raftlog.wire import TIMESTAMP_EARLIEST, TIMESTAMP_LATEST, FoundOffset, OffsetQuery, OffsetsRequest

from .groups import group_name, group_of
from .offsets import ISOLATION, OFFSETS_TIMEOUT_S, isolation_of

_ROW_COST = 128
"""A row takes about as long as parsing this number of bytes."""


QUERY = ("lag", "isolation")


async def read_offsets(request: web.Request) -> web.StreamResponse:
    """Return the offsets of every partition in which the group has committed or that a member owns. Lag counts to the
    last stable offset, or to the high watermark if the group reads uncommitted records."""
    context = context_of(request)
    query = Query(request, QUERY)
    with_lag = query.choice("lag", ("true", "false"), "false") == "true"
    isolation = isolation_of(query)
    group = await group_of(request, context)
    view = context.service.view
    committed = dict(view.groups.offsets(group.group_id))
    owners = {partition: member.member_id for member in group.members.values() for partition in member.owned}
    partitions = [partition for partition in {**committed, **owners} if view.partition(partition) is not None]
    ranges = await _ranges(context, partitions, isolation) if with_lag else {}
    body = await context.threads.run(
        _ROW_COST * len(partitions), _rows, view, group.group_id, partitions, committed, ranges, owners
    )
    return await bulk_reply(request, context, body, JSON_TYPE, {})


async def commit_offsets(request: web.Request) -> web.StreamResponse:
    """Commit all offsets or none. An offset lower than the committed one changes nothing and is not an error (S8)."""
    context = context_of(request)
    Query(request)
    asked = await read_json(request, context, CommitOffsets)
    if context.service.view.index < asked.generation:
        await context.catch_up("a partition")
    offsets = await _wanted(context, asked.offsets)
    commit = context.service.groups.commit(
        group_name(request), asked.member_id, asked.incarnation, asked.generation, offsets
    )
    await context.decisions.wait(commit)
    return web.Response(status=204)


async def seek(request: web.Request) -> web.StreamResponse:
    """Plan a seek of a group without members and, unless only the plan was requested, carry it out."""
    context = context_of(request)
    Query(request)
    asked = await read_json(request, context, SeekGroup)
    name = group_name(request)
    await context.catch_up(f"group {name!r}")
    view = context.service.view
    group = view.groups.group(name)
    epoch = group.epoch if group is not None else -1
    committed = dict(view.groups.offsets(name))
    if asked.topics is None and group is None and asked.to != "planned":
        raise InvalidRequest("unknown_group", f"there is no group {name!r}; a new one must be told its topics")
    if group is not None and group.members:
        detail = f"group {name!r} has {len(group.members)} members: stop them first"
        raise InvalidRequest("group_not_empty", detail)
    if asked.to == "planned":
        plan = await _as_planned(context, asked, committed)
    else:
        partitions = sorted(committed) if asked.topics is None else _named(view, asked.topics)
        plan = await _plan(context, asked, [tp for tp in partitions if view.partition(tp) is not None], committed)
    if not asked.plan:
        await _carry_out(context, name, epoch, plan)
    rows = [
        SoughtOffset(
            _topic_name(view, one.topic_partition),
            one.topic_partition.topic_id.hex(),
            one.topic_partition.partition,
            one.offset,
            one.new_offset,
            one.held.start,
            one.held.end,
        )
        for one in plan
    ]
    return json_reply(SoughtGroup(name, not asked.plan, rows))


async def _carry_out(context: ApiContext, name: str, epoch: int, plan: list[_Planned]) -> None:
    """Set the planned offsets in parts, because a command is bounded. Raises as `reset`, and `RetriableError`
    (`outcome_unknown`) if a part fails after others: its own error, that nothing was applied, would be false for
    those."""
    for first in range(0, len(plan), MAX_OFFSETS_PER_REQUEST):
        part = plan[first : first + MAX_OFFSETS_PER_REQUEST]
        offsets = [WantedOffset(one.topic_partition, one.new_offset) for one in part]
        expected = [-1 if one.offset is None else one.offset for one in part]
        try:
            await context.finish(context.service.groups.reset(name, epoch, offsets, expected), DECISION_TIMEOUT_S)
        except RaftlogError as error:
            if not first:
                raise
            done = f"{first} of {len(plan)} offsets of group {name!r} are set, then a part failed"
            raise RetriableError("outcome_unknown", f"{done}: {error.detail}; make a new plan") from None
        created = context.service.view.groups.group(name)
        epoch = created.epoch if created is not None else epoch


@dataclass(frozen=True, slots=True)
class Held:
    """The offsets of a partition."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class _Planned:
    topic_partition: TopicPartition
    offset: int | None
    new_offset: int
    held: Held


async def _plan(
    context: ApiContext,
    asked: SeekGroup,
    partitions: list[TopicPartition],
    committed: Mapping[TopicPartition, CommittedOffset],
) -> list[_Planned]:
    isolation = ISOLATION[asked.isolation]
    ranges = await _ranges(context, partitions, isolation)
    times: dict[TopicPartition, int] = {}
    if asked.to in ("timestamp", "duration"):
        time = asked.value if asked.to == "timestamp" else context.clock_ms() - asked.value
        time = check_timestamp("value", time)
        queries = [OffsetQuery(tp.topic_id, tp.partition, time) for tp in partitions]
        for found in await _find(context, queries, isolation):
            if found.error:
                raise error_from_code(found.error, found.detail, found.leader)
            times[TopicPartition(TopicId(found.topic_id), found.partition)] = found.offset
    plan = []
    for partition in partitions:
        held = ranges.get(partition)
        if held is None:
            topic = _topic_name(context.service.view, partition)
            raise RetriableError("leader_not_available", f"nobody leads {topic}/{partition.partition} now")
        current = committed[partition].offset if partition in committed else None
        new = new_offset(asked.to, asked.value, current, held, times.get(partition, -1))
        plan.append(_Planned(partition, current, new, held))
    return plan


async def _as_planned(
    context: ApiContext, asked: SeekGroup, committed: Mapping[TopicPartition, CommittedOffset]
) -> list[_Planned]:
    """Return the plan that the user confirmed, if it still applies. Raises `InvalidRequest` (`offset_moved`,
    `offset_out_of_range`)."""
    rows = {TopicPartition(TopicId(bytes.fromhex(one.topic_id)), one.partition): one for one in asked.planned}
    if not rows or len(rows) != len(asked.planned):
        raise InvalidRequest("invalid_request", "a plan names some partitions, each once")
    ranges = await _ranges(context, rows, ISOLATION[asked.isolation])
    plan = []
    for partition, row in rows.items():
        where, held = f"{row.topic}/{row.partition}", ranges.get(partition)
        if context.service.view.partition(partition) is None:
            raise InvalidRequest("unknown_partition", f"{where} is gone: make a new plan")
        if held is None:
            raise RetriableError("leader_not_available", f"nobody leads {where} now")
        current = committed[partition].offset if partition in committed else None
        if current != row.offset:
            detail = f"{where}: {current} is committed, but the plan was made at {row.offset}: make a new one"
            raise InvalidRequest("offset_moved", detail)
        if not held.start <= row.new_offset <= held.end:
            detail = f"{where}: {row.new_offset} is not between {held.start} and {held.end} any more: make a new plan"
            raise InvalidRequest("offset_out_of_range", detail)
        plan.append(_Planned(partition, current, row.new_offset, held))
    return plan


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


async def _ranges(
    context: ApiContext, partitions: Iterable[TopicPartition], isolation: int
) -> dict[TopicPartition, Held]:
    """Return the range of each partition for this isolation; partitions without a leader are left out."""
    asked = list(partitions)
    both = (TIMESTAMP_EARLIEST, TIMESTAMP_LATEST)
    queries = [OffsetQuery(tp.topic_id, tp.partition, time) for tp in asked for time in both]
    found = await _find(context, queries, isolation)
    ranges = {}
    for position, partition in enumerate(asked):
        first, last = found[2 * position], found[2 * position + 1]
        if not first.error and not last.error:
            ranges[partition] = Held(first.offset, last.offset)
    return ranges


async def _find(context: ApiContext, queries: list[OffsetQuery], isolation: int) -> list[FoundOffset]:
    found: list[FoundOffset] = []
    for first in range(0, len(queries), MAX_OFFSETS_PER_REQUEST):
        part = OffsetsRequest(0, queries[first : first + MAX_OFFSETS_PER_REQUEST], isolation=isolation)
        found += (await context.finish(context.service.offsets(part), OFFSETS_TIMEOUT_S)).partitions
    return found


async def _wanted(context: ApiContext, asked: Sequence[OffsetToCommit]) -> list[WantedOffset]:
    """Return the offsets to commit, by topic id. A name means the topic that the quorum knows by it at present (S7):
    this node's view may still have a deleted one. Raises `InvalidRequest`."""
    named = next((one.topic for one in asked if one.topic_id is None), None)
    if named is not None:
        await context.catch_up(f"topic {named!r}")
    wanted: list[WantedOffset] = []
    topic_id, last = TopicId(b""), None
    for one in asked:
        # Most requests repeat one topic.
        name = (one.topic_id, one.topic)
        if name != last:
            topic_id, last = _topic_id(context.service.view, one), name
        partition = TopicPartition(topic_id, one.partition)
        wanted.append(WantedOffset(partition, one.offset, one.leader_epoch, one.metadata))
    return wanted


def _topic_id(view: ClusterView, one: OffsetToCommit) -> TopicId:
    """Raises `InvalidRequest`."""
    if one.topic_id is not None:
        return TopicId(bytes.fromhex(one.topic_id))
    topic = view.topic(one.topic)
    if topic is None:
        raise InvalidRequest("unknown_topic", f"there is no topic {one.topic!r}")
    return topic.topic_id


def _named(view: ClusterView, topics: list[SeekTopic]) -> list[TopicPartition]:
    """Raises `InvalidRequest`."""
    found: dict[TopicPartition, None] = {}
    for named in topics:
        topic = view.topic(named.topic)
        if topic is None:
            raise InvalidRequest("unknown_topic", f"there is no topic {named.topic!r}")
        for number in range(topic.partition_count) if named.partitions is None else named.partitions:
            if number >= topic.partition_count:
                raise unknown_partition(topic, number)
            found[TopicPartition(topic.topic_id, number)] = None
    return list(found)


def _rows(
    view: ClusterView,
    group_id: str,
    partitions: list[TopicPartition],
    committed: Mapping[TopicPartition, CommittedOffset],
    ranges: Mapping[TopicPartition, Held],
    owners: Mapping[TopicPartition, str],
) -> bytes:
    partitions.sort(key=lambda tp: (_topic_name(view, tp), tp.partition))
    rows = [_row(view, tp, committed.get(tp), ranges.get(tp), owners.get(tp)) for tp in partitions]
    return encode(GroupOffsets(group_id, rows))


def _row(
    view: ClusterView,
    partition: TopicPartition,
    committed: CommittedOffset | None,
    held: Held | None,
    owner: str | None,
) -> GroupOffset:
    lag = max(0, held.end - committed.offset) if committed is not None and held is not None else None
    return GroupOffset(
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
    topic = view.topic_by_id(partition.topic_id)
    return topic.name if topic is not None else ""
