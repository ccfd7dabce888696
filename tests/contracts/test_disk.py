"""The real disk keeps the contract; and what only it can show: errors of the operating system, locks, paths."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from raftlog.errors import DiskFailed, DiskFull, InvariantViolation
from raftlog.ports import Disk
from raftlog.system import disk as disk_module
from raftlog.system.disk import LocalDisk
from tests.support.partitions.storage import failing

from .check_disk import CHECKS


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_real_disk_keeps_the_contract(check: Callable[[Disk], None], tmp_path: Path) -> None:
    check(LocalDisk(str(tmp_path)))


@pytest.mark.parametrize(
    ("number", "expected"),
    [(errno.ENOSPC, DiskFull), (errno.EDQUOT, DiskFull), (errno.EIO, DiskFailed), (errno.EROFS, DiskFailed)],
)
def test_errors_of_a_write_are_reported_by_raftlogs_codes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, expected: type[Exception]
) -> None:
    file = LocalDisk(str(tmp_path)).open("a", create=True)
    monkeypatch.setattr(os, "pwritev", failing(number))
    with pytest.raises(expected, match="write a"):
        file.pwritev([b"x"], 0)
    file.close()


def test_a_file_whose_fsync_failed_refuses_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = LocalDisk(str(tmp_path)).open("a", create=True)
    file.pwritev([b"x"], 0)
    # This holds even if the kernel reports a lack of space: the data may be gone from the cache.
    monkeypatch.setattr(os, "fdatasync", failing(errno.ENOSPC))
    with pytest.raises(DiskFailed):
        file.fsync()
    monkeypatch.undo()
    for call in (file.fsync, lambda: file.pread(1, 0), lambda: file.pwritev([b"y"], 0), lambda: file.truncate(0)):
        with pytest.raises(DiskFailed, match="fsync a"):
            call()
    file.close()


def test_a_failed_fsync_drops_the_pages_that_the_cache_calls_clean(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the next process reads them, fsyncs them successfully, and vouches for data that is on no disk."""
    file = LocalDisk(str(tmp_path)).open("a", create=True)
    file.pwritev([b"x"], 0)
    advice: list[tuple[int, ...]] = []
    monkeypatch.setattr(os, "fdatasync", failing(errno.EIO))
    monkeypatch.setattr(os, "posix_fadvise", lambda *args: advice.append(args))
    with pytest.raises(DiskFailed):
        file.fsync()
    assert advice == [(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)]
    file.close()


def test_a_failed_fsync_of_a_folder_is_never_a_lack_of_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", failing(errno.ENOSPC))
    with pytest.raises(DiskFailed, match="fsync"):
        LocalDisk(str(tmp_path)).fsync_directory("")


