"""The partitions of the cluster at a glance."""

from __future__ import annotations

import asyncio
from operator import attrgetter

from aiohttp import web

from http_api.web.call import Call
from http_api.web.listing import describable
from http_api.web.replies import json_reply, known
from metadata.view import ClusterView
from raftlog.api.partitions import MAX_LACKING, LackingPartition, NodeShare, PartitionsSummary
from raftlog.model import PartitionRecord, TopicRecord
from raftlog.security.acls import ResourceType

PARTITIONS_PER_TURN = 1_000
"""The number of partitions that are counted before the handler yields to the event loop: a few milliseconds."""


class _Counts:
    def __init__(self) -> None:
        self.partitions = self.without_leader = self.under_replicated = self.moving = 0
        self.shares: dict[int, list[int]] = {}
        """Node → leaders, replicas, replicas in sync."""
        self.lacking: list[LackingPartition] = []

    def add(self, topic: TopicRecord, record: PartitionRecord) -> None:
        self.partitions += 1
        shares = self.shares
        for broker in record.replicas:
            shares.setdefault(broker, [0, 0, 0])[1] += 1
        for broker in record.isr:
            shares.setdefault(broker, [0, 0, 0])[2] += 1
        if record.has_leader:
            shares.setdefault(record.leader, [0, 0, 0])[0] += 1
        thin = len(record.isr) < record.replica_count
        self.without_leader += not record.has_leader
        self.under_replicated += thin
        self.moving += record.is_moving
        if (thin or not record.has_leader) and len(self.lacking) < MAX_LACKING:
            number = record.topic_partition.partition
            isr, replicas = list(map(int, record.isr)), list(map(int, record.replicas))
            self.lacking.append(LackingPartition(topic.name, number, known(record.leader), isr, replicas))


async def summarize_partitions(call: Call) -> web.StreamResponse:
    """Count the partitions of the topics that the caller may describe."""
    view: ClusterView = call.view
    topics = await describable(call, ResourceType.TOPIC, view.topics(), attrgetter("name"))
    counts, looked = _Counts(), 0
    for topic in topics:
        for record in view.partitions_of(topic.topic_id):
            counts.add(topic, record)
        if counts.partitions - looked >= PARTITIONS_PER_TURN:
            looked = counts.partitions
            await asyncio.sleep(0)
    nodes = [NodeShare(int(node), *counts.shares[node]) for node in sorted(counts.shares)]
    return json_reply(
        PartitionsSummary(
            len(topics),
            counts.partitions,
            counts.without_leader,
            counts.under_replicated,
            counts.moving,
            nodes,
            counts.lacking,
        )
    )
