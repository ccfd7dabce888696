"""What is asked again and again of all partitions of a view, kept up to date with each change of one: health checks and
new topics must not look at a hundred thousand records.

What is *not* here: the records (`view.py`), words for people (`raftlog/broker/health.py`).
"""

from __future__ import annotations

from collections import Counter

from raftlog.model import BrokerId, PartitionRecord, TopicPartition


class PartitionTally:
    """Read as you like; only the view writes.

    Invariant: a partition is in one of the three dictionaries at most, in the one of its worst trouble.
    """

    def __init__(self) -> None:
        self.replicas: Counter[BrokerId] = Counter()
        """By broker: how many replicas it is to have."""
        self.without_leader: dict[TopicPartition, None] = {}
        self.below_minimum: dict[TopicPartition, None] = {}
        """Led, with fewer in sync than `min.insync.replicas`."""
        self.under_replicated: dict[TopicPartition, None] = {}
        """Neither, and not all are in sync, those apart that a move is adding."""

    def update(self, before: PartitionRecord | None, now: PartitionRecord | None) -> None:
        """A partition's record is another; None: it was not there, or is gone."""
        if before is None or now is None or before.replicas != now.replicas:
            self.replicas.subtract(() if before is None else before.replicas)
            self.replicas.update(() if now is None else now.replicas)
        if before is not None and not _is_well(before):
            for troubled in (self.without_leader, self.below_minimum, self.under_replicated):
                troubled.pop(before.topic_partition, None)
        if now is not None and not _is_well(now):
            self._note_trouble(now)

    def _note_trouble(self, record: PartitionRecord) -> None:
        if not record.has_leader:
            self.without_leader[record.topic_partition] = None
        elif len(record.isr) < record.min_insync_replicas:
            self.below_minimum[record.topic_partition] = None
        elif not set(record.replicas).difference(record.adding_replicas).issubset(record.isr):
            self.under_replicated[record.topic_partition] = None


def _is_well(record: PartitionRecord) -> bool:
    """Led, and all replicas in sync: said at once, for most are."""
    return record.has_leader and len(record.isr) == len(record.replicas) >= record.min_insync_replicas
