"""Samples are taken at the end of each slot, on a bounded part of the loop's time, and survive a disk that fails."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from metadata.view import CommittedOffset, GroupChanged, GroupRecord, OffsetsCommitted, TopicRemoved
from raftlog.broker.plots import sampling
from raftlog.broker.plots.ring import Ring
from raftlog.broker.plots.rows import SLOT_MS, Span
from raftlog.broker.plots.sampler import PlotSampler
from raftlog.broker.plots.sampling import Sample, Sampling
from raftlog.errors import DiskFull
from raftlog.model import Offset, TopicId, TopicPartition, TopicRecord
from raftlog.system.cluster_clock import ClusterClock
from raftlog.system.disk import LocalDisk
from tests.support.client.fake_broker import FakeBroker
from tests.support.partitions.manual import ManualScheduler, ManualWorker
from tests.unit.raftlog.broker.explain.test_history_file import Log


class Driver:
    """The part of a partition's driver that is sampled."""

    def __init__(self, end: int = 0, *, leads: bool = True, epoch: int = 1) -> None:
        self.log = SimpleNamespace(log_end_offset=end, size_bytes=end * 10)
        self.replica = SimpleNamespace(leader=object() if leads else None, leader_epoch=epoch, high_watermark=end)

    def append(self, count: int) -> None:
        self.log.log_end_offset += count
        self.log.size_bytes += count * 10
        self.replica.high_watermark += count


class Node:
    """A node with some partitions, and a disk on which others may follow it."""

    def __init__(self, path: Path, before: Node | None = None) -> None:
        """`before`: the process that this one follows, with the same clock and cluster."""
        self.scheduler = ManualScheduler(before.scheduler.clock if before else None)
        self.worker = ManualWorker(self.scheduler)
        self.disk = LocalDisk(str(path))
        self.log = Log()
        self.broker = before.broker if before else FakeBroker()
        self.drivers: dict[TopicPartition, Driver] = {}
        writer = SimpleNamespace(facts=lambda: SimpleNamespace(median=0.004))
        parts: Any = SimpleNamespace(
            clock=self.scheduler.clock,
            cluster_clock=ClusterClock(self.scheduler.clock),
            manager=SimpleNamespace(drivers=self.drivers, writer=writer),
            view=self.broker.view,
            room=SimpleNamespace(free=123),
        )
        self.sampler = PlotSampler(parts, Ring(self.disk), self.scheduler, self.worker, self.log)
        self.sampler.load()
        self.sampler.start()

    def topic(self, name: str, *drivers: Driver) -> TopicRecord:
        topic = self.broker.add_topic(name, len(drivers))
        for number, driver in enumerate(drivers):
            self.drivers[TopicPartition(topic.topic_id, number)] = driver
        return topic

    def slot(self) -> None:
        """Let one slot end."""
        self.scheduler.advance(SLOT_MS / 1000)
        self.worker.run_all()

    def read(self, read: Any, *subject: Any, points: int = 3) -> list[list[float | None]]:
        found: list[Any] = []
        now = (self.sampler.now_ms() + SLOT_MS // 2) // SLOT_MS
        read(*subject, Span(now, 1, points), lambda values, error: found.append((values, error)))
        self.worker.run_all()
        assert found[0][1] is None
        return found[0][0]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_rates_sizes_and_numbers_of_the_node(node: Node) -> None:
    first, second = Driver(100), Driver(50)
    topic = node.topic("orders", first, second, Driver(7, leads=False))
    node.slot()
    first.append(30)
    second.append(20)
    node.slot()
    records, sizes = node.read(node.sampler.read_topic, topic.topic_id)
    assert records == [None, 0.0, pytest.approx(5.0)], "what was there before the first sample is no throughput"
    assert sizes == [None, 1_500.0, 2_000.0]
    found = [one[-1] for one in node.read(node.sampler.read_node)]
    assert found == [pytest.approx(5.0), 2_070.0, 123.0, 2.0, 0.0, 0.0, pytest.approx(4.0), 0.0]


def test_a_partition_that_changed_its_leader_counts_from_then_on(node: Node) -> None:
    topic = node.topic("orders", Driver(100))
    tp = TopicPartition(topic.topic_id, 0)
    node.slot()
    node.drivers[tp] = Driver(900, epoch=2)
    node.slot()
    node.drivers[tp].append(10)
    node.slot()
    assert node.read(node.sampler.read_topic, topic.topic_id)[0] == [0.0, 0.0, pytest.approx(1.0)]
    node.drivers[tp].replica.leader = None
    node.slot()
    assert node.read(node.sampler.read_topic, topic.topic_id, points=1) == [[None], [None]], "another node has it now"


def test_the_lag_of_a_group_is_that_of_partitions_led_here(node: Node) -> None:
    topic = node.topic("orders", Driver(100), Driver(60), Driver(40, leads=False))
    commit(node, "billing", topic.topic_id, {0: 90, 1: 60, 2: 1})
    node.slot()
    assert node.read(node.sampler.read_group, "billing", points=1) == [[10.0]]
    assert node.read(node.sampler.read_group, "other", points=1) == [[None]]


def test_samples_survive_a_restart_and_gaps_are_gaps(node: Node, tmp_path: Path) -> None:
    topic = node.topic("orders", Driver(100))
    node.slot()
    node.sampler.close()
    node.slot()
    again = Node(tmp_path, node)
    again.drivers[TopicPartition(topic.topic_id, 0)] = Driver(120)
    again.slot()
    found = again.read(again.sampler.read_topic, topic.topic_id)
    assert found[1] == [1_000.0, None, 1_200.0]


def test_a_deleted_topic_leaves_its_place(node: Node) -> None:
    topic = node.topic("orders", Driver(100))
    node.slot()
    node.broker._event(TopicRemoved(topic.topic_id, "orders"))
    node.drivers.clear()
    node.slot()
    assert node.read(node.sampler.read_topic, topic.topic_id) == [[None] * 3] * 2


def test_a_full_disk_costs_samples_and_nothing_else(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = node.topic("orders", Driver(100))
    written = Ring.write

    def full(*arguments: Any) -> None:
        raise DiskFull("no room")

    monkeypatch.setattr(Ring, "write", full)
    node.slot()
    assert node.log.events == ["plots_not_written"]
    monkeypatch.setattr(Ring, "write", written)
    node.slot()
    assert node.read(node.sampler.read_topic, topic.topic_id)[1] == [None, None, 1_000.0]
    again = Ring(node.disk).load()
    assert again.of_topic(topic.topic_id.hex()) is not None, "the columns that could not be written are written later"


def test_a_sample_that_is_still_being_written_costs_the_next_one(node: Node) -> None:
    node.topic("orders", Driver(100))
    node.scheduler.advance(SLOT_MS / 1000)
    node.scheduler.advance(SLOT_MS / 1000)
    assert len(node.worker.pending) == 1


def test_steps_look_at_a_bounded_number_of_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "PER_STEP", 10)
    drivers: Any = {TopicPartition(TopicId(b"t" * 16), number): Driver(1) for number in range(95)}
    sample = Sample()
    assert len(list(Sampling().steps(drivers, FakeBroker().view, sample))) == 9
    assert sample.leaders == 95


def commit(node: Node, group: str, topic_id: TopicId, offsets: dict[int, int]) -> None:
    """Show the group with these offsets in the node's view."""
    committed = {
        TopicPartition(topic_id, number): CommittedOffset(Offset(offset), -1, "", 0)
        for number, offset in offsets.items()
    }
    node.broker._event(GroupChanged(GroupRecord(group, 1, 1, "range")), OffsetsCommitted(group, committed))
