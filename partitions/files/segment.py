"""One segment: a file of batches, named by the offset of its first one, and the two indexes beside it.

    00000000000000004711.log         batches, one after the other
    00000000000000004711.index       offset index    } of a sealed segment: whole; of the last one: a prefix, written
    00000000000000004711.timeindex   time index      } at checkpoints; none of them is needed, any can be rebuilt

Only the last segment of a log grows. Written bytes keep their place until they are cut off, and nothing is
written in place of a cut: the log continues in a new file. So a region of a file that is being sent to a socket either
still holds its batches or ends early; it never holds others.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from raftlog.errors import DiskFailed, InvariantViolation
from raftlog.model import Offset
from raftlog.ports import Disk, File
from raftlog.records.batch import BatchHeader

from .checkpoint import DamagedFile
from .offset_index import MAX_RELATIVE_OFFSET, OffsetIndex
from .time_index import NO_TIMESTAMP, TimeIndex

LOG_SUFFIX = ".log"
OFFSET_INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
CLEANED_SUFFIX = ".cleaned"
"""The suffix of a file that is to replace the one without it."""
SEGMENT_SUFFIXES = (LOG_SUFFIX, OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX)
INDEX_SUFFIXES = (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX)


def segment_name(base_offset: Offset, suffix: str = LOG_SUFFIX) -> str:
    """Return a segment's file name; its twenty digits hold every offset, so that names sort as offsets do."""
    return f"{base_offset:020d}{suffix}"


def parse_segment_name(name: str, suffix: str = LOG_SUFFIX) -> Offset | None:
    """Return the base offset; None if the name is not a segment's."""
    digits = name.removesuffix(suffix)
    if len(digits) == 20 and digits.isascii() and digits.isdigit() and name == digits + suffix:
        return Offset(int(digits))
    return None


class SegmentIndex(msgspec.Struct):
    """Both indexes of a segment, grown together.

    Invariant: they cover the same batches, and have entries for the same ones.
    """

    offsets: OffsetIndex
    times: TimeIndex

    @classmethod
    def empty(cls, base_offset: Offset, interval_bytes: int) -> SegmentIndex:
        return cls(OffsetIndex(base_offset, interval_bytes), TimeIndex(base_offset))

    @classmethod
    def decode(cls, base_offset: Offset, offsets: bytes, times: bytes, interval_bytes: int) -> SegmentIndex:
        """Decode the contents of the index files. Raises `DamagedFile`."""
        index = cls(OffsetIndex.decode(offsets, interval_bytes), TimeIndex.decode(times))
        if not index.offsets.base_offset == index.times.base_offset == base_offset:
            raise DamagedFile("an index of another segment")
        if index.offsets.end_offset != index.times.end_offset:
            raise DamagedFile("the two indexes cover different parts of the segment")
        return index

    @property
    def end_offset(self) -> Offset:
        return self.offsets.end_offset

    @property
    def size(self) -> int:
        return self.offsets.size

    def encode(self) -> tuple[bytes, bytes]:
        """Encode the contents of the index files, in the order of `index_names`."""
        return self.offsets.encode(), self.times.encode()

    @property
    def memory_bytes(self) -> int:
        return self.offsets.memory_bytes + self.times.memory_bytes

    def add(self, header: BatchHeader) -> None:
        """Add the next batch."""
        self.grow(Offset(header.end_offset), header.total_bytes, header.max_timestamp)

    def grow(self, end_offset: Offset, length: int, max_timestamp: int) -> None:
        """Add the next batch by its numbers."""
        entered = self.offsets.add(end_offset, length)
        self.times.add(end_offset, max_timestamp, enter=entered)

    def truncate(self, end_offset: Offset, size: int) -> Offset:
        """Shorten both indexes; the headers from the offset returned to the new end go to `add_time` again."""
        self.offsets.truncate(end_offset, size)
        return self.times.truncate(end_offset)

    def copy(self) -> SegmentIndex:
        return SegmentIndex(self.offsets.copy(), self.times.copy())

    def add_time(self, header: BatchHeader) -> None:
        self.times.add(Offset(header.end_offset), header.max_timestamp, enter=False)


