"""The command of a broker that can no longer vouch for one of its replicas, and says so while it runs.

A registration tells what recovery found at a start; this tells what was found since: damage on the disk. Only when it
is accepted may the replica be cut back to what is good, because only then nobody counts on the rest (S6, S9).

What is *not* here: what it does (`image_losses.py`), and when it is proposed (`raftlog/broker/wiring.py`).
"""

from __future__ import annotations

from raftlog.model import TopicPartition

from .command_parts import BrokerIdField, IncarnationField, LeaderEpochField, Part, PartitionField, TopicIdField


class ReportLoss(Part, frozen=True, tag="report_loss.1"):
    """This life of the broker cannot vouch for its replica any more, found in this leader epoch. Answered by `Done`:
    it leads no longer, left the ISR, and counts for nothing until it is added again, in a later leader epoch."""

    topic_id: TopicIdField
    partition: PartitionField
    broker_id: BrokerIdField
    incarnation: IncarnationField
    leader_epoch: LeaderEpochField

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic_id, self.partition)
