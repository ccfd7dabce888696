"""The file that a compaction pass writes in place of an old segment, or of several small consecutive ones.

    00000000000000000000.log  00000000000000000100.log  00000000000000000200.log        the old segments
    00000000000000000000.log.cleaned                                                    the replacement of all three

As long as nothing changes, nothing is written: a segment without changes stays. From the first changed batch on, all of
it is copied. Segments are merged if one file has room for both by their sizes so far, unless one of them is much
larger: it would be copied again and again for the little that it grows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import NamedTuple

from partitions.files.index_files import index_names
from partitions.files.offset_index import MAX_RELATIVE_OFFSET
from partitions.files.segment import CLEANED_SUFFIX, Segment, SegmentIndex, segment_name
from raftlog.config import MIB
from raftlog.errors import RetriableError
from raftlog.model import Offset, ProducerId
from raftlog.ports import Disk, File
from raftlog.records.batch import BatchHeader, parse_header

from .holes import Hole

SYNC_BYTES = 8 * MIB
"""Bytes between two fsyncs, so that no fsync blocks the disk long for others."""

LOPSIDED = 4
"""Segments whose sizes differ by more than this factor are not merged."""


class OldSegment(NamedTuple):
    """A sealed segment as it was when the pass began."""

    segment: Segment
    """The segment's object, for its owner to compare."""
    base_offset: Offset
    end_offset: Offset
    size: int


class CleanedFile:
    """One cleaned file.

    Invariant: while there is no file, its content would be the first `index.size` bytes of the first old segment.
    """

    def __init__(self, disk: Disk, path: str, first: OldSegment, source: File, interval_bytes: int) -> None:
        """`source` is the first old segment's file; `close` closes it, too."""
        self.olds = [first]
        self.index = SegmentIndex.empty(first.base_offset, interval_bytes)
        self._disk = disk
        self._path = path
        self._source = source
        self._file: File | None = None
        self._hole: Hole | None = None
        self._unsynced = 0

    @property
    def base_offset(self) -> Offset:
        return self.olds[0].base_offset

    def takes(self, old: OldSegment, segment_bytes: int) -> bool:
        """Whether the next segment is merged into this file."""
        sizes = sorted((self.index.size, old.size))
        return (
            sum(sizes) <= segment_bytes
            and sizes[1] <= LOPSIDED * max(sizes[0], MIB)
            and old.end_offset - self.base_offset <= MAX_RELATIVE_OFFSET
        )

    def join(self, old: OldSegment) -> None:
        """Merge the next segment: its batches follow."""
        self.olds.append(old)

    def add(self, header: BatchHeader, batch: bytes, *, changed: bool) -> Iterator[int]:
        """Add the next batch. Yields the bytes that had to be read for it."""
        yield from self._fill_hole()
        yield from self._write(header, batch, changed=changed)

    def add_unneeded(self, header: BatchHeader, batch: bytes, *, changed: bool, forgotten: ProducerId) -> Iterator[int]:
        """Add the next batch, which is empty and not needed. Yields as `add` does.

        Without the batch, the log has nothing left of the producer `forgotten` (-1: of none).
        """
        longer = None if self._hole is None else self._hole.with_next(header, forgotten)
        if longer is None:
            yield from self._fill_hole()
            longer = Hole.of(header, batch, changed=changed, forgotten=forgotten)
        self._hole = longer

    def finish(self) -> Iterator[int]:
        """Finish the file, and make it durable. Yields as `add` does."""
        yield from self._fill_hole()
        if self._file is not None:
            self._file.fsync()
            self._write_indexes()

    @property
    def is_new(self) -> bool:
        """Whether there is a file, because something changed."""
        return self._file is not None

    def close(self) -> None:
        """Close the files; harmless a second time."""
        for file in (self._source, self._file):
            if file is not None:
                file.close()

    # --- Inside ---

    def _fill_hole(self) -> Iterator[int]:
        found, self._hole = self._hole, None
        if found is not None:
            batch = found.batch
            yield from self._write(parse_header(batch), batch, changed=found.changed)

    def _write(self, header: BatchHeader, batch: bytes, *, changed: bool) -> Iterator[int]:
        if self._file is None and (changed or len(self.olds) > 1):
            self._file = self._begin()
            yield from self._copy(self._file)
        if self._file is not None:
            self._append(self._file, batch, self.index.size)
        self.index.add(header)

    def _begin(self) -> File:
        remove_cleaned(self._disk, self._path, self.base_offset)
        name = f"{self._path}/{segment_name(self.base_offset)}{CLEANED_SUFFIX}"
        return self._disk.open(name, exclusive=True, bulk=True)

    def _copy(self, target: File) -> Iterator[int]:
        position = 0
        while position < self.index.size:
            data = self._source.pread(min(MIB, self.index.size - position), position)
            if not data:
                raise RetriableError("offset_not_available", f"{self._path}: segment {self.base_offset} was cut")
            self._append(target, data, position)
            position += len(data)
            yield len(data)

    def _append(self, target: File, data: bytes, position: int) -> None:
        target.pwritev([data], position)
        self._unsynced += len(data)
        if self._unsynced >= SYNC_BYTES:
            target.fsync()
            self._unsynced = 0

    def _write_indexes(self) -> None:
        contents = self.index.offsets.encode(), self.index.times.encode()
        for name, content in zip(index_names(self.base_offset), contents, strict=True):
            file = self._disk.open(f"{self._path}/{name}{CLEANED_SUFFIX}", create=True)
            with contextlib.closing(file):
                file.truncate(0)
                file.pwritev([content], 0)
                file.fsync()


def remove_cleaned(disk: Disk, path: str, base_offset: Offset) -> None:
    """Remove the files that an interrupted pass left."""
    for name in (segment_name(base_offset), *index_names(base_offset)):
        disk.remove(f"{path}/{name}{CLEANED_SUFFIX}")
