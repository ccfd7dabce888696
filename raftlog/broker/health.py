"""The problems of a node and of the cluster, in lines that an operator can act on. Reads the view; decides nothing."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Sequence
from itertools import islice

from metadata.view import ClusterView
from metadata.voters.damage import forgot
from partitions.replica.transactions import LeftOpen
from raftlog.api.cluster import EventLoop, HealthInfo
from raftlog.model import NO_BROKER, NO_INCARNATION, PartitionRecord, QuorumStatus, TopicPartition

from .loop_stalls import LoopStalls
from .wiring import Broker

LINES_MAX = 20
"""Maximum number of lines of one kind. The rest is only counted."""

OLD_TRANSACTION_SECONDS = 300.0
"""The age from which an open transaction is a problem. Most transactions last for seconds."""

OPEN_LOOKED_AT = 1_000
"""The most open transactions among which old ones are sought, the oldest of each partition first."""

SORTED_MAX = 10_000
"""Number of problems of one kind among which the first are sought."""


def health_of(
    broker: Broker, quorum: QuorumStatus, stalls: LoopStalls | None = None, own: Sequence[str] = ()
) -> HealthInfo:
    """Return this node's view of itself and the cluster. `own`: problems of this node that others cannot see."""
    view = broker.view
    record = view.broker(broker.identity.node_id)
    clock = broker.cluster_clock.problem()
    problems = [f"node {broker.identity.node_id}: {line}" for line in (*own, *([clock] if clock else ()))]
    registered = (
        broker.incarnation != NO_INCARNATION and record is not None and record.incarnation == broker.incarnation
    )
    if not registered:
        problems.append(f"node {broker.identity.node_id} is not registered yet")
    if quorum.leader == NO_BROKER:
        problems.append("the metadata quorum has no leader")
    if view.time and not view.time.agreed_ms and len(quorum.voters) > 1:
        problems.append(
            "the wall clocks of the voters do not agree to within a minute: synchronise them (NTP); "
            "until then, data expires by a monotonic clock"
        )
    problems += [forgot(node) for node in quorum.forgetful]
    problems += [
        f"node {other.broker_id} is fenced: it sends no heartbeats" for other in view.brokers() if other.fenced
    ]
    problems += [
        f"node {other.broker_id} is short of room on its disk and refuses batches: free some space there, shorten "
        "retention.ms or retention.bytes, or move replicas to other nodes (raftlog cluster drain)"
        for other in view.brokers()
        if other.short_of_room
    ]
    if broker.room.short:
        problems.append(
            f"node {broker.identity.node_id}: {broker.room.free} bytes are free on its disk, "
            f"{broker.room.reserved} must stay free (disk_reserved_bytes)"
        )
    manager = broker.manager
    for lines in (manager.repairs.status(), manager.out_of_service(), manager.hindered()):
        problems += [f"{line} (node {broker.identity.node_id})" for line in lines[:LINES_MAX]]
        problems += [f"... and {len(lines) - LINES_MAX} more replicas like the last"] if len(lines) > LINES_MAX else []
    open_here = manager.transactions.open_transactions(OPEN_LOOKED_AT)
    problems += old_transactions(open_here, broker.clock.monotonic(), view)
    problems += partition_problems(view)
    problems += restoring_topics(view)
    ready = registered and record is not None and not record.fenced and quorum.leader != NO_BROKER
    return HealthInfo(ready, problems, None if stalls is None else _event_loop(stalls))


def old_transactions(open_here: Sequence[LeftOpen], now: float, view: ClusterView) -> list[str]:
    """Return the transactions that hold back `read_committed` consumers for a long time. `now` is monotonic, in
    seconds."""
    found = [
        (one, now - one.seen_since)
        for one in open_here
        if one.seen_since is not None and now - one.seen_since >= OLD_TRANSACTION_SECONDS
    ]
    lines = []
    for one, age in found[:LINES_MAX]:
        topic = view.topic_by_id(one.topic_partition.topic_id)
        name = one.topic_partition.topic_id.hex() if topic is None else topic.name
        lines.append(
            f"partition {name}/{one.topic_partition.partition} has an open transaction of producer "
            f"{one.key.producer_id}, epoch {one.key.producer_epoch}, for {age:.0f} s: read_committed consumers wait at "
            f"offset {one.first_offset}. If its producer is gone, end it: raftlog transaction abort --producer-id "
            f"{one.key.producer_id}"
        )
    return lines + ([f"... and {len(found) - LINES_MAX} more open transactions"] if len(found) > LINES_MAX else [])


def restoring_topics(view: ClusterView) -> list[str]:
    """Return the topics that refuse producers because their restore has not ended, by name."""
    found = view.restoring()
    lines = [
        f"topic {topic.name} is being restored from a backup and refuses producers: wait for `raftlog backup restore`; "
        f"if it was stopped, run it again, or give up with `raftlog topic delete {topic.name}`"
        for topic in found[:LINES_MAX]
    ]
    return lines + ([f"... and {len(found) - LINES_MAX} more topics like the last"] if len(found) > LINES_MAX else [])


def partition_problems(view: ClusterView) -> list[str]:
    """Return the problems of partitions, the worst kind first."""

    def waits(record: PartitionRecord) -> str:
        return f"has no leader: {view.explain_offline(record.topic_partition)}"

    def lacks(record: PartitionRecord) -> str:
        return f"has {len(record.isr)} of {record.min_insync_replicas} required in-sync replicas"

    def lags(record: PartitionRecord) -> str:
        settled = [replica for replica in record.replicas if replica not in record.adding_replicas]
        return f"has {len(set(settled).intersection(record.isr))} of {len(settled)} replicas in sync"

    return [
        *_lines(view, view.tally.without_leader, waits),
        *_lines(view, view.tally.below_minimum, lacks),
        *_lines(view, view.tally.under_replicated, lags),
    ]


def _lines(
    view: ClusterView, troubled: Collection[TopicPartition], what: Callable[[PartitionRecord], str]
) -> list[str]:
    """Return one line for each partition: the first by name and number, or arbitrary ones if there are very many."""

    def name_and_number(tp: TopicPartition) -> tuple[str, int]:
        topic = view.topic_by_id(tp.topic_id)
        return (topic.name if topic is not None else "", tp.partition)

    lines = []
    some = islice(troubled, SORTED_MAX)
    for tp in heapq.nsmallest(LINES_MAX, some, key=name_and_number):
        record = view.partition(tp)
        name, number = name_and_number(tp)
        if record is not None and name:
            lines.append(f"{name}/{number} {what(record)}")
    if len(troubled) > LINES_MAX:
        lines.append(f"... and {len(troubled) - LINES_MAX} more partitions like the last")
    return lines


def _event_loop(stalls: LoopStalls) -> EventLoop:
    found = stalls.report()
    return EventLoop(
        stalls=found.stalls,
        worst_ms=round(found.worst * 1000, 1),
        worst_processor_ms=round(found.worst_processor * 1000, 1),
        stalls_last_minute=found.recent_stalls,
        worst_ms_last_minute=round(found.recent_worst * 1000, 1),
    )
