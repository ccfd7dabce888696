"""A broker creates, opens and closes its replicas in batches of hundreds, with few calls of the disk (S1, S9)."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest

from jepsen_like.simulator.world.disk import SimDisk, SimulatedCrash
from partitions.files import durable
from partitions.log.writer import LogWriter
from partitions.opening.batches import RESULTS_PER_TURN, BatchedOpener, OpenTask
from partitions.opening.folders import OpenedReplica, folder_of
from partitions.opening.log_manager import LogManager
from raftlog.config import TopicConfig
from raftlog.errors import DiskFailed, DiskFull
from raftlog.model import TopicId, TopicPartition
from tests.support.partitions.manual import ManualScheduler, ManualWorker
from tests.support.partitions.storage import append

MANY = 2 * durable.TOGETHER_MIN
TOPIC = TopicId(bytes(16))


class SilentLogger:
    def info(self, event: str, **fields: object) -> None: ...

    def warning(self, event: str, **fields: object) -> None: ...

    def error(self, event: str, **fields: object) -> None: ...


class Broker:
    """The replicas of one process, without a driver."""

    def __init__(self, disk: SimDisk, count: int = MANY, *, clean: bool = False) -> None:
        self.disk = disk
        self.tps = [TopicPartition(TOPIC, number) for number in range(count)]
        self.scheduler = ManualScheduler()
        self.worker = ManualWorker(self.scheduler)
        self.writer = LogWriter(ManualWorker(self.scheduler), self.scheduler)
        self.changed: list[TopicPartition] = []
        self.shelf = LogManager(
            disk, self.scheduler, self.worker, self.writer, SilentLogger(), self.changed.append, cache_bytes=1 << 20
        )
        self.reports = self.shelf.load(clean_shutdown=clean)

    def begin(self) -> None:
        """Replicas that did not exist before."""
        for tp in self.tps:
            assert self.shelf.take(tp, TopicConfig()) is None
        self.worker.run_all()

    def take(self) -> list[OpenedReplica]:
        found = [self.shelf.take(tp, TopicConfig()) for tp in self.tps]
        return [opened for opened in found if opened is not None]

    def write(self) -> None:
        """One batch for each; they are returned for the close."""
        for opened in self.take():
            append(opened.log)
            job = opened.log.take_job()
            assert job is not None
            job.run()
            opened.log.job_done(job, None)
            self.shelf.put_back(opened.topic_partition, opened.log)

    def close(self) -> list[bool]:
        told: list[bool] = []
        self.shelf.close(told.append, clean=True)
        self.scheduler.run()
        self.worker.run_all()
        return told


def begun(count: int = MANY) -> Broker:
    broker = Broker(SimDisk(), count)
    broker.begin()
    return broker


def vouched(broker: Broker) -> int:
    return sum(not report.cut_or_quarantined for report in broker.reports)


# --- Costs -----------


def test_replicas_are_created_by_a_few_calls_and_survive_a_power_loss() -> None:
    broker = begun()
    assert broker.disk.sync_alls <= 3
    assert broker.changed == broker.tps
    assert len(broker.take()) == MANY
    broker.disk.power_loss(random.Random(0))
    again = Broker(broker.disk)
    assert (len(again.reports), vouched(again)) == (MANY, MANY)


def test_after_an_unclean_stop_written_bytes_are_made_durable_by_one_call() -> None:
    broker = begun()
    broker.write()
    fsyncs, sync_alls, files = broker.disk.fsyncs, broker.disk.sync_alls, broker.disk.files()
    again = Broker(broker.disk)
    assert (again.disk.fsyncs - fsyncs, again.disk.sync_alls - sync_alls) == (1 + 1, 1), "one for the folders, once"
    assert again.disk.files() == files
    assert [report.stable_end_offset for report in again.reports] == [1] * MANY
    again.disk.power_loss(random.Random(1))
    assert [report.stable_end_offset for report in Broker(again.disk).reports] == [1] * MANY


def test_a_clean_close_of_all_is_two_calls_and_the_next_start_none() -> None:
    broker = begun()
    broker.write()
    sync_alls = broker.disk.sync_alls
    assert broker.close() == [True]
    assert broker.disk.sync_alls - sync_alls == 2, "indexes, producers and checkpoints; their names"
    broker.disk.power_loss(random.Random(2))
    fsyncs = broker.disk.fsyncs
    again = Broker(broker.disk, clean=True)
    assert again.disk.fsyncs - fsyncs == 1, "the folder that they are in"
    assert all(report.clean for report in again.reports) and len(again.reports) == MANY


def test_a_few_replicas_have_fsyncs_of_their_own() -> None:
    broker = begun(3)
    broker.write()
    assert broker.close() == [True]
    assert all(report.clean for report in Broker(broker.disk, 3, clean=True).reports)
    assert broker.disk.sync_alls == 0


def test_on_another_disk_each_replica_has_its_own_fsyncs() -> None:
    disk = SimDisk()
    disk.one_call = False
    broker = Broker(disk)
    broker.begin()
    broker.write()
    assert broker.close() == [True]
    assert len(Broker(disk, clean=True).reports) == MANY


def test_more_replicas_than_a_round_holds_take_several_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("partitions.opening.batches.TOGETHER_MAX", durable.TOGETHER_MIN)
    broker = Broker(SimDisk(), 3 * durable.TOGETHER_MIN)
    for tp in broker.tps:
        broker.shelf.take(tp, TopicConfig())
    broker.scheduler.run()
    assert len(broker.worker.pending) == 1, "other work of the same threads is not behind all of them"
    broker.worker.run_all()
    assert len(broker.take()) == 3 * durable.TOGETHER_MIN


# --- Crashes and failures ---


def test_reported_replicas_survive_a_power_loss_at_any_operation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Created, written to, closed, opened again; S9: a reported replica is never absent."""
    monkeypatch.setattr(durable, "TOGETHER_MIN", 2)
    steps = 0
    while True:
        steps += 1
        disk = SimDisk()
        broker = Broker(disk, 3)
        disk.crash_countdown = steps
        try:
            broker.begin()
            broker.write()
            broker.close()
            Broker(disk, 3, clean=True)
        except SimulatedCrash:
            ends = dict.fromkeys(broker.changed, 0)
            for tp, log in broker.shelf.returned.items():
                ends[tp] = int(log.stable_end_offset)
            for seed in range(2):
                left = copy.deepcopy(disk)
                left.crash_countdown = 0
                left.power_loss(random.Random(1000 * steps + seed))
                reports = {report.topic_partition: report for report in Broker(left, 3).reports}
                for tp, end in ends.items():
                    assert reports[tp].stable_end_offset >= end, (steps, seed, reports[tp])
            continue
        break
    assert steps > 50


