"""What is wrong, in lines that an operator can act on. Reads the view; decides nothing."""

from __future__ import annotations

from http_api.service import Health
from raftlog.model import NO_BROKER, NO_INCARNATION, QuorumStatus

from .wiring import Broker

LINES_MAX = 20
"""More of a kind are counted, not listed."""


def health_of(broker: Broker, quorum: QuorumStatus) -> Health:
    """This node's view of itself and the cluster."""
    view = broker.view
    own = view.broker(broker.identity.node_id)
    problems = []
    registered = broker.incarnation != NO_INCARNATION and own is not None and own.incarnation == broker.incarnation
    if not registered:
        problems.append(f"node {broker.identity.node_id} is not registered yet")
    if quorum.leader == NO_BROKER:
        problems.append("the metadata quorum has no leader")
    problems += [f"node {record.broker_id} is fenced: it is not heard of" for record in view.brokers() if record.fenced]
    without_leader, below_minimum, under_replicated = [], [], []
    for topic in view.topics():
        for record in view.partitions_of(topic.topic_id):
            name = f"{topic.name}/{record.topic_partition.partition}"
            if not record.has_leader:
                without_leader.append(f"{name} has no leader: {view.explain_offline(record.topic_partition)}")
            elif len(record.isr) < record.min_insync_replicas:
                below_minimum.append(
                    f"{name} has {len(record.isr)} of {record.min_insync_replicas} in-sync replicas needed"
                )
            elif len(record.isr) < len(record.replicas):
                under_replicated.append(f"{name} has {len(record.isr)} of {len(record.replicas)} replicas in sync")
    for kind in (without_leader, below_minimum, under_replicated):
        problems += kind[:LINES_MAX]
        if len(kind) > LINES_MAX:
            problems.append(f"... and {len(kind) - LINES_MAX} partitions more like the last")
    ready = registered and own is not None and not own.fenced and quorum.leader != NO_BROKER
    return Health(ready=ready, problems=tuple(problems))
