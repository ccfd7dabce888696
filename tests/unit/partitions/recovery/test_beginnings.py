"""A log is created, is not written to, is written to for the first time; with a crash at any moment of it (S1, S9)."""

from __future__ import annotations

import contextlib
import copy
import random

import pytest

from jepsen_like.simulator.world.disk import SimDisk, SimulatedCrash
from partitions.log.log import PartitionLog
from partitions.producers.state import ProducerStates
from partitions.recovery.outcome import Recovery
from partitions.recovery.table import Finding
from partitions.upkeep.folder_check import check_folder
from partitions.upkeep.scrub_check import FolderCheck, What
from partitions.upkeep.scrub_plan import plan_of_log
from raftlog.config import TopicConfig
from raftlog.errors import DiskFull
from raftlog.model import Offset
from tests.support.partitions.storage import PATH, append, open_log, read_batches, recover_log, settle

SEGMENT = f"{PATH}/{0:020d}.log"


@pytest.fixture
def disk() -> SimDisk:
    disk = SimDisk()
    disk.make_directory("partitions")
    disk.fsync_directory("")
    return disk


def opened(disk: SimDisk, *, clean: bool = False) -> tuple[PartitionLog, Recovery]:
    return recover_log(disk, PATH, TopicConfig(), clean_shutdown=clean)


def test_a_log_is_created_with_one_file_and_first_written_to_with_five_fsyncs(disk: SimDisk) -> None:
    before = disk.fsyncs
    log = open_log(disk)
    assert disk.list(PATH) == ["checkpoint"]
    assert disk.fsyncs - before == 3, "the file, its name, the folder's name"
    assert not log.needs_job
    before = disk.fsyncs
    append(log)
    settle(log)
    assert disk.fsyncs - before == 5, "epochs, checkpoint, their names; batches and their file's name"
    before = disk.fsyncs
    append(log)
    settle(log)
    assert disk.fsyncs - before == 1
    before = disk.fsyncs
    log = recover_log(disk, PATH, TopicConfig(), clean_shutdown=False, producers=ProducerStates())[0]
    assert disk.fsyncs - before == 2, "an unclean start: batches, their file's name"
    before = disk.fsyncs
    log.close(clean=True)
    assert disk.fsyncs - before == 2, "the checkpoint, its name: so little is read again"
    before = disk.fsyncs
    log, recovery = opened(disk, clean=True)
    assert (recovery.clean, log.log_end_offset, disk.fsyncs - before) == (True, 2, 0)
    for _ in range(2):
        append(log, size=40_000)
    settle(log)
    before = disk.fsyncs
    log.close(clean=True)
    assert disk.fsyncs - before == 4, "two indexes, checkpoint, their names"


@pytest.mark.parametrize("power", [True, False])
@pytest.mark.parametrize("closed", [True, False])
def test_a_log_that_was_never_written_to_is_vouched_for_and_stays_unchanged(
    disk: SimDisk, power: bool, closed: bool
) -> None:
    log = open_log(disk)
    if closed:
        log.close(clean=True)
    for seed in range(3):
        if power:
            disk.power_loss(random.Random(seed))
        log, recovery = opened(disk, clean=closed)
        assert (recovery.cut_or_quarantined, recovery.clean) == (False, closed)
        assert Finding.NEVER_WRITTEN.value in recovery.notes
        assert (log.log_end_offset, log.needs_job, disk.list(PATH)) == (0, False, ["checkpoint"])
    made = append(log)
    settle(log)
    assert read_batches(open_log(disk), 0) == [made.data]


@pytest.mark.parametrize("lost", [["segment"], ["epochs"], ["segment", "epochs"]])
@pytest.mark.parametrize("closed", [True, False])
def test_a_log_that_lost_its_batches_is_distinguished_from_a_new_one(
    disk: SimDisk, lost: list[str], closed: bool
) -> None:
    """S9: its checkpoint records that before the first batch is written."""
    log = open_log(disk)
    append(log)
    settle(log)
    log.close(clean=closed)
    for what in lost:
        disk.remove(SEGMENT if what == "segment" else f"{PATH}/leader-epochs")
    _, recovery = opened(disk, clean=closed)
    assert recovery.cut_or_quarantined
    assert Finding.NEVER_WRITTEN.value not in recovery.notes


def test_an_older_checkpoint_beside_batches_is_not_believed(disk: SimDisk) -> None:
    """It was restored from before the first write, and the epochs are lost."""
    log = open_log(disk)
    old = disk.read(f"{PATH}/checkpoint")
    append(log)
    settle(log)
    disk.replace(f"{PATH}/checkpoint", old)
    disk.remove(f"{PATH}/leader-epochs")
    log, recovery = opened(disk)
    assert recovery.cut_or_quarantined
    assert log.log_end_offset == 1, "what is there is kept"


def killed(disk: SimDisk, steps: int) -> bool:
    """A log is created and written to, and the process dies at an operation of that; returns False if it completed."""
    disk.crash_countdown = steps
    try:
        log = open_log(disk)
        append(log, epoch=3)
        settle(log)
    except SimulatedCrash:
        return True
    finally:
        disk.crash_countdown = 0
    return False


