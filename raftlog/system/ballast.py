"""Room that nobody uses until there is no other: a preallocated file, given up a slice at a time.

What makes room needs a little of it first: retention writes a checkpoint before it removes a segment, and a file is
replaced by way of a second one. On a disk without one free block neither happens, and the disk stays full for ever. So
a part of the disk is occupied from the start by a file that holds nothing. Who must go on gives up a slice of it and
tries again; it is made whole when there is room again.

Only a write that is bounded and that room can follow may use it. What grows with the load (batches, their copies by
compaction) may not, and finds the disk full as long as the ballast is not whole: else it would take what retention
needs.

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
"""At most this part of a disk: one sixteenth."""


def ballast_bytes(wanted: int, total: int) -> int:
    """The size of a ballast on a disk of `total` bytes, in whole slices of whole blocks; 0 where it would have none."""
    return min(wanted, total // SHARE_OF_DISK) // (SLICES * BLOCK_BYTES) * SLICES * BLOCK_BYTES


class Ballast:
    """One data folder's. May be used from several threads at once.

    Invariant: `0 <= held <= SLICES`, and so many slices of the file are allocated.
    """

    def __init__(self, disk: Disk, wanted: int) -> None:
        """Make it, as far as there is room. `wanted` in bytes; 0: there is none. Blocks. Raises `DiskFailed`."""
        self._disk = disk
        self._slice = ballast_bytes(wanted, disk.space().total) // SLICES
        self._lock = threading.Lock()
        self._held = 0
        self._file: File | None = None
        """Open as long as the process lives: when room is short, descriptors may be, too."""
        if self._slice:
            # From the first slice on, also where it was there before: a copy of the folder may have holes for it.
            self.fill()
        else:
            disk.remove(BALLAST_NAME)

    @property
    def whole(self) -> bool:
        """Nobody needs it now."""
        return not self._slice or self._held == SLICES

    @property
    def missing_bytes(self) -> int:
        """So much room would make it whole."""
        return (SLICES - self._held) * self._slice

    def give_up(self) -> bool:
        """Free one slice; False where none is left. Raises `DiskFailed`."""
        with self._lock:
            if not self._held or self._file is None:
                return False
            self._file.truncate((self._held - 1) * self._slice)
            self._held -= 1
            # A journalling file system gives freed blocks to others once it has written down that they are free.
            self._file.fsync()
            return True

    def fill(self) -> bool:
        """Take slices up to all of them, while there is room; whether it is whole. Raises `DiskFailed`, and
        `ResourceShortage` where the file is not open yet."""
        with self._lock:
            try:
                self._file = self._file or self._disk.open(BALLAST_NAME, create=True)
                while self._held < SLICES:
                    self._file.allocate((self._held + 1) * self._slice)
                    self._held += 1
            except DiskFull:
                pass  # So many it is, then.
            if self._file is not None:
                if self._file.size() != self._held * self._slice:
                    self._file.truncate(self._held * self._slice)
                self._file.fsync()
        return self.whole
