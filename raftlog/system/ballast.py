"""The ballast: a preallocated file that reserves disk space for emergencies, and is released a slice at a time.

Freeing space takes a little space: retention writes a checkpoint before it removes a segment, and a file is replaced by
way of a second one. On a disk without a free block neither is possible, and the disk would stay full permanently. So a
file without content occupies a part of the disk from the start. An operation that must not fail releases a slice of it
and retries; the ballast is refilled when there is space again.

Only bounded writes that help to free space may use it. Writes that grow with the load (batches, and their copies by
compaction) may not: they find the disk full while the ballast is incomplete. Otherwise they would take the space that
retention needs.

Source: CockroachDB's ballast files ("Automatic ballast files", 2021), which an operator has to delete.
"""

from __future__ import annotations

import threading

from raftlog.errors import DiskFull
from raftlog.ports import Disk, File

BALLAST_NAME = "ballast"
SLICES = 16
BLOCK_BYTES = 4096
SHARE_OF_DISK = 16
"""The ballast takes at most one sixteenth of a disk."""


def ballast_bytes(wanted: int, total: int) -> int:
    """Return the size of a ballast on a disk of `total` bytes, in whole slices of whole blocks; 0 for none."""
    return min(wanted, total // SHARE_OF_DISK) // (SLICES * BLOCK_BYTES) * SLICES * BLOCK_BYTES


class Ballast:
    """The ballast of one data folder. Thread-safe.

    Invariant: `0 <= held <= SLICES`, and `held` slices of the file are allocated.
    """

    def __init__(self, disk: Disk, wanted: int) -> None:
        """Create the ballast of `wanted` bytes (0: none), as far as there is space. Blocks. Raises `DiskFailed`."""
        self._disk = disk
        self._slice = ballast_bytes(wanted, disk.space().total) // SLICES
        self._lock = threading.Lock()
        self._held = 0
        self._file: File | None = None
        """Kept open for the life of the process, because descriptors may be scarce when space is."""
        if self._slice:
            # All slices are allocated, even if the file exists: a copy of the folder may have holes in it.
            self.fill()
        else:
            disk.remove(BALLAST_NAME)

    @property
    def whole(self) -> bool:
        """Whether no slice has been released."""
        return not self._slice or self._held == SLICES

    @property
    def missing_bytes(self) -> int:
        """Space that it would take to refill the ballast, in bytes."""
        return (SLICES - self._held) * self._slice

    def give_up(self) -> bool:
        """Release one slice. Return False if none is left. Raises `DiskFailed`."""
        with self._lock:
            if not self._held or self._file is None:
                return False
            self._file.truncate((self._held - 1) * self._slice)
            self._held -= 1
            # A journalling file system makes freed blocks available once its journal records that they are free.
            self._file.fsync()
            return True

    def fill(self) -> bool:
        """Allocate the missing slices while there is space. Return whether the ballast is whole.

        Raises `DiskFailed`, and `ResourceShortage` if the file is not open yet.
        """
        with self._lock:
            try:
                self._file = self._file or self._disk.open(BALLAST_NAME, create=True)
                while self._held < SLICES:
                    self._file.allocate((self._held + 1) * self._slice)
                    self._held += 1
            except DiskFull:
                pass  # The ballast stays incomplete.
            if self._file is not None:
                if self._file.size() != self._held * self._slice:
                    self._file.truncate(self._held * self._slice)
                self._file.fsync()
        return self.whole
