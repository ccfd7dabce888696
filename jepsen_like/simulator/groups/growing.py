"""Topics that get more partitions, in worlds whose consumers read them."""

from __future__ import annotations

from jepsen_like.simulator.quorum.node import QuorumSimNode
from metadata.commands.cluster import AddPartitions
from metadata.commands.envelope import Command
from raftlog.model import TopicPartition

PARTITIONS_MAX = 4


def grow(node: QuorumSimNode, subject: int) -> None:
    """Add a partition to some topic, by one node's view."""
    if node.quorum is None or not node.quorum.image.topics:
        return
    image = node.quorum.image
    topic = image.topics[sorted(image.topics)[subject % len(image.topics)]]
    if topic.partition_count < PARTITIONS_MAX:
        replicas = image.partitions[TopicPartition(topic.topic_id, 0)].replicas
        command: Command = AddPartitions(topic.topic_id, topic.partition_count, (tuple(replicas),))
        node.quorum.propose(command, lambda outcome: None, timeout=1.0)
        node.tick_soon()
