"""One compaction pass over a log's sealed segments: work for a worker, in pieces, on files and copies alone.

    1. All headers from the log's first on are read, to find the empty batches that producers' state needs; and the
       keys of the dirty part → `OffsetMap`, until it is full or the part ends.
    2. Each segment up to there is read, batch by batch. If anything changes, or small segments are merged, the rest is
       written to `N.log.cleaned` and fsynced, as are its indexes (`N.index.cleaned`, `N.timeindex.cleaned`).
    3. The owner puts those in place of the segments (`PartitionLog.replace_segment`), between two pieces.

Every batch that is read is checked, CRC and place; every batch that is written takes the place of one or several old
ones. After a crash, recovery removes the files with the suffix.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator, Sequence
from typing import TypeAlias

import msgspec

from partitions.files.batch_walk import HeaderWalk, check_whole
from partitions.files.damage import LogDamaged
from partitions.files.leader_epochs import LeaderEpochHistory
from partitions.files.segment import SegmentIndex, segment_name
from partitions.producers.aborted_ranges import AbortedRanges
from partitions.producers.control_batches import control_in_file, control_of
from partitions.producers.transactions import key_of
from raftlog.config import KIB, MIB
from raftlog.errors import CorruptBatch, InvariantViolation, RetriableError
from raftlog.model import FilePosition, LeaderEpoch, Offset
from raftlog.ports import Disk, File
from raftlog.records.batch import BatchHeader, RecordBatch
from raftlog.records.batch_filter import keep_records, tombstones, without_records

from .cleaned_file import CleanedFile, OldSegment, remove_cleaned
from .holes import NeededBatches
from .plan import CompactionPlan, OffsetMap, choose

PIECE_BYTES = 1 * MIB
"""Bytes read in one piece, to within a batch: some milliseconds, after which other work has its turn."""

_BATCH_COSTS = 2 * KIB
"""The least bytes that a batch counts for: a small one, or a header alone, costs a worker as much."""


class Paused(msgspec.Struct, frozen=True):
    """The pass has more to do."""

    bytes_read: int
    """The bytes read, a small batch counting for more than its size."""


class CleanedSegment(msgspec.Struct, frozen=True, eq=False):
    """A cleaned segment that is ready beside the old ones."""

    olds: Sequence[OldSegment]
    """The consecutive segments to replace, provided that they have not changed."""
    index: SegmentIndex
    bytes_read: int

    @property
    def base_offset(self) -> Offset:
        return self.olds[0].base_offset

    @property
    def old_size(self) -> int:
        """Bytes of all old segments."""
        return sum(old.size for old in self.olds)


class Finished(msgspec.Struct, frozen=True):
    """The pass has compacted all keys below `end`."""

    end: Offset
    left_whole: str = ""
    """Why a batch was left with records that should be removed: `end` is then where the pass began."""


Piece: TypeAlias = Paused | CleanedSegment | Finished


class CompactionRun(msgspec.Struct):
    """One compaction pass. `next_piece` is called repeatedly, never by two threads at once."""

    disk: Disk
    path: str
    plan: CompactionPlan
    segments: Sequence[OldSegment]
    """The segments below the plan's end, from the log's first on."""
    epochs: LeaderEpochHistory
    interval_bytes: int
    segment_bytes: int
    now_ms: int
    aborted: AbortedRanges
    """The ranges of all aborted transactions that ended below the plan's end."""
    delete_retention_ms: int
    generation: int
    truncations: int
    latest: OffsetMap = msgspec.field(default_factory=OffsetMap)
    _needed: NeededBatches = msgspec.field(default_factory=NeededBatches)
    _pieces: Generator[Piece, None, None] | None = None
    _read: int = 0
    _left_whole: str = ""
    """Why a batch could not be rewritten: this pass removes no tombstone behind it."""

    def next_piece(self) -> Piece:
        """Do the next piece. Blocks.

        Raises `LogDamaged`, `DiskFailed`, `DiskFull`, and `RetriableError` if a segment was removed meanwhile. After an
        error, or `Finished`, the run has ended.
        """
        if self._pieces is None:
            self._pieces = self._all_pieces()
        return next(self._pieces)

    def clear_away(self) -> None:
        """Remove the files that an unfinished run left. Blocks."""
        if self._pieces is not None:
            self._pieces.close()
        for old in self.segments:
            remove_cleaned(self.disk, self.path, old.base_offset)

    def _all_pieces(self) -> Generator[Piece, None, None]:
        end = yield from self._read_headers_and_keys()
        self._needed.settle()
        yield from self._clean_all(end)
        self.disk.fsync_directory(self.path)
        # As long as a batch holds records that should be removed, the keys that say so have to be read again.
        yield Finished(self.plan.first_dirty if self._left_whole else end, self._left_whole)

    # --- Headers and keys ---

    def _read_headers_and_keys(self) -> Generator[Piece, None, Offset]:
        """Return the end of the keys read: the plan's end, or where the map was full."""
        end = self.plan.first_dirty
        for old in self.segments:
            if old.end_offset <= self.plan.first_dirty:
                yield from self._read_headers(old)
                continue
            end, full = yield from self._read_keys(old, end)
            if full:
                break
        return end

    def _read_headers(self, old: OldSegment) -> Iterator[Piece]:
        with self._opened(old.base_offset) as file, self._damage_told(old.base_offset):
            walk = HeaderWalk(file.pread, self.epochs, FilePosition(0), old.base_offset, old.size)
            while (header := walk.peek()) is not None:
                self._needed.add(header, control_in_file(file.pread, header, walk.position))
                walk.step(header)
                self._read += _BATCH_COSTS
                yield from self._pause()

    def _read_keys(self, old: OldSegment, end: Offset) -> Generator[Piece, None, tuple[Offset, bool]]:
        """Return the end of the keys read, and whether the map is full."""
        with self._opened(old.base_offset) as file:
            for header, batch in self._batches(file, old):
                dirty = header.end_offset > self.plan.first_dirty and header.record_count > 0
                if dirty and not header.is_control and not self._is_aborted(header):
                    if not self.latest.has_room(header.record_count):
                        return Offset(header.base_offset), True
                    self._enter_keys(batch)
                with self._damage_told(old.base_offset):
                    self._needed.add(header, control_of(header, batch))
                end = Offset(header.end_offset)
                yield from self._pause()
        return end, False

    def _is_aborted(self, header: BatchHeader) -> bool:
        return header.is_transactional and self.aborted.covers(key_of(header), header.base_offset)

    def _enter_keys(self, batch: bytes) -> None:
        try:
            records = RecordBatch(batch, crc_checked=True)
            self.latest.put(records.keys(), records.offsets())
        except CorruptBatch as error:
            self._leave_whole(error)

    def _leave_whole(self, error: CorruptBatch) -> None:
        """Keep all batches: one cannot be read as it was written, and other replicas have the same bytes."""
        self._left_whole = f"a batch cannot be read: {error.detail}"

    # --- Segments ---

    def _clean_all(self, end: Offset) -> Iterator[Piece]:
        output: CleanedFile | None = None
        try:
            for old in self.segments:
                if old.base_offset >= end:
                    break
                if output is not None and output.takes(old, self.segment_bytes):
                    output.join(old)
                else:
                    if output is not None:
                        yield from self._put_in_place(output)
                        output.close()
                    source = self._open(old.base_offset)
                    output = CleanedFile(self.disk, self.path, old, source, self.interval_bytes)
                yield from self._clean(old, output, end)
            if output is not None:
                yield from self._put_in_place(output)
        finally:
            if output is not None:
                output.close()

    def _clean(self, old: OldSegment, output: CleanedFile, end: Offset) -> Iterator[Piece]:
        with self._opened(old.base_offset) as source:
            for old_header, old_batch in self._batches(source, old):
                written = self._cleaned_batch(old_header, old_batch, end)
                batch = old_batch if written is None else written
                header = old_header if written is None else _rewritten(written, old_header)
                empty = not header.record_count or header.is_control
                unneeded = empty and header.end_offset <= end and header not in self._needed
                changed = written is not None
                if unneeded:
                    forgotten = self._needed.forgotten_with(header)
                    adding = output.add_unneeded(header, batch, changed=changed, forgotten=forgotten)
                else:
                    adding = output.add(header, batch, changed=changed)
                for bytes_read in adding:
                    self._read += bytes_read
                    yield from self._pause()
                yield from self._pause()

    def _put_in_place(self, output: CleanedFile) -> Iterator[Piece]:
        for bytes_read in output.finish():
            self._read += bytes_read
            yield from self._pause()
        if output.is_new:
            # This includes the previous exchange: a tombstone goes after what it deletes, whatever a crash keeps.
            self.disk.fsync_directory(self.path)
            # The old file stays open until its owner has put the new one in its place: freeing it takes time.
            yield CleanedSegment(tuple(output.olds), output.index, self._taken())

    def _cleaned_batch(self, header: BatchHeader, batch: bytes, end: Offset) -> bytes | None:
        """Return the batch's new form; None if it does not change."""
        if header.is_control or not header.record_count:
            return None
        if self._is_aborted(header):
            return without_records(header)
        try:
            return self._with_what_stays(header, batch, end)
        except CorruptBatch as error:
            self._leave_whole(error)
            return None

    def _with_what_stays(self, header: BatchHeader, batch: bytes, end: Offset) -> bytes | None:
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
        if written is None and not all(choice.keep):
            # A record that stays although it should go must not outlive a tombstone behind it.
            self._left_whole = f"the batch at offset {header.base_offset} would be too large"
        return written

    # --- Reading ---

    def _batches(self, file: File, old: OldSegment) -> Iterator[tuple[BatchHeader, bytes]]:
        """Iterate over the checked batches of a segment. Raises `LogDamaged`."""
        walk = HeaderWalk(file.pread, self.epochs, FilePosition(0), old.base_offset, old.size)
        with self._damage_told(old.base_offset):
            while (header := walk.peek()) is not None:
                batch = file.pread(header.total_bytes, walk.position)
                self._read += max(len(batch), _BATCH_COSTS)
                check_whole(batch, walk.offset, self.epochs.epoch_at(walk.offset))
                yield header, batch
                walk.step(header)

    @contextlib.contextmanager
    def _damage_told(self, base: Offset) -> Iterator[None]:
        try:
            yield
        except CorruptBatch as error:
            raise LogDamaged(f"{self.path}: {error.detail}", base, self.generation) from None

    def _open(self, base: Offset) -> File:
        try:
            return self.disk.open(f"{self.path}/{segment_name(base)}")
        except FileNotFoundError:
            raise RetriableError("offset_not_available", f"{self.path}: segment {base} was removed meanwhile") from None

    def _opened(self, base: Offset) -> contextlib.closing[File]:
        return contextlib.closing(self._open(base))

    def _pause(self) -> Iterator[Piece]:
        if self._read >= PIECE_BYTES:
            yield Paused(self._taken())

    def _taken(self) -> int:
        taken, self._read = self._read, 0
        return taken


def _rewritten(batch: bytes, old: BatchHeader) -> BatchHeader:
    """Return the header of a rewritten batch, which covers the same offsets. Raises `InvariantViolation`."""
    try:
        header = check_whole(batch, Offset(old.base_offset), LeaderEpoch(old.leader_epoch))
    except CorruptBatch as error:
        raise InvariantViolation(f"compaction made a bad batch: {error.detail}") from None
    if header.end_offset != old.end_offset:
        raise InvariantViolation(f"compaction made a batch that ends at {header.end_offset}, not {old.end_offset}")
    return header
