"""The facts that a nemesis knows of the cluster: its leaders and the places of its partitions.

A look never fails: facts that the cluster does not report within seconds are unknown.
"""

from __future__ import annotations

import asyncio
import random

from jepsen_like.clusters.cluster import NodeCluster
from raftlog.api.topics import TopicDescription
from raftlog.client.admin import Admin
from raftlog.errors import RaftlogError

from .steps import Facts, PartitionFacts
from .targets import fixed_minority

LOOK_SECONDS = 5.0
TOPICS_MAX = 8
"""The first topics by name are enough to find leaders."""
PARTITIONS_MAX = 64


def minority_of(cluster: NodeCluster, seed: int) -> tuple[str, ...]:
    """Return the nodes whose files a run of this seed may damage, with any nemesis."""
    return fixed_minority(tuple(cluster.nodes), random.Random(f"{seed} minority"))


async def look(cluster: NodeCluster, minority: tuple[str, ...]) -> Facts:
    """Return the current facts, or only the names of nodes if the cluster does not answer."""
    nodes = tuple(cluster.nodes)
    try:
        async with asyncio.timeout(LOOK_SECONDS), Admin(cluster.bootstrap) as admin:
            names = [topic.name for topic in await admin.list_topics()][:TOPICS_MAX]
            topics = [await admin.describe_topic(name) for name in names]
            controller = (await admin.cluster()).controller
            voters = (await admin.quorum()).voters
    except (RaftlogError, TimeoutError):
        return Facts(nodes, minority)
    partitions = tuple(_partitions(cluster, topics))[:PARTITIONS_MAX]
    leaders = {one.leader for one in partitions if one.leader is not None}
    return Facts(
        nodes,
        minority,
        tuple(node for node in nodes if node in leaders),
        None if controller is None or controller < 0 else cluster.name_of(controller),
        partitions,
        tuple(cluster.name_of(voter) for voter in sorted(voters)),
    )


def _partitions(cluster: NodeCluster, topics: list[TopicDescription]) -> list[PartitionFacts]:
    return [
        PartitionFacts(
            topic.name,
            one.partition,
            None if one.leader is None else cluster.name_of(one.leader),
            tuple(cluster.name_of(node) for node in one.replicas),
            one.min_insync_replicas,
        )
        for topic in topics
        for one in topic.partitions
    ]
