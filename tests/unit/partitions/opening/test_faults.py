"""Disks that fill up, break or turn read-only under one replica.

Acknowledged records stay, other replicas continue, and after a restart everything is there. On the simulated disk, and
on a small file system of its own where that can be mounted.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from jepsen_like.simulator.world.disk import SimDisk, SimFile
from partitions.files import quarantine
from partitions.files.durable import alone
from partitions.files.quarantine import FILES_KEPT, QUARANTINED_SUFFIX, prune_quarantined, quarantined, unused_name
from partitions.log.job import LogJob
from partitions.log.tail import FetchCache
from partitions.opening.folders import folder_of, open_steps
from partitions.recovery.distrust import distrust
from raftlog.config import TopicConfig
from raftlog.errors import DiskFailed, DiskFull
from raftlog.model import Offset
from raftlog.system.disk import LocalDisk
from tests.support.partitions.replication_cluster import ReplicationCluster, tp
from tests.support.partitions.replication_cores import broker
from tests.support.partitions.storage import PATH, append, open_log, read_batches, recover_log, settle

MS_REMOUNT, MS_RDONLY, MNT_DETACH = 32, 1, 2
ROOM = 1 << 20


# --- One replica of several, on the simulated disk --------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["fsync", "write", "read-only"])
def test_a_broken_disk_takes_one_replica_offline_and_no_other(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """S1: nothing is acknowledged that is not on disk, and a failed fsync is not retried."""
    cluster = ReplicationCluster(2)
    before = [cluster.produce(0, partition) for partition in range(2)]
    cluster.settle()
    assert all(answers[0].base_offset == 0 for answers in before)
    member = cluster.members[0]
    if fault == "fsync":
        member.disk.fail_fsync = 1
    else:
        error = DiskFailed("write: Input/output error" if fault == "write" else "write: Read-only file system")
        run = LogJob.run

        def broken(job: LogJob) -> None:
            if job.disk is member.disk and job.path == folder_of(tp(0)):
                raise error
            run(job)

        monkeypatch.setattr(LogJob, "run", broken)
    lost = cluster.produce(0, 0)
    cluster.settle()
    assert lost[0].code == "leadership_lost", "its outcome is unknown, and nobody says otherwise"
    offline = member.manager.drivers[tp(0)].replica.offline
    assert offline, fault
    assert cluster.produce(0, 0)[0].code == "replica_not_available"
    assert member.offline[0][0] == tp(0), "the broker is told, so that another can be elected"
    others = cluster.produce(0, 1)
    cluster.settle()
    assert others[0].base_offset == 1
    monkeypatch.undo()
    again = cluster.start(0, member.disk, clean_shutdown=False)
    log = again.manager.logs.loaded[tp(0)]
    assert log.log_end_offset >= 1, "what was acknowledged is there"


def test_a_slow_disk_makes_rounds_larger_and_nothing_else() -> None:
    cluster = ReplicationCluster()
    answers = [cluster.produce(0) for _ in range(50)]
    cluster.scheduler.run()
    assert all(not answer for answer in answers), "nothing is acknowledged before the disk has answered"
    cluster.settle()
    assert [answer[0].base_offset for answer in answers] == list(range(50))


@pytest.mark.parametrize("clean", [True, False])
def test_an_unreadable_replica_at_a_start_is_left_out(clean: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """S9: it is reported as absent, the others are served; it is not created again over the existing files."""
    cluster = ReplicationCluster(2)
    for partition in range(2):
        cluster.produce(0, partition)
    cluster.settle()
    disk = cluster.members[0].disk
    opened = disk.open

    def broken(path: str, *, create: bool = False, exclusive: bool = False, bulk: bool = False) -> SimFile:
        if path.startswith(folder_of(tp(0))):
            raise DiskFailed(f"open {path}: Input/output error")
        return opened(path, create=create, exclusive=exclusive)

    monkeypatch.setattr(disk, "open", broken)
    before = disk.files()
    shelf = cluster.start(0, disk, clean_shutdown=clean).manager.logs
    assert list(shelf.loaded) == [tp(1)]
    assert "Input/output error" in shelf.failure(tp(0))
    assert shelf.take(tp(0), TopicConfig()) is None
    cluster.tell(broker(0), broker(1), cluster.topic, *cluster.records.values(), to=[0])
    cluster.settle()
    (line,) = cluster.members[0].manager.out_of_service()
    assert line.startswith("orders/0 is offline: ") and "Input/output error" in line
    kept = {path: size for path, size in before.items() if path.startswith(folder_of(tp(0)))}
    assert kept.items() <= disk.files().items()


def test_a_folder_that_cannot_be_listed_is_not_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S9: a replica whose folder the disk does not show must not be created again, empty and clean."""
    disk = LocalDisk(str(tmp_path))
    disk.make_directory("partitions/p")
    assert disk.exists("partitions/p") and not disk.exists("partitions/q") and not disk.exists("q/p")

    def broken(path: str) -> os.stat_result:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "lstat", broken)
    with pytest.raises(DiskFailed, match="Input/output error"):
        disk.exists("partitions/p")
    with pytest.raises(DiskFailed, match="Input/output error"):
        open_log(disk)


# --- Quarantined files ------------------------------------------------------------------------------------------------


