"""Many logs at once: each step of all of them is one call of the disk, and a failure fails exactly the affected logs
(S1, S9).
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import pytest

from jepsen_like.simulator.world.disk import SimDisk, SimFile, SimulatedCrash
from partitions.files import durable
from partitions.files.durable import Durable, Steps, alone, together
from partitions.log.log import PartitionLog
from partitions.log.writer import RESULTS_PER_TURN, LogWriter
from raftlog.config import TopicConfig
from raftlog.errors import DiskFailed, DiskFull, InvariantViolation
from tests.support.partitions.manual import ManualScheduler, ManualWorker
from tests.support.partitions.storage import append, read_batches, recover_log

MANY = durable.TOGETHER_MIN


class World:
    """A node's logs and their writer."""

    def __init__(self, logs: int = MANY, config: TopicConfig | None = None) -> None:
        self.disk = SimDisk()
        self.disk.make_directory("partitions")
        self.disk.fsync_directory("")
        self.scheduler = ManualScheduler()
        self.worker = ManualWorker(self.scheduler)
        self.writer = LogWriter(self.worker, self.scheduler)
        self.config = config or TopicConfig()
        self.logs = [self.open(self.disk, number) for number in range(logs)]
        self.told: list[int] = []

    def open(self, disk: SimDisk, number: int) -> PartitionLog:
        return recover_log(disk, f"partitions/{number}", self.config, clean_shutdown=False)[0]

    def append_to_all(self, *, epoch: int = 0) -> None:
        for number, log in enumerate(self.logs):
            if not log.full:
                append(log, epoch=epoch)
            self.writer.dirty(log, lambda number=number: self.told.append(number))  # type: ignore[misc]

    def settle(self) -> int:
        """Run everything; returns the number of fsyncs of any kind."""
        before = self.disk.fsyncs
        self.worker.run_all()
        return self.disk.fsyncs - before

    def stable(self) -> set[int]:
        return {int(log.stable_end_offset) for log in self.logs}


@pytest.fixture
def world() -> World:
    return World()


# --- Costs -----------


def test_a_round_of_many_is_one_call_per_step(world: World) -> None:
    world.append_to_all()
    assert world.settle() == 3, "checkpoints and epochs; their names; batches"
    assert world.stable() == {1}
    world.append_to_all()
    assert world.settle() == 1
    assert world.stable() == {2}
    assert world.disk.sync_alls == 4
    assert world.told == [*range(MANY)] * 2


def test_a_few_logs_have_fsyncs_of_their_own() -> None:
    world = World(MANY - 1)
    world.append_to_all()
    world.settle()
    world.append_to_all()
    assert world.settle() == MANY - 1, "one each: a write and its fsync in one call"
    assert world.disk.sync_alls == 0


def test_without_such_a_call_each_log_has_its_own_fsyncs(world: World) -> None:
    """Another operating system, or a data folder on a file system that does not report losses."""
    world = World()
    world.disk.one_call = False
    world.logs = [world.open(world.disk, number) for number in range(MANY)]
    world.append_to_all()
    world.settle()
    assert world.stable() == {1}
    assert world.disk.sync_alls == 0


def test_a_log_on_another_disk_runs_beside_the_round() -> None:
    world = World(MANY + 1)
    world.logs[3].shares_syncs = False
    world.append_to_all()
    world.scheduler.run()
    assert len(world.worker.pending) == 2
    world.settle()
    assert world.stable() == {1}


