"""The numbers of a whole broker: every name of the catalogue, and the bounds."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from http_api.service.metrics import NodeSample
from metadata.records.events import GroupChanged, OffsetsCommitted
from metadata.records.groups import CommittedOffset, GroupRecord
from raftlog.broker.loop_stalls import LoopStalls
from raftlog.broker.metrics.groups import GroupLags
from raftlog.broker.metrics.node_metrics import NodeMetrics
from raftlog.broker.metrics.partitions import Steps
from raftlog.broker.metrics.process import ProcessSources
from raftlog.broker.metrics.series import ALL_PARTITIONS, OTHERS, Series
from raftlog.broker.requests.request_counts import RequestCounts
from raftlog.broker.wiring import Broker
from raftlog.config import MetricsConfig
from raftlog.metrics import catalogue as names
from raftlog.metrics.histogram import HistogramState
from raftlog.metrics.measure import Family
from raftlog.model import BrokerId, Offset, QuorumStatus, TopicId, TopicPartition
from raftlog.system.shared_histogram import SharedHistogram
from raftlog.system.thread_times import ThreadTimes
from tests.interaction.story_ports import StoryLogger
from tests.support.partitions.manual import ManualScheduler
from tests.unit.raftlog.broker.test_wiring import OWN, loaded

BY_THE_API = {"raftlog_metrics_collect_seconds"}
"""Added where the answer is made."""


class Quorum:
    def status(self) -> QuorumStatus:
        return QuorumStatus(OWN, OWN, 4, 10, 9, 11, (OWN, BrokerId(1)), {OWN: 11, BrokerId(1): 8})


def sources(broker: Broker) -> ProcessSources:
    return ProcessSources(
        requests=RequestCounts(lambda: 0.0),
        sync_seconds=SharedHistogram(),
        writer=broker.manager.writer,
        room=broker.room,
        threads=ThreadTimes(),
        stalls=LoopStalls(),
        certificates=lambda: {"this node's TLS certificate": 2e9},
        quota_delays=lambda: {"requests_per_second": 3},
        failed_logins=lambda: {"token": 2},
    )


def metrics_of(broker: Broker, scheduler: ManualScheduler, **config: Any) -> NodeMetrics:
    quorum: Any = Quorum()
    logger = StoryLogger(lambda line: None, OWN)
    return NodeMetrics(broker, quorum, scheduler, logger, MetricsConfig(**config), sources(broker))


def families(steps: Steps) -> dict[str, Family]:
    found = [family for family in steps if family is not None]
    by_name = {family.measure.name: family for family in found}
    assert len(by_name) == len(found), "each measure once"
    return by_name


def test_every_measure_of_the_catalogue_is_collected_and_fits_it() -> None:
    scheduler = ManualScheduler()
    _, broker, _ = loaded(scheduler)
    found = families(metrics_of(broker, scheduler).collect())
    wanted = {measure.name for measure in names.ALL if not measure.name.startswith("raftlog_http_")} - BY_THE_API
    assert set(found) == wanted
    for family in found.values():
        for labels, value in family.samples:
            assert len(labels) == len(family.measure.labels), family.measure.name
            assert isinstance(value, HistogramState) is (family.measure.kind == "histogram")
    assert found["raftlog_quorum_lag_entries"].samples == [(("1",), 3), (("3",), 0)]
    assert found["raftlog_failed_authentications_total"].samples == [(("token",), 2)]
    assert found["raftlog_quota_delays_total"].samples == [(("requests_per_second",), 3)]


def test_a_sample_has_the_main_numbers() -> None:
    scheduler = ManualScheduler()
    _, broker, _ = loaded(scheduler)
    sample = metrics_of(broker, scheduler).sample()
    assert isinstance(sample, NodeSample)
    assert sample.requests == sample.fsyncs == 0
    assert sample.at_ms == scheduler.clock.wall_ms()


class Lagging:
    """A manager whose only replicas are led here, with these high watermarks."""

    def __init__(self, ends: dict[TopicPartition, int]) -> None:
        self.ends = ends

    def driver(self, tp: TopicPartition) -> Any:
        replica = SimpleNamespace(leader=object(), high_watermark=self.ends[tp])
        return SimpleNamespace(replica=replica) if tp in self.ends else None


def lags_of(groups: int, partitions: int, *, most: int = 1_000) -> tuple[GroupLags, ManualScheduler, Lagging]:
    scheduler = ManualScheduler()
    _, broker, _ = loaded(scheduler)
    topic = TopicId(bytes(16))
    ends = {TopicPartition(topic, number): 100 for number in range(partitions)}
    broker.view.topic_by_id = lambda topic_id: SimpleNamespace(name="t")  # type: ignore[assignment,method-assign,return-value]
    for number in range(groups):
        record = GroupRecord(f"g{number:03}", 1, 1, "range")
        broker.view.groups.on_event(GroupChanged(record))
        committed = {tp: CommittedOffset(Offset(40), -1, "", 0) for tp in ends}
        broker.view.groups.on_event(OffsetsCommitted(record.group_id, committed))
    manager: Any = Lagging(ends)
    series = Series(most, by_topic=False)
    series.begin(partitions, ["t"])
    logger = StoryLogger(lambda line: None, OWN)
    return GroupLags(manager, broker.view, scheduler.clock, scheduler, logger, series, most), scheduler, manager


def test_the_lag_of_a_group_in_records_and_seconds() -> None:
    lags, scheduler, manager = lags_of(1, 2)
    lags.start()
    scheduler.advance(16)
    manager.ends = dict.fromkeys(manager.ends, 200)
    scheduler.advance(15)
    found = families(lags.collect())
    assert found["raftlog_group_lag_records"].samples == [(("g000", "t", "0"), 160), (("g000", "t", "1"), 160)]
    ((labels, seconds),) = found["raftlog_group_lag_seconds"].samples
    assert labels == ("g000", "t")
    assert isinstance(seconds, float) and 15 <= seconds <= 31
    assert lags.records == 320
    lags.close()


def test_the_series_of_groups_are_bounded() -> None:
    lags, _, _ = lags_of(5, 100, most=100)
    found = families(lags.collect())
    assert found["raftlog_group_lag_records"].samples[0] == (("g000", "t", ALL_PARTITIONS), 6_000)
    assert len(found["raftlog_group_lag_records"].samples) == 5
    lags, _, _ = lags_of(150, 2, most=100)
    found = families(lags.collect())
    samples = dict(found["raftlog_group_lag_records"].samples)
    assert len(samples) == 100
    assert samples[OTHERS, OTHERS, ALL_PARTITIONS] == 51 * 120
    assert len(found["raftlog_group_lag_seconds"].samples) == 100
    assert lags.joined > 0
