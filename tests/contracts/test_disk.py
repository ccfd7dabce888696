"""The real disk keeps the contract, and what only it can show: errors of the operating system, locks, paths."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from raftlog import disk as disk_module
from raftlog import file_system
from raftlog.disk import LocalDisk
from raftlog.errors import DiskFailed, DiskFull, InvariantViolation
from raftlog.ports import Disk

from .check_disk import CHECKS


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_real_disk_keeps_the_contract(check: Callable[[Disk], None], tmp_path: Path) -> None:
    check(LocalDisk(str(tmp_path)))


def failing(number: int) -> Callable[..., Any]:
    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    return fail


@pytest.mark.parametrize(
    ("number", "expected"),
    [(errno.ENOSPC, DiskFull), (errno.EDQUOT, DiskFull), (errno.EIO, DiskFailed), (errno.EROFS, DiskFailed)],
)
def test_errors_of_a_write_have_our_names(
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
    # Also when the kernel says «no room»: the data may be gone from the cache, so it is no mere lack of room.
    monkeypatch.setattr(os, "fdatasync", failing(errno.ENOSPC))
    with pytest.raises(DiskFailed):
        file.fsync()
    monkeypatch.undo()
    for call in (file.fsync, lambda: file.pread(1, 0), lambda: file.pwritev([b"y"], 0), lambda: file.truncate(0)):
        with pytest.raises(DiskFailed, match="fsync a"):
            call()
    file.close()


def test_a_failed_fsync_lets_go_of_what_the_page_cache_calls_clean(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the next process reads it, fsyncs it with success, and vouches for what no disk has."""
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
    # Half of it is there, the rest is not.
    monkeypatch.setattr(os, "preadv", lambda fd, buffers, at, flags: real(fd, [memoryview(buffers[0])[:2]], at, flags))
    assert file.pread_cached(4, 0) is None
    # A file system without the flag: reading is all that is left.
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


def test_what_a_dead_replace_left_is_no_obstacle(tmp_path: Path) -> None:
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


# --- One call for everything ------------------------------------------------------------------------------------------


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A disk whose file system is one of those; descriptors that were synced."""
    synced: list[int] = []
    monkeypatch.setattr(file_system, "_syncfs", lambda: synced.append)
    monkeypatch.setattr(file_system, "file_system_type", lambda _: 0xEF53)
    return synced


def test_one_call_goes_to_the_file_that_is_held_since_the_start(tmp_path: Path, calls: list[int]) -> None:
    disk = LocalDisk(str(tmp_path))
    assert not disk.syncs_all(""), "errors until now would be somebody else's"
    held = disk.lock("lock")
    disk.make_directory("p/q")
    assert disk.syncs_all("") and disk.syncs_all("p/q")
    disk.sync_all()
    disk.sync_all()
    assert calls == [held.fileno()] * 2
    held.close()
    with pytest.raises(InvariantViolation, match="by one call"):
        disk.sync_all()


def test_a_folder_on_another_disk_is_not_covered(
    tmp_path: Path, calls: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """S1: the call says that it has gone well, and has not touched what lies there."""
    disk = LocalDisk(str(tmp_path))
    held = disk.lock("lock")
    for name in ("here", "there"):
        disk.make_directory(name)
    real = os.stat

    def stat(path: Any, **how: Any) -> os.stat_result:
        found = list(real(path, **how))
        found[2] += str(path).endswith("there")  # st_dev
        return os.stat_result(found)

    monkeypatch.setattr(os, "stat", stat)
    assert disk.syncs_all("here") and not disk.syncs_all("there")
    monkeypatch.undo()
    held.close()


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EDQUOT])
def test_one_call_that_fails_is_never_a_lack_of_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: list[int], number: int
) -> None:
    monkeypatch.setattr(file_system, "_syncfs", lambda: failing(number))
    disk = LocalDisk(str(tmp_path))
    held = disk.lock("lock")
    with pytest.raises(DiskFailed, match=f"sync {tmp_path}"):
        disk.sync_all()
    held.close()


def test_a_file_that_one_call_may_have_lost_refuses_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a failed fsync of its own: nor may the next process read it from the page cache."""
    file = LocalDisk(str(tmp_path)).open("a", create=True)
    file.pwritev([b"x"], 0)
    advice: list[tuple[int, ...]] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda *args: advice.append(args))
    file.lose("sync of everything")
    assert advice == [(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)]
    for call in (
        file.fsync,
        file.size,
        lambda: file.pread(1, 0),
        lambda: file.pwritev([b"y"], 0),
        lambda: file.truncate(0),
    ):
        with pytest.raises(DiskFailed, match="sync of everything a"):
            call()
    file.close()


