"""syncfs(2): one call that makes everything written to a file system durable.

A thousand recently written files take a thousand calls of `fsync`, each of which makes the file system end a
transaction and the disk flush its cache. One `syncfs` does both once for all of them. It covers contents, sizes and
names on that file system only, and also the writes of other processes: its duration is bounded by the disk, not by what
the caller wrote.

It is used only where its promise holds:

* Linux 5.8 and later. Earlier kernels did not report write errors. Since then each open file remembers which errors
  were reported to it. So one file is held open from the start (`LocalDisk.lock`), and every error since then is
  reported here once, including errors that another process's `syncfs` or a single file's `fsync` has already returned:
  a disk that lost anything has failed.
* The file systems below. Others do not pass on the call or its errors (FUSE, overlays), or are not known to.

Source: Linux, `fs/sync.c`; syncfs(2), VERSIONS and ERRORS.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import re
import sys
from collections.abc import Callable

_FIRST_RELEASE = (5, 8)

_KNOWN_FILE_SYSTEMS = {
    0xEF53: "ext4",  # and ext2, ext3
    0x58465342: "xfs",
    0x9123683E: "btrfs",
    0xF2F52010: "f2fs",
    0x01021994: "tmpfs",  # nothing on it is durable
}
"""File systems by `f_type` of statfs(2)."""

_STATFS_BYTES = 512
"""Size that exceeds any machine's `struct statfs`, which begins with `f_type`."""


class FileSystem:
    """The file system of an open file. The caller owns the file and keeps it open while this object is in use."""

    def __init__(self, descriptor: int, syncfs: Callable[[int], None]) -> None:
        self.device = os.fstat(descriptor).st_dev
        """The device number, as `st_dev`. Files on another device are not covered."""
        self._descriptor = descriptor
        self._syncfs = syncfs

    def sync(self) -> None:
        """Make everything written to the file system before this call durable. Blocks. Raises `OSError`."""
        self._syncfs(self._descriptor)


def file_system_of(descriptor: int) -> FileSystem | None:
    """Return the file's file system; None without a reliable `syncfs`. Raises `OSError`."""
    syncfs = _syncfs()
    if syncfs is None or file_system_type(descriptor) not in _KNOWN_FILE_SYSTEMS:
        return None
    return FileSystem(descriptor, syncfs)


def file_system_type(descriptor: int) -> int:
    """Return `f_type` of statfs(2); -1 if it cannot be determined."""
    library = _library()
    if library is None:
        return -1
    found = ctypes.create_string_buffer(_STATFS_BYTES)
    if library.fstatfs(descriptor, found) != 0:
        raise _error()
    return int(ctypes.c_ulong.from_buffer(found).value) & 0xFFFFFFFF


@functools.cache
def _syncfs() -> Callable[[int], None] | None:
    library = _library()
    if library is None or _release(os.uname().release) < _FIRST_RELEASE:
        return None

    def syncfs(descriptor: int) -> None:
        # The global interpreter lock is released during the call, as in `os.fsync`.
        while library.syncfs(descriptor) != 0:
            error = _error()
            if error.errno != errno.EINTR:
                raise error

    return syncfs


@functools.cache
def _library() -> ctypes.CDLL | None:
    """Return the C library if it has both calls."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        library = ctypes.CDLL(None, use_errno=True)
        library.syncfs.argtypes = (ctypes.c_int,)
        library.fstatfs.argtypes = (ctypes.c_int, ctypes.c_void_p)
    except (OSError, AttributeError):
        return None
    return library


def _release(text: str) -> tuple[int, ...]:
    """Return a kernel release as numbers: `6.18.44-generic` → (6, 18); an empty tuple for anything else."""
    found = re.match(r"(\d+)\.(\d+)", text)
    return tuple(map(int, found.groups())) if found else ()


def _error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))
