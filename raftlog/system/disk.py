"""The real disk: files below one folder. This is the only module that opens files and fsyncs.

A call that fails for lack of space raises `DiskFull`, one that fails for lack of descriptors or memory raises
`ResourceShortage`, and every other one raises `DiskFailed`. Missing and already existing files raise Python's own
errors, because callers handle those. A failed fsync always raises `DiskFailed`. Nothing is retried here: a failed
`fsync` may have dropped the data and marked it clean, so the file refuses every later call ("fsyncgate", 2018).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from time import perf_counter
from typing import ClassVar

from raftlog.errors import DiskError, DiskFailed, DiskFull, InvariantViolation, ResourceShortage
from raftlog.ports import Buffer, File, Space, behind

from .file_system import FileSystem, file_system_of
from .shared_histogram import SharedHistogram

_IOV_MAX = 1024
"""Maximum number of buffers in one `pwritev`: Linux's UIO_MAXIOV."""

_NOWAIT = getattr(os, "RWF_NOWAIT", 0)
"""Flag of Linux 4.14 and later. Other systems cannot tell whether a read would wait."""

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_SHORTAGE = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN)
"""Errors of the process or the machine, unrelated to the disk (open(2), stat(2))."""
_HINDERED = _NO_ROOM + _SHORTAGE
_NOWAIT_UNKNOWN = (errno.EOPNOTSUPP, errno.EINVAL)
_DSYNC_UNKNOWN = (errno.EOPNOTSUPP, errno.ENOSYS)
"""Errors of an unsupported flag, which are raised before anything is written."""

TEMPORARY_SUFFIX = ".tmp"
"""Suffix of a file that `replace` was writing when the process died. It holds nothing that was reported as durable."""


def _ours(error: OSError | MemoryError, what: str, path: str) -> DiskError:
    """Return raftlog's exception for an error of the operating system."""
    if isinstance(error, MemoryError):
        return ResourceShortage(f"{what} {path}: {os.strerror(errno.ENOMEM)}")
    text = f"{what} {path}: {error.strerror or error}"
    if error.errno in _SHORTAGE:
        return ResourceShortage(text)
    return DiskFull(text) if error.errno in _NO_ROOM else DiskFailed(text)


@contextlib.contextmanager
def _translated(what: str, path: str) -> Iterator[None]:
    """Convert errors of the operating system, in calls for which a microsecond does not matter."""
    try:
        yield
    except (FileNotFoundError, FileExistsError):
        raise
    except (OSError, MemoryError) as error:
        raise _ours(error, what, path) from error


