"""The final check of a run, after recovery: every replica is read again from its disk, completely.

Below the high watermark each replica equals the committed log, batch by batch. Batches that compaction rewrote are
checked by record: a record that exists was committed; the last record of each key exists, unless it is an expired
tombstone; a missing record was overwritten by a later one of its key, or was such a tombstone (S2, S4). A replica that
was down for longer than `delete.retention.ms` may keep records whose tombstone it never saw, and one may lack a record
that was overwritten by one that is lost, as `flush=os` allows (`docs/log-format.md`).
"""

from __future__ import annotations

from collections.abc import Sequence

from jepsen_like.simulator.brokers.node import SimNode
from jepsen_like.simulator.world.violation import Violation
from partitions.driver.driver import PartitionDriver
from raftlog.records.batch import RecordBatch

from .committed_log import CommittedLog, batches_of
from .invariants import Truth
from .mirror import Mirror
from .partition_truth import PartitionTruth

DAY_MS = 86_400_000
"""The default of `delete.retention.ms`: no run is that long."""


def look_at_everything(truth: Truth, nodes: Sequence[SimNode]) -> None:
    """Check every replica. Raises `Violation`."""
    found = [
        (node, topic_partition, driver)
        for node in nodes
        if node.running and node.broker is not None
        for topic_partition, driver in node.broker.manager.drivers.items()
        if not driver.replica.offline
    ]
    with truth.as_written():
        for node, topic_partition, driver in found:
            _look_at(truth, node, truth.of(topic_partition), driver)


def _look_at(truth: Truth, node: SimNode, partition: PartitionTruth, driver: PartitionDriver) -> None:
    end = min(driver.replica.high_watermark, partition.log.end_offset)
    mirror = Mirror()
    mirror.refresh(driver, partition.name, compacts=partition.log.compacts)
    wrong = mirror.compare(partition.log, end)
    if not wrong and partition.log.compacts:
        configs = dict(truth.rules.topics[partition.topic_partition.topic_id].configs)
        keeps_tombstones = int(configs.get("delete.retention.ms", DAY_MS)) >= DAY_MS
        wrong = _compacted(partition.log, driver, end, keeps_tombstones=keeps_tombstones)
    if wrong:
        raise Violation(f"S4: at the end node {node.node_id} {wrong} of {partition.topic_partition}")


def _compacted(truth: CommittedLog, driver: PartitionDriver, end: int, *, keeps_tombstones: bool) -> str:
    """Return what is wrong with a compacted log."""
    start = driver.log.log_start_offset
    found: set[int] = set()
    for view in batches_of(driver, start, end):
        batch = RecordBatch(view)
        for offset, key, value in zip(batch.offsets(), batch.keys(), batch.values(), strict=True):
            committed = truth.records.get(offset)
            if committed is None or (committed.key, committed.value) != (key, value):
                return f"has {value!r} for {key!r} at {offset}, committed is {truth.told(offset)}"
            found.add(offset)
    for key, offset in truth.latest_of_keys().items():
        committed = truth.records[offset]
        if start <= offset < end and offset not in found and (committed.value is not None or keeps_tombstones):
            return f"lacks {committed.value!r}, the last of {key!r}, at {offset}"
    return ""
