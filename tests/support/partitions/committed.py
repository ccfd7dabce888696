"""The truth of one partition, built by hand: a record of the quorum, batches, and their committed part."""

from __future__ import annotations

from jepsen_like.simulator.truth.committed_log import CommittedLog
from jepsen_like.simulator.truth.partition_truth import PartitionTruth
from raftlog.model import (
    BrokerId,
    Incarnation,
    LeaderEpoch,
    PartitionEpoch,
    PartitionRecord,
    TopicId,
    TopicPartition,
)
from raftlog.records.batch import encode, stamp

TP = TopicPartition(TopicId(b"t" * 16), 0)
RECORD = PartitionRecord(
    TP,
    replicas=(BrokerId(0), BrokerId(1), BrokerId(2)),
    leader=BrokerId(0),
    leader_incarnation=Incarnation(1),
    leader_epoch=LeaderEpoch(4),
    partition_epoch=PartitionEpoch(7),
    isr=(BrokerId(0), BrokerId(1), BrokerId(2)),
    commit_set=(BrokerId(0), BrokerId(1), BrokerId(2)),
    min_insync_replicas=2,
)


def batch(
    base_offset: int,
    *values: bytes | None,
    epoch: int = 0,
    producer: int = -1,
    producer_epoch: int = 0,
    sequence: int = -1,
) -> memoryview:
    """A batch as a leader appended it."""
    made = encode(
        list(values),
        base_timestamp_ms=1_000 + base_offset,
        producer_id=producer,
        producer_epoch=producer_epoch if producer >= 0 else -1,
        base_sequence=sequence,
    )
    return memoryview(b"".join(stamp(made, base_offset, epoch)))


def committed(*values: bytes) -> PartitionTruth:
    """One batch per value."""
    truth = PartitionTruth(TP, CommittedLog(), may_lose=False)
    for offset, value in enumerate(values):
        truth.log.extend(batch(offset, value))
    return truth
