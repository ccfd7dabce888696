"""A full disk: acknowledged batches stay, more are refused, and the log continues when there is space again."""

from __future__ import annotations

from typing import Any

import pytest

from jepsen_like.simulator.world.disk import SimDisk, SimFile
from partitions.files.checkpoint import FLUSH_OS_NAME
from partitions.log import pending as log_pending
from partitions.log.job import LogJob
from partitions.log.log import PartitionLog
from raftlog.config import TopicConfig
from raftlog.errors import DiskFull
from raftlog.model import Offset
from tests.support.partitions.storage import PATH, append, open_log, read_batches, recover_log, settle

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


def test_a_full_disk_leaves_the_marker_uncertain(disk: SimDisk) -> None:
    """1. The log is to be fsynced: the job removes the marker and meets a full disk after it. 2. It is not to be
    fsynced after all. The marker has to be created again."""
    log = open_log(disk, TopicConfig(flush="os"))
    append(log)
    settle(log)
    log.configure(TopicConfig())
    job = take(log)
    job.run()
    log.job_done(job, DiskFull("behind the marker's removal"))
    log.configure(TopicConfig(flush="os"))
    settle(log)
    assert disk.exists(f"{PATH}/{FLUSH_OS_NAME}")


def test_a_full_disk_keeps_acknowledged_batches_refuses_more_and_recovers(disk: SimDisk) -> None:
    log = open_log(disk)
    first = append(log)
    settle(log)
    second = append(log)
    disk.full = True
    job = take(log)
    with pytest.raises(DiskFull) as caught:
        job.run()
    log.job_done(job, caught.value)
    assert (log.full, log.failed) == (True, None)
    assert (log.stable_end_offset, log.log_end_offset) == (1, 2)
    with pytest.raises(DiskFull):
        append(log)
    assert read_batches(log, 0) == [first.data, second.data]
    assert log.needs_job
    disk.full = False
    settle(log)
    assert (log.full, log.failed) == (False, None)
    assert log.stable_end_offset == 2
    third = append(log)
    settle(log)
    assert read_batches(open_log(disk), 0) == [first.data, second.data, third.data]


def test_a_full_disk_and_then_a_crash_lose_nothing_acknowledged(disk: SimDisk) -> None:
    log = open_log(disk, SMALL)
    made = [append(log) for _ in range(3)]
    settle(log)
    for _ in range(20):
        append(log, epoch=1)
    disk.full = True
    job = take(log)
    with pytest.raises(DiskFull) as caught:
        job.run()
    log.job_done(job, caught.value)
    disk.full = False
    again, recovery = recover_log(disk, PATH, SMALL, clean_shutdown=False)
    assert not recovery.cut_or_quarantined
    assert read_batches(again, 0) == [one.data for one in made]


def run_until_full(log: PartitionLog, monkeypatch: pytest.MonkeyPatch, path_part: str) -> None:
    """Run the job that is due; the disk has no space for the first file whose name contains this."""
    real = SimFile.pwritev

    def pwritev(file: SimFile, buffers: Any, position: int) -> int:
        if path_part in file.path:
            raise DiskFull("no room")
        return real(file, buffers, position)

    job = take(log)
    with monkeypatch.context() as patched, pytest.raises(DiskFull) as caught:
        patched.setattr(SimFile, "pwritev", pwritev)
        job.run()
    log.job_done(job, caught.value)


def test_bytes_that_a_full_disk_left_of_one_job_are_cut_by_the_next(
    disk: SimDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batches were written, and there was no space for the index after them; then a truncation drops them, and the
    following ones are shorter."""
    log = open_log(disk, TopicConfig(index_interval_bytes=0))
    first = append(log)
    settle(log)
    monkeypatch.setattr(log_pending, "CHECKPOINT_INTERVAL_BYTES", 500)
    append(log, size=600)
    run_until_full(log, monkeypatch, ".index")
    log.truncate_to(Offset(1))
    settle(log)
    second = append(log, epoch=1, size=10)
    settle(log)
    assert log.stable_end_offset == 2
    again, recovery = recover_log(disk, PATH, TopicConfig(), clean_shutdown=False)
    assert not recovery.cut_or_quarantined
    assert read_batches(again, 0) == [first.data, second.data]


def test_segments_that_a_full_disk_left_behind_are_removed(disk: SimDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The failed job had started segments that the log, truncated since, starts elsewhere now."""
    log = open_log(disk, SMALL)
    made = [append(log) for _ in range(2)]
    settle(log)
    for _ in range(9):
        append(log, count=2)
    run_until_full(log, monkeypatch, ".index")
    left_behind = [name for name in disk.list(PATH) if name.endswith(".log")]
    assert len(left_behind) > 2
    log.truncate_to(Offset(4))
    settle(log)
    made += [append(log, epoch=1, count=3, size=60) for _ in range(4)]
    settle(log)
    again, recovery = recover_log(disk, PATH, SMALL, clean_shutdown=False)
    assert not recovery.cut_or_quarantined, recovery
    assert again.log_end_offset == 16
    found = read_batches(again, 0)
    assert found[:2] + found[3:] == [one.data for one in made]


def test_retention_makes_room_on_a_full_disk(disk: SimDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches wait for space, which is used by segments that wait to be removed: those must be removed first."""
    log = open_log(disk, SMALL)
    for _ in range(12):
        append(log)
    settle(log)
    append(log)
    job = take(log)
    real, many = SimFile.pwritev, len(disk.files())

    def pwritev(file: SimFile, buffers: Any, position: int) -> int:
        batches = any(file.inode is disk.inode_of(path) for path in disk.files() if path.endswith(".log"))
        if batches and len(disk.files()) >= many:
            raise DiskFull("no room")
        return real(file, buffers, position)

    monkeypatch.setattr(SimFile, "pwritev", pwritev)
    with pytest.raises(DiskFull) as caught:
        job.run()
    log.job_done(job, caught.value)
    assert log.full
    log.advance_log_start(Offset(8))
    settle(log)
    assert (log.stable_end_offset, log.full) == (13, False)
