"""A disk whose operations that help to free space can use the ballast. Only writes of bulk data cannot.

If a call finds no space, it releases a slice of the ballast and retries, until it succeeds or no slice is left. A file
that was opened as `bulk` does not: it finds the disk full, even while the ballast is only incomplete.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from raftlog.errors import DiskFull
from raftlog.ports import Buffer, Disk, File, Space

from .ballast import Ballast

T = TypeVar("T")

_IN_USE = "the ballast is in use by operations that free space"


class BallastedDisk:
    """A disk with a ballast. As thread-safe as `disk`."""

    def __init__(self, disk: Disk, ballast: Ballast) -> None:
        self._disk = disk
        self._ballast = ballast

    def open(self, path: str, *, create: bool = False, exclusive: bool = False, bulk: bool = False) -> File:
        opened = self._in_any_case(lambda: self._disk.open(path, create=create, exclusive=exclusive, bulk=bulk))
        return BulkFile(opened, self._ballast, path) if bulk else EssentialFile(opened, self._in_any_case)

    def exists(self, path: str) -> bool:
        return self._disk.exists(path)

    def list(self, path: str) -> list[str]:
        return self._disk.list(path)

    def make_directory(self, path: str) -> None:
        self._in_any_case(lambda: self._disk.make_directory(path))

    def rename(self, source: str, target: str) -> None:
        self._in_any_case(lambda: self._disk.rename(source, target))

    def remove(self, path: str) -> None:
        self._in_any_case(lambda: self._disk.remove(path))

    def fsync_directory(self, path: str) -> None:
        self._disk.fsync_directory(path)

    def read(self, path: str) -> bytes:
        return self._disk.read(path)

    def replace(self, path: str, content: bytes) -> None:
        self._in_any_case(lambda: self._disk.replace(path, content))

    def syncs_all(self, path: str) -> bool:
        return self._disk.syncs_all(path)

    def sync_all(self) -> None:
        self._disk.sync_all()

    def space(self) -> Space:
        """Return the current space. The ballast is refilled first if there is space for all of it."""
        found = self._disk.space()
        if self._ballast.whole:
            return found
        if found.free >= self._ballast.missing_bytes:
            self._ballast.fill()
            found = self._disk.space()
        return found._replace(reserve_whole=self._ballast.whole)

    def _in_any_case(self, call: Callable[[], T]) -> T:
        while True:
            try:
                return call()
            except DiskFull:
                if not self._ballast.give_up():
                    raise


class _DelegatingFile:
    """The methods that do not write."""

    def __init__(self, file: File) -> None:
        self._file = file

    def pread(self, length: int, position: int) -> bytes:
        return self._file.pread(length, position)

    def pread_cached(self, length: int, position: int) -> bytes | None:
        return self._file.pread_cached(length, position)

    def size(self) -> int:
        return self._file.size()

    def fsync(self) -> None:
        self._file.fsync()

    def lose(self, why: str) -> None:
        self._file.lose(why)

    def fileno(self) -> int:
        return self._file.fileno()

    def close(self) -> None:
        self._file.close()


class EssentialFile(_DelegatingFile):
    """A file whose writes may use the ballast."""

    def __init__(self, file: File, in_any_case: Callable[[Callable[[], int | None]], int | None]) -> None:
        super().__init__(file)
        self._in_any_case = in_any_case

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> int:
        # A retry writes the same bytes at the same position, over what the failed call wrote.
        return self._in_any_case(lambda: self._file.pwritev(buffers, position)) or 0

    def pwritev_stable(self, buffers: Sequence[Buffer], position: int) -> int:
        return self._in_any_case(lambda: self._file.pwritev_stable(buffers, position)) or 0

    def truncate(self, length: int) -> None:
        self._in_any_case(lambda: self._file.truncate(length))

    def allocate(self, length: int) -> None:
        self._in_any_case(lambda: self._file.allocate(length))


class BulkFile(_DelegatingFile):
    """A file whose writes do not use the ballast."""

    def __init__(self, file: File, ballast: Ballast, path: str) -> None:
        super().__init__(file)
        self._ballast = ballast
        self._path = path

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> int:
        self._refuse_without_ballast()
        return self._file.pwritev(buffers, position)

    def pwritev_stable(self, buffers: Sequence[Buffer], position: int) -> int:
        self._refuse_without_ballast()
        return self._file.pwritev_stable(buffers, position)

    def truncate(self, length: int) -> None:
        self._file.truncate(length)

    def allocate(self, length: int) -> None:
        self._refuse_without_ballast()
        self._file.allocate(length)

    def _refuse_without_ballast(self) -> None:
        if not self._ballast.whole:
            raise DiskFull(f"write {self._path}: {_IN_USE}")
