"""Each fault of a disk × each file of a log: formerly stable data is there later, and nothing else is claimed (S1, S9).

The table in `docs/storage-faults.md` names these tests.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from jepsen_like.simulator.world.disk import SimDisk, SimFile
from partitions.files.damage import LogDamaged
from partitions.log.log import PartitionLog
from partitions.producers.state import ProducerStates
from partitions.upkeep.folder_check import check_folder
from partitions.upkeep.scrub_check import FolderCheck, What
from partitions.upkeep.scrub_plan import plan_of_log
from raftlog.config import TopicConfig
from raftlog.errors import DiskFailed, DiskFull
from raftlog.model import Offset
from raftlog.ports import Buffer
from tests.support.partitions.storage import PATH, append, open_log, read_batches, recover_log, settle

CONFIG = TopicConfig(segment_bytes=500)
FILES = (".log", ".index", ".timeindex", "/leader-epochs", "/checkpoint", ".producers")


# --- Each kind of change ----------------------------------------------------------------------------------------------


class RefusingDisk(SimDisk):
    """One kind of change is refused, as on a file system that turned read-only."""

    refused = ""
    refusals = 0

    def check(self, kind: str) -> None:
        if kind == self.refused:
            self.refusals += 1
            raise DiskFailed(f"{kind}: Read-only file system")

    def open(self, path: str, *, create: bool = False, exclusive: bool = False, bulk: bool = False) -> SimFile:
        if (create or exclusive) and not self.exists(path):
            self.check("create")
        file = super().open(path, create=create, exclusive=exclusive, bulk=bulk)
        write, truncate = file.pwritev, file.truncate

        def checked_write(buffers: Sequence[Buffer], position: int) -> int:
            self.check("write")
            return write(buffers, position)

        def checked_truncate(length: int) -> None:
            self.check("truncate")
            truncate(length)

        file.pwritev, file.truncate = checked_write, checked_truncate
        return file

    def make_directory(self, path: str) -> None:
        self.check("make a folder")
        super().make_directory(path)

    def rename(self, source: str, target: str) -> None:
        self.check("rename")
        super().rename(source, target)

    def remove(self, path: str) -> None:
        self.check("remove")
        super().remove(path)


def live_a_little(log: PartitionLog) -> int:
    """Every operation that writes: batches, segments, epochs, a truncation, a moved start, another flush setting, a
    clean close. Returns the stable end before anything failed."""
    stable = int(log.stable_end_offset)

    def steps() -> Iterator[None]:
        for number in range(12):
            append(log, size=100, epoch=number // 6 + 1)
            yield
        for _ in range(2):
            append(log, size=100, epoch=2)
        yield
        log.truncate_to(Offset(log.log_end_offset - 3))
        yield
        log.advance_log_start(Offset(log.log_end_offset - 4))
        yield
        log.configure(replace(log.config, flush="os"))
        yield
        with contextlib.suppress(DiskFailed):  # The log has failed then.
            log.close(clean=True)

    for _ in steps():
        while (job := log.take_job()) is not None:
            try:
                job.run()
            except DiskFailed as error:
                log.job_done(job, error)
            else:
                log.job_done(job, None)
        if log.failed is not None:
            return stable
        stable = int(log.stable_end_offset)
    return stable


@pytest.mark.parametrize("kind", ["write", "create", "truncate", "rename", "remove"])
def test_a_log_that_may_not_write_fails_and_loses_nothing(kind: str) -> None:
    """EROFS at each kind of write, S1: whatever is refused first, stable data is there later."""
    disk = RefusingDisk()
    disk.make_directory("partitions")
    log = open_log(disk, CONFIG)
    for _ in range(8):
        append(log, size=100)
        settle(log)
    disk.refused = kind
    stable = live_a_little(log)
    assert disk.refusals
    with pytest.raises(DiskFailed, match="Read-only file system"):
        append(log)
    disk.refused = ""
    again, _ = recover_log(disk, PATH, CONFIG, clean_shutdown=False)
    assert again.log_end_offset >= min(stable, log.log_end_offset)
    again.check_invariants()


def test_a_replica_that_cannot_be_created_is_reported_as_failed() -> None:
    disk = RefusingDisk()
    disk.make_directory("partitions")
    disk.refused = "make a folder"
    with pytest.raises(DiskFailed, match="Read-only"):
        open_log(disk)
    disk.refused = ""
    assert open_log(disk).log_end_offset == 0


# --- Each file --------------------------------------------------------------------------------------------------------


class FaultyDisk(SimDisk):
    """Files whose names end in `name` meet a fault: «full», «write» (EIO), «fsync» or «read» (EIO). So do the files
    that replace them."""

    name = "-"
    fault = ""
    strikes = 0

    def strike(self, path: str, *faults: str) -> None:
        if self.fault in faults and path.removesuffix(".tmp").endswith(self.name):
            self.strikes += 1
            raise DiskFull("no room") if self.fault == "full" else DiskFailed(f"{self.fault}: Input/output error")

    def open(self, path: str, *, create: bool = False, exclusive: bool = False, bulk: bool = False) -> SimFile:
        file = super().open(path, create=create, exclusive=exclusive, bulk=bulk)
        write, fsync, pread = file.pwritev, file.fsync, file.pread

        def checked_write(buffers: Sequence[Buffer], position: int) -> int:
            self.strike(path, "full", "write")
            return write(buffers, position)

        def checked_fsync() -> None:
            self.strike(path, "fsync")
            fsync()

        def checked_pread(length: int, position: int) -> bytes:
            self.strike(path, "read")
            return pread(length, position)

        file.pwritev, file.fsync, file.pread = checked_write, checked_fsync, checked_pread
        return file

    def read(self, path: str) -> bytes:
        self.strike(path, "read")
        return super().read(path)


def opened(disk: SimDisk, *, clean: bool = False) -> PartitionLog:
    return recover_log(disk, PATH, CONFIG, clean_shutdown=clean, producers=ProducerStates())[0]


def written(disk: SimDisk, *, clean: bool = False) -> None:
    """Some segments, two epochs, snapshots."""
    disk.make_directory("partitions")
    log = opened(disk)
    for number in range(10):
        append(log, size=100, epoch=number // 6)
        settle(log)
    log.close(clean=clean)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("fault", ["write", "fsync"])
def test_a_disk_that_does_not_write_one_of_the_files_fails_the_log(fault: str, name: str) -> None:
    """EIO and a failed fsync: never retried; after a restart everything stable is there."""
    disk = FaultyDisk()
    written(disk)
    log = opened(disk)
    disk.name, disk.fault = name, fault
    stable = live_a_little(log)
    assert disk.strikes == 1, "once, and never again"
    with pytest.raises(DiskFailed, match="Input/output error"):
        append(log)
    assert log.take_job() is None
    disk.fault = ""
    again = opened(disk)
    assert again.log_end_offset >= min(stable, log.log_end_offset)
    again.check_invariants()
    assert len(read_batches(again, again.log_start_offset)) == again.log_end_offset - again.log_start_offset


@pytest.mark.parametrize("name", FILES)
def test_a_disk_that_is_full_at_one_of_the_files_recovers_when_there_is_space(name: str) -> None:
    """ENOSPC: nothing of it is stable before, all of it is afterwards."""
    disk = FaultyDisk()
    written(disk)
    log = opened(disk)
    disk.name, disk.fault = name, "full"
    stable = log.stable_end_offset
    for number in range(12):
        if not log.full:
            append(log, size=100, epoch=number // 6 + 1)
        job = log.take_job()
        assert job is not None
        try:
            job.run()
        except DiskFull as error:
            log.job_done(job, error)
            assert log.full and log.stable_end_offset == stable
        else:
            log.job_done(job, None)
            stable = log.stable_end_offset
    assert disk.strikes > 1, "tried again"
    disk.fault = ""
    settle(log)
    assert not log.full and log.stable_end_offset == log.log_end_offset
    end = log.log_end_offset
    log.close(clean=True)
    again = opened(disk, clean=True)
    assert again.log_end_offset == end == len(read_batches(again, 0))


@pytest.mark.parametrize("name", FILES)
def test_one_of_the_files_that_cannot_be_read_is_found(name: str) -> None:
    """EIO: by the check of a stopped node's folder and by that of a log in service."""
    disk = FaultyDisk()
    written(disk, clean=True)
    what = {
        ".log": What.SEGMENT, ".index": What.INDEX, ".timeindex": What.INDEX, "/leader-epochs": What.LEADER_EPOCHS,
        "/checkpoint": What.CHECKPOINT, ".producers": What.PRODUCERS,
    }[name]  # fmt: skip
    in_service = FolderCheck(plan_of_log(opened(disk, clean=True)), in_service=True)
    stopped = check_folder(disk, PATH)
    disk.name, disk.fault = name, "read"
    for check in (stopped, in_service):
        found = check.run()
        assert found and {finding.what for finding in found} == {what}
        assert all("it cannot be read" in str(finding) for finding in found)


