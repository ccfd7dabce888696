"""The simulated disk keeps the contract of every disk, and loses exactly the data that was not fsynced."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from jepsen_like.simulator.world.disk import SimDisk, SimulatedCrash
from raftlog.errors import DiskFailed, DiskFull
from raftlog.ports import Disk

from .check_disk import CHECKS


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_simulated_disk_keeps_the_contract(check: Callable[[Disk], None]) -> None:
    check(SimDisk())


@pytest.mark.parametrize("seed", range(50))
def test_power_loss_keeps_what_was_fsynced(seed: int) -> None:
    disk = SimDisk()
    disk.make_directory("a")
    disk.fsync_directory("")
    file = disk.open("a/f", create=True)
    file.pwritev([b"x" * 2000], 0)
    file.fsync()
    disk.fsync_directory("a")
    file.pwritev([b"y" * 2000], 2000)
    disk.power_loss(random.Random(seed))
    kept = disk.read("a/f")
    assert kept[:2000] == b"x" * 2000
    assert set(kept[2000:]) <= {ord("y"), 0}


def test_power_loss_takes_unsynced_data_and_names_in_some_seeds_and_keeps_them_in_others() -> None:
    contents, names = set(), set()
    for seed in range(100):
        disk = SimDisk()
        file = disk.open("f", create=True)
        disk.fsync_directory("")
        file.pwritev([b"z" * 1024], 0)
        disk.open("g", create=True)
        disk.power_loss(random.Random(seed))
        contents.add(len(disk.read("f")))
        names.add(disk.exists("g"))
    assert {0, 512, 1024} <= contents
    assert names == {True, False}


def test_a_replaced_file_is_old_or_new_after_power_loss_at_any_operation() -> None:
    for crash_at in range(1, 12):
        disk = SimDisk()
        disk.replace("c", b"old")
        disk.crash_countdown = crash_at
        try:
            disk.replace("c", b"new")
        except SimulatedCrash:
            disk.power_loss(random.Random(crash_at))
            assert disk.read("c") in {b"old", b"new"}
        else:
            disk.power_loss(random.Random(crash_at))
            assert disk.read("c") == b"new"


@pytest.mark.parametrize("seed", range(20))
def test_one_call_keeps_everything_that_came_before_it(seed: int) -> None:
    disk = SimDisk()
    disk.make_directory("a/b")
    held = disk.open("a/f", create=True)
    held.pwritev([b"x" * 1000], 0)
    disk.open("a/b/g", create=True).pwritev([b"y" * 1000], 0)
    disk.sync_all()
    held.truncate(10)
    held.pwritev([b"z" * 1000], 10)
    disk.open("a/b/h", create=True)
    disk.power_loss(random.Random(seed))
    assert disk.read("a/b/g") == b"y" * 1000
    kept = disk.read("a/f")
    assert kept[:10] == b"x" * 10 and set(kept[10:]) <= {ord("x"), ord("z"), 0}
    assert (disk.fsyncs, disk.sync_alls) == (1, 1)


def test_if_one_call_fails_one_file_has_lost_its_data_and_the_others_are_not_durable() -> None:
    lost = set()
    for seed in range(40):
        disk = SimDisk()
        first, last = (disk.open(name, create=True) for name in "fg")
        disk.fsync_directory("")
        for file in (first, last):
            file.pwritev([b"new"], 0)
        disk.fail_fsync = 1
        with pytest.raises(DiskFailed):
            disk.sync_all()
        assert (disk.read("f"), disk.read("g")) == (b"new", b"")
        disk.power_loss(random.Random(seed))
        lost.add(disk.read("f"))
    assert lost == {b"new", b""}


def test_if_one_call_fails_open_files_that_were_not_fsynced_are_lost() -> None:
    disk = SimDisk()
    fsynced, written = (disk.open(name, create=True) for name in "fg")
    for file in (fsynced, written):
        file.pwritev([b"x"], 0)
    fsynced.fsync()
    disk.fail_fsync = 1
    with pytest.raises(DiskFailed):
        disk.sync_all()
    disk.sync_all()
    fsynced.pwritev([b"y"], 1)
    for call in (written.size, written.fsync, lambda: written.pread(1, 0), lambda: written.pwritev([b"y"], 1)):
        with pytest.raises(DiskFailed, match="g may have lost"):
            call()
    assert disk.open("g").size() == 0


def test_a_failed_fsync_drops_the_data_and_calls_it_clean() -> None:
    disk = SimDisk()
    file = disk.open("f", create=True)
    file.pwritev([b"lost"], 0)
    disk.fail_fsync = 1
    with pytest.raises(DiskFailed):
        file.fsync()
    file.fsync()
    assert disk.read("f") == b""


def test_a_full_disk_accepts_nothing() -> None:
    disk = SimDisk()
    file = disk.open("f", create=True)
    disk.full = True
    with pytest.raises(DiskFull):
        file.pwritev([b"x"], 0)
    assert file.size() == 0


@pytest.mark.parametrize("seed", range(20))
def test_a_stable_write_vouches_for_its_own_bytes_only(seed: int) -> None:
    disk = SimDisk()
    file = disk.open("f", create=True)
    disk.fsync_directory("")
    file.pwritev([b"x" * 1000], 0)
    file.pwritev_stable([b"y" * 1000], 1000)
    disk.power_loss(random.Random(seed))
    kept = disk.read("f")
    assert kept[1000:] == b"y" * 1000
    assert set(kept[:1000]) <= {ord("x"), 0}


def test_a_stable_write_whose_fsync_fails_is_forgotten() -> None:
    disk = SimDisk()
    file = disk.open("f", create=True)
    file.pwritev_stable([b"old"], 0)
    disk.fail_fsync = 1
    with pytest.raises(DiskFailed):
        file.pwritev_stable([b"new"], 3)
    assert disk.read("f") == b"old"


@pytest.mark.parametrize("seed", range(20))
def test_a_cut_before_a_stable_write_never_takes_it_away(seed: int) -> None:
    """Neither if the file is fsynced afterwards nor if power fails: the file's length is journalled in order."""
    for fails in (False, True):
        disk = SimDisk()
        file = disk.open("f", create=True)
        disk.fsync_directory("")
        file.pwritev_stable([b"o" * 900], 0)
        file.pwritev([b"p" * 600], 900)
        file.truncate(300)
        file.pwritev([b"q" * 100], 300)
        file.pwritev_stable([b"n" * 100], 350)
        if fails:
            disk.power_loss(random.Random(seed))
        else:
            file.fsync()
        content = disk.read("f")
        assert content[:300] == b"o" * 300 and content[350:] == b"n" * 100
        assert content[300:350] in ((b"q" * 50, bytes(50)) if fails else (b"q" * 50,))
