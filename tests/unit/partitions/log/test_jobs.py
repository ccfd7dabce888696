"""Jobs: the coverage of a result, the order of disk operations, and the state after a failure."""

from __future__ import annotations

import contextlib
import copy
import random
from typing import Any

import pytest

from jepsen_like.simulator.world.disk import SimDisk, SimFile, SimulatedCrash
from partitions.files.checkpoint import FLUSH_OS_NAME
from partitions.log import pending as log_pending
from partitions.log.job import LogJob
from partitions.log.log import PartitionLog
from partitions.log.tail import FetchCache
from raftlog.config import TopicConfig
from raftlog.errors import DiskFailed, InvariantViolation
from raftlog.model import Offset
from tests.support.partitions.storage import PATH, append, batch, open_log, read_batches, recover_log, settle

SMALL = TopicConfig(segment_bytes=500, index_interval_bytes=100)


@pytest.fixture
def disk() -> SimDisk:
    disk = SimDisk()
    disk.make_directory("partitions")
    return disk


def take(log: PartitionLog) -> LogJob:
    job = log.take_job()
    assert job is not None
    return job


# --- A result covers the smallest of the end when it was taken and every truncation since --------------


def test_a_result_does_not_cover_batches_appended_after_it_was_taken(disk: SimDisk) -> None:
    log = open_log(disk)
    append(log)
    job = take(log)
    append(log)
    job.run()
    log.job_done(job, None)
    assert (log.stable_end_offset, log.log_end_offset) == (1, 2)


def test_a_late_result_does_not_cover_the_replacement_of_truncated_batches(disk: SimDisk) -> None:
    """Schedule 12 of the model check: B0 truncates x, fetches y, and the result of the fsync begun for x arrives."""
    log = open_log(disk)
    append(log, epoch=1)
    settle(log)
    append(log, epoch=1)
    job = take(log)
    job.run()
    log.truncate_to(Offset(1))
    y = append(log, epoch=3)
    log.job_done(job, None)
    assert log.stable_end_offset == 1
    assert read_batches(log, 1) == [y.data]
    settle(log)
    assert log.stable_end_offset == 2
    assert read_batches(open_log(disk), 1) == [y.data]


def test_a_result_from_before_a_restart_counts_for_nothing(disk: SimDisk) -> None:
    log = open_log(disk)
    for _ in range(5):
        append(log)
    job = take(log)
    log.truncate_fully_and_start_at(Offset(3))
    y = append(log, epoch=2)
    job.run()
    log.job_done(job, None)
    assert (log.stable_end_offset, log.log_end_offset) == (3, 4)
    settle(log)
    assert read_batches(open_log(disk), 3) == [y.data]


def test_an_earlier_epoch_may_continue_after_a_truncation(disk: SimDisk) -> None:
    """The follower had a batch of epoch 2 that no other replica has; the leader of epoch 3 has more of epoch 1 instead.
    No new entry of the history comes with that, and the file must drop the old one nevertheless."""
    log = open_log(disk)
    append(log, epoch=1)
    append(log, epoch=2)
    settle(log)
    log.truncate_to(Offset(1))
    more = append(log, epoch=1)
    settle(log)
    again, recovery = recover_log(disk, PATH, TopicConfig(), clean_shutdown=False)
    assert not recovery.cut_or_quarantined
    assert read_batches(again, 1) == [more.data]


def test_truncation_drops_whole_batches(disk: SimDisk) -> None:
    log = open_log(disk)
    append(log, count=3)
    append(log, count=3)
    settle(log)
    log.truncate_to(Offset(5))
    assert (log.log_end_offset, log.stable_end_offset) == (3, 3)
    log.truncate_to(Offset(9))
    assert log.log_end_offset == 3
    log.advance_log_start(Offset(2))
    with pytest.raises(InvariantViolation):
        log.truncate_to(Offset(1))


