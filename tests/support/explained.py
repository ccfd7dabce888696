"""Cases for explanations: three healthy nodes with one partition, and functions that break one thing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from raftlog.broker.explain.case import ClusterCase, PartitionCase
from raftlog.broker.explain.facts import FollowerFacts, NodeFacts, QuorumFacts, ReplicaFacts, Unanswered, WriterFacts
from raftlog.broker.explain.history import Change
from raftlog.model import (
    BrokerId,
    BrokerRecord,
    DirectoryId,
    Endpoint,
    Incarnation,
    LeaderEpoch,
    PartitionEpoch,
    PartitionRecord,
    TopicId,
    TopicPartition,
)

TOPIC = TopicId(b"o" * 16)
NOW_MS = 1_800_000_000_000
LOG_END = 1_000
LEADER = 0
VOTERS = (0, 1, 2)


def broker(number: int, **changed: Any) -> BrokerRecord:
    endpoint = Endpoint("host", 9640 + number)
    known = BrokerRecord(
        BrokerId(number), Incarnation(number + 1), DirectoryId(bytes(16)), 1, endpoint, endpoint, "", False, 10
    )
    return replace(known, **changed)


def record(**changed: Any) -> PartitionRecord:
    nodes = tuple(map(BrokerId, VOTERS))
    known = PartitionRecord(
        TopicPartition(TOPIC, 0), nodes, BrokerId(LEADER), Incarnation(1), LeaderEpoch(7), PartitionEpoch(9), nodes,
        nodes, 2,
    )  # fmt: skip
    return msgspec.structs.replace(known, **changed)


HEALTHY = record()


def replica(number: int, **changed: Any) -> ReplicaFacts:
    leads = number == LEADER
    known = ReplicaFacts(
        role="leader" if leads else "follower",
        leader_epoch=7,
        stable_end=LOG_END,
        log_end=LOG_END,
        high_watermark=LOG_END,
        last_stable=LOG_END if leads else -1,
        size_bytes=100_000_000,
        epochs=[(3, 0), (7, 600)],
        link="" if leads else "streaming",
        followers=[FollowerFacts(n, True, LOG_END, LOG_END, 0.0) for n in VOTERS if n != LEADER] if leads else [],
        maximal_isr=list(VOTERS) if leads else [],
    )
    return msgspec.structs.replace(known, **changed)


def node(number: int, **changed: Any) -> NodeFacts:
    known = NodeFacts(
        number,
        incarnation=number + 1,
        view_index=500,
        time_ms=NOW_MS,
        quorum=QuorumFacts(leader=1, term=4, commit=500, applied=500, last=500, voters=list(VOTERS)),
        disk_free=10**11,
        disk_reserved=10**9,
        writer=WriterFacts(0.0, 0.004, 0.02, 64),
        replica=replica(number),
    )
    return msgspec.structs.replace(known, **changed)


def case(
    *,
    answers: dict[int, NodeFacts | Unanswered] | None = None,
    brokers: dict[int, BrokerRecord] | None = None,
    changes: tuple[Change, ...] = (),
    record: PartitionRecord | None = None,
    asker: int = 1,
    **more: Any,
) -> PartitionCase:
    """A healthy partition of three replicas, apart from what is given."""
    cluster = ClusterCase(
        BrokerId(asker),
        {**{n: node(n) for n in VOTERS}, **(answers or {})},
        {**{n: broker(n) for n in VOTERS}, **(brokers or {})},
        changes,
        NOW_MS,
        500,
    )
    return PartitionCase(cluster, "orders", HEALTHY if record is None else record, **more)


def fence(number: int, ago_ms: int = 5_000) -> Change:
    return Change(490, NOW_MS - ago_ms, b"", -1, "broker", "fenced", number)
