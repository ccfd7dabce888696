"""The targets of faults and operations: a schedule has numbers, which the world resolves at that moment.

The same number means the same partition as long as none is added or removed, and a place among its replicas means the
same broker as long as nothing is moved and the leader stays: so several faults in a row can affect one partition.
"""

from __future__ import annotations

from collections.abc import Mapping

from jepsen_like.simulator.truth.partition_truth import PartitionTruth
from raftlog.model import BrokerId, PartitionRecord, TopicPartition


def led_partition(partitions: Mapping[TopicPartition, PartitionTruth], number: int) -> PartitionRecord | None:
    """Return a partition that has a leader according to the quorum, if there is one."""
    records = [record for tp in sorted(partitions) if (record := partitions[tp].record) is not None]
    start = number % len(records) if records else 0
    return next((record for record in records[start:] + records[:start] if record.has_leader), None)


def replica_at(record: PartitionRecord, place: int) -> BrokerId:
    """Return the leader for place 0, and the other replicas in the order of preference."""
    others = [replica for replica in record.replicas if replica != record.leader]
    return [record.leader, *others][place % (len(others) + 1)]
