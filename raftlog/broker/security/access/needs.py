"""The needs of requests of members and of transactional producers: operations on resources that must be allowed.

The data listener and the JSON API carry the same requests, so both ask here. Requests about partitions are decided
partition by partition (`access.py`), since some of one request may be allowed and others not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from metadata.view import ClusterView
from raftlog.model import ProducerId, TopicId
from raftlog.security.acls import CLUSTER, Operation, Resource, ResourceType
from raftlog.wire import (
    AbortRequest,
    CommitOffsetsRequest,
    CommitRequest,
    GroupHeartbeatsRequest,
    GroupMoves,
    GroupOffsetsRequest,
    GroupRequest,
    InitializeRequest,
    JoinGroupRequest,
    OpenBlockRequest,
    RemovePositionRequest,
    RetireBlockRequest,
    TransactionOutput,
    TransactionRequest,
)


class Need(NamedTuple):
    """One operation on one resource that must be allowed."""

    operation: Operation
    resource: Resource


PRODUCER_IDS = Need(Operation.IDEMPOTENT_WRITE, CLUSTER)
"""The need of a producer id that belongs to no name; writing to any topic allows it as well (KIP-679)."""


def needs_of(request: GroupRequest | TransactionRequest | GroupHeartbeatsRequest, view: ClusterView) -> Iterator[Need]:
    """Yield the needs of a request, all of which must be met.

    Topics that the view does not know yield none: nothing can be done with them either.
    """
    match request:
        case GroupOffsetsRequest():
            yield _group(Operation.DESCRIBE, request.group_id)
        case CommitOffsetsRequest():
            yield _group(Operation.READ, request.group_id)
            yield from _topics(Operation.READ, (one.topic_id for one in request.offsets), view)
        case JoinGroupRequest():
            yield _group(Operation.READ, request.group_id)
            yield from (Need(Operation.READ, Resource(ResourceType.TOPIC, name)) for name in request.topics)
        case GroupHeartbeatsRequest():
            yield from (_group(Operation.READ, one.group_id) for one in request.members)
        case CommitRequest():
            yield from _of_outputs(request.outputs, view)
            yield from _of_moves(request.groups, view)
            yield from (_named(move.name) for move in request.positions)
            if request.block:
                yield _named(request.block)
        case AbortRequest():
            yield from _owners((key.producer_id for key in request.transactions), view)
        case OpenBlockRequest():
            yield _named(request.name) if request.name else PRODUCER_IDS
        case InitializeRequest():
            yield _named(request.transactional_id)
        case RetireBlockRequest() | RemovePositionRequest():
            yield _named(request.name)
        case _:
            yield _group(Operation.READ, request.group_id)


def ids_of(request: GroupRequest | TransactionRequest | GroupHeartbeatsRequest) -> Iterator[ProducerId]:
    """Yield the producer ids in whose name a request is made."""
    match request:
        case CommitRequest():
            yield from (output.producer_id for output in request.outputs)
        case AbortRequest():
            yield from (key.producer_id for key in request.transactions)


def _of_outputs(outputs: Iterable[TransactionOutput], view: ClusterView) -> Iterator[Need]:
    for output in outputs:
        yield from _owners((output.producer_id,), view)
        yield from _topics(Operation.WRITE, (ends.topic_id for ends in output.topics), view)


def _of_moves(groups: Iterable[GroupMoves], view: ClusterView) -> Iterator[Need]:
    for group in groups:
        yield _group(Operation.READ, group.group_id)
        yield from _topics(Operation.READ, (move.topic_id for move in group.moves), view)


def owner_of(producer_id: int, view: ClusterView) -> Need | None:
    """Return the need of writing in the name of a producer id: the right to the name that the id belongs to.

    None: it belongs to no name.
    """
    producer = view.transactions.producer_of(ProducerId(producer_id))
    if producer is not None:
        return _named(producer.transactional_id)
    block = view.transactions.block_of(ProducerId(producer_id))
    return _named(block.name) if block is not None and block.name else None


def _owners(producer_ids: Iterable[ProducerId], view: ClusterView) -> Iterator[Need]:
    for producer_id in dict.fromkeys(producer_ids):
        yield owner_of(producer_id, view) or PRODUCER_IDS


def _topics(operation: Operation, topic_ids: Iterable[bytes], view: ClusterView) -> Iterator[Need]:
    for topic_id in dict.fromkeys(topic_ids):
        topic = view.topic_by_id(TopicId(topic_id))
        if topic is not None:
            yield Need(operation, Resource(ResourceType.TOPIC, topic.name))


def _group(operation: Operation, group_id: str) -> Need:
    return Need(operation, Resource(ResourceType.GROUP, group_id))


def _named(name: str) -> Need:
    return Need(Operation.WRITE, Resource(ResourceType.TRANSACTIONAL_ID, name))
