"""Faults of one replica of a partition, which is determined when the fault is injected (`roles.py`).

`number` of such a fault names the partition, `peer` a place among its replicas.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

from jepsen_like.simulator.brokers.node import REPLICATION, SimNode
from jepsen_like.simulator.quorum.schedule import Fault
from jepsen_like.simulator.world.dialing import QUORUM
from jepsen_like.simulator.world.network import Way
from partitions.files.segment import LOG_SUFFIX, OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, segment_name
from partitions.upkeep.scrub_plan import plan_of_log
from raftlog.model import PartitionRecord

from .roles import replica_at

ROTTEN_SUFFIXES = (LOG_SUFFIX, LOG_SUFFIX, LOG_SUFFIX, OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX)
"""Mostly records are damaged: they fill most of a disk."""


class ReplicaFaults:
    """A table from kind to function, as in `ClusterFaults`, which injects and mends these faults."""

    def __init__(
        self,
        nodes: Sequence[SimNode],
        cut: Callable[[Sequence[Way], float], None],
        kill: Callable[[Fault, SimNode], None],
        later: Callable[[float, Callable[[], None]], None],
    ) -> None:
        self._nodes = nodes
        self._cut = cut
        self._later = later
        self.acts: Mapping[str, Callable[[Fault, PartitionRecord], None]] = {
            "kill_replica": lambda fault, record: kill(fault, self._at(fault, record)),
            "slow_replica": self._slow,
            "starve_replica": self._starve,
            "keep_news_from_replica": lambda fault, record: cut(
                self._into(self._at(fault, record), QUORUM), fault.seconds
            ),
            "mute_leader_to_quorum": lambda fault, record: cut(
                self._out_of(self._nodes[record.leader], QUORUM), fault.seconds
            ),
            "strand_proposals": self._strand_proposals,
        }

    def _at(self, fault: Fault, record: PartitionRecord) -> SimNode:
        return self._nodes[replica_at(record, fault.peer)]

    def _starve(self, fault: Fault, record: PartitionRecord) -> None:
        """Cut the replica off from batches and acknowledgements, in both directions."""
        node = self._at(fault, record)
        self._cut(self._into(node, REPLICATION) + self._out_of(node, REPLICATION), fault.seconds)

    def _slow(self, fault: Fault, record: PartitionRecord) -> None:
        """Delay every write of its logs that begins meanwhile."""
        node = self._at(fault, record)
        node.slow_disk_seconds = fault.seconds

        def quick() -> None:
            node.slow_disk_seconds = 0.0

        self._later(fault.seconds, quick)

    def _strand_proposals(self, fault: Fault, record: PartitionRecord) -> None:
        """Isolate the quorum's nodes from each other, except that the partition leader's proposals still reach the
        quorum's leader.
        """
        running = [(node.node_id, node.quorum.node.engine) for node in self._nodes if node.quorum is not None]
        leading = [node_id for node_id, engine in running if engine.voter_facts().leads]
        spared = [(int(record.leader), int(node_id), QUORUM) for node_id in leading]
        ways = [way for node in self._nodes for way in self._into(node, QUORUM)]
        self._cut([way for way in ways if way not in spared], fault.seconds)

    # --- Ways --------------------------------------------------------------------------------------------------------

    def _into(self, node: SimNode, kind: str) -> list[Way]:
        return [(int(other.node_id), int(node.node_id), kind) for other in self._nodes if other is not node]

    def _out_of(self, node: SimNode, kind: str) -> list[Way]:
        return [(int(node.node_id), int(other.node_id), kind) for other in self._nodes if other is not node]


def rot_in_service(node: SimNode, number: int) -> bool:
    """Damage a file that is no longer written while the process runs, unnoticed, and return whether there was one.

    It is a file of a sealed segment below the high watermark.
    """
    if not node.running or node.broker is None:
        return False
    found = []
    for _, driver in sorted(node.broker.manager.drivers.items()):
        if driver.replica.offline or driver.log.failed is not None:
            continue
        settled = [segment for segment in plan_of_log(driver.log).segments if segment.indexed]
        found += [
            (driver.log.path, segment.base_offset)
            for segment in settled
            if segment.end_offset is not None and segment.end_offset <= driver.replica.high_watermark
        ]
    rng = random.Random(number)
    if not found:
        return False
    folder, base_offset = rng.choice(found)
    path = f"{folder}/{segment_name(base_offset, rng.choice(ROTTEN_SUFFIXES))}"
    if not node.disk.exists(path):
        return False
    node.disk.rot(path, rng.randrange(node.disk.files()[path]), 1 << rng.randrange(8))
    return True
