"""Group commit: one round in flight, each dirty log once in it, later work in the next round."""

from __future__ import annotations

import pytest

from jepsen_like.simulator.world.disk import SimDisk
from partitions.log.writer import LogWriter
from raftlog.config import TopicConfig
from raftlog.model import Offset
from tests.support.partitions.manual import ManualScheduler, ManualWorker
from tests.support.partitions.storage import append, recover_log


class World:
    def __init__(self, logs: int = 3) -> None:
        self.disk = SimDisk()
        self.disk.make_directory("partitions")
        self.scheduler = ManualScheduler()
        self.worker = ManualWorker(self.scheduler)
        self.writer = LogWriter(self.worker, self.scheduler)
        self.logs = [
            recover_log(self.disk, f"partitions/{n}", TopicConfig(), clean_shutdown=False)[0] for n in range(logs)
        ]
        self.told: list[tuple[int, int]] = []

    def append(self, number: int) -> None:
        append(self.logs[number])
        self.dirty(number)

    def dirty(self, number: int) -> None:
        self.writer.dirty(self.logs[number], lambda: self.told.append((number, self.logs[number].stable_end_offset)))


@pytest.fixture
def world() -> World:
    return World()


def test_appends_of_one_event_are_one_round_with_one_job_per_log(world: World) -> None:
    for number in (2, 0, 2, 1, 0, 2):
        world.append(number)
    assert not world.worker.pending, "not before the event is over"
    world.scheduler.run()
    assert len(world.worker.pending) == 3
    assert not world.writer.idle
    world.worker.run_all()
    assert world.told == [(2, 3), (0, 2), (1, 1)], "in the order in which they became dirty"
    assert (world.writer.rounds, world.writer.jobs) == (1, 3)
    assert world.writer.idle


def test_work_that_arrives_during_a_round_waits_for_all_of_it(world: World) -> None:
    world.append(0)
    world.append(1)
    world.scheduler.run()
    world.append(0)
    world.append(2)
    world.worker.run_one()
    world.scheduler.run()
    assert len(world.worker.pending) == 1, "the other job of the first round"
    assert world.told == [(0, 1)]
    world.worker.run_one()
    world.scheduler.run()
    assert len(world.worker.pending) == 2, "the second round"
    world.worker.run_all()
    assert world.told == [(0, 1), (1, 1), (0, 2), (2, 1)]
    assert world.writer.rounds == 2


def test_a_hundred_appends_during_one_fsync_are_one_job(world: World) -> None:
    world.append(0)
    world.scheduler.run()
    for _ in range(100):
        world.append(0)
    fsyncs = world.disk.fsyncs
    world.worker.run_all()
    assert world.logs[0].stable_end_offset == 101
    assert world.writer.jobs == 2
    assert world.disk.fsyncs - fsyncs < 10


def test_remaining_work_of_a_job_is_done_without_a_request(world: World) -> None:
    world.append(0)
    world.scheduler.run()
    append(world.logs[0])  # without a call of dirty
    world.logs[0].truncate_to(Offset(1))
    world.worker.run_all()
    assert not world.logs[0].needs_job


def test_dirty_without_anything_to_do_costs_nothing(world: World) -> None:
    world.dirty(0)
    world.scheduler.run()
    assert not world.worker.pending
    assert world.told == []
    assert world.writer.idle


def test_a_failed_log_is_reported_once_and_dropped(world: World) -> None:
    world.append(0)
    world.append(1)
    world.scheduler.run()
    world.disk.fail_fsync = 1
    world.worker.run_all()
    assert world.logs[0].failed is not None and world.logs[1].failed is None
    assert world.told == [(0, 0), (1, 1)]
    world.dirty(0)
    world.worker.run_all()
    assert len(world.told) == 2


def test_a_full_disk_is_retried_every_second_until_there_is_space(world: World) -> None:
    world.append(0)
    world.disk.full = True
    for _ in range(3):
        world.worker.run_all()
        assert world.logs[0].full and world.writer.idle
        world.scheduler.advance(0.99)
        assert not world.worker.pending
        world.scheduler.advance(0.02)
        assert len(world.worker.pending) == 1
    world.disk.full = False
    world.worker.run_all()
    assert world.logs[0].stable_end_offset == 1
    assert world.told == [(0, 0), (0, 0), (0, 0), (0, 1)]


def test_when_idle_waits_for_the_last_round(world: World) -> None:
    told: list[str] = []
    world.append(0)
    world.writer.when_idle(lambda: told.append("idle"))
    world.scheduler.run()
    world.append(1)
    assert told == []
    world.worker.run_all()
    assert told == ["idle"]
    world.writer.when_idle(lambda: told.append("again"))
    world.worker.run_all()
    assert told == ["idle", "again"]


def test_a_full_disk_is_not_retried_more_often_for_new_work(world: World) -> None:
    world.append(0)
    world.disk.full = True
    world.worker.run_all()
    for _ in range(5):
        world.dirty(0)
        world.worker.run_all()
    world.scheduler.advance(1.01)
    world.worker.run_all()
    jobs = world.writer.jobs
    world.scheduler.advance(0.99)
    assert world.writer.jobs == jobs, "one timer, however often it was tried"


def test_a_dropped_log_gets_no_new_job(world: World) -> None:
    told: list[str] = []
    world.append(0)
    world.writer.forget(world.logs[0], lambda: told.append("forgotten"))
    assert told == [], "never at once"
    world.worker.run_all()
    assert world.logs[0].stable_end_offset == 0
    assert world.writer.idle
    assert told == ["forgotten"]


def test_a_log_is_dropped_when_its_last_job_has_ended(world: World) -> None:
    told: list[str] = []
    world.append(0)
    world.append(1)
    world.scheduler.run()
    append(world.logs[0])
    world.writer.forget(world.logs[0], lambda: told.append("forgotten"))
    world.dirty(0)
    world.scheduler.run()
    assert told == []
    world.worker.run_one()
    world.scheduler.run()
    assert told == ["forgotten"], "though another log's job of the round still runs"
    world.worker.run_all()
    assert world.logs[0].stable_end_offset == 1, "no second job"
    assert world.writer.idle and world.writer.jobs == 2


def test_a_dropped_full_log_is_not_retried(world: World) -> None:
    world.append(0)
    world.disk.full = True
    world.worker.run_all()
    world.writer.forget(world.logs[0], lambda: None)
    world.scheduler.advance(5.0)
    assert not world.worker.pending