class LocalFile:
    """One open file. Thread-safe, as `pread` and `pwrite` are."""

    _dsync: ClassVar[int] = getattr(os, "RWF_DSYNC", 0)
    """Flag to write and fsync in one call: Linux 4.7 and later; 0 if the kernel or the file system does not support it.
    """

    def __init__(
        self, descriptor: int, path: str, unsynced: set[LocalFile], sync_seconds: SharedHistogram | None = None
    ) -> None:
        """`sync_seconds` counts the calls that make data durable."""
        self._descriptor = descriptor
        self._path = path
        self._unsynced = unsynced
        """The disk's set of files with unsynced data. This file is in it from before a write until after the call that
        makes the write durable has begun."""
        self._sync_seconds = sync_seconds or SharedHistogram()
        self._lost = ""
        """Why the file is lost, for example because an fsync failed; empty if it is not."""

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> int:
        self._refuse_if_lost()
        self._unsynced.add(self)
        try:
            with _translated("write", self._path):
                return self._write(_views(buffers), position)
        finally:
            # A `sync_all` that began meanwhile has removed the file, and need not cover all of this write.
            self._unsynced.add(self)

    def pwritev_stable(self, buffers: Sequence[Buffer], position: int) -> int:
        self._refuse_if_lost()
        views = _views(buffers)
        if not LocalFile._dsync or len(views) > _IOV_MAX:
            return self._write_then_fsync(views, position)
        began = perf_counter()
        try:
            written = os.pwritev(self._descriptor, views, position, LocalFile._dsync)
        except OSError as error:
            if error.errno in _DSYNC_UNKNOWN:
                LocalFile._dsync = 0
                return self._write_then_fsync(views, position)
            # The call may fail in its write or in its fsync. If the file did not grow, nothing was written, so nothing
            # was lost.
            if error.errno in _HINDERED and self.size() <= position:
                raise _ours(error, "write", self._path) from error
            raise self._lose("write and fsync", error) from error
        self._sync_seconds.observe(perf_counter() - began)
        left = behind(views, written)
        return written + (self._write_then_fsync(left, position + written) if left else 0)

    def _write_then_fsync(self, views: list[memoryview], position: int) -> int:
        with _translated("write", self._path):
            written = self._write(views, position)
        self.fsync()
        return written

    def _write(self, views: list[memoryview], position: int) -> int:
        """Write all buffers. Raises `OSError`."""
        total = first = 0
        while first < len(views):
            written = os.pwritev(self._descriptor, views[first : first + _IOV_MAX], position + total)
            total += written
            # Usually everything is written at once. After a short write, the next one raises the error.
            while first < len(views) and written >= views[first].nbytes:
                written -= views[first].nbytes
                first += 1
            if written:
                views[first] = views[first][written:]
        return total

    def pread(self, length: int, position: int) -> bytes:
        self._refuse_if_lost()
        try:
            data = os.pread(self._descriptor, length, position)
            while len(data) < length:
                more = os.pread(self._descriptor, length - len(data), position + len(data))
                if not more:
                    break
                data += more
        except (OSError, MemoryError) as error:
            raise _ours(error, "read", self._path) from error
        return data

    def pread_cached(self, length: int, position: int) -> bytes | None:
        if not _NOWAIT:
            return self.pread(length, position)
        self._refuse_if_lost()
        buffer = bytearray(length)
        try:
            found = os.preadv(self._descriptor, [buffer], position, _NOWAIT)
            if found == length:
                return bytes(buffer)
            at_end = position + found >= os.fstat(self._descriptor).st_size
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno not in _NOWAIT_UNKNOWN:
                raise _ours(error, "read", self._path) from error
            return self.pread(length, position)
        return bytes(buffer[:found]) if at_end else None

    def size(self) -> int:
        self._refuse_if_lost()
        try:
            return os.fstat(self._descriptor).st_size
        except OSError as error:
            raise _ours(error, "stat", self._path) from error

    def truncate(self, length: int) -> None:
        self._refuse_if_lost()
        self._unsynced.add(self)
        try:
            with _translated("truncate", self._path):
                os.ftruncate(self._descriptor, length)
        finally:
            self._unsynced.add(self)

    def allocate(self, length: int) -> None:
        self._refuse_if_lost()
        self._unsynced.add(self)
        try:
            with _translated("allocate", self._path):
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(self._descriptor, 0, length)
                else:
                    size = os.fstat(self._descriptor).st_size
                    self._write([memoryview(bytes(max(0, length - size)))], size)
        finally:
            self._unsynced.add(self)

    def fsync(self) -> None:
        self._refuse_if_lost()
        self._unsynced.discard(self)
        began = perf_counter()
        try:
            # `fdatasync` also writes what is needed to read the data again: the file's size.
            os.fdatasync(self._descriptor)
        except OSError as error:
            raise self._lose("fsync", error) from error
        self._sync_seconds.observe(perf_counter() - began)

    def lose(self, why: str) -> None:
        self._lost = self._lost or f"{why} {self._path}"
        # Data that did not reach the disk may stay in the page cache, marked clean: the next process would read it, and
        # its fsync would succeed.
        if hasattr(os, "posix_fadvise"):
            with contextlib.suppress(OSError):
                os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def fileno(self) -> int:
        return self._descriptor

    def close(self) -> None:
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            self._unsynced.discard(self)
            # Everything that must last was fsynced before, so an error here is irrelevant.
            with contextlib.suppress(OSError):
                os.close(descriptor)

    def _lose(self, what: str, error: OSError) -> DiskFailed:
        """Mark the file as lost, and return the error to raise."""
        self._lost = f"{what} {self._path}: {error.strerror}"
        self.lose(what)
        return DiskFailed(self._lost)

    def _refuse_if_lost(self) -> None:
        if self._lost:
            raise DiskFailed(self._lost)


