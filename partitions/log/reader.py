"""Reads of a log: from memory, as regions of files, or as work for a worker if the pages are not in memory.

One read continues from segment to segment and into the tail, until it has the requested bytes or meets pages that are
not in memory. Then it ends; if it has nothing yet, it is cold. The owner's thread never waits for data from the disk;
opening a file is the one call that may block.

Every header that a read passes over is checked (`check_placement`); a cold read checks the CRC as well, since it has
the bytes.

A follower receives batches that begin where its log ends. Compaction at this replica may have merged batches into a
hole of which the follower already has a part: it receives the rest, which is a hole as well (S4: both logs stand for
the same offsets).
"""

from __future__ import annotations

from itertools import islice

import msgspec
from msgspec.structs import replace

from partitions.files.batch_walk import (
    MAX_BATCHES_PER_READ,
    Cold,
    HeaderWalk,
    Region,
    check_whole,
    find_region,
    require_in_memory,
    skip_to,
)
from partitions.files.damage import LogDamaged, cold_segment
from partitions.files.index_files import read_index, read_index_cached, rebuild_index
from partitions.files.leader_epochs import LeaderEpochHistory
from partitions.files.segment import Hold, Segment, SegmentGone, SegmentIndex
from raftlog.errors import CorruptBatch, DiskError, DiskFailed
from raftlog.model import FilePosition, Offset
from raftlog.ports import Disk, File, FileRegion
from raftlog.records.batch import HEADER_BYTES, BatchHeader, parse_header
from raftlog.records.batch_filter import hole, is_hole

from .segments import LogSegments
from .slice import LogSlice
from .time_search import CANDIDATES_MAX, SearchedSegment, TimeSearch


class Wanted(msgspec.Struct):
    """The request of a read: whole batches of [start, end)."""

    start_offset: Offset
    end_offset: Offset
    max_bytes: int
    max_batches: int
    min_one: bool
    checked: bool = False
    """Whether CRCs are checked before the bytes are passed on."""
    copying: bool = False
    """Whether a follower reads, whose log ends at `start_offset`: its first batch must begin there."""


