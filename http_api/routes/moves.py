"""Moving replicas and leaderships: plans, reassignments, manual elections, removal of brokers, this node's replicas."""

from __future__ import annotations

from collections.abc import Sequence

from aiohttp import web

from http_api.models import moves as models
from http_api.models.topics import known
from http_api.service.moves import WantedReassignment
from http_api.web.bodies import JSON_TYPE, read_json
from http_api.web.context import ApiContext, context_of
from http_api.web.problems import error_member
from http_api.web.query import Query, integer
from http_api.web.replies import bulk_reply
from metadata.view import ClusterView
from raftlog.errors import InvalidRequest, RaftlogError
from raftlog.json_values import encode
from raftlog.model import BrokerId, ReplicationThrottle, TopicPartition

MOVES_TIMEOUT_S = 120.0
"""Seconds beyond the time that the broker waits for the quorum, for all parts of one request together."""

_PARTITION_COST = 128
"""Describing a partition takes about as long as parsing this number of bytes."""


async def list_reassignments(request: web.Request) -> web.StreamResponse:
    context = context_of(request)
    Query(request)
    view = context.service.view
    found = [
        models.ReassignmentDescription(
            topic=_name(view, record.topic_partition),
            partition=record.topic_partition.partition,
            replicas=record.replicas,
            target_replicas=record.target_replicas,
            adding_replicas=record.adding_replicas,
            removing_replicas=record.removing_replicas,
            isr=record.isr,
            leader=known(record.leader),
            moving=record.is_moving,
        )
        for record in view.reassigning()
    ]
    throttle = models.Throttle(view.throttle.leader_rate, view.throttle.follower_rate)
    return await _reply(request, context, models.Reassignments(found, throttle), len(found))


async def alter_reassignments(request: web.Request) -> web.StreamResponse:
    context = context_of(request)
    Query(request)
    body = await read_json(request, context, models.AlterReassignments)
    asked, limits = body.reassignments, body.throttle
    throttle = None if limits is None else ReplicationThrottle(limits.leader_rate, limits.follower_rate)
    partitions = await _partitions(context, asked)
    wanted = [
        WantedReassignment(tp, None if one.replicas is None else tuple(map(BrokerId, one.replicas)))
        for tp, one in zip(partitions, asked, strict=True)
    ]
    errors = await context.finish(context.service.moves.reassign(wanted, throttle), MOVES_TIMEOUT_S)
    return await _outcomes(request, context, asked, errors)


async def plan_moves(request: web.Request) -> web.StreamResponse:
    """Return a plan. It is a POST only because the request has a body; nothing changes."""
    context = context_of(request)
    Query(request)
    asked = await read_json(request, context, models.Plan)
    view = context.service.view
    planned = await context.finish(context.service.moves.plan(list(map(BrokerId, asked.drain))), MOVES_TIMEOUT_S)
    moves = []
    for move in planned:
        record = view.partition(move.topic_partition)
        if record is not None:
            moves.append(
                models.PlannedMove(
                    topic=_name(view, move.topic_partition),
                    partition=move.topic_partition.partition,
                    replicas=move.replicas,
                    target_replicas=move.target_replicas,
                    leader=known(record.leader),
                )
            )
    return await _reply(request, context, models.PlannedMoves(moves), len(moves))


async def elect_leaders(request: web.Request) -> web.StreamResponse:
    context = context_of(request)
    Query(request)
    asked = await read_json(request, context, models.Elect)
    unclean = asked.kind == "unclean"
    if unclean is not asked.accept_data_loss:
        raise InvalidRequest(
            "invalid_request",
            "an unclean election may lose acknowledged records: it needs accept_data_loss, and only it takes that",
        )
    if asked.candidate is not None and not unclean:
        raise InvalidRequest("invalid_request", "candidate is for unclean elections; else the first replica leads")
    partitions = await _partitions(context, asked.partitions)
    moves = context.service.moves
    candidate = None if asked.candidate is None else BrokerId(asked.candidate)
    election = moves.elect_unclean(partitions, candidate) if unclean else moves.elect_preferred(partitions)
    errors = await context.finish(election, MOVES_TIMEOUT_S)
    return await _outcomes(request, context, asked.partitions, errors)


async def unregister_broker(request: web.Request) -> web.StreamResponse:
    context = context_of(request)
    Query(request)
    broker = BrokerId(integer("the broker", request.match_info["broker"], 0, 2**31 - 1))
    await context.finish(context.service.moves.unregister(broker), MOVES_TIMEOUT_S)
    return web.Response(status=204)


async def list_replicas(request: web.Request) -> web.StreamResponse:
    """List the replicas of this node alone; other nodes answer for their own."""
    context = context_of(request)
    Query(request)
    view = context.service.view
    found = [
        models.Replica(
            topic=_name(view, replica.topic_partition),
            partition=replica.topic_partition.partition,
            size_bytes=replica.size_bytes,
            log_end_offset=replica.log_end_offset,
            role=replica.role,
        )
        for replica in context.service.moves.replicas()
        if view.topic_by_id(replica.topic_partition.topic_id) is not None
    ]
    return await _reply(request, context, models.Replicas(found), len(found))


async def _partitions(
    context: ApiContext, asked: Sequence[models.Reassignment | models.NamedPartition]
) -> list[TopicPartition]:
    """Return the partitions by name. Raises `InvalidRequest` for one that does not exist or is repeated."""
    view = context.service.view
    named = ((one, view.topic(one.topic)) for one in asked)
    unknown = next((one for one, topic in named if topic is None or one.partition >= topic.partition_count), None)
    if unknown is not None:
        await context.catch_up(f"partition {unknown.partition} of topic {unknown.topic[:249]!r}")
    found = []
    for one in asked:
        topic = view.topic(one.topic)
        if topic is None:
            raise InvalidRequest("unknown_topic", f"there is no topic {one.topic[:249]!r}")
        if one.partition >= topic.partition_count:
            raise InvalidRequest(
                "unknown_partition", f"topic {topic.name!r} has partitions 0 to {topic.partition_count - 1}"
            )
        found.append(TopicPartition(topic.topic_id, one.partition))
    if len(set(found)) != len(found):
        raise InvalidRequest("invalid_request", "a partition is named twice")
    return found


async def _outcomes(
    request: web.Request,
    context: ApiContext,
    asked: Sequence[models.Reassignment | models.NamedPartition],
    errors: Sequence[RaftlogError | None],
) -> web.StreamResponse:
    """Answer 200 whatever the outcomes: programs look at the `error` of each."""
    outcomes = [
        models.PartitionOutcome(one.topic, one.partition, None if error is None else error_member(error))
        for one, error in zip(asked, errors, strict=True)
    ]
    return await _reply(request, context, models.PartitionOutcomes(outcomes), len(outcomes))


async def _reply(request: web.Request, context: ApiContext, document: object, count: int) -> web.StreamResponse:
    body = await context.threads.run(_PARTITION_COST * count, encode, document)
    return await bulk_reply(request, context, body, JSON_TYPE, {})


def _name(view: ClusterView, topic_partition: TopicPartition) -> str:
    topic = view.topic_by_id(topic_partition.topic_id)
    assert topic is not None, "a partition of no topic"
    return topic.name
