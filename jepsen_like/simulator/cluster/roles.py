"""Whom a fault or an operation of a schedule means: a schedule names numbers, the world knows who that is by now.

The same number means the same partition as long as none comes or goes, and a place among its replicas means the same
broker as long as nothing is moved and leadership stays: so several faults in a row can be about one partition.
"""

from __future__ import annotations

from collections.abc import Mapping

from jepsen_like.simulator.truth.partition_truth import PartitionTruth
from raftlog.model import BrokerId, PartitionRecord, TopicPartition


def led_partition(partitions: Mapping[TopicPartition, PartitionTruth], number: int) -> PartitionRecord | None:
    """Some partition that has a leader by the quorum's word, if there is one."""
    records = [record for tp in sorted(partitions) if (record := partitions[tp].record) is not None]
    start = number % len(records) if records else 0
    return next((record for record in records[start:] + records[:start] if record.has_leader), None)


def replica_at(record: PartitionRecord, place: int) -> BrokerId:
    """At place 0 is who leads now; the others are in the order of preference."""
    others = [replica for replica in record.replicas if replica != record.leader]
    return [record.leader, *others][place % (len(others) + 1)]