class LogReader:
    """Reads of one log, which change nothing of it."""

    def __init__(self, segments: LogSegments) -> None:
        self._segments = segments

    def read(
        self,
        start: Offset,
        end: Offset,
        log_end: Offset,
        max_bytes: int,
        *,
        min_one: bool,
        checked: bool,
        copying: bool,
        generation: int,
    ) -> LogSlice:
        """Implement `PartitionLog.read`. Raises `LogDamaged` and `DiskFailed`."""
        found = LogSlice(start, start)
        tail_start = self._segments.tail.first_offset(log_end)
        while found.next_offset < end and found.batch_count < MAX_BATCHES_PER_READ:
            first = min_one and not found.batch_count
            if not first and found.length >= max_bytes:
                break
            wanted = Wanted(
                start_offset=found.next_offset,
                end_offset=end,
                max_bytes=max_bytes - found.length,
                max_batches=MAX_BATCHES_PER_READ - found.batch_count,
                min_one=first,
                checked=checked,
                copying=copying,
            )
            if wanted.start_offset >= tail_start:
                self._add_from_memory(found, wanted)
                break
            wanted = replace(wanted, end_offset=min(end, tail_start))
            if not self._add_from_file(found, self._segments.holding(wanted.start_offset), wanted, generation):
                break
        return found

    def time_search(
        self, timestamp_ms: int, start: Offset, end: Offset, log_end: Offset, generation: int
    ) -> TimeSearch:
        """Implement `PartitionLog.timestamp_search`."""
        tail_start = self._segments.tail.first_offset(log_end)
        late = [
            segment
            for segment in self._segments.all
            if segment.max_timestamp >= timestamp_ms and segment.end_offset > start and segment.base_offset < end
        ]
        searched = [
            SearchedSegment(
                base_offset=segment.base_offset,
                size=segment.size,
                end_offset=min(segment.end_offset, tail_start),
                floor=None
                if (index := segment.index) is None
                else index.offsets.floor(index.times.floor(timestamp_ms)),
            )
            for segment in late
            if segment.base_offset < tail_start
        ]
        candidates = (
            (batch.header, batch.buffers)
            for batch in (self._segments.tail.from_offset(tail_start) if late else ())
            if batch.header.max_timestamp >= timestamp_ms
            and batch.end_offset > start
            and batch.header.record_count
            and not batch.header.is_control
        )
        return TimeSearch(
            disk=self._segments.disk,
            path=self._segments.path,
            timestamp_ms=timestamp_ms,
            start_offset=start,
            end_offset=end,
            segments=searched,
            in_memory=list(islice(candidates, CANDIDATES_MAX)),
            epochs=self._segments.epochs.copy(),
            generation=generation,
        )

    def _add_from_memory(self, found: LogSlice, wanted: Wanted) -> None:
        batches = self._segments.tail.read(
            wanted.start_offset, wanted.end_offset, wanted.max_bytes, wanted.max_batches, min_one=wanted.min_one
        )
        if batches and (rest := _rest_of_hole(batches[0].header, wanted)) is not None:
            _add_rest(found, rest, wanted, batches.pop(0).end_offset)
        for batch in batches:
            found.parts.extend(batch.buffers)
            found.length += batch.length
        if batches:
            _extend(found, Offset(batches[0].header.base_offset), batches[-1].end_offset, len(batches))

    def _add_from_file(self, found: LogSlice, segment: Segment, wanted: Wanted, generation: int) -> bool:
        """Add what the segment has; return whether the read can continue behind it."""
        hold = self._hold(found, segment, generation)
        if hold is None:
            return False
        file = hold.file
        taken = False
        try:
            if segment.suspect or wanted.checked:
                raise Cold
            floor_offset, floor_position = self._index_of(segment).offsets.floor(wanted.start_offset)
            epochs = self._segments.epochs
            walk = HeaderWalk(file.pread_cached, epochs, floor_position, floor_offset, segment.size)
            header = skip_to(walk, wanted.start_offset) if wanted.copying else None
            if header is not None and (rest := _rest_of_hole(header, wanted)) is not None:
                _add_rest(found, rest, wanted, Offset(header.end_offset))
                return True
            region = _find(walk, wanted)
            if region is not None:
                require_in_memory(file.pread_cached, region)
                found.parts.append(FileRegion(file, region.position, region.length, hold.release))
                found.length += region.length
                _extend(found, region.first_offset, region.next_offset, region.batch_count)
                taken = True
        except (Cold, DiskError):  # A disk error is left to the worker, too.
            if not found.batch_count:
                found.load = self._cold_read(segment, wanted, generation).load
        except CorruptBatch as error:
            # The batches found before it are good; the next read begins at the damage and reports it.
            if not found.batch_count:
                path = self._segments.path
                raise LogDamaged(f"{path}: {error.detail}", segment.base_offset, generation) from None
        finally:
            if not taken:
                hold.release()
        return taken

    def _hold(self, found: LogSlice, segment: Segment, generation: int) -> Hold | None:
        """Return the segment's open file; None to return what was found. Raises `LogDamaged`, `DiskError`."""
        try:
            return segment.file.hold()
        except DiskError as error:
            if found.batch_count:
                return None  # The next read begins here, and says so.
            if isinstance(error, SegmentGone):
                raise LogDamaged(error.detail, segment.base_offset, generation) from None
            raise

    def _index_of(self, segment: Segment) -> SegmentIndex:
        """Return the segment's index, from memory or from its files.

        Raises `Cold` if those are not in memory, or not good: a worker then rebuilds the index.
        """
        cache = self._segments.cache
        index = segment.index or cache.index(segment)
        if index is not None:
            return index
        if segment.rebuilt is not None:
            index, segment.rebuilt = segment.rebuilt, None
        else:
            disk = self._segments.disk
            path = self._segments.path
            interval = self._segments.interval_bytes
            index = read_index_cached(disk, path, segment.base_offset, interval)
        if index is None or index.size != segment.size:
            raise Cold
        cache.keep_index(segment, index)
        return index

    def _cold_read(self, segment: Segment, wanted: Wanted, generation: int) -> ColdRead:
        return ColdRead(
            disk=self._segments.disk,
            path=self._segments.path,
            interval_bytes=self._segments.interval_bytes,
            segment=segment,
            size=segment.size,
            floor=None if segment.index is None else segment.index.offsets.floor(wanted.start_offset),
            epochs=self._segments.epochs.copy(),
            wanted=wanted,
            generation=generation,
        )


