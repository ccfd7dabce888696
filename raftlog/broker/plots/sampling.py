"""One sample of what this node leads: rates, sizes, lags. A pure core, in steps.

A rate counts records appended to partitions that this node led at this sample and at the one before. Sizes are those
of the leaders' logs, lags those of committed offsets of partitions led here, so sums over all nodes are those of the
cluster.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from metadata.view import ClusterView
from partitions.driver.driver import PartitionDriver
from raftlog.model import LeaderEpoch, TopicId, TopicPartition

PER_STEP = 200
"""Partitions, or committed offsets, that one step looks at: some hundred microseconds."""
MOST_OFFSETS = 50_000
"""The most committed offsets that one sample looks at."""


class Sample:
    """The numbers of one sample, by topic and group."""

    def __init__(self) -> None:
        self.records: dict[TopicId, float] = {}
        """Topic → records appended since the sample before, at leaders here."""
        self.sizes: dict[TopicId, int] = {}
        self.lags: dict[str, int] = {}
        """Group → records that it has not consumed, of partitions led here."""
        self.leaders = 0
        self.under_replicated = 0
        self.disk_used = 0
        """Bytes of all replicas here."""


class Sampling:
    """Takes samples; remembers the ends of the logs that it saw last."""

    def __init__(self) -> None:
        self._ends: dict[TopicPartition, tuple[LeaderEpoch, int]] = {}

    def steps(
        self, drivers: Mapping[TopicPartition, PartitionDriver], view: ClusterView, sample: Sample
    ) -> Iterator[None]:
        """Fill the sample; the view and the drivers may change between two steps."""
        records: defaultdict[TopicId, float] = defaultdict(float)
        ends: dict[TopicPartition, tuple[LeaderEpoch, int]] = {}
        for number, (tp, driver) in enumerate(list(drivers.items()), 1):
            if number % PER_STEP == 0:
                yield
            sample.disk_used += driver.log.size_bytes
            if driver.replica.leader is None:
                continue
            epoch, end = driver.replica.leader_epoch, driver.log.log_end_offset
            sample.leaders += 1
            record = view.partition(tp)
            if record is not None and len(record.isr) < record.replica_count:
                sample.under_replicated += 1
            known_epoch, known_end = self._ends.get(tp, (epoch, end))
            records[tp.topic_id] += max(0, end - known_end) if known_epoch == epoch else 0
            sample.sizes[tp.topic_id] = sample.sizes.get(tp.topic_id, 0) + driver.log.size_bytes
            ends[tp] = (epoch, end)
        self._ends = ends
        sample.records = dict(records)
        yield from self._lags(drivers, view, sample)

    @staticmethod
    def _lags(drivers: Mapping[TopicPartition, PartitionDriver], view: ClusterView, sample: Sample) -> Iterator[None]:
        looked = 0
        for group in list(view.groups.groups()):
            lag: int | None = None
            looked += 1
            for tp, committed in list(view.groups.offsets(group.group_id).items()):
                looked += 1
                if looked > MOST_OFFSETS:
                    return
                if looked % PER_STEP == 0:
                    yield
                driver = drivers.get(tp)
                if driver is not None and driver.replica.leader is not None:
                    lag = (lag or 0) + max(0, driver.replica.high_watermark - committed.offset)
            if lag is not None:
                sample.lags[group.group_id] = lag