def test_a_call_that_fails_loses_every_open_file_that_was_not_fsynced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: list[int]
) -> None:
    """S9: the error is told once, to who asked; what others wrote may be gone as well, and the next call goes well."""
    disk = LocalDisk(str(tmp_path))
    held = disk.lock("lock")
    names = ("written", "cut", "meanwhile", "fsynced", "covered", "stable", "closed", "anew")
    files = {name: disk.open(name, create=True) for name in names}
    files["covered"].pwritev([b"x"], 0)
    disk.sync_all()
    for name in ("written", "fsynced", "closed", "anew"):
        files[name].pwritev([b"x"], 0)
    for name in ("fsynced", "anew"):
        files[name].fsync()
    files["anew"].pwritev([b"y"], 1)
    files["cut"].truncate(0)
    files["stable"].pwritev_stable([b"x"], 0)
    files["closed"].close()

    def fail(_: int) -> None:
        files["meanwhile"].pwritev([b"x"], 0)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(disk._file_system, "_syncfs", fail)
    with pytest.raises(DiskFailed):
        disk.sync_all()
    monkeypatch.undo()
    lost = set()
    for name, file in files.items():
        try:
            file.pwritev([b"z"], 0)
        except DiskFailed as error:
            assert name == "closed" or f"sync {tmp_path}: {os.strerror(errno.EIO)} {name}" in str(error)
            lost.add(name)
        file.close()
    assert lost == {"written", "cut", "meanwhile", "anew", "closed"}
    held.close()


def test_a_write_that_a_call_overtakes_is_not_taken_for_covered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: list[int]
) -> None:
    """1. A write begins. 2. A call of another thread covers what there was so far. 3. The write ends. 4. The next call
    fails: the file is lost."""
    disk = LocalDisk(str(tmp_path))
    held = disk.lock("lock")
    file = disk.open("a", create=True)
    real = os.pwritev

    def overtaken(descriptor: int, views: list[memoryview], position: int) -> int:
        disk.sync_all()
        return real(descriptor, views, position)

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwritev", overtaken)
        file.pwritev([b"x"], 0)
    assert disk._file_system is not None
    monkeypatch.setattr(disk._file_system, "_syncfs", failing(errno.EIO))
    with pytest.raises(DiskFailed):
        disk.sync_all()
    with pytest.raises(DiskFailed, match="sync"):
        file.fsync()
    file.close()
    held.close()


@pytest.mark.parametrize(
    ("release", "kind", "known"),
    [
        ("6.18.44-fc", 0xEF53, True),
        ("5.8.0", 0x58465342, True),
        ("5.7.19-generic", 0xEF53, False),  # does not say that writing failed
        ("4.19", 0xEF53, False),
        ("6.1.0", 0x65735546, False),  # FUSE
        ("6.1.0", 0x794C7630, False),  # an overlay
        ("of another kind", 0xEF53, False),
    ],
)
def test_one_call_is_relied_on_where_it_tells_of_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, release: str, kind: int, known: bool
) -> None:
    names = os.uname()
    monkeypatch.setattr(os, "uname", lambda: os.uname_result((*names[:2], release, *names[3:])))
    monkeypatch.setattr(file_system, "file_system_type", lambda _: kind)
    file_system._syncfs.cache_clear()
    disk = LocalDisk(str(tmp_path))
    held = disk.lock("lock")
    assert disk.syncs_all("") is known
    held.close()
    file_system._syncfs.cache_clear()


@pytest.mark.skipif(sys.platform != "linux", reason="there is no syncfs")
def test_the_kernel_is_asked(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x")
    with open(tmp_path / "a", "rb") as file:
        assert file_system.file_system_type(file.fileno()) > 0
        syncfs = file_system._syncfs()
        if syncfs is not None:
            syncfs(file.fileno())
    if syncfs is not None:
        with pytest.raises(OSError, match="Bad file descriptor"):
            syncfs(1 << 20)
    with pytest.raises(OSError, match="Bad file descriptor"):
        file_system.file_system_type(1 << 20)


# --- Write and fsync in one call -------------------------------------------------------------------------------------


def with_flags(answer: Callable[[int, list[memoryview], int], int]) -> Callable[..., int]:
    """`os.pwritev` whose calls with a flag `answer` takes."""
    real = os.pwritev
    return lambda fd, views, at, flags=0: answer(fd, views, at) if flags else real(fd, views, at)


def refusing(number: int, *, after: int = 0) -> Callable[[int, list[memoryview], int], int]:
    """Writes so many bytes into the page cache first, as if the fsync had failed."""
    real = os.pwritev

    def refuse(fd: int, views: list[memoryview], at: int) -> int:
        if after:
            real(fd, [views[0][:after]], at)
        raise OSError(number, os.strerror(number))

    return refuse


def sizes_at_fsync(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The size of the file at each fsync from now on."""
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
    """S1: what the kernel may have dropped and marked clean is never vouched for, also when it says «no room»: who asks
    again would be told that all is well."""
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


def test_where_there_is_no_such_call_it_is_a_write_and_an_fsync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = sizes_at_fsync(monkeypatch)
    monkeypatch.setattr(disk_module.LocalFile, "_dsync", 1)
    monkeypatch.setattr(os, "pwritev", with_flags(refusing(errno.EOPNOTSUPP)))
    file = LocalDisk(str(tmp_path)).open("a", create=True)
    assert file.pwritev_stable([b"abc"], 0) == 3
    assert disk_module.LocalFile._dsync == 0, "nobody asks again"
    assert file.pwritev_stable([b"def"], 3) == 3
    assert (file.pread(9, 0), synced) == (b"abcdef", [3, 6])
    file.close()