def test_an_unreadable_replica_is_left_out_and_the_others_are_opened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker = begun()
    broken = folder_of(broker.tps[5])
    real = SimDisk.list

    def listed(disk: SimDisk, path: str) -> list[str]:
        if path == broken:
            raise DiskFailed("Input/output error")
        return real(disk, path)

    monkeypatch.setattr(SimDisk, "list", listed)
    again = Broker(broker.disk)
    assert len(again.reports) == MANY - 1
    assert again.shelf.failures() == [(broker.tps[5], "disk_failed: Input/output error")]


def test_a_failed_call_leaves_out_every_replica_that_waited_for_it() -> None:
    """S9: none of them can vouch for the bytes that it read."""
    broker = begun()
    broker.write()
    broker.disk.fail_fsync = 0
    real = SimDisk.sync_all

    def sync_all(disk: SimDisk) -> None:
        disk.fail_fsync = 1
        real(disk)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(SimDisk, "sync_all", sync_all)
        again = Broker(broker.disk)
    assert again.reports == []
    assert len(again.shelf.failures()) == MANY


def test_a_failed_close_is_not_reported_as_clean(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = begun()
    broker.write()
    broker.disk.fail_fsync = 1
    assert broker.close() == [False]
    again = Broker(broker.disk)
    assert len(again.reports) == MANY
    assert not any(report.clean for report in again.reports)


def test_replicas_without_space_are_created_when_there_is_some() -> None:
    broker = Broker(SimDisk())
    broker.disk.full_below = folder_of(broker.tps[3]) + "/"
    broker.begin()
    assert len(broker.take()) == MANY - 1
    assert [tp for tp, _ in broker.shelf.failures()] == [broker.tps[3]]
    broker.disk.full_below = ""
    broker.scheduler.advance(5.1)
    broker.shelf.take(broker.tps[3], TopicConfig())
    broker.worker.run_all()
    (late,) = broker.take()
    assert late.topic_partition == broker.tps[3]


# --- The rounds themselves ---


def test_results_are_reported_in_several_turns_and_one_that_raises_stops_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scheduler = ManualScheduler()
    worker = ManualWorker(scheduler)
    rounds = BatchedOpener(SimDisk(), scheduler, worker)
    told: list[Any] = []
    turns: list[int] = []
    real = ManualScheduler.call_soon

    def call_soon(scheduler: ManualScheduler, callback: Any) -> None:
        def turn() -> None:
            before = len(told)
            try:
                callback()
            finally:
                turns.append(len(told) - before)

        real(scheduler, turn)

    monkeypatch.setattr(ManualScheduler, "call_soon", call_soon)

    def work(number: int) -> durable.Steps[int]:
        yield durable.Durable()
        if number == 1:
            raise DiskFull("no room")
        return number

    def done(result: int | None, error: BaseException | None) -> None:
        told.append(error if result is None else result)
        if result == 2:
            raise KeyError("a bug of one")

    for number in range(MANY):
        rounds.submit(OpenTask(lambda _, number=number: work(number), lambda: True), done)  # type: ignore[misc]
    with pytest.raises(KeyError):
        worker.run_all()
    worker.run_all()
    assert isinstance(told.pop(1), DiskFull)
    assert told == [0, *range(2, MANY)]
    assert max(turns) <= RESULTS_PER_TURN