class SegmentGone(DiskFailed):
    """A file that the log needs does not exist: damage. Other errors may be the whole disk's, or the process's."""


class SegmentFile:
    """The open file of a segment, shared by its holders and closed by the last of them. For one thread.

    Invariant: `_file` is open exactly while `_holders > 0`.
    """

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self.path = path
        self._file: File | None = None
        self._holders = 0

    @property
    def is_open(self) -> bool:
        return self._file is not None

    def acquire(self) -> File:
        """Hold the file open until `release`. Raises `SegmentGone` and `DiskFailed`."""
        if self._file is None:
            try:
                self._file = self._disk.open(self.path, bulk=True)
            except FileNotFoundError:
                raise SegmentGone(f"{self.path} is gone") from None
        self._holders += 1
        return self._file

    def adopt(self, file: File) -> None:
        """Hold a file that a job has opened, as `acquire` would."""
        if self._file is None:
            self._file = file
        else:
            file.close()
        self._holders += 1

    def hold(self) -> Hold:
        """Acquire the file for a holder that releases it once."""
        return Hold(self.acquire(), self.release)

    def release(self) -> None:
        assert self._holders > 0, self.path
        self._holders -= 1
        if self._holders == 0 and self._file is not None:
            file, self._file = self._file, None
            file.close()


class Hold:
    """One reader's hold on a segment's file."""

    __slots__ = ("_release", "file")

    def __init__(self, file: File, release: Callable[[], None]) -> None:
        self.file = file
        self._release: Callable[[], None] | None = release

    def release(self) -> None:
        """Release the file. Raises `InvariantViolation` the second time: another reader may still use the file."""
        release, self._release = self._release, None
        if release is None:
            raise InvariantViolation("a file region was released twice")
        release()


class Segment(msgspec.Struct, eq=False):
    """A segment as the log's owner sees it, including batches that are still in memory only.

    Invariant: `index` exists (and covers all) from the segment's beginning until its index files are complete.
    """

    base_offset: Offset
    file: SegmentFile
    end_offset: Offset
    size: int = 0
    max_timestamp: int = NO_TIMESTAMP
    first_timestamp: int = NO_TIMESTAMP
    """Largest timestamp of the first batch: `segment.ms` counts from there."""
    index: SegmentIndex | None = None
    rebuilt: SegmentIndex | None = None
    """The index of a sealed segment whose index files are damaged, which a worker rebuilt from its headers."""
    on_disk: bool = False
    """Whether the file exists, and its name is durable."""
    pinned: bool = False
    """Whether the log holds the file open because more will be written to it."""
    unsynced: bool = False
    """Whether bytes were written that no fsync covers yet (`flush=os`)."""
    dropped: bool = False
    """Whether the segment is no longer part of the log."""
    suspect: bool = False
    """Whether damage was found in it: it is read only with its CRCs checked, never sent as a region of the file."""

    def add(self, end_offset: Offset, length: int, max_timestamp: int) -> int:
        """Add the next batch, in memory so far, and return its position."""
        position = self.size
        assert self.index is not None
        self.index.grow(end_offset, length, max_timestamp)
        if not position:
            self.first_timestamp = max_timestamp
        self.end_offset = end_offset
        self.size = position + length
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp
        return position

    def must_roll_before(
        self, end_offset: Offset, length: int, max_timestamp: int, segment_bytes: int, segment_ms: int
    ) -> bool:
        """Whether this batch belongs in a new segment. Time is counted from batch to batch: a log has no clock."""
        return self.size > 0 and (
            self.size + length > segment_bytes
            or (self.first_timestamp >= 0 and max_timestamp - self.first_timestamp > segment_ms)
            or end_offset - self.base_offset > MAX_RELATIVE_OFFSET
        )

    def pin(self, file: File) -> None:
        """Keep the file that a job opened."""
        self.file.adopt(file)
        if self.pinned:
            self.file.release()
        self.pinned = True

    def unpin(self) -> None:
        """Stop holding the file: nothing more will be written."""
        if self.pinned:
            self.pinned = False
            self.file.release()

    def __str__(self) -> str:
        return f"{self.base_offset}..{self.end_offset} {self.size}B"
