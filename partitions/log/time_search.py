"""The search for the first record of a log at or after a point in time.

The index shows where the record may be; headers are walked to the first batch whose largest timestamp reaches the time;
only that batch is unpacked. This reads and decompresses, so it is work for a worker: a `TimeSearch` is made on the
owner's thread, and `run` works on any.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from partitions.files.batch_walk import HeaderWalk
from partitions.files.damage import cold_segment
from partitions.files.index_files import read_index
from partitions.files.leader_epochs import LeaderEpochHistory
from raftlog.model import FilePosition, Offset
from raftlog.ports import Buffer, Disk, File
from raftlog.records.batch import BatchHeader, RecordBatch

CANDIDATES_MAX = 4
"""Bound on the batches in memory that a search gets: those whose largest timestamp is late enough.

The first of them has the record, unless that record lies below the log's start.
"""


class SearchedSegment(msgspec.Struct, frozen=True):
    """A segment with a record that is late enough."""

    base_offset: Offset
    size: int
    end_offset: Offset
    """The end of what is in its file."""
    floor: tuple[Offset, FilePosition] | None
    """The start of the walk; None if it has to be read from the index files."""


class TimeSearch(msgspec.Struct, frozen=True):
    """The search for the first record of [start, end) whose timestamp is at least `timestamp_ms`."""

    disk: Disk
    path: str
    timestamp_ms: int
    start_offset: Offset
    end_offset: Offset
    segments: Sequence[SearchedSegment]
    in_memory: Sequence[tuple[BatchHeader, Sequence[Buffer]]]
    """Some batches behind the segments' files that may hold the record."""
    epochs: LeaderEpochHistory
    generation: int

    def run(self) -> tuple[Offset, int] | None:
        """Return (offset, timestamp), or None if no record is late enough. Blocks.

        Raises the errors of `LogSlice.load`.
        """
        for segment in self.segments:
            with cold_segment(self.disk, self.path, segment.base_offset, self.generation) as file:
                found = self._search_file(file, segment)
            if found is not None:
                return self._below_end(found)
        for header, buffers in self.in_memory:
            if self._may_hold(header):
                found = self._search_batch(b"".join(buffers), header)
                if found is not None:
                    return self._below_end(found)
        return None

    def _below_end(self, found: tuple[Offset, int]) -> tuple[Offset, int] | None:
        return found if found[0] < self.end_offset else None

    def _may_hold(self, header: BatchHeader) -> bool:
        return header.max_timestamp >= self.timestamp_ms and header.end_offset > self.start_offset

    def _search_file(self, file: File, segment: SearchedSegment) -> tuple[Offset, int] | None:
        offset, position = segment.floor or self._floor(segment)
        walk = HeaderWalk(file.pread, self.epochs, position, offset, segment.size)
        limit = min(segment.end_offset, self.end_offset)
        while walk.offset < limit and (header := walk.peek()) is not None:
            if self._may_hold(header):
                found = self._search_batch(file.pread(header.total_bytes, walk.position), header)
                if found is not None:
                    return found
            walk.step(header)
        return None

    def _search_batch(self, batch: bytes, header: BatchHeader) -> tuple[Offset, int] | None:
        if header.is_control:
            return None
        records = RecordBatch(batch)
        for offset, timestamp in zip(records.offsets(), records.timestamps_ms(), strict=True):
            if timestamp >= self.timestamp_ms and offset >= self.start_offset:
                return Offset(offset), timestamp
        return None

    def _floor(self, segment: SearchedSegment) -> tuple[Offset, FilePosition]:
        """Return the walk's start from the index files; without good ones the whole segment is walked."""
        index = read_index(self.disk, self.path, segment.base_offset, interval_bytes=0)
        if index is None or index.size != segment.size:
            return segment.base_offset, FilePosition(0)
        return index.offsets.floor(index.times.floor(self.timestamp_ms))
