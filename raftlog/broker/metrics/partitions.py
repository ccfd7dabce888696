"""The numbers of this node's replicas and topics, and of the replication from here."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import TypeAlias

from metadata.view import ClusterView
from partitions.driver.driver import PartitionDriver
from partitions.manager import PartitionManager
from raftlog.metrics import catalogue as names
from raftlog.metrics.measure import Family, Measure
from raftlog.model import BrokerId, TopicPartition
from raftlog.ports import Clock

from .series import Series

PER_STEP = 100
"""Replicas in one step, some five microseconds each."""

Steps: TypeAlias = Iterator[Family | None]
"""Families when they are complete, and None between two steps."""


class FollowerLags:
    """The lags of one follower over all partitions led here."""

    __slots__ = ("nbytes", "records", "seconds")

    def __init__(self) -> None:
        self.records = 0
        self.nbytes = 0.0
        self.seconds = 0.0


class PartitionNumbers:
    """Collects what replicas and topics show. All calls are made on the broker's loop."""

    def __init__(self, manager: PartitionManager, view: ClusterView, clock: Clock, series: Series) -> None:
        self._manager = manager
        self._view = view
        self._clock = clock
        self._series = series
        self.leaders = self.offline = 0
        """Partitions led here, and replicas out of service, when they were last collected."""
        self.replication_records = 0
        """Records that followers lacked then, summed."""

    def collect(self) -> Steps:
        """Yield the families, in steps."""
        yield from self._topics()
        yield from self._replicas()

    # --- Topics ---

    def _topics(self) -> Steps:
        measures = {
            names.TOPIC_BYTES_IN: "appended_bytes",
            names.TOPIC_RECORDS_IN: "appended_records",
            names.TOPIC_BATCHES_IN: "appended_batches",
            names.TOPIC_BYTES_OUT: "fetched_bytes",
            names.TOPIC_REPLICATED: "replicated_bytes",
        }
        sums: dict[str, list[int]] = {}
        cold = cold_of_followers = 0
        traffic = list(self._manager.traffic.items())
        for number, (topic_id, counts) in enumerate(traffic):
            topic = self._view.topic_by_id(topic_id)
            cold += counts.cold_reads
            cold_of_followers += counts.cold_reads_of_followers
            if topic is not None:
                row = sums.setdefault(self._series.topic(topic.name), [0] * len(measures))
                for position, field in enumerate(measures.values()):
                    row[position] += getattr(counts, field)
            if number % PER_STEP == PER_STEP - 1:
                yield None
        for position, measure in enumerate(measures):
            yield Family(measure, [((name,), row[position]) for name, row in sums.items()])
        yield Family(names.COLD_READS, [(("consumer",), cold), (("follower",), cold_of_followers)])

    # --- Replicas ---

    def _replicas(self) -> Steps:
        rows: dict[tuple[str, str], list[int]] = {}
        lags: dict[tuple[str, str], int] = {}
        followers: defaultdict[BrokerId, FollowerLags] = defaultdict(FollowerLags)
        leaders = offline = 0
        now = self._clock.monotonic()
        drivers = list(self._manager.drivers.items())
        for number, (tp, driver) in enumerate(drivers):
            if number % PER_STEP == PER_STEP - 1:
                yield None
            labels = self._labels(tp, driver)
            _add(rows, labels, driver)
            offline += bool(driver.replica.offline)
            if driver.replica.leader is not None:
                leaders += 1
                most = _add_followers(followers, driver, now)
                lags[labels] = max(most, lags.get(labels, 0))
        self.leaders, self.offline = leaders, offline
        self.replication_records = sum(one.records for one in followers.values())
        yield None
        for position, measure in enumerate((names.LOG_END, names.LOG_START, names.HIGH_WATERMARK, names.LOG_BYTES)):
            yield Family(measure, [(labels, row[position]) for labels, row in rows.items()])
        yield Family(names.FOLLOWER_LAG, list(lags.items()))
        yield Family.of(names.REPLICAS, len(drivers))
        yield Family.of(names.LEADERS, leaders)
        yield Family.of(names.REPLICAS_OFFLINE, offline)
        yield from _replication(followers)

    def _labels(self, tp: TopicPartition, driver: PartitionDriver) -> tuple[str, str]:
        topic, _, partition = driver.name.rpartition("/")
        return self._series.labels(topic, partition)


def _add(rows: dict[tuple[str, str], list[int]], labels: tuple[str, str], driver: PartitionDriver) -> None:
    log = driver.log
    row = [log.log_end_offset, log.log_start_offset, driver.replica.high_watermark, log.size_bytes]
    known = rows.get(labels)
    rows[labels] = row if known is None else [a + b for a, b in zip(known, row, strict=True)]


def _add_followers(lags: Mapping[BrokerId, FollowerLags], driver: PartitionDriver, now: float) -> int:
    """Add the lags of a led partition's followers, and return the greatest in records."""
    leader, log = driver.replica.leader, driver.log
    assert leader is not None
    most = 0
    for progress in leader.followers:
        one = lags[progress.broker_id]
        if progress.is_behind(log.log_end_offset):
            # Of an unmatched follower nothing is known; it reads from the start at worst.
            behind = log.log_end_offset - max(progress.stable_end_offset, log.log_start_offset)
            average = log.size_bytes / max(1, log.log_end_offset - log.log_start_offset)
            one.records += behind
            one.nbytes += behind * average
            one.seconds = max(one.seconds, now - progress.caught_up_at)
            most = max(most, behind)
    return most


def _replication(followers: Mapping[BrokerId, FollowerLags]) -> Steps:
    def family(measure: Measure, field: str) -> Family:
        return Family(measure, [((str(broker),), getattr(one, field)) for broker, one in sorted(followers.items())])

    yield family(names.REPLICATION_RECORDS, "records")
    yield family(names.REPLICATION_BYTES, "nbytes")
    yield family(names.REPLICATION_SECONDS, "seconds")
