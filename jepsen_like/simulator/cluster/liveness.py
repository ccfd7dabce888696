"""Liveness mode (S10): no more faults, every node is up; what is still missing until everything goes on by itself?

Each partition leads with a full ISR of eligible members and no move under way; no replica is out of service; every
idempotent batch ever sent is acknowledged; every consumer has read all that is committed; what was deleted is gone
everywhere, and what rotted was found. The world asks again and again, up to `LIVENESS_SECONDS` after everything healed.
"""

from __future__ import annotations

from collections.abc import Sequence

from jepsen_like.simulator.brokers.node import SimNode
from jepsen_like.simulator.truth.invariants import Truth
from metadata.commands.cluster import ROOM_FEATURE_LEVEL
from partitions.files.segment import SEGMENT_SUFFIXES

from .operations import ClusterOperations

LIVENESS_SECONDS = 30.0


def missing(nodes: Sequence[SimNode], operations: ClusterOperations, truth: Truth) -> list[str]:
    """Reasons why the cluster is not well yet, for people; empty when it is."""
    found = [f"node {node.node_id} is down" for node in nodes if not node.running]
    found += [f"{what} has not happened" for what in operations.pending]
    for node in nodes:
        if node.broker is not None:
            found += _missing_at(node, operations, truth)
    for topic in operations.topics.values():
        found += [
            f"producer {producer.number} waits for {producer.waiting} answers"
            for producer in topic.producers.values()
            if producer.waiting
        ]
        for consumer in topic.consumers.values():
            end = truth.of(consumer.topic_partition).log.end_offset
            if consumer.position < end:
                found.append(f"consumer {consumer.number} is at {consumer.position} of {end}")
    return found


def left_behind(nodes: Sequence[SimNode]) -> list[str]:
    """What these nodes, whose disks are full, still have and may remove; and those that are down."""
    found = []
    for node in nodes:
        if node.broker is None:
            found.append(f"node {node.node_id} is down")
            continue
        for driver in node.broker.manager.drivers.values():
            log = driver.log
            if log.failed is None and log.has_removable_segments:
                found.append(f"node {node.node_id} keeps segments of {driver.name} that may go: {log}")
    return found


def led_without_room(nodes: Sequence[SimNode]) -> list[str]:
    """Partitions that take no batches, for their leaders' disks are short of room, and that a member of the ISR could
    lead which has some."""
    brokers = {node.node_id: node.broker for node in nodes if node.broker is not None}
    roomy = {node_id for node_id, broker in brokers.items() if not broker.room.short}
    found = []
    for node_id, broker in brokers.items():
        if node_id in roomy or broker.view.feature_level < ROOM_FEATURE_LEVEL:
            continue
        for record in broker.view.partitions():
            able = sorted(roomy & set(record.isr) - set(record.not_eligible))
            if record.leader == node_id and able:
                found.append(f"node {node_id} has no room and leads {record}, which nodes {able} could")
    return found


def _missing_at(node: SimNode, operations: ClusterOperations, truth: Truth) -> list[str]:
    assert node.broker is not None
    view, drivers = node.broker.view, node.broker.manager.drivers
    removed = truth.rules.removed
    expected = {record.topic_id for record in view.topics()}
    found = [f"node {node.node_id} does not know a topic" for topic in operations.topics if topic not in expected]
    found += [f"node {node.node_id} knows a deleted topic" for topic in removed if topic in expected]
    found += [f"node {node.node_id} has {tp} of a deleted topic" for tp in drivers if tp.topic_id in removed]
    found += [f"node {node.node_id}: {line}" for line in node.broker.manager.out_of_service()]
    found += [f"node {node.node_id}: {line}" for line in node.broker.manager.repairs.status()]
    found += [f"node {node.node_id} has not noticed the rot in {path}" for path in _rotten(node)]
    for record in view.partitions():
        whole = record.has_leader and len(record.isr) == len(record.replicas) and not record.not_eligible
        if not whole or record.target_replicas:
            found.append(f"node {node.node_id}: {record} {view.explain_offline(record.topic_partition) or ''}")
    return found


def _rotten(node: SimNode) -> list[str]:
    """Files of replicas in service in which bits have flipped."""
    assert node.broker is not None
    served = {driver.log.path for driver in node.broker.manager.drivers.values()}
    return [
        path
        for path in node.disk.rotten_files()
        if path.rpartition("/")[0] in served and path.endswith(SEGMENT_SUFFIXES)
    ]
