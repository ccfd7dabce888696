"""What a nemesis may know of the cluster that it breaks: who leads, where partitions are. A look never fails: what the
cluster does not tell within seconds is not known.
"""

from __future__ import annotations

import asyncio
import random

from jepsen_like.clusters.cluster import NodeCluster
from raftlog.client.admin import Admin, TopicDescription
from raftlog.errors import RaftlogError

from .steps import Facts, PartitionFacts
from .targets import fixed_minority

LOOK_SECONDS = 5.0
TOPICS_MAX = 8
"""The first by name: enough to know who leads."""
PARTITIONS_MAX = 64


def minority_of(cluster: NodeCluster, seed: int) -> tuple[str, ...]:
    """Those whose files a run of this seed may damage, whichever nemeses it has."""
    return fixed_minority(tuple(cluster.nodes), random.Random(f"{seed} minority"))


async def look(cluster: NodeCluster, minority: tuple[str, ...]) -> Facts:
    """Facts of now, or of nothing but names."""
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
