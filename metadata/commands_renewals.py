"""The command of a broker whose replica led, was thrown away in the middle of it, and was opened again from its disk.

What it had in memory and pushed to followers in that leader epoch is gone, so it must not lead in it any more: another
batch would get the offset of one that a follower has (S4). The next epoch begins from what is on its disk, like after
any election.

What is *not* here: what it does (`image_partitions.py`), and when it is proposed (`raftlog/broker/offline_leaders.py`).
"""

from __future__ import annotations

from raftlog.model import TopicPartition

from .command_parts import BrokerIdField, IncarnationField, LeaderEpochField, Part, PartitionField, TopicIdField

RENEWAL_FEATURE_LEVEL = 5
"""From here on it may be proposed."""


class RenewLeadership(Part, frozen=True, tag="renew_leadership.1"):
    """This life of the broker leads in this leader epoch, cannot go on in it, and could in the next one. Answered by
    `Done`: it leads again, in that."""

    topic_id: TopicIdField
    partition: PartitionField
    broker_id: BrokerIdField
    incarnation: IncarnationField
    leader_epoch: LeaderEpochField

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic_id, self.partition)
