"""One compaction pass over a log's sealed segments: work for a worker, in pieces, on files and copies alone.

    1. the keys of the dirty part → `OffsetMap`, until it is full or the part is over
    2. each segment up to there: read batch by batch; from the first batch that changes on, all of it is written to
       `N.log.cleaned` and fsynced, as are its indexes (`N.index.cleaned`, `N.timeindex.cleaned`)
    3. its owner puts those in place of the segment (`PartitionLog.replace_segment`), between two pieces

A segment in which nothing changes is not written. Every batch that is read is checked, CRC and place; every batch that
is written takes the place that the old one had. What a crash leaves are files with the suffix, which recovery removes.

What is *not* here: which records stay (`compaction.py`), what a batch without them looks like
(`record_batch_filter.py`), threads and pace (`compactor.py`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from raftlog.config import MIB
from raftlog.errors import CorruptBatch, InvariantViolation, RetriableError
from raftlog.model import FilePosition, LeaderEpoch, Offset
from raftlog.ports import Disk, File
from raftlog.record_batch import BatchHeader, RecordBatch
from raftlog.record_batch_filter import keep_records, tombstones

from .batch_walk import HeaderWalk, check_whole
from .compaction import CompactionPlan, OffsetMap, choose
from .index_files import index_names
from .leader_epochs import LeaderEpochHistory
from .log_slice import LogDamaged
from .segment import CLEANED_SUFFIX, Segment, SegmentIndex, segment_name

PIECE_BYTES = 1 * MIB
"""Read in one piece, a batch more or less: some milliseconds, after which others have their turn."""


@dataclass(frozen=True, slots=True)
class Paused:
    """There is more to do."""

    bytes_read: int


@dataclass(frozen=True, slots=True, eq=False)
class CleanedSegment:
    """A segment with less in it lies ready beside the old one."""

    segment: Segment
    """The old one: only if it is still what it was may it be replaced."""
    old_size: int
    index: SegmentIndex
    bytes_read: int


@dataclass(frozen=True, slots=True)
class Finished:
    """All keys below `end` were compacted."""

    end: Offset


Piece: TypeAlias = Paused | CleanedSegment | Finished


@dataclass(slots=True)
class CompactionRun:
    """See the module. `next_piece` is called again and again, never by two threads at once."""

    disk: Disk
    path: str
    plan: CompactionPlan
    segments: Sequence[tuple[Segment, Offset, Offset, int]]
    """(the segment's object, base offset, end offset, bytes) of those below the plan's end."""
    epochs: LeaderEpochHistory
    interval_bytes: int
    now_ms: int
    delete_retention_ms: int
    generation: int
    truncations: int
    latest: OffsetMap = field(default_factory=OffsetMap)
    _pieces: Generator[Piece, None, None] | None = None
    _read: int = 0
    _left_whole: bool = False
    """A batch could not be written without what should go: no tombstone behind it goes in this pass."""

    def next_piece(self) -> Piece:
        """Blocks. Raises `LogDamaged`, `DiskFailed`, `DiskFull`, and `RetriableError` where a segment went meanwhile.
        After an error, or `Finished`, the run is over."""
        if self._pieces is None:
            self._pieces = self._all_pieces()
        return next(self._pieces)

    def clear_away(self) -> None:
        """Remove what a run left that did not come to its end. Blocks."""
        if self._pieces is not None:
            self._pieces.close()
        for _, base, _, _ in self.segments:
            self._remove_cleaned(base)

    def _all_pieces(self) -> Generator[Piece, None, None]:
        end = self.plan.first_dirty
        for _, base, segment_end, size in self.segments:
            if segment_end > self.plan.first_dirty:
                end, full = yield from self._read_keys(base, size, end)
                if full:
                    break
        for segment, base, _, size in self.segments:
            if base < end:
                yield from self._clean(segment, base, size, end)
        self.disk.fsync_directory(self.path)
        # As long as a batch holds what should be gone, the keys that say so have to be read again.
        yield Finished(self.plan.first_dirty if self._left_whole else end)

    # --- Keys ---

    def _read_keys(self, base: Offset, size: int, end: Offset) -> Generator[Piece, None, tuple[Offset, bool]]:
        """Where the keys read end, and whether the map is full."""
        with self._opened(base) as file:
            for header, batch in self._batches(file, base, size):
                if header.end_offset > self.plan.first_dirty and header.record_count and not header.is_control:
                    if not self.latest.has_room(header.record_count):
                        return Offset(header.base_offset), True
                    records = RecordBatch(batch, crc_checked=True)
                    self.latest.put(records.keys(), records.offsets())
                end = Offset(header.end_offset)
                yield from self._pause()
        return end, False

    # --- Segments ---

    def _clean(self, segment: Segment, base: Offset, size: int, end: Offset) -> Iterator[Piece]:
        index = SegmentIndex.empty(base, self.interval_bytes)
        target: File | None = None
        with contextlib.ExitStack() as files:
            source = files.enter_context(self._opened(base))
            for header, batch in self._batches(source, base, size):
                written = self._cleaned_batch(header, batch, end)
                if written is not None and target is None:
                    self._remove_cleaned(base)
                    target = self.disk.open(self._name(segment_name(base)) + CLEANED_SUFFIX, exclusive=True)
                    files.callback(target.close)
                    yield from self._copy(source, target, index.size)
                if target is not None:
                    target.pwritev([batch if written is None else written], index.size)
                index.add(header if written is None else _rewritten(written, header))
                yield from self._pause()
            if target is None:
                return
            target.fsync()
            self._write_indexes(base, index)
            # Also the exchange before this one: what deletes goes after what it deletes, whatever a crash keeps.
            self.disk.fsync_directory(self.path)
            # The old file is held open until its owner has put the new one in its place: to free it takes time.
            yield CleanedSegment(segment, size, index, self._taken())

    def _cleaned_batch(self, header: BatchHeader, batch: bytes, end: Offset) -> bytes | None:
        """The batch as it is to be from now on; None: as it is."""
        if header.is_control or not header.record_count:
            return None
        records = RecordBatch(batch, crc_checked=True)
        horizon = header.base_timestamp if header.has_delete_horizon else -1
        choice = choose(
            records.keys(),
            records.offsets(),
            tombstones(records),
            self.latest,
            delete_horizon_ms=horizon,
            new_horizon_ms=self.now_ms + self.delete_retention_ms if header.end_offset <= end else -1,
            now_ms=-1 if self._left_whole else self.now_ms,
        )
        if all(choice.keep) and choice.delete_horizon_ms == horizon:
            return None
        written = keep_records(records, choice.keep, delete_horizon_ms=choice.delete_horizon_ms)
        # A record that should be gone and is not must not outlive a tombstone that is behind it.
        self._left_whole |= written is None and not all(choice.keep)
        return written

    def _copy(self, source: File, target: File, length: int) -> Iterator[Piece]:
        position = 0
        while position < length:
            data = source.pread(min(MIB, length - position), position)
            target.pwritev([data], position)
            position += len(data)
            self._read += len(data)
            yield from self._pause()

    def _write_indexes(self, base: Offset, index: SegmentIndex) -> None:
        for name, content in zip(index_names(base), (index.offsets.encode(), index.times.encode()), strict=True):
            with contextlib.closing(self.disk.open(self._name(name) + CLEANED_SUFFIX, create=True)) as file:
                file.truncate(0)
                file.pwritev([content], 0)
                file.fsync()

    def _remove_cleaned(self, base: Offset) -> None:
        for name in (segment_name(base), *index_names(base)):
            self.disk.remove(self._name(name) + CLEANED_SUFFIX)

    # --- Reading ---

    def _batches(self, file: File, base: Offset, size: int) -> Iterator[tuple[BatchHeader, bytes]]:
        """Raises `LogDamaged`."""
        walk = HeaderWalk(file.pread, self.epochs, FilePosition(0), base, size)
        try:
            while (header := walk.peek()) is not None:
                batch = file.pread(header.total_bytes, walk.position)
                self._read += len(batch)
                check_whole(batch, walk.offset, self.epochs.epoch_at(walk.offset))
                yield header, batch
                walk.step(header)
        except CorruptBatch as error:
            raise LogDamaged(f"{self.path}: {error.detail}", base, self.generation) from None

    @contextlib.contextmanager
    def _opened(self, base: Offset) -> Iterator[File]:
        try:
            file = self.disk.open(self._name(segment_name(base)))
        except FileNotFoundError:
            raise RetriableError("offset_not_available", f"{self.path}: segment {base} went") from None
        try:
            yield file
        finally:
            file.close()

    def _pause(self) -> Iterator[Piece]:
        if self._read >= PIECE_BYTES:
            yield Paused(self._taken())

    def _taken(self) -> int:
        taken, self._read = self._read, 0
        return taken

    def _name(self, name: str) -> str:
        return f"{self.path}/{name}"


def _rewritten(batch: bytes, old: BatchHeader) -> BatchHeader:
    """The header of what is about to be written, which stands for the same offsets. Raises `InvariantViolation`."""
    try:
        header = check_whole(batch, Offset(old.base_offset), LeaderEpoch(old.leader_epoch))
    except CorruptBatch as error:
        raise InvariantViolation(f"compaction made a bad batch: {error.detail}") from None
    if header.end_offset != old.end_offset:
        raise InvariantViolation(f"compaction made a batch that ends at {header.end_offset}, not {old.end_offset}")
    return header