def test_written_bytes_are_never_overwritten(disk: SimDisk) -> None:
    """A region that is being sent while its log is truncated has its old batches or ends early."""
    log, _ = recover_log(disk, PATH, TopicConfig(), clean_shutdown=False, cache=FetchCache(0))
    old = [append(log, epoch=1) for _ in range(4)]
    settle(log)
    slice_ = log.read(Offset(0), Offset(4), 1 << 20)
    (region,) = slice_.parts
    log.truncate_to(Offset(2))
    new = [append(log, epoch=2) for _ in range(2)]
    settle(log)
    data = region.file.pread(region.length, region.position)  # type: ignore[union-attr]
    assert data == b"".join(one.data for one in old[:2])
    slice_.release()
    assert read_batches(log, 0) == [one.data for one in old[:2] + new]


# --- The order on disk ---


class Recorder(SimDisk):
    """Records the operations in the log's folder."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[str] = []

    def rename(self, source: str, target: str) -> None:
        if source == f"{target}.tmp":
            self.steps.append(f"replace {target.rpartition('/')[2]}")
        super().rename(source, target)

    def remove(self, path: str) -> None:
        if path in self.files() and not path.endswith(".tmp"):
            self.steps.append(f"remove {path.rpartition('/')[2]}")
        super().remove(path)


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    disk = Recorder()
    disk.make_directory("partitions")
    for name in ("pwritev", "pwritev_stable", "fsync", "truncate"):
        real = getattr(SimFile, name)

        def spy(file: SimFile, *args: Any, name: str = name, real: Any = real) -> Any:
            if any(file.inode is disk.inode_of(path) for path in disk.files() if path.endswith(".log")):
                disk.steps.append(name)
            return real(file, *args)

        monkeypatch.setattr(SimFile, name, spy)
    return disk


def base(offset: int, suffix: str = ".log") -> str:
    return f"{offset:020d}{suffix}"


def test_epochs_are_written_before_their_batches_and_fsync_after(recorder: Recorder) -> None:
    log = open_log(recorder)
    append(log, epoch=3)
    recorder.steps.clear()
    settle(log)
    # The checkpoint says «closed clean» until the first write: that is cleared before anything is written.
    assert recorder.steps == ["replace leader-epochs", "replace checkpoint", "pwritev", "fsync"]
    append(log, epoch=3)
    recorder.steps.clear()
    settle(log)
    assert recorder.steps == ["pwritev_stable", "pwritev"], "the ordinary job: one call, which this disk takes in two"


def test_a_first_job_that_empties_a_log_at_its_own_start_creates_the_segment_once(recorder: Recorder) -> None:
    log = open_log(recorder)
    append(log, epoch=1)
    log.truncate_fully_and_start_at(Offset(0))
    kept = append(log, epoch=2)
    recorder.steps.clear()
    settle(log)
    assert base(0) in recorder.list(PATH)
    assert f"remove {base(0)}" not in recorder.steps
    assert read_batches(open_log(recorder), 0) == [kept.data]


def test_a_truncation_lowers_the_checkpoint_first_and_is_durable_before_anything_new(recorder: Recorder) -> None:
    log = open_log(recorder, SMALL)
    for _ in range(12):
        append(log, epoch=1)
        settle(log)
    second = log.segments.all[1]
    log.truncate_to(Offset(second.base_offset + 1))
    cut_at = log.log_end_offset
    append(log, epoch=2)
    recorder.steps.clear()
    settle(log)
    steps = recorder.steps
    first_cut = min(index for index, step in enumerate(steps) if step.startswith("remove") or step == "truncate")
    assert steps[0] == "replace checkpoint"
    assert first_cut > 0
    assert steps.index("truncate") < steps.index("replace leader-epochs") < steps.index("pwritev")
    assert steps[steps.index("truncate") + 1] == "fsync"
    removed = [step for step in steps if step.startswith("remove") and step.endswith(".log")]
    assert removed == sorted(removed, reverse=True), "the newest first: what is left is always a beginning"
    assert recorder.list(PATH).count(base(cut_at)) == 1


def test_segments_below_the_start_are_removed_after_the_checkpoint_and_a_few_at_a_time(recorder: Recorder) -> None:
    log = open_log(recorder, SMALL)
    for _ in range(60):
        append(log)
    settle(log)
    many = len(log.segments)
    assert many > 2 * log_pending.REMOVALS_PER_JOB
    log.advance_log_start(Offset(60))
    recorder.steps.clear()
    job = take(log)
    job.run()
    log.job_done(job, None)
    removed = [step for step in recorder.steps if step.startswith("remove") and step.endswith(".log")]
    assert len(removed) == log_pending.REMOVALS_PER_JOB
    assert recorder.steps.index("replace checkpoint") < recorder.steps.index(removed[0])
    settle(log)
    assert [name for name in recorder.list(PATH) if name.endswith(".log")] == [base(60)]
    assert log.size_bytes == 0


def test_a_crash_before_old_segments_are_removed_finds_them_intact(disk: SimDisk) -> None:
    """The history must not drop the epochs of batches whose files still exist. 1. The start moves to the end, a new
    epoch begins. 2. The job has written epochs, not yet batches. 3. The process dies: the old segment is the last
    one."""
    for steps in range(1, 30):
        disk = SimDisk()
        disk.make_directory("partitions")
        log = open_log(disk)
        append(log, count=2, epoch=1)
        settle(log)
        log.advance_log_start(Offset(2))
        append(log, epoch=2)
        job = take(log)
        disk.crash_countdown = steps
        with contextlib.suppress(SimulatedCrash):
            job.run()
        disk.crash_countdown = 0
        _, recovery = recover_log(disk, PATH, TopicConfig(), clean_shutdown=False)
        assert not recovery.cut_or_quarantined, recovery


def test_checkpoints_follow_after_a_number_of_bytes(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_pending, "CHECKPOINT_INTERVAL_BYTES", 700)
    log = open_log(recorder)
    append(log)
    settle(log)
    recorder.steps.clear()
    for _ in range(30):
        append(log)
        settle(log)
    checkpoints = recorder.steps.count("replace checkpoint")
    assert 2 <= checkpoints <= log.size_bytes // 700
    index = recorder.steps.index(f"replace {base(0, '.index')}")
    assert recorder.steps[index - 2 : index] == ["pwritev_stable", "pwritev"], "an index covers only what is durable"


# --- `flush` changes ---


@pytest.mark.parametrize("steps", range(1, 16))
@pytest.mark.parametrize("after", ["os", "fsync"])
def test_a_log_whose_flush_changes_vouches_only_for_what_is_fsynced(disk: SimDisk, after: str, steps: int) -> None:
    """Power fails in every step of the first jobs after the change."""
    disk.fsync_directory("")
    log = open_log(disk, TopicConfig(flush="fsync" if after == "os" else "os"))
    append(log)
    settle(log)
    log.configure(TopicConfig(flush=after))  # type: ignore[arg-type]
    disk.crash_countdown = steps
    with contextlib.suppress(SimulatedCrash):
        for _ in range(3):
            settle(log)
            append(log)
    disk.crash_countdown = 0
    stable = log.stable_end_offset
    for seed in range(20):
        left = copy.deepcopy(disk)
        left.power_loss(random.Random(seed))
        again, recovery = recover_log(left, PATH, TopicConfig(), clean_shutdown=False)
        assert recovery.cut_or_quarantined or again.log_end_offset >= stable, recovery


def test_a_log_that_is_fsynced_from_now_on_fsyncs_its_past(disk: SimDisk) -> None:
    disk.fsync_directory("")
    log = open_log(disk, TopicConfig(flush="os"))
    append(log)
    settle(log)
    assert disk.exists(f"{PATH}/{FLUSH_OS_NAME}")
    log.configure(TopicConfig())
    assert log.needs_job, "though nothing was appended since"
    settle(log)
    assert not disk.exists(f"{PATH}/{FLUSH_OS_NAME}")
    disk.power_loss(random.Random(0))
    again, recovery = recover_log(disk, PATH, TopicConfig(), clean_shutdown=False)
    assert not recovery.cut_or_quarantined
    assert again.log_end_offset == 1


# --- Failures ---


def test_a_failed_fsync_fails_the_log_permanently(disk: SimDisk) -> None:
    log = open_log(disk)
    append(log)
    settle(log)
    append(log)
    job = take(log)
    disk.fail_fsync = 1
    with pytest.raises(DiskFailed) as caught:
        job.run()
    log.job_done(job, caught.value)
    assert log.failed is caught.value
    assert log.stable_end_offset == 1
    assert log.take_job() is None
    made = batch(2)
    for call in (
        lambda: log.append(made.header, made.buffers),
        lambda: log.read(Offset(0), Offset(1), 100),
        lambda: log.truncate_to(Offset(0)),
        lambda: log.close(clean=True),
    ):
        with pytest.raises(DiskFailed):
            call()
    log.close(clean=False)


def test_a_bug_in_a_job_fails_the_log(disk: SimDisk) -> None:
    log = open_log(disk)
    append(log)
    job = take(log)
    log.job_done(job, KeyError("a bug"))
    assert isinstance(log.failed, InvariantViolation)


def test_batches_are_checked_once_more_before_they_are_written(disk: SimDisk) -> None:
    log = open_log(disk)
    made = batch(0, epoch=1)
    front = bytearray(made.data)
    log.append(made.header, [front])
    front[15] ^= 1  # a caller writes into a buffer that it gave away
    with pytest.raises(InvariantViolation, match="about to write"):
        take(log).run()


def test_a_file_written_by_another_process_is_detected(disk: SimDisk) -> None:
    log = open_log(disk)
    append(log)
    settle(log)
    file = disk.open(f"{PATH}/{base(0)}")
    file.pwritev([b"x"], file.size())
    append(log)
    with pytest.raises(InvariantViolation, match="bytes"):
        take(log).run()


def test_no_file_is_held_open_except_the_last(disk: SimDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    held: set[SimFile] = set()
    real_open, real_close = SimDisk.open, SimFile.close

    def opened(disk: SimDisk, path: str, **how: bool) -> SimFile:
        file = real_open(disk, path, **how)
        if not path.endswith(".tmp"):  # the disk's own
            held.add(file)
        return file

    def closed(file: SimFile) -> None:
        held.discard(file)
        real_close(file)

    monkeypatch.setattr(SimDisk, "open", opened)
    monkeypatch.setattr(SimFile, "close", closed)
    log, _ = recover_log(disk, PATH, SMALL, clean_shutdown=False, cache=FetchCache(0))
    assert held == set(), "a log that is only opened holds none"
    for _ in range(40):
        append(log)
        settle(log)
    assert len(log.segments) > 5
    assert len(held) == 1
    read_batches(log, 0)
    assert len(held) == 1
    log.truncate_to(Offset(20))
    append(log, epoch=1)
    settle(log)
    assert len(held) == 1
    log.close(clean=True)
    assert held == set()


@pytest.mark.parametrize("what", ["truncated", "restarted above", "restarted within"])
def test_a_crash_during_an_intentional_removal_of_everything_is_no_loss(what: str) -> None:
    for steps in range(1, 60):
        disk = SimDisk()
        disk.make_directory("partitions")
        log = open_log(disk, SMALL)
        for _ in range(10):
            append(log)
        settle(log)
        if what == "truncated":
            log.truncate_to(Offset(0))
        else:
            log.truncate_fully_and_start_at(Offset(99 if what == "restarted above" else 4))
        new = append(log, epoch=1)
        job = take(log)
        disk.crash_countdown = steps
        try:
            job.run()
        except SimulatedCrash:
            disk.crash_countdown = 0
            again, recovery = recover_log(disk, PATH, SMALL, clean_shutdown=False)
            assert not recovery.cut_or_quarantined, (steps, recovery)
            recover_log(disk, PATH, SMALL, clean_shutdown=False)
            continue
        disk.crash_countdown = 0
        again = open_log(disk, SMALL)
        assert read_batches(again, again.log_start_offset) == [new.data]
        return
    raise AssertionError("the job has more steps than were tried")
