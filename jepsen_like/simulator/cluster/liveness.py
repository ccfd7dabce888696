"""Liveness mode (S10): without faults, and with every node up, what is still missing for normal operation?

Each partition has a leader and a full ISR of eligible members, and no move in progress; no replica is out of service;
every idempotent batch is acknowledged; every consumer has read everything committed; deleted data is gone everywhere,
and damage was found. The world polls this, up to `LIVENESS_SECONDS` after everything healed.
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
    """Return the reasons why the cluster has not recovered yet, as text; empty if it has."""
    found = [f"node {node.node_id} is down" for node in nodes if not node.running]
    found += [f"not done yet: {what}" for what in operations.pending]
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
    """Return the segments that nodes with full disks still keep although they may delete them, and the nodes that are
    down.
    """
    found = []
    for node in nodes:
        if node.broker is None:
            found.append(f"node {node.node_id} is down")
            continue
        for driver in node.broker.manager.drivers.values():
            log = driver.log
            if log.failed is None and log.has_removable_segments:
                found.append(f"node {node.node_id} keeps segments of {driver.name} that it may delete: {log}")
    return found


def led_without_room(nodes: Sequence[SimNode]) -> list[str]:
    """Return partitions whose leader has no space for batches, although a member of the ISR has."""
    brokers = {node.node_id: node.broker for node in nodes if node.broker is not None}
    roomy = {node_id for node_id, broker in brokers.items() if not broker.room.short}
    found = []
    for node_id, broker in brokers.items():
        if node_id in roomy or broker.view.feature_level < ROOM_FEATURE_LEVEL:
            continue
        for record in broker.view.partitions():
            able = sorted(roomy & set(record.isr) - set(record.not_eligible))
            if record.leader == node_id and able:
                found.append(f"node {node_id} is short of space and leads {record}, which nodes {able} could lead")
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
    found += [f"node {node.node_id} has not found the damage in {path}" for path in _rotten(node)]
    for record in view.partitions():
        whole = record.has_leader and len(record.isr) == len(record.replicas) and not record.not_eligible
        if not whole or record.target_replicas:
            found.append(f"node {node.node_id}: {record} {view.explain_offline(record.topic_partition) or ''}")
    return found


def _rotten(node: SimNode) -> list[str]:
    """Return the damaged files of replicas in service."""
    assert node.broker is not None
    served = {driver.log.path for driver in node.broker.manager.drivers.values()}
    return [
        path
        for path in node.disk.rotten_files()
        if path.rpartition("/")[0] in served and path.endswith(SEGMENT_SUFFIXES)
    ]
