"""The contract of every `Disk`, real or simulated. Each check gets an empty, working disk.

Only a simulated disk can show the effects of failures and power losses; those checks are in its own tests.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from raftlog.ports import Disk


def check_bytes_written_are_bytes_read(disk: Disk) -> None:
    file = disk.open("a", create=True)
    assert file.size() == 0
    assert file.pwritev([b"abc", bytearray(b"de"), memoryview(b"xfgx")[1:3]], 0) == 7
    assert file.pread(7, 0) == b"abcdefg"
    assert file.pread(3, 2) == b"cde"
    assert file.size() == 7
    assert file.pwritev([b"XY"], 1) == 2
    assert file.pread(100, 0) == b"aXYdefg"
    file.close()


def check_many_buffers_are_written_in_order(disk: Disk) -> None:
    file = disk.open("a", create=True)
    pieces = [bytes([number % 251]) * (number % 5) for number in range(5_000)]
    whole = b"".join(pieces)
    assert file.pwritev(pieces, 10) == len(whole)
    assert file.pread(len(whole), 10) == whole
    assert file.pread(10, 0) == bytes(10), "a hole reads as zeros"
    assert file.pwritev([], 3) == 0
    assert file.pwritev([b"", b""], 3) == 0
    file.close()


def check_a_stable_write_writes_as_others_do(disk: Disk) -> None:
    file = disk.open("a", create=True)
    assert file.pwritev_stable([b"hello ", b"", memoryview(b"wide "), bytearray(b"world")], 0) == 16
    assert file.pwritev([b"!"], 16) == 1
    assert file.pwritev_stable([b"W"], 6) == 1, "within the file, too"
    assert file.pwritev_stable([memoryview(b"%d" % (n % 10)) for n in range(3000)], 17) == 3000
    assert file.pread(18, 0) == b"hello Wide world!0"
    assert file.size() == 3017
    file.close()


def check_a_read_is_short_only_at_the_end(disk: Disk) -> None:
    file = disk.open("a", create=True)
    file.pwritev([b"0123456789"], 0)
    assert file.pread(20, 6) == b"6789"
    assert file.pread(5, 10) == b""
    assert file.pread(5, 99) == b""
    file.close()


def check_a_cached_read_reads_the_same_or_declines(disk: Disk) -> None:
    file = disk.open("a", create=True)
    file.pwritev([b"0123456789"], 0)
    for length, position in ((4, 0), (20, 6), (5, 10), (5, 99)):
        assert file.pread_cached(length, position) in (file.pread(length, position), None)
    file.close()


def check_truncate_cuts_and_later_writes_do_not_bring_bytes_back(disk: Disk) -> None:
    file = disk.open("a", create=True)
    file.pwritev([b"0123456789"], 0)
    file.truncate(4)
    assert file.size() == 4
    assert file.pread(10, 0) == b"0123"
    file.pwritev([b"x"], 6)
    assert file.pread(10, 0) == b"0123\0\0x"
    file.fsync()
    file.close()


def check_open_says_what_is_absent_or_present(disk: Disk) -> None:
    with pytest.raises(FileNotFoundError):
        disk.open("a")
    with pytest.raises(FileNotFoundError):
        disk.open("absent/a", create=True)
    with pytest.raises(FileNotFoundError):
        disk.read("a")
    disk.open("a", create=True).close()
    disk.open("a").close()
    disk.open("a", create=True).close()
    with pytest.raises(FileExistsError):
        disk.open("a", exclusive=True)
    disk.open("b", exclusive=True).close()
    assert disk.list("") == ["a", "b"]


def check_opening_again_keeps_the_content(disk: Disk) -> None:
    first = disk.open("a", create=True)
    first.pwritev([b"abc"], 0)
    second = disk.open("a", create=True)
    assert second.pread(9, 0) == b"abc"
    second.pwritev([b"d"], 3)
    assert first.pread(9, 0) == b"abcd", "two handles, one file"
    first.close()
    assert second.pread(9, 0) == b"abcd"
    second.close()


def check_directories(disk: Disk) -> None:
    assert disk.list("p") == []
    assert not disk.exists("p")
    disk.make_directory("p/q")
    disk.make_directory("p/q")
    assert disk.exists("p") and disk.exists("p/q")
    for name in ("z", "a", "m"):
        disk.open(f"p/q/{name}", create=True).close()
    assert disk.list("p/q") == ["a", "m", "z"], "sorted, names only"
    assert disk.list("p") == ["q"]
    disk.fsync_directory("p/q")
    disk.fsync_directory("p")
    disk.fsync_directory("")


def check_rename_replaces(disk: Disk) -> None:
    disk.replace("a", b"old")
    disk.replace("b", b"new")
    disk.rename("b", "a")
    assert disk.read("a") == b"new"
    assert disk.list("") == ["a"]
    disk.make_directory("p")
    disk.rename("a", "p/c")
    assert disk.read("p/c") == b"new"
    assert disk.list("") == ["p"]
    with pytest.raises(FileNotFoundError):
        disk.rename("absent", "x")


def check_remove_takes_files_and_folders_and_what_is_absent(disk: Disk) -> None:
    disk.remove("absent")
    disk.make_directory("p/q")
    disk.replace("p/q/a", b"x")
    disk.replace("b", b"x")
    disk.remove("b")
    disk.remove("p")
    assert disk.list("") == []
    assert not disk.exists("p/q/a")


def check_an_open_file_outlives_its_removal_and_renaming(disk: Disk) -> None:
    disk.replace("a", b"first")
    held = disk.open("a")
    disk.remove("a")
    assert held.pread(9, 0) == b"first"
    again = disk.open("a", create=True)
    again.pwritev([b"second"], 0)
    assert held.pread(9, 0) == b"first", "another file of the same name"
    disk.rename("a", "b")
    again.pwritev([b"S"], 0)
    assert disk.read("b") == b"Second"
    disk.replace("b", b"third")
    assert again.pread(9, 0) == b"Second", "`replace` makes another file"
    held.close()
    again.close()


def check_replace_makes_and_replaces(disk: Disk) -> None:
    disk.make_directory("p")
    disk.replace("p/a", b"one")
    assert disk.read("p/a") == b"one"
    disk.replace("p/a", b"")
    assert disk.read("p/a") == b""
    disk.replace("p/a", bytes(200_000))
    assert disk.read("p/a") == bytes(200_000)
    assert disk.list("p") == ["a"], "nothing is left beside it"


def check_one_call_syncs_everything(disk: Disk) -> None:
    with pytest.raises(FileNotFoundError):
        disk.syncs_all("absent")
    disk.make_directory("p")
    disk.replace("p/old", b"old")
    file = disk.open("p/a", create=True)
    file.pwritev([b"abc"], 0)
    disk.rename("p/old", "p/new")
    if disk.syncs_all("p"):
        disk.sync_all()
    assert (disk.read("p/a"), disk.list("p")) == (b"abc", ["a", "new"])
    file.close()


def check_close_may_be_called_twice(disk: Disk) -> None:
    file = disk.open("a", create=True)
    file.fsync()
    file.close()
    file.close()


def check_allocated_room_reads_as_zeros_and_keeps_what_was_there(disk: Disk) -> None:
    file = disk.open("a", create=True, bulk=True)
    file.pwritev([b"abc"], 0)
    file.allocate(10_000)
    assert file.size() == 10_000
    assert file.pread(10_000, 0) == b"abc" + bytes(9_997)
    file.allocate(5_000)
    assert file.size() == 10_000, "it never cuts"
    file.truncate(5_000)
    file.allocate(7_000)
    assert file.size() == 7_000
    file.fsync()
    file.close()


def check_space_is_some_of_a_whole(disk: Disk) -> None:
    space = disk.space()
    assert 0 <= space.free <= space.total
    assert space.reserve_whole


CHECKS: tuple[Callable[[Disk], None], ...] = tuple(
    check for name, check in sorted(globals().items()) if name.startswith("check_")
)
"""Run each check on a disk of its own."""
