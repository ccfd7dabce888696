"""A process without descriptors or memory: nothing is lost, no log fails, and everything continues by itself (S10)."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jepsen_like.simulator.world.disk import SimDisk
from metadata.journal.journal import Journal, prepare_journal
from metadata.voters.identity import QuorumIdentity
from partitions.log.log import PartitionLog
from raftlog.config import TopicConfig
from raftlog.errors import DiskFailed, ResourceShortage
from raftlog.model import BrokerId, DirectoryId, Offset
from raftlog.system.disk import LocalDisk
from tests.support.partitions.storage import append, failing, open_log, read_batches, settle

IDENTITY = QuorumIdentity("cluster", BrokerId(1), DirectoryId(b"d" * 16), (BrokerId(1), BrokerId(2), BrokerId(3)))
SMALL = TopicConfig(segment_bytes=500, index_interval_bytes=100)
SHORT = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN)

CALLS: dict[str, Callable[[LocalDisk], Any]] = {
    "open": lambda disk: disk.open("file"),
    "read": lambda disk: disk.read("file"),
    "list": lambda disk: disk.list("folder"),
    "fsync_directory": lambda disk: disk.fsync_directory("folder"),
    "exists": lambda disk: disk.exists("file"),
    "make_directory": lambda disk: disk.make_directory("another/one"),
}


@pytest.fixture
def disk() -> SimDisk:
    disk = SimDisk()
    disk.make_directory("partitions")
    return disk


def cold_log(disk: SimDisk, count: int = 12) -> tuple[PartitionLog, list[bytes]]:
    """A log of several segments, opened again, so that old batches are only in files."""
    log = open_log(disk, SMALL)
    made = []
    for _ in range(count):
        made.append(append(log, size=100).data)
        settle(log)
    log.close(clean=False)
    return open_log(disk, SMALL), made


@pytest.mark.parametrize("number", SHORT)
@pytest.mark.parametrize("call", CALLS)
def test_a_shortage_is_no_failure_of_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    disk = LocalDisk(str(tmp_path))
    disk.make_directory("folder")
    disk.replace("file", b"content")
    with monkeypatch.context() as short:
        for name in ("open", "listdir", "lstat", "mkdir"):
            short.setattr(os, name, failing(number))
        short.setattr("builtins.open", failing(number))
        with pytest.raises(ResourceShortage):
            CALLS[call](disk)
    CALLS[call](disk)


@pytest.mark.parametrize("number", SHORT)
def test_a_failed_fsync_is_no_shortage_whatever_its_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """S9. The kernel may have dropped the bytes that it did not write."""
    disk = LocalDisk(str(tmp_path))
    file = disk.open("file", create=True)
    file.pwritev([b"content"], 0)
    monkeypatch.setattr(os, "fdatasync", failing(number))
    monkeypatch.setattr(os, "fsync", failing(number))
    with pytest.raises(DiskFailed):
        file.fsync()
    with pytest.raises(DiskFailed):
        disk.fsync_directory("")
    monkeypatch.undo()
    with pytest.raises(DiskFailed):
        file.fsync()


def test_a_read_in_a_shortage_is_refused_and_the_log_continues(disk: SimDisk) -> None:
    log, made = cold_log(disk)
    disk.no_descriptors = True
    with pytest.raises(ResourceShortage):
        log.read(Offset(0), log.log_end_offset, 1000)
    assert log.failed is None
    disk.no_descriptors = False
    assert read_batches(log, 0) == made
    append(log)
    settle(log)
    assert log.stable_end_offset == log.log_end_offset


def test_records_in_memory_are_read_in_a_shortage(disk: SimDisk) -> None:
    log = open_log(disk)
    made = append(log)
    settle(log)
    disk.no_descriptors = True
    assert read_batches(log, 0) == [made.data]


def test_a_job_in_a_shortage_is_repeated_whichever_call_failed(disk: SimDisk) -> None:
    """From the first call on that opens anything, then from the second, and so on: each time the same job, and no
    acknowledged batch is lost (S1)."""
    skipped = 0
    while True:
        world = SimDisk()
        world.make_directory("partitions")
        log = open_log(world, SMALL)
        made = [append(log, size=100).data for _ in range(3)]
        settle(log)
        made += [append(log, size=100, epoch=1).data for _ in range(9)]
        log.advance_log_start(Offset(2))
        world.descriptors_left = skipped
        job = log.take_job()
        assert job is not None
        try:
            job.run()
        except ResourceShortage as error:
            log.job_done(job, error)
        else:
            break
        assert (log.failed, log.full, log.stable_end_offset) == (None, True, 3)
        with pytest.raises(ResourceShortage):
            append(log)
        world.descriptors_left = None
        settle(log)
        assert (log.full, log.stable_end_offset) == (False, 12)
        log.close(clean=False)
        assert read_batches(open_log(world, SMALL), 3) == made[3:]
        skipped += 1
    assert skipped > 5


def test_a_truncation_in_a_shortage_changes_nothing(disk: SimDisk) -> None:
    log, made = cold_log(disk)
    disk.no_descriptors = True
    with pytest.raises(ResourceShortage):
        log.truncate_to(Offset(5))
    assert (log.failed, log.log_end_offset) == (None, 12)
    disk.no_descriptors = False
    log.truncate_to(Offset(5))
    settle(log)
    assert read_batches(log, 0) == made[:5]


def test_a_job_without_memory_is_a_shortage(disk: SimDisk) -> None:
    log = open_log(disk)
    append(log)
    job = log.take_job()
    assert job is not None
    log.job_done(job, MemoryError())
    assert (log.failed, log.full) == (None, True)
    settle(log)
    assert log.stable_end_offset == 1


def test_the_journal_keeps_its_prefix_in_a_shortage() -> None:
    disk = SimDisk()
    prepare_journal(disk, IDENTITY)
    journal = Journal(disk, IDENTITY)
    journal.set_hard_state(1, 0)
    for index in range(2, 10):
        journal.append(b"\x00command", index, 1)
    journal.sync()
    disk.no_descriptors = True
    with pytest.raises(ResourceShortage):
        journal.drop_before(5)
    journal.append(b"\x00command", 10, 1)
    journal.sync()
    assert (journal.base_index, journal.last_index) == (1, 10)
    disk.no_descriptors = False
    journal.drop_before(5)
    journal.close()
    again = Journal(disk, IDENTITY)
    assert (again.base_index, again.last_index) == (5, 10)


def test_a_journal_whose_new_generation_has_its_name_is_used_no_more() -> None:
    """S9. The name may be lost with the power, or stay: it is unknown which file counts."""
    disk = SimDisk()
    prepare_journal(disk, IDENTITY)
    journal = Journal(disk, IDENTITY)
    journal.set_hard_state(1, 0)
    journal.append(b"\x00command", 2, 1)
    journal.sync()
    disk.descriptors_left = 1  # for the file, and none for its folder
    with pytest.raises(ResourceShortage):
        journal.drop_before(2)
    disk.descriptors_left = None
    with pytest.raises(DiskFailed):
        journal.append(b"\x00command", 3, 1)