def test_a_process_that_dies_in_the_first_job_leaves_a_log_that_is_vouched_for() -> None:
    """Nothing is lost with it: a replica that reports otherwise leaves the ISR needlessly (S10). While it is being
    created there is nothing that could be lost."""
    begun = steps = 0
    while True:
        steps += 1
        disk = SimDisk()
        disk.make_directory("partitions")
        if not killed(disk, steps):
            break
        whole = bool(disk.files().get(f"{PATH}/checkpoint")) or not disk.exists(PATH)
        log, recovery = opened(disk)
        assert recovery.cut_or_quarantined != whole, (steps, recovery)
        begun += whole
        append(log, epoch=4)
        settle(log)
        assert opened(disk)[1].cut_or_quarantined != whole
    assert begun > 8


def test_a_power_loss_in_the_first_job_leaves_no_log_without_its_segment(disk: SimDisk) -> None:
    """The names appear in an order in which each prefix of them can be distinguished from a loss."""
    empty = copy.deepcopy(disk)
    steps = 0
    while killed(again := copy.deepcopy(empty), steps := steps + 1):
        if f"{PATH}/checkpoint" not in again.files():
            continue
        for seed in range(6):
            left = copy.deepcopy(again)
            left.power_loss(random.Random(steps * 10 + seed))
            if not left.exists(PATH):
                continue
            _, recovery = opened(left)
            assert (
                Finding.NO_SEGMENT.value not in "".join(recovery.notes) or Finding.NO_CHECKPOINT.value in recovery.notes
            )


def test_a_log_whose_creation_was_interrupted_is_durable_before_it_is_written_to() -> None:
    """S1: 1. The process dies while it creates the folder, whose name is not durable. 2. The next one finds the folder
    and writes to it; that is acknowledged. 3. Power fails, and the folder is gone with all of it."""
    for steps in range(1, 8):
        disk = SimDisk()
        disk.make_directory("partitions")
        disk.fsync_directory("")
        disk.crash_countdown = steps
        with contextlib.suppress(SimulatedCrash):
            open_log(disk)
        disk.crash_countdown = 0
        log = open_log(disk)
        made = append(log)
        settle(log)
        assert log.stable_end_offset == 1
        for seed in range(8):
            left = copy.deepcopy(disk)
            left.power_loss(random.Random(seed))
            assert read_batches(open_log(left), 0) == [made.data], (steps, seed)


def test_a_log_that_cannot_be_created_for_lack_of_space_leaves_nothing(disk: SimDisk) -> None:
    disk.full = True
    with pytest.raises(DiskFull):
        open_log(disk)
    assert not disk.exists(PATH)
    disk.full = False
    assert not opened(disk)[1].cut_or_quarantined


@pytest.mark.parametrize("flush", ["fsync", "os"])
def test_a_full_disk_at_the_first_job_is_retried(disk: SimDisk, flush: str) -> None:
    config = TopicConfig(flush=flush)  # type: ignore[arg-type]
    log = open_log(disk, config)
    made = append(log)
    job = log.take_job()
    assert job is not None
    disk.full = True
    with pytest.raises(DiskFull) as caught:
        job.run()
    log.job_done(job, caught.value)
    assert log.needs_job
    disk.full = False
    settle(log)
    assert log.stable_end_offset == 1
    assert read_batches(open_log(disk, config), 0) == [made.data]


def test_a_log_that_begins_elsewhere_has_a_segment_there(disk: SimDisk) -> None:
    log = open_log(disk)
    log.truncate_fully_and_start_at(Offset(7))
    settle(log)
    assert f"{7:020d}.log" in disk.list(PATH)
    log, recovery = opened(disk)
    assert (log.log_start_offset, recovery.cut_or_quarantined) == (7, False)


@pytest.mark.parametrize("steps", range(1, 16))
def test_a_process_that_dies_while_a_log_first_begins_elsewhere_leaves_one_that_is_vouched_for(
    disk: SimDisk, steps: int
) -> None:
    """A follower's first change may be that its leader's log begins at 7: all of nothing is removed."""
    log = open_log(disk)
    log.truncate_fully_and_start_at(Offset(7))
    disk.crash_countdown = steps
    with contextlib.suppress(SimulatedCrash):
        settle(log)
    disk.crash_countdown = 0
    assert not opened(disk)[1].cut_or_quarantined


@pytest.mark.parametrize("steps", range(1, 20))
def test_a_process_that_dies_in_a_repeated_first_job_leaves_a_log_that_is_vouched_for(
    disk: SimDisk, steps: int
) -> None:
    log = open_log(disk)
    append(log)
    job = log.take_job()
    assert job is not None
    disk.full = True
    with pytest.raises(DiskFull) as caught:
        job.run()
    log.job_done(job, caught.value)
    disk.full = False
    disk.crash_countdown = steps
    with contextlib.suppress(SimulatedCrash):
        settle(log)
    disk.crash_countdown = 0
    assert not opened(disk)[1].cut_or_quarantined


def test_the_scrubber_misses_nothing_of_a_log_that_was_never_written_to(disk: SimDisk) -> None:
    log = open_log(disk)
    assert FolderCheck(plan_of_log(log), in_service=True).run() == []
    append(log)
    plan = plan_of_log(log)
    settle(log)
    assert FolderCheck(plan, in_service=True).run() == []
    log.close(clean=True)
    assert check_folder(disk, PATH).run() == []
    disk.remove(f"{PATH}/leader-epochs")
    assert {finding.what for finding in check_folder(disk, PATH).run()} == {What.LEADER_EPOCHS}


def test_the_check_of_a_folder_finds_nothing_missing_if_nothing_was_written(disk: SimDisk) -> None:
    open_log(disk)
    assert check_folder(disk, PATH).run() == []
