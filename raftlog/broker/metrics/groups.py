"""The lag of consumer groups in the partitions that this node leads.

Every node knows the committed offsets, and a leader its high watermark: so each pair of group and partition is shown
by one node of the cluster, without a request between nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from metadata.view import ClusterView
from partitions.manager import PartitionManager
from raftlog.metrics import catalogue as names
from raftlog.metrics.measure import Family
from raftlog.model import TopicPartition
from raftlog.ports import Clock, Logger, Scheduler, Timer
from raftlog.slices import run

from .lag_history import LagHistory
from .partitions import PER_STEP, Steps
from .series import ALL_PARTITIONS, OTHERS, Series

SAMPLE_SECONDS = 15.0
"""Time between two samples of the high watermarks that groups are compared with, in seconds."""
MAX_HISTORIES = 10_000
"""The most partitions whose past is kept, a few kilobytes each; the lag of others is shown in records only."""


class GroupLags:
    """Collects the lags. All calls are made on the broker's loop."""

    def __init__(
        self,
        manager: PartitionManager,
        view: ClusterView,
        clock: Clock,
        scheduler: Scheduler,
        logger: Logger,
        series: Series,
        most: int,
    ) -> None:
        """`most`: series of one metric."""
        self._manager = manager
        self._view = view
        self._clock = clock
        self._scheduler = scheduler
        self._logger = logger
        self._series = series
        self._most = most
        self._histories: dict[TopicPartition, LagHistory] = {}
        self._timer: Timer | None = None
        self.records = 0
        """The sum of all lags when they were last collected."""
        self.joined = 0

    # --- The past of the high watermarks ---

    def start(self) -> None:
        """Sample the high watermarks regularly, until `close`."""
        self._timer = self._scheduler.call_later(SAMPLE_SECONDS, self._sample)

    def close(self) -> None:
        """Stop."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _sample(self) -> None:
        self.start()
        run(self._scheduler, self._observe(), partial(self._logger.error, "the lags of groups were not sampled"))

    def _observe(self) -> Iterator[None]:
        wanted: dict[TopicPartition, None] = {}
        number = 0
        for group in self._view.groups.groups():
            for tp in list(self._view.groups.offsets(group.group_id)):
                number += 1
                if number % PER_STEP == 0:
                    yield
                if tp not in wanted and len(wanted) < MAX_HISTORIES and (end := self._led_end(tp)) is not None:
                    wanted[tp] = None
                    self._histories.setdefault(tp, LagHistory()).observe(self._clock.monotonic(), end)
        for tp in self._histories.keys() - wanted:
            del self._histories[tp]

    def _led_end(self, tp: TopicPartition) -> int | None:
        driver = self._manager.driver(tp)
        return None if driver is None or driver.replica.leader is None else driver.replica.high_watermark

    # --- The lags ---

    def collect(self) -> Steps:
        """Yield the families, in steps."""
        records: dict[tuple[str, str, str], int] = {}
        seconds: dict[tuple[str, str], float] = {}
        groups = self._view.groups.groups()
        total = number = 0
        for group in groups:
            for tp, committed in list(self._view.groups.offsets(group.group_id).items()):
                number += 1
                if number % PER_STEP == 0:
                    yield None
                end, topic = self._led_end(tp), self._view.topic_by_id(tp.topic_id)
                if end is None or topic is None:
                    continue
                lag = max(0, end - committed.offset)
                total += lag
                key = (group.group_id, *self._series.labels(topic.name, str(tp.partition)))
                records[key] = records.get(key, 0) + lag
                pair = key[:2]
                seconds[pair] = max(seconds.get(pair, 0.0), self._age(tp, end, committed.offset))
        self.records, self.joined = total, 0
        yield Family.of(names.GROUPS, len(groups))
        yield Family(names.GROUP_RECORDS, list(self._bounded(records).items()))
        yield Family(names.GROUP_SECONDS, list(self._bounded_seconds(seconds).items()))

    def _age(self, tp: TopicPartition, end: int, committed: int) -> float:
        if committed >= end:
            return 0.0
        history = self._histories.get(tp)
        if history is None:
            if len(self._histories) >= MAX_HISTORIES:
                return 0.0
            history = self._histories[tp] = LagHistory()
        now = self._clock.monotonic()
        history.observe(now, end)
        return history.age(now, committed)

    def _bounded(self, found: dict[tuple[str, str, str], int]) -> dict[tuple[str, str, str], int]:
        """Join partitions, and then groups, until there are few enough series."""
        if len(found) > self._most:
            found = self._joined(found, lambda key: (key[0], key[1], ALL_PARTITIONS))
        if len(found) > self._most:
            kept = set(sorted(found)[: self._most - 1])
            found = self._joined(found, lambda key: key if key in kept else (OTHERS, OTHERS, ALL_PARTITIONS))
        return found

    def _joined(
        self, found: dict[tuple[str, str, str], int], name: Callable[[tuple[str, str, str]], tuple[str, str, str]]
    ) -> dict[tuple[str, str, str], int]:
        joined: dict[tuple[str, str, str], int] = {}
        for key, lag in found.items():
            joined[name(key)] = joined.get(name(key), 0) + lag
        self.joined += len(found) - len(joined)
        return joined

    def _bounded_seconds(self, found: dict[tuple[str, str], float]) -> dict[tuple[str, str], float]:
        if len(found) <= self._most:
            return found
        kept = dict(sorted(found.items(), key=lambda one: -one[1])[: self._most - 1])
        self.joined += len(found) - len(kept)
        rest = max(lag for key, lag in found.items() if key not in kept)
        return {**kept, (OTHERS, OTHERS): rest}