class LocalDisk:
    """A folder of the operating system. Paths below it have `/` between parts and never lead out of it."""

    def __init__(self, root: str) -> None:
        self.root = os.path.abspath(root)
        self.sync_seconds = SharedHistogram()
        """Durations of the calls that make data durable, on any thread."""
        self._held: LocalFile | None = None
        self._file_system: FileSystem | None = None
        """The file system of `_held`, from `lock` on, if one call can sync its files."""
        self._unsynced: set[LocalFile] = set()
        """Open files with data that no fsync covers yet. Changed on any thread, by single calls only."""

    def open(self, path: str, *, create: bool = False, exclusive: bool = False, bulk: bool = False) -> File:
        flags = os.O_RDWR | os.O_CLOEXEC
        flags |= os.O_CREAT if create else 0
        flags |= os.O_CREAT | os.O_EXCL if exclusive else 0
        with _translated("open", path):
            return LocalFile(os.open(self._full(path), flags, 0o644), path, self._unsynced, self.sync_seconds)

    def exists(self, path: str) -> bool:
        # `os.path.lexists` would report a path that cannot be read as absent, and a new file could take its place.
        with _translated("stat", path):
            try:
                os.lstat(self._full(path))
            except (FileNotFoundError, NotADirectoryError):
                return False
        return True

    def list(self, path: str) -> list[str]:
        with _translated("list", path):
            try:
                return sorted(os.listdir(self._full(path)))
            except FileNotFoundError:
                return []

    def make_directory(self, path: str) -> None:
        with _translated("make", path):
            os.makedirs(self._full(path), exist_ok=True)

    def rename(self, source: str, target: str) -> None:
        with _translated("rename", source):
            os.replace(self._full(source), self._full(target))

    def remove(self, path: str) -> None:
        full = self._full(path)
        with _translated("remove", path), contextlib.suppress(FileNotFoundError):
            if stat.S_ISDIR(os.lstat(full).st_mode):
                shutil.rmtree(full)
            else:
                os.remove(full)

    def fsync_directory(self, path: str) -> None:
        with _translated("fsync", path):
            descriptor = os.open(self._full(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            except OSError as error:
                # Also for "no space": a failed fsync is never a mere lack of space, which may be retried.
                raise DiskFailed(f"fsync {path}: {error.strerror}") from error
            finally:
                os.close(descriptor)

    def read(self, path: str) -> bytes:
        with _translated("read", path), open(self._full(path), "rb") as file:
            return file.read()

    def replace(self, path: str, content: bytes) -> None:
        temporary = path + TEMPORARY_SUFFIX
        self.remove(temporary)
        try:
            file = self.open(temporary, exclusive=True)
            try:
                file.pwritev([content], 0)
                file.fsync()
            finally:
                file.close()
        except DiskError:
            with contextlib.suppress(DiskError):
                self.remove(temporary)
            raise
        self.rename(temporary, path)
        self.fsync_directory(os.path.dirname(path))

    def space(self) -> Space:
        with _translated("statvfs", self.root):
            found = os.statvfs(self.root)
        return Space(found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize)

    def syncs_all(self, path: str) -> bool:
        with _translated("stat", path):
            # A folder may be a mount point, or a link to another disk.
            device = os.stat(self._full(path)).st_dev
        return self._file_system is not None and device == self._file_system.device

    def sync_all(self) -> None:
        if self._held is None or self._file_system is None or self._held.fileno() < 0:
            raise InvariantViolation(f"{self.root} cannot be synced by one call: `syncs_all` was not checked")
        covered = self._unsynced.copy()
        self._unsynced.difference_update(covered)
        began = perf_counter()
        try:
            self._file_system.sync()
        except OSError as error:
            # Also for "no space": data that was not written is marked clean, and a second call would report success.
            failed = DiskFailed(f"sync {self.root}: {error.strerror}")
            for file in covered | self._unsynced.copy():
                file.lose(failed.detail)
            raise failed from error
        self.sync_seconds.observe(perf_counter() - began)

    def lock(self, path: str) -> File:
        """Take the lock file `path` for as long as the returned file is open, at most for the life of the process.

        Until it is closed, `sync_all` reports each error that has happened since. This method is not part of the port:
        one process takes one data folder, once.

        Raises `DiskFailed` if another process holds the lock.
        """
        with _translated("open", path):
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            file = LocalFile(os.open(self._full(path), flags, 0o644), path, self._unsynced, self.sync_seconds)
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.close()
            raise DiskFailed(f"{self._full(path)} is locked by another process") from error
        with _translated("statfs", path):
            self._held, self._file_system = file, file_system_of(file.fileno())
        return file

    def _full(self, path: str) -> str:
        parts = path.split("/")
        if path.startswith("/") or ".." in parts or "\0" in path:
            raise InvariantViolation(f"path {path!r} leads out of the data folder")
        return os.path.join(self.root, path)


def _views(buffers: Sequence[Buffer]) -> list[memoryview]:
    return [view for view in map(_bytes_view, buffers) if view.nbytes]


def _bytes_view(buffer: Buffer) -> memoryview:
    view = memoryview(buffer)
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")
