"""Moving replicas and leaderships: plans, reassignments, manual elections, removal of brokers, this node's replicas."""

from __future__ import annotations

from collections.abc import Sequence

from aiohttp import web

from http_api.web.bodies import read_json
from http_api.web.call import Call
from http_api.web.problems import error_member
from http_api.web.query import integer
from http_api.web.replies import document_of, encoded_reply, known
from http_api.web.topics import partitions_named
from metadata.view import ClusterView
from raftlog.api import moves as documents
from raftlog.errors import InvalidRequest, RaftlogError
from raftlog.json_values import encode
from raftlog.model import BrokerId, ReplicationThrottle, TopicPartition

MOVES_TIMEOUT_S = 120.0
"""Seconds beyond the time that the broker waits for the quorum, for all parts of one request together."""

_PARTITION_COST = 128
"""Describing a partition takes about as long as parsing this number of bytes."""


async def list_reassignments(call: Call) -> web.StreamResponse:
    view = call.view
    found = [
        document_of(
            documents.ReassignmentInfo,
            record,
            topic=_name(view, record.topic_partition),
            partition=record.topic_partition.partition,
            leader=known(record.leader),
            moving=record.is_moving,
        )
        for record in view.reassigning()
    ]
    throttle = documents.ThrottleInfo(view.throttle.leader_rate, view.throttle.follower_rate)
    return await _reply(call, documents.Reassignments(found, throttle), len(found))


async def alter_reassignments(call: Call) -> web.StreamResponse:
    body = await read_json(call, documents.AlterReassignments)
    asked, limits = body.reassignments, body.throttle
    throttle = None if limits is None else ReplicationThrottle(limits.leader_rate, limits.follower_rate)
    partitions = await _partitions(call, asked)
    wanted = {
        tp: None if one.replicas is None else tuple(map(BrokerId, one.replicas))
        for tp, one in zip(partitions, asked, strict=True)
    }
    errors = await call.context.finish(call.service.moves.reassign(wanted, throttle), MOVES_TIMEOUT_S)
    return await _outcomes(call, asked, errors)


async def plan_moves(call: Call) -> web.StreamResponse:
    """Return a plan. It is a POST only because the request has a body; nothing changes."""
    asked = await read_json(call, documents.Plan)
    moves = await call.context.finish(call.service.moves.plan(list(map(BrokerId, asked.drain))), MOVES_TIMEOUT_S)
    return await _reply(call, documents.PlannedMoves(moves), len(moves))


async def elect_leaders(call: Call) -> web.StreamResponse:
    asked = await read_json(call, documents.Elect)
    unclean = asked.kind == "unclean"
    if unclean is not asked.accept_data_loss:
        raise InvalidRequest(
            "invalid_request",
            "an unclean election may lose acknowledged records: it requires accept_data_loss, which others refuse",
        )
    if asked.candidate is not None and not unclean:
        raise InvalidRequest(
            "invalid_request", "candidate is for unclean elections only: others choose the preferred leader"
        )
    partitions = await _partitions(call, asked.partitions)
    moves = call.service.moves
    candidate = None if asked.candidate is None else BrokerId(asked.candidate)
    election = moves.elect_unclean(partitions, candidate) if unclean else moves.elect_preferred(partitions)
    errors = await call.context.finish(election, MOVES_TIMEOUT_S)
    return await _outcomes(call, asked.partitions, errors)


async def unregister_broker(call: Call) -> web.StreamResponse:
    broker = BrokerId(integer("the broker", call.segment("broker"), 0, 2**31 - 1))
    await call.context.finish(call.service.moves.unregister(broker), MOVES_TIMEOUT_S)
    return web.Response(status=204)


async def list_replicas(call: Call) -> web.StreamResponse:
    """List the replicas of this node alone; other nodes answer for their own."""
    replicas = call.service.moves.replicas()
    return await _reply(call, documents.Replicas(replicas), len(replicas))


async def _partitions(call: Call, asked: Sequence[documents.NamedPartition]) -> list[TopicPartition]:
    """Return the partitions by name. Raises `InvalidRequest` for one that does not exist or is repeated."""
    found = await partitions_named(call, [(one.topic, one.partition) for one in asked])
    if len(set(found)) != len(found):
        raise InvalidRequest("invalid_request", "a partition is named twice")
    return found


async def _outcomes(
    call: Call,
    asked: Sequence[documents.NamedPartition],
    errors: Sequence[RaftlogError | None],
) -> web.StreamResponse:
    """Answer 200 whatever the outcomes: programs look at the `error` of each."""
    outcomes = [
        documents.PartitionOutcome(one.topic, one.partition, None if error is None else error_member(error))
        for one, error in zip(asked, errors, strict=True)
    ]
    return await _reply(call, documents.PartitionOutcomes(outcomes), len(outcomes))


async def _reply(call: Call, document: object, count: int) -> web.StreamResponse:
    return await encoded_reply(call, _PARTITION_COST * count, encode, document)


def _name(view: ClusterView, topic_partition: TopicPartition) -> str:
    topic = view.topic_by_id(topic_partition.topic_id)
    assert topic is not None, "a partition of no topic"
    return topic.name