def test_quarantined_files_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """In number and in bytes; of all files that one repair quarantines, the damage itself has the lowest offset."""
    disk = SimDisk()
    disk.make_directory("partitions")
    log = open_log(disk)
    append(log)
    log.close(clean=True)
    for number in range(FILES_KEPT + 5):
        with contextlib.closing(disk.open(f"{PATH}/{number:020d}.log.quarantined", create=True)) as file:
            file.pwritev([bytes(100)], 0)
    others = set(disk.list(PATH)) - set(quarantined(disk, PATH))
    prune_quarantined(disk, PATH, quarantined(disk, PATH))
    assert quarantined(disk, PATH) == [f"{number:020d}.log.quarantined" for number in range(FILES_KEPT)]
    monkeypatch.setattr(quarantine, "BYTES_KEPT", 350)
    prune_quarantined(disk, PATH, quarantined(disk, PATH))
    assert len(quarantined(disk, PATH)) == 3
    assert set(disk.list(PATH)) - set(quarantined(disk, PATH)) == others


def test_recovery_alone_removes_no_quarantined_file() -> None:
    """S1: it may be the only copy; no other replica was asked yet."""
    disk = SimDisk()
    disk.make_directory("partitions")
    topic_partition = tp(0)
    path = folder_of(topic_partition)
    log = open_log(disk, TopicConfig(segment_bytes=300), path=path)
    for _ in range(3 * FILES_KEPT):
        append(log, size=100)
        settle(log)
    log.close(clean=False)
    segments = [name for name in disk.list(path) if name.endswith(".log")]
    distrust(disk, path, [Offset(0)])
    disk.flip(f"{path}/{segments[0]}", 70, 1)
    opened = alone(disk, open_steps(disk, topic_partition, None, FetchCache(0), False, clean_shutdown=False))
    assert opened.recovery.cut_or_quarantined and opened.set_aside
    assert len(quarantined(disk, path)) == len(segments) > FILES_KEPT


def test_the_index_of_the_segment_with_a_suspect_offset_is_removed() -> None:
    disk = SimDisk()
    disk.make_directory("partitions")
    log = open_log(disk, TopicConfig(segment_bytes=1024))
    for _ in range(30):
        append(log)
        settle(log)
    log.close(clean=True)
    bases = [int(name[:20]) for name in disk.list(PATH) if name.endswith(".log")]
    distrust(disk, PATH, [Offset(bases[1] + 1)])
    left = [int(name[:20]) for name in disk.list(PATH) if name.endswith(".index")]
    assert left == [base for base in bases if base != bases[1]]


# --- A file system of its own -----------------------------------------------------------------------------------------


def mount(source: str, target: str, kind: str, flags: int, data: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(source.encode(), target.encode(), kind.encode(), flags, data.encode()) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


@pytest.fixture
def small(tmp_path: Path) -> Iterator[str]:
    """A mounted file system of one megabyte."""
    target = str(tmp_path / "small")
    os.mkdir(target)
    try:
        mount("tmpfs", target, "tmpfs", 0, f"size={ROOM}")
    except OSError as error:
        pytest.skip(f"no file system can be mounted here: {error.strerror}")
    yield target
    ctypes.CDLL(None).umount2(target.encode(), MNT_DETACH)


def test_a_file_system_without_space(small: str) -> None:
    """ENOSPC: acknowledged records stay, more are refused, and when there is space again it continues by itself."""
    disk = LocalDisk(small)
    disk.make_directory("partitions")
    log = open_log(disk)
    acknowledged = 0
    while not log.full:
        append(log, size=50_000)
        job = log.take_job()
        assert job is not None
        try:
            job.run()
        except DiskFull as error:
            assert "No space left" in error.detail
            log.job_done(job, error)
        else:
            log.job_done(job, None)
            acknowledged = log.stable_end_offset
    assert 10 < acknowledged == log.stable_end_offset < log.log_end_offset
    with pytest.raises(DiskFull):
        append(log)
    assert len(read_batches(log, 0, acknowledged)) == acknowledged
    mount("tmpfs", small, "tmpfs", MS_REMOUNT, f"size={4 * ROOM}")
    settle(log)
    assert log.stable_end_offset == log.log_end_offset == acknowledged + 1
    log.close(clean=True)
    again, recovery = recover_log(disk, PATH, TopicConfig(), clean_shutdown=True)
    assert recovery.clean and again.log_end_offset == acknowledged + 1


def test_a_file_system_that_turns_read_only(small: str) -> None:
    """The log fails, clearly and permanently; acknowledged records are there when it can be written again."""
    disk = LocalDisk(small)
    disk.make_directory("partitions")
    log = open_log(disk, TopicConfig(segment_bytes=4096))
    for _ in range(5):
        append(log, size=1000)
        settle(log)
    log.close(clean=False)
    mount("tmpfs", small, "tmpfs", MS_REMOUNT | MS_RDONLY, "")
    with pytest.raises(DiskFailed, match="Read-only file system"):
        open_log(disk)
    mount("tmpfs", small, "tmpfs", MS_REMOUNT, f"size={ROOM}")
    again, recovery = recover_log(disk, PATH, TopicConfig(), clean_shutdown=False)
    assert again.log_end_offset == 5 and not recovery.cut_or_quarantined
    again.close(clean=True)


def test_quarantined_files_are_numbered_without_gaps() -> None:
    """The lowest free number is used: an operator sees whether one was removed."""
    disk = SimDisk()
    disk.make_directory("p")
    given = []
    for _ in range(3):
        given.append(unused_name(disk, "p", "7.log"))
        disk.open(f"p/{given[-1]}", create=True).close()
    assert given == [f"7.log{QUARANTINED_SUFFIX}", f"7.log.1{QUARANTINED_SUFFIX}", f"7.log.2{QUARANTINED_SUFFIX}"]
    disk.remove(f"p/{given[1]}")
    assert unused_name(disk, "p", "7.log") == given[1]