def test_more_logs_than_a_round_holds_take_several(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(3 * MANY)
    monkeypatch.setattr("partitions.log.writer.TOGETHER_MAX", MANY)
    world.append_to_all()
    world.settle()
    assert (world.writer.rounds, world.disk.sync_alls) == (3, 9)
    assert world.stable() == {1}


def test_the_results_of_a_round_are_reported_in_several_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(3 * MANY)
    turns: list[int] = []
    real = ManualScheduler.call_soon

    def call_soon(scheduler: ManualScheduler, callback: Callable[[], None]) -> None:
        def turn() -> None:
            before = len(world.told)
            callback()
            turns.append(len(world.told) - before)

        real(scheduler, turn)

    monkeypatch.setattr(ManualScheduler, "call_soon", call_soon)
    world.append_to_all()
    world.settle()
    assert sum(turns) == 3 * MANY
    assert max(turns) == RESULTS_PER_TURN < 3 * MANY


def test_a_callback_that_raises_does_not_stop_the_others(world: World) -> None:
    def bug() -> None:
        raise KeyError("a bug")

    world.append_to_all()
    world.writer.dirty(world.logs[1], bug)
    world.scheduler.run()
    world.worker.run_one()
    with pytest.raises(KeyError):
        world.scheduler.run()
    world.settle()
    assert world.writer.idle
    assert world.told == [0, *range(2, MANY)]


# --- Order, and the state after a crash ---


def crash(world: World, steps: int) -> bool:
    """Some rounds, in the middle of which the process dies; returns False if they completed."""
    world.disk.crash_countdown = steps
    try:
        for epoch in (1, 1, 2):
            world.append_to_all(epoch=epoch)
            world.settle()
    except SimulatedCrash:
        return True
    finally:
        world.disk.crash_countdown = 0
    return False


def test_data_reported_as_stable_survives_a_power_loss_at_any_operation_of_a_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """S1: and no log vouches for less. The barriers are shared: no log may be ahead of the steps before it."""
    monkeypatch.setattr(durable, "TOGETHER_MIN", 2)
    steps = 0
    while crash(world := World(3), steps := steps + 1):
        stable = [int(log.stable_end_offset) for log in world.logs]
        for seed in range(3):
            left = copy.deepcopy(world.disk)
            left.power_loss(random.Random(100 * steps + seed))
            for number in range(3):
                log, recovery = recover_log(left, f"partitions/{number}", world.config, clean_shutdown=False)
                assert log.log_end_offset >= stable[number], (steps, seed, recovery)
                assert len(read_batches(log, 0)) == log.log_end_offset
    assert steps > 40


def test_a_round_holds_no_small_file_open(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of partitions need a descriptor each; their small files must not need more."""
    held: set[SimFile] = set()
    at_barriers: list[list[str]] = []
    real_open, real_close, real_sync = SimDisk.open, SimFile.close, SimDisk.sync_all

    def opened(disk: SimDisk, path: str, **how: bool) -> SimFile:
        held.add(file := real_open(disk, path, **how))
        return file

    def closed(file: SimFile) -> None:
        held.discard(file)
        real_close(file)

    def sync_all(disk: SimDisk) -> None:
        at_barriers.append(sorted(file.path for file in held))
        real_sync(disk)

    monkeypatch.setattr(SimDisk, "open", opened)
    monkeypatch.setattr(SimFile, "close", closed)
    monkeypatch.setattr(SimDisk, "sync_all", sync_all)
    world.append_to_all()
    world.settle()
    assert [len(paths) for paths in at_barriers] == [MANY] * 3
    assert all(path.endswith(".log") for paths in at_barriers for path in paths)


# --- Failures ---


@pytest.mark.parametrize("barrier", [1, 2, 3])
def test_a_failed_call_fails_every_log_of_the_round_permanently(world: World, barrier: int) -> None:
    """S1, S9: the disk has lost something, and it is unknown what. 1. All logs wait at a barrier. 2. It fails. 3. None
    of them reports anything as stable, and none is retried."""
    other = world.open(world.disk, 99)
    lost: list[SimFile] = []
    with pytest.MonkeyPatch.context() as patched:
        real = SimDisk.sync_all

        def sync_all(disk: SimDisk) -> None:
            disk.fail_fsync = int(disk.sync_alls == barrier - 1)
            real(disk)

        patched.setattr(SimDisk, "sync_all", sync_all)
        patched.setattr(SimFile, "lose", lambda file, why: lost.append(file))
        world.append_to_all()
        world.settle()
    assert all(isinstance(log.failed, DiskFailed) for log in world.logs)
    assert world.stable() == {0}
    assert world.told == list(range(MANY))
    assert len({id(log.failed) for log in world.logs}) == MANY, "each has an error of its own"
    assert len(lost) == (MANY if barrier == 3 else 0), "nor may the next process read them from the page cache"
    assert world.disk.sync_alls == barrier
    append(other)
    world.writer.dirty(other, lambda: None)
    for number, log in enumerate(world.logs):
        world.writer.dirty(log, lambda number=number: world.told.append(number))  # type: ignore[misc]
    world.settle()
    assert (other.stable_end_offset, world.disk.sync_alls, len(world.told)) == (1, barrier, MANY)


@pytest.mark.parametrize("flush", ["os", "fsync"])
def test_a_failed_call_loses_other_logs_unsynced_bytes_too(world: World, flush: str) -> None:
    """S9: 1. A log with `flush=os` has written, and waits for nothing. 2. A round of others meets an error: the disk
    may have dropped the log's bytes and call them clean. 3. The next call succeeds and does not make them durable: the
    log fails before it vouches for them. A log that has fsynced everything continues."""
    world.append_to_all()
    world.settle()
    other = recover_log(world.disk, "partitions/99", TopicConfig(flush=flush), clean_shutdown=False)[0]  # type: ignore[arg-type]
    for _ in range(2):
        append(other)
        world.writer.dirty(other, lambda: None)
        world.settle()
    world.disk.fail_fsync = 1
    world.append_to_all()
    world.settle()
    assert all(isinstance(log.failed, DiskFailed) for log in world.logs)
    assert other.failed is None
    other.configure(TopicConfig(flush="fsync"))
    append(other)
    world.writer.dirty(other, lambda: None)
    world.settle()
    if flush == "os":
        assert isinstance(other.failed, DiskFailed) and other.stable_end_offset == 2
    else:
        assert other.failed is None and other.stable_end_offset == 3


def test_a_job_that_raises_fails_alone(world: World) -> None:
    file = world.disk.open("partitions/5/00000000000000000000.log", create=True)
    file.pwritev([b"somebody else's"], 0)
    world.append_to_all()
    world.settle()
    assert isinstance(world.logs.pop(5).failed, InvariantViolation)
    assert all(log.failed is None for log in world.logs)
    assert world.stable() == {1}


def test_a_log_without_space_waits_and_the_others_do_not(world: World) -> None:
    world.append_to_all()
    world.settle()
    world.disk.full_below = "partitions/7/"
    world.append_to_all()
    world.settle()
    assert (world.logs[7].full, world.logs[7].stable_end_offset) == (True, 1)
    assert [log.stable_end_offset for log in world.logs] == [2] * 7 + [1] + [2] * (MANY - 8)
    world.disk.full_below = ""
    world.scheduler.advance(1.01)
    world.settle()
    assert world.stable() == {2}


def test_a_bug_in_the_round_itself_fails_all_of_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def bug(*_: object) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr("partitions.log.writer.together", bug)
    world.append_to_all()
    world.settle()
    assert all(isinstance(log.failed, InvariantViolation) for log in world.logs)
    assert world.writer.idle


def test_a_log_of_a_round_is_dropped_when_its_job_has_ended(world: World) -> None:
    told: list[str] = []
    world.append_to_all()
    world.scheduler.run()
    world.writer.forget(world.logs[0], lambda: told.append("forgotten"))
    world.scheduler.run()
    assert told == []
    world.settle()
    assert told == ["forgotten"]


# --- Steps ---


def work(number: int, barriers: int, seen: list[Any]) -> Steps[int]:
    for barrier in range(barriers):
        seen.append((number, barrier))
        try:
            yield Durable()
        except DiskFailed as error:
            seen.append((number, error.detail))
            raise
    return number


def test_all_reach_their_barrier_before_any_continues() -> None:
    disk, seen = SimDisk(), []  # type: ignore[var-annotated]
    assert together(disk, [work(number, barriers, seen) for number, barriers in enumerate((2, 0, 3))]) == [0, 1, 2]
    assert seen == [(0, 0), (2, 0), (0, 1), (2, 1), (2, 2)]
    assert disk.sync_alls == 3
    assert together(disk, []) == []


def test_a_failed_barrier_raises_in_its_waiter() -> None:
    disk, seen = SimDisk(), []  # type: ignore[var-annotated]
    disk.fail_fsync = 1
    first, second, third = together(disk, [work(0, 1, seen), work(1, 0, seen), work(2, 2, seen)])
    assert isinstance(first, DiskFailed) and isinstance(third, DiskFailed) and second == 1
    assert seen[2:] == [(0, first.detail), (2, third.detail)]


def test_alone_the_barriers_are_the_named_files() -> None:
    disk = SimDisk()
    file, other = (disk.open(name, create=True) for name in "ab")

    def steps() -> Steps[str]:
        for one in (file, other):
            one.pwritev([b"x"], 0)
        yield Durable((file,), ("",))
        assert disk.is_durable("a") and not disk.is_durable("b")
        return "done"

    assert alone(disk, steps()) == "done"
    disk.fail_fsync = 1
    with pytest.raises(DiskFailed):
        alone(disk, steps())


@pytest.mark.parametrize("hold", [True, False])
@pytest.mark.parametrize("fault", ["full", "fsync"])
def test_files_that_could_not_be_replaced_are_unchanged(hold: bool, fault: str) -> None:
    disk = SimDisk()
    disk.make_directory("p")
    for name in "ab":
        disk.replace(f"p/{name}", b"old")
    real = SimFile.pwritev

    def pwritev(file: SimFile, buffers: Any, position: int) -> int:
        if fault == "full" and file.path == "p/b.tmp":
            raise DiskFull("no room")
        return real(file, buffers, position)

    disk.fail_fsync = int(fault == "fsync")
    steps = durable.replaced(disk, "p", {"a": b"new", "b": b"new"}, hold=hold)
    with pytest.MonkeyPatch.context() as patched, pytest.raises((DiskFull, DiskFailed)):
        patched.setattr(SimFile, "pwritev", pwritev)
        if hold:
            alone(disk, steps)
        else:
            (outcome,) = together(disk, [steps])
            raise outcome  # type: ignore[misc]
    assert (disk.list("p"), disk.read("p/a"), disk.read("p/b")) == (["a", "b"], b"old", b"old")