@pytest.mark.parametrize("name", FILES[1:])
@pytest.mark.parametrize("clean", [True, False])
def test_a_small_file_that_cannot_be_read_at_a_start_is_rebuilt(name: str, clean: bool) -> None:
    """EIO: all batches are there; a log that lost its own files does not vouch (S9)."""
    disk = FaultyDisk()
    written(disk, clean=clean)
    disk.name, disk.fault = name, "read"
    log, recovery = recover_log(disk, PATH, CONFIG, clean_shutdown=clean, producers=ProducerStates())
    assert disk.strikes
    assert log.log_end_offset == 10
    assert recovery.cut_or_quarantined == (name in {"/leader-epochs", "/checkpoint"})
    log.close(clean=False)


def test_a_read_ends_before_a_missing_segment_and_holds_nothing() -> None:
    disk = SimDisk()
    written(disk, clean=True)
    log = opened(disk, clean=True)
    second = log.segments.all[1].base_offset
    disk.remove(f"{PATH}/{second:020d}.log")
    piece = log.read(Offset(0), log.log_end_offset, 1 << 20)
    assert piece.next_offset == second
    piece.release()
    with pytest.raises(LogDamaged, match="is gone"):
        log.read(second, log.log_end_offset, 1 << 20)
    assert not any(segment.file.is_open for segment in log.segments.all)