def test_closing_raises_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = LocalDisk(str(tmp_path)).open("a", create=True)
    descriptor = file.fileno()
    monkeypatch.setattr(os, "close", failing(errno.EIO))
    file.close()
    monkeypatch.undo()
    os.close(descriptor)


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwritev
    file = LocalDisk(str(tmp_path)).open("a", create=True)
    monkeypatch.setattr(os, "pwritev", lambda fd, views, at: real(fd, [views[0][: max(1, views[0].nbytes // 2)]], at))
    assert file.pwritev([b"hello ", b"", b"wide ", b"world"], 0) == 16
    assert file.pread(99, 0) == b"hello wide world"
    file.close()


def test_a_cached_read_declines_what_is_not_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = LocalDisk(str(tmp_path)).open("a", create=True)
    file.pwritev([b"0123456789"], 0)
    real = os.preadv
    monkeypatch.setattr(os, "preadv", failing(errno.EAGAIN))
    assert file.pread_cached(4, 0) is None
    # Half of it is in memory.
    monkeypatch.setattr(os, "preadv", lambda fd, buffers, at, flags: real(fd, [memoryview(buffers[0])[:2]], at, flags))
    assert file.pread_cached(4, 0) is None
    # On a file system without the flag, only an ordinary read remains.
    monkeypatch.setattr(os, "preadv", failing(errno.EOPNOTSUPP))
    assert file.pread_cached(4, 0) == b"0123"
    monkeypatch.setattr(os, "preadv", failing(errno.EIO))
    with pytest.raises(DiskFailed):
        file.pread_cached(4, 0)
    file.close()


def test_replace_fsyncs_the_content_before_the_name_and_the_name_before_it_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    for name in ("pwritev", "fdatasync", "replace", "fsync"):
        real = getattr(os, name)

        def spy(*args: Any, name: str = name, real: Callable[..., Any] = real) -> Any:
            steps.append(name)
            return real(*args)

        monkeypatch.setattr(os, name, spy)
    LocalDisk(str(tmp_path)).replace("a", b"content")
    assert steps == ["pwritev", "fdatasync", "replace", "fsync"]


def test_a_failed_replace_keeps_the_old_content_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = LocalDisk(str(tmp_path))
    disk.replace("a", b"old")
    monkeypatch.setattr(os, "pwritev", failing(errno.ENOSPC))
    with pytest.raises(DiskFull):
        disk.replace("a", b"new")
    assert disk.read("a") == b"old"
    assert disk.list("") == ["a"]


def test_the_rest_of_an_interrupted_replace_is_no_obstacle(tmp_path: Path) -> None:
    disk = LocalDisk(str(tmp_path))
    (tmp_path / ("a" + disk_module.TEMPORARY_SUFFIX)).write_bytes(b"half of someth")
    disk.replace("a", b"new")
    assert disk.read("a") == b"new"
    assert disk.list("") == ["a"]


@pytest.mark.parametrize("path", ["../a", "p/../../a", "/etc/passwd", "a\0b"])
def test_paths_never_lead_out_of_the_folder(tmp_path: Path, path: str) -> None:
    disk = LocalDisk(str(tmp_path / "data"))
    for call in (disk.open, disk.read, disk.exists, disk.list, disk.remove, disk.make_directory):
        with pytest.raises(InvariantViolation):
            call(path)


def test_one_process_locks_the_folder(tmp_path: Path) -> None:
    disk = LocalDisk(str(tmp_path))
    held = disk.lock("lock")
    with pytest.raises(DiskFailed, match="another process"):
        disk.lock("lock")
    held.close()
    disk.lock("lock").close()


# --- Write and fsync in one call -------------------------------------------------------------------------------------


def with_flags(answer: Callable[[int, list[memoryview], int], int]) -> Callable[..., int]:
    """Replace `os.pwritev`: calls with a flag go to `answer`."""
    real = os.pwritev
    return lambda fd, views, at, flags=0: answer(fd, views, at) if flags else real(fd, views, at)


def refusing(number: int, *, after: int = 0) -> Callable[[int, list[memoryview], int], int]:
    """Write this number of bytes into the page cache first, as if the fsync had failed."""
    real = os.pwritev

    def refuse(fd: int, views: list[memoryview], at: int) -> int:
        if after:
            real(fd, [views[0][:after]], at)
        raise OSError(number, os.strerror(number))

    return refuse


def sizes_at_fsync(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the size of the file at each fsync from now on."""
    real, sizes = os.fdatasync, list[int]()

    def spy(descriptor: int) -> None:
        sizes.append(os.fstat(descriptor).st_size)
        real(descriptor)

    monkeypatch.setattr(os, "fdatasync", spy)
    return sizes


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_no_room_for_a_stable_write_is_a_full_disk_if_nothing_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    file = LocalDisk(str(tmp_path)).open("a", create=True)
    file.pwritev([b"before"], 0)
    monkeypatch.setattr(os, "pwritev", with_flags(refusing(number)))
    with pytest.raises(DiskFull, match="write a"):
        file.pwritev_stable([b"x"], 6)
    monkeypatch.undo()
    assert file.pwritev_stable([b"x"], 6) == 1, "the file is as good as before"
    file.close()


@pytest.mark.parametrize(
    ("number", "written"), [(errno.EIO, 0), (errno.EIO, 4), (errno.ENOSPC, 4), (errno.EDQUOT, 4), (errno.EROFS, 0)]
)
def test_a_stable_write_that_fails_otherwise_loses_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, written: int
) -> None:
    """S1: data that the kernel may have dropped and marked clean is never vouched for, even if it reports a lack of
    space: a retry would succeed."""
    file = LocalDisk(str(tmp_path)).open("a", create=True)
    file.pwritev([b"before"], 0)
    advice: list[tuple[int, ...]] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda *args: advice.append(args))
    monkeypatch.setattr(os, "pwritev", with_flags(refusing(number, after=written)))
    with pytest.raises(DiskFailed, match="write and fsync a"):
        file.pwritev_stable([b"lost"], 6)
    monkeypatch.undo()
    assert advice == [(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)]
    for call in (file.fsync, lambda: file.pread(1, 0), lambda: file.pwritev_stable([b"y"], 6)):
        with pytest.raises(DiskFailed, match="write and fsync a"):
            call()
    file.close()


def test_the_rest_of_a_short_stable_write_is_written_and_fsynced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = sizes_at_fsync(monkeypatch)
    file = LocalDisk(str(tmp_path)).open("a", create=True)
    monkeypatch.setattr(os, "pwritev", with_flags(lambda fd, views, at: os.pwrite(fd, views[0][:3], at)))
    assert file.pwritev_stable([b"hello ", b"wide ", b"world"], 0) == 16
    assert file.pread(99, 0) == b"hello wide world"
    assert synced == [16]
    file.close()


def test_without_such_a_call_it_is_a_write_and_an_fsync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced, tried = sizes_at_fsync(monkeypatch), list[int]()
    refuse = refusing(errno.EOPNOTSUPP)

    def refuse_and_count(fd: int, views: list[memoryview], at: int) -> int:
        tried.append(at)
        return refuse(fd, views, at)

    monkeypatch.setattr(disk_module.LocalFile, "_dsync", 1)  # restored at the end: the class remembers a refusal
    monkeypatch.setattr(os, "pwritev", with_flags(refuse_and_count))
    file = LocalDisk(str(tmp_path)).open("a", create=True)
    assert file.pwritev_stable([b"abc"], 0) == 3
    assert file.pwritev_stable([b"def"], 3) == 3
    assert tried == [0], "after a refusal, the call is not tried again"
    assert (file.pread(9, 0), synced) == (b"abcdef", [3, 6])
    file.close()
