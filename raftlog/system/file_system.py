"""syncfs(2): everything that was written to one file system is on disk, by one call.

A thousand files that were written a moment ago take a thousand calls of `fsync`, each of which has the file system end
a transaction and the disk empty its cache; one `syncfs` does both once for all of them. It covers contents, sizes and
names, of that one file system only, and also what others have written to it: its time is bounded by the disk, not by
what the caller wrote.

It is used only where it keeps what it promises:

* Linux 5.8 and later: before, it did not say that writing had failed. Since then each open file remembers how much of
  that it was told. So one file is held open from the start (`LocalDisk.lock`), and every error since is told here once,
  also one that another process's `syncfs` was told of, or one file's `fsync`: a disk that lost anything has failed.
* The file systems below. Others pass on neither the call nor its errors (FUSE, overlays), or are not known to.

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
    0x01021994: "tmpfs",  # where nothing lasts, and nothing says that it does
}
"""By `f_type` of statfs(2)."""

_STATFS_BYTES = 512
"""More than any machine's `struct statfs`, which begins with `f_type`."""


class FileSystem:
    """The file system that an open file lies on. The file is the caller's, and stays open as long as this is used."""

    def __init__(self, descriptor: int, syncfs: Callable[[int], None]) -> None:
        self.device = os.fstat(descriptor).st_dev
        """As `st_dev` has it: what lies on another device is not covered."""
        self._descriptor = descriptor
        self._syncfs = syncfs

    def sync(self) -> None:
        """What was written to it before this call is on disk once it returns. Blocks. Raises `OSError`."""
        self._syncfs(self._descriptor)


def file_system_of(descriptor: int) -> FileSystem | None:
    """None where there is no `syncfs` that can be relied on. Raises `OSError`."""
    syncfs = _syncfs()
    if syncfs is None or file_system_type(descriptor) not in _KNOWN_FILE_SYSTEMS:
        return None
    return FileSystem(descriptor, syncfs)


def file_system_type(descriptor: int) -> int:
    """`f_type` of statfs(2); -1 where nothing tells."""
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
        # The interpreter's lock is free meanwhile, as it is in `os.fsync`.
        while library.syncfs(descriptor) != 0:
            error = _error()
            if error.errno != errno.EINTR:
                raise error

    return syncfs


@functools.cache
def _library() -> ctypes.CDLL | None:
    """The C library, where it has both calls."""
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
    """`6.18.44-generic` → (6, 18); of what is no release, nothing."""
    found = re.match(r"(\d+)\.(\d+)", text)
    return tuple(map(int, found.groups())) if found else ()


def _error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))