class ColdRead(msgspec.Struct, frozen=True):
    """A read of one segment as work for a worker, with names, numbers and a copy of the epochs."""

    disk: Disk
    path: str
    interval_bytes: int
    segment: Segment
    """For its name, and as the place of a rebuilt index; the namesake of a truncated segment is another object."""
    size: int
    floor: tuple[Offset, FilePosition] | None
    """The start of the walk; None if it has to be read from the index files."""
    epochs: LeaderEpochHistory
    wanted: Wanted
    generation: int

    def load(self) -> LogSlice:
        """Implement `LogSlice.load`."""
        with cold_segment(self.disk, self.path, self.segment.base_offset, self.generation) as file:
            return self._read(file)

    def _read(self, file: File) -> LogSlice:
        floor_offset, floor_position = self.floor or self._floor_from_files(file)
        walk = HeaderWalk(file.pread, self.epochs, floor_position, floor_offset, self.size)
        start = self.wanted.start_offset
        header = skip_to(walk, start)
        if header is not None and (rest := _rest_of_hole(header, self.wanted)) is not None:
            return LogSlice(
                first_offset=start,
                next_offset=Offset(header.end_offset),
                parts=[rest],
                length=len(rest),
                batch_count=1,
            )
        region = _find(walk, self.wanted, up_to_damage=True)
        if region is None:
            return LogSlice(start, start)
        data, length = self._bytes_of(file, region)
        position = 0
        offset = region.first_offset
        count = 0
        while position < length:
            try:
                header = parse_header(data, position)
                check_whole(data[position : position + header.total_bytes], offset, self.epochs.epoch_at(offset))
            except CorruptBatch:
                if not count:
                    raise
                break  # The batches before are good; the next read begins at the damage and reports it.
            position += header.total_bytes
            offset = Offset(header.end_offset)
            count += 1
        return LogSlice(
            first_offset=region.first_offset,
            next_offset=offset,
            parts=[data[:position]],
            length=position,
            batch_count=count,
        )

    def _bytes_of(self, file: File, region: Region) -> tuple[memoryview, int]:
        """Return the region's bytes and their expected number: of the first batch only, if not all can be read."""
        length = region.length
        try:
            data = file.pread(length, region.position)
        except DiskFailed:
            length = min(length, parse_header(file.pread(HEADER_BYTES, region.position)).total_bytes)
            data = file.pread(length, region.position)
        return memoryview(data), length

    def _floor_from_files(self, file: File) -> tuple[Offset, FilePosition]:
        base_offset = self.segment.base_offset
        index = read_index(self.disk, self.path, base_offset, self.interval_bytes)
        if index is None or index.size != self.size:
            index = rebuild_index(file, base_offset, self.size, self.epochs, self.interval_bytes)
            self.segment.rebuilt = index
        return index.offsets.floor(self.wanted.start_offset)


def _find(walk: HeaderWalk, wanted: Wanted, *, up_to_damage: bool = False) -> Region | None:
    return find_region(
        walk,
        wanted.start_offset,
        wanted.end_offset,
        wanted.max_bytes,
        wanted.max_batches,
        min_one=wanted.min_one,
        up_to_damage=up_to_damage,
    )


def _rest_of_hole(header: BatchHeader, wanted: Wanted) -> bytes | None:
    """Return the part of a hole behind the follower's end; None if there is no such hole."""
    within = header.base_offset < wanted.start_offset < header.end_offset <= wanted.end_offset
    if not (wanted.copying and within and is_hole(header)):
        return None
    return hole(wanted.start_offset, header.end_offset, header.leader_epoch, header.max_timestamp, header.producer_id)


def _add_rest(found: LogSlice, rest: bytes, wanted: Wanted, end_offset: Offset) -> None:
    found.parts.append(rest)
    found.length += len(rest)
    _extend(found, wanted.start_offset, end_offset, 1)


def _extend(found: LogSlice, first_offset: Offset, next_offset: Offset, count: int) -> None:
    if not found.batch_count:
        found.first_offset = first_offset
    found.next_offset = next_offset
    found.batch_count += count
