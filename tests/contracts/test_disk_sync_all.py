"""`sync_all` of the real disk: the files that it covers, the systems on which it is used, and the files that its
failure affects (S1, S9).
"""

from __future__ import annotations

import errno
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from raftlog.errors import DiskFailed, InvariantViolation
from raftlog.ports import File
from raftlog.system import disk as disk_module
from raftlog.system import file_system
from raftlog.system.disk import LocalDisk
from tests.support.partitions.storage import failing


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A disk whose file system is one of the supported ones, and the descriptors that were synced."""
    synced: list[int] = []
    supported(monkeypatch, synced.append)
    return synced


def supported(monkeypatch: pytest.MonkeyPatch, syncfs: Callable[[int], None]) -> None:
    """Let file systems be of a supported kind, with this call."""
    monkeypatch.setattr(disk_module, "file_system_of", lambda descriptor: file_system.FileSystem(descriptor, syncfs))


def test_one_call_goes_to_the_file_that_is_open_since_the_start(tmp_path: Path, calls: list[int]) -> None:
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
    """S1: otherwise the call would succeed without touching the files there."""
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
    supported(monkeypatch, failing(number))
    disk = LocalDisk(str(tmp_path))
    held = disk.lock("lock")
    with pytest.raises(DiskFailed, match=f"sync {tmp_path}"):
        disk.sync_all()
    held.close()


def test_a_file_that_a_failed_call_may_have_lost_refuses_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a failed fsync of its own; the next process must not read it from the page cache, either."""
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
    """S9: the kernel reports the error once, to the caller. Other writers' data may be gone as well, and the next call
    succeeds."""
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

    def fail(_: file_system.FileSystem) -> None:
        files["meanwhile"].pwritev([b"x"], 0)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(file_system.FileSystem, "sync", fail)
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


@pytest.fixture
def disk(tmp_path: Path, calls: list[int]) -> Iterator[LocalDisk]:
    """A disk that is open since the start."""
    made = LocalDisk(str(tmp_path))
    held = made.lock("lock")
    yield made
    held.close()


def fail_a_call(disk: LocalDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(file_system.FileSystem, "sync", failing(errno.EIO))
        with pytest.raises(DiskFailed, match=f"sync {disk.root}"):
            disk.sync_all()


def expect_lost(file: File) -> None:
    with pytest.raises(DiskFailed, match="sync"):
        file.fsync()
    file.close()


CHANGES: list[tuple[str, Callable[[File], object]]] = [
    ("pwritev", lambda file: file.pwritev([b"x"], 0)),
    ("ftruncate", lambda file: file.truncate(9)),
]
"""The order of calls to the kernel, and their callers."""


@pytest.mark.parametrize(("name", "change"), CHANGES, ids=[name for name, _ in CHANGES])
def test_a_change_that_a_call_overtakes_is_not_taken_for_covered(
    disk: LocalDisk,
    monkeypatch: pytest.MonkeyPatch,
    calls: list[int],
    name: str,
    change: Callable[[File], object],
) -> None:
    """1. A write begins. 2. A call of another thread covers the bytes written so far. 3. The write ends. 4. The next
    call fails: the file is lost."""
    file = disk.open("a", create=True)
    real = getattr(os, name)

    def overtaken(*arguments: Any) -> Any:
        disk.sync_all()
        return real(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(os, name, overtaken)
        change(file)
    assert len(calls) == 1
    fail_a_call(disk, monkeypatch)
    expect_lost(file)


@pytest.mark.parametrize(("name", "change"), CHANGES, ids=[name for name, _ in CHANGES])
def test_a_change_in_progress_when_a_call_fails_is_lost(
    disk: LocalDisk, monkeypatch: pytest.MonkeyPatch, name: str, change: Callable[[File], object]
) -> None:
    """1. A write begins. 2. A call of another thread fails, perhaps because of its pages. 3. The write succeeds."""
    file = disk.open("a", create=True)
    real = getattr(os, name)

    def meanwhile(*arguments: Any) -> Any:
        fail_a_call(disk, monkeypatch)
        return real(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(os, name, meanwhile)
        change(file)
    expect_lost(file)


def test_a_write_during_an_fsync_is_not_taken_for_fsynced(disk: LocalDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    file = disk.open("a", create=True)
    real = os.fdatasync

    def meanwhile(descriptor: int) -> None:
        real(descriptor)
        file.pwritev([b"x"], 0)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fdatasync", meanwhile)
        file.fsync()
    fail_a_call(disk, monkeypatch)
    expect_lost(file)


def fresh_file_system() -> ModuleType:
    """A copy of the module that has not looked at the kernel yet."""
    spec = importlib.util.find_spec(file_system.__name__)
    assert spec is not None and spec.loader is not None
    fresh = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fresh)
    return fresh


@pytest.mark.parametrize(
    ("release", "kind", "known"),
    [
        ("6.18.44-fc", 0xEF53, True),
        ("5.8.0", 0x58465342, True),
        ("5.7.19-generic", 0xEF53, False),  # does not report failed writes
        ("4.19", 0xEF53, False),
        ("6.1.0", 0x65735546, False),  # FUSE
        ("6.1.0", 0x794C7630, False),  # an overlay
        ("of another kind", 0xEF53, False),
    ],
)
def test_one_call_is_used_where_it_reports_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, release: str, kind: int, known: bool
) -> None:
    names = os.uname()
    monkeypatch.setattr(os, "uname", lambda: os.uname_result((*names[:2], release, *names[3:])))
    fresh = fresh_file_system()
    monkeypatch.setattr(fresh, "file_system_type", lambda _: kind)
    monkeypatch.setattr(disk_module, "file_system_of", fresh.file_system_of)
    disk = LocalDisk(str(tmp_path))
    held = disk.lock("lock")
    assert disk.syncs_all("") is known
    held.close()


@pytest.mark.skipif(sys.platform != "linux", reason="there is no syncfs")
def test_the_kernel_version_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(b"x")
    with open(tmp_path / "a", "rb") as file:
        assert file_system.file_system_type(file.fileno()) > 0
        with monkeypatch.context() as patched:
            patched.setattr(file_system, "file_system_type", lambda _: 0xEF53)
            found = file_system.file_system_of(file.fileno())
        if found is not None:
            found.sync()
    if found is not None:
        with pytest.raises(OSError, match="Bad file descriptor"):
            found.sync()
    with pytest.raises(OSError, match="Bad file descriptor"):
        file_system.file_system_type(1 << 20)
