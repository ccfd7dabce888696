"""What the disk has to be told: one job, made on the owner's thread, run on a worker's, of files and bytes alone.

The steps are in the order that keeps every crash between them readable by `partitions/recovery/recover.py`; before each
of them the ones before it are durable (`partitions/files/durable.py`: how, is another's business where many jobs run
together):

    1. the first segment of a log that was never written to, empty; the marker `flush-os`, ahead of the first write that
       is not fsynced; the leader epochs, ahead of the first batch of a new one, unless something is cut or was left
       behind by a full disk: then after 2; the checkpoint falls back (start moved, cut below the recovery point, first
       write after a clean close)
    2. segments that a compacted one holds by now are removed, the folder fsynced before that: its name must not be lost
       when they are. The cut: files beyond it are removed, the one it goes through is shortened and fsynced, then the
       folder
    3. batches, each checked against its place once more; the folder, where it has new names
    4. the marker goes, where everything is fsynced from here on
    5. indexes of what will not grow, or of what a checkpoint covers; the producer snapshot and the checkpoint, now that
       everything below them is durable; how far compaction has come
    6. segments below the start are removed (after a full disk already behind 1, and their indexes ahead of it: that may
       make room)

Each step may be done twice: a job that was hindered (`DiskHindered`) is made again from the same memory and run from
its beginning.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from partitions.files.batch_walk import check_placement
from partitions.files.checkpoint import (
    CHECKPOINT_NAME,
    CLEANER_CHECKPOINT_NAME,
    FLUSH_OS_NAME,
    LEADER_EPOCHS_NAME,
    LogCheckpoint,
    ProducerSnapshot,
    encode_cleaner_checkpoint,
)
from partitions.files.durable import Durable, Steps, alone, replaced
from partitions.files.segment import (
    INDEX_SUFFIXES,
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    SEGMENT_SUFFIXES,
    TIME_INDEX_SUFFIX,
    Segment,
    parse_segment_name,
    segment_name,
)
from partitions.producers.snapshots import prune_snapshots, snapshot_name
from raftlog.errors import CorruptBatch, DiskFailed, DiskHindered, InvariantViolation
from raftlog.model import Offset
from raftlog.ports import Buffer, Disk, File
from raftlog.records.batch import HEADER_BYTES, BatchHeader, parse_header


@dataclass(frozen=True, slots=True)
class Cut:
    """The log was truncated: on disk, nothing may be left from `end_offset` on."""

    end_offset: Offset
    keep_base: Offset | None
    """The segment that the cut goes through, which ends here from now on; None where it falls between two."""
    keep_bytes: int


@dataclass(slots=True)
class SegmentWrite:
    """What one segment's files get."""

    segment: Segment
    base_offset: Offset
    position: int
    batches: Sequence[tuple[BatchHeader, Sequence[Buffer]]]
    file: File | None
    """The open file, held for the job; None: the job opens it (and makes it where absent)."""
    sync: bool
    alone: bool = False
    """All that the file has is stable: only these batches need to become so, which one call can do."""
    index_files: tuple[bytes, bytes] | None = None
    seals_at: Offset | None = None
    """The index files are complete, for the segment does not grow any more: it ends here."""
    opened: File | None = None
    """Set by `run`: the file that it opened. The owner takes it over, also after a failure."""


@dataclass(slots=True, eq=False)
class LogJob:
    """See the module. `run` may be called once."""

    disk: Disk
    path: str
    start_offset: Offset
    end_offset: Offset
    """The batches between are written. `end_offset` was the log's end when the job was taken: that far it is stable
    when the job is done."""
    flush_os_marker: bool | None = None
    """To be there, or not, when the job is done; None: as it is."""
    checkpoint_before: LogCheckpoint | None = None
    cut: Cut | None = None
    leader_epochs: bytes | None = None
    writes: list[SegmentWrite] = field(default_factory=list)
    snapshot: ProducerSnapshot | None = None
    checkpoint_after: LogCheckpoint | None = None
    first_dirty_offset: Offset | None = None
    """How far compaction has come, where that is new."""
    remove: tuple[Offset, ...] = ()
    """Bases of segments below the start."""
    merged: tuple[Offset, ...] = ()
    """Bases of segments whose batches are in another one now."""
    again: bool = False
    """A job before this one was hindered: bytes of it may lie behind the position to write at."""
    begins_log: bool = False
    """It is the first one, if need be again: there is no segment yet, and there are no epochs."""
    removed: tuple[Offset, ...] = ()
    """Set by `run`: those of `remove` whose files are gone, also where the job failed behind that."""
    appends_only: bool = False
    """Batches behind others, and nothing else: the common job, which one call for each segment does."""

    def run(self) -> None:
        """Alone, on a worker's thread. Raises `DiskError`, or `InvariantViolation` where the files are not
        what the owner knows them to be."""
        if self.appends_only:
            for write in self.writes:
                self._write(write, at_once=True)
        else:
            alone(self.disk, self.steps())

    def steps(self, *, shared: bool = False) -> Steps[None]:
        """The same, from barrier to barrier. `shared`: one call of the disk is that of many jobs."""
        epochs_wait = not self.begins_log and (self.cut is not None or self.again)
        if self.begins_log and (self.cut is None or self.writes[0].base_offset < self.cut.end_offset):
            # A log that may have been written to has its first segment: whether it is lost can be told from then on.
            self._file_of(self.writes[0])
        if self.again:
            # A checkpoint comes before the removal it speaks of, and needs room itself. These have some, and no reader.
            self._remove(self.remove, INDEX_SUFFIXES)
        yield from self._replace(self._replaced_before(with_epochs=not epochs_wait), shared)
        yield from self._remove_merged()
        if self.again:
            self._remove_below_start()  # It may be what makes room for the rest.
        if self.cut is not None:
            yield from self._cut(self.cut)
        if epochs_wait and self.leader_epochs is not None:
            yield from self._replace({LEADER_EPOCHS_NAME: self.leader_epochs}, shared)
        for write in self.writes:
            self._write(write, at_once=not shared)
        yield from self._written(shared)
        if self.flush_os_marker is False:
            self.disk.remove(self._name(FLUSH_OS_NAME))
            yield Durable(folders=(self.path,))
        yield from self._replace(self._replaced_after(), shared)
        if self.snapshot is not None:
            prune_snapshots(self.disk, self.path)
        self._remove_below_start()

    def _replace(self, contents: Mapping[str, bytes], shared: bool) -> Steps[None]:
        return replaced(self.disk, self.path, contents, hold=not shared)

    def _replaced_before(self, *, with_epochs: bool) -> dict[str, bytes]:
        contents = {}
        if self.flush_os_marker:
            contents[FLUSH_OS_NAME] = b"1\n"
        # Ahead of the checkpoint: without epochs only a log is good that was never written to, as it says then.
        if with_epochs and self.leader_epochs is not None:
            contents[LEADER_EPOCHS_NAME] = self.leader_epochs
        if self.checkpoint_before is not None:
            contents[CHECKPOINT_NAME] = self.checkpoint_before.encode()
        return contents

    def _replaced_after(self) -> dict[str, bytes]:
        contents = {}
        for write in self.writes:
            if write.index_files is not None:
                for suffix, index in zip((OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX), write.index_files, strict=True):
                    contents[segment_name(write.base_offset, suffix)] = index
        if self.snapshot is not None:
            contents[snapshot_name(self.snapshot.offset)] = self.snapshot.encode()
        if self.checkpoint_after is not None:
            contents[CHECKPOINT_NAME] = self.checkpoint_after.encode()
        if self.first_dirty_offset is not None:
            contents[CLEANER_CHECKPOINT_NAME] = encode_cleaner_checkpoint(self.first_dirty_offset)
        return contents

    def _written(self, shared: bool) -> Steps[None]:
        """The barrier behind the batches, without those that are durable already."""
        files = [self._file_of(write) for write in self.writes if write.sync and (shared or not write.alone)]
        names = any(write.opened is not None and not write.position for write in self.writes)
        if files or names:
            yield Durable(files, (self.path,) if names else ())

    def _remove_merged(self) -> Steps[None]:
        if not self.merged:
            return
        yield Durable(folders=(self.path,))
        self._remove(self.merged)
        if self.cut is not None:
            # Within a segment that is cut they would lie beyond its end.
            yield Durable(folders=(self.path,))

    def _remove_below_start(self) -> None:
        self._remove(self.remove)
        self.removed = self.remove

    def _remove(self, base_offsets: Sequence[Offset], suffixes: Sequence[str] = SEGMENT_SUFFIXES) -> None:
        for base_offset in base_offsets:
            for suffix in suffixes:
                self.disk.remove(self._name(segment_name(base_offset, suffix)))

    def _cut(self, cut: Cut) -> Steps[None]:
        # What is written at these offsets next was not compacted: tombstones must not go before what they delete. So
        # this goes before anything is cut: a crash in between must not leave it to a log that lost what it speaks of.
        if self.disk.exists(self._name(CLEANER_CHECKPOINT_NAME)):
            self.disk.remove(self._name(CLEANER_CHECKPOINT_NAME))
            yield Durable(folders=(self.path,))
        for name in reversed(self.disk.list(self.path)):
            for suffix in SEGMENT_SUFFIXES:
                base_offset = parse_segment_name(name, suffix)
                if base_offset is None:
                    continue
                # The indexes of the shortened segment go too: they cover what is cut off. They are written again below.
                if base_offset >= cut.end_offset or (base_offset == cut.keep_base and suffix != LOG_SUFFIX):
                    self.disk.remove(self._name(name))
        prune_snapshots(self.disk, self.path, end_offset=cut.end_offset)
        if cut.keep_base is not None:
            with contextlib.closing(self._open(cut.keep_base)) as file:
                if file.size() < cut.keep_bytes:
                    raise InvariantViolation(f"{self.path}: segment {cut.keep_base} is shorter than its cut, {cut}")
                file.truncate(cut.keep_bytes)
                yield Durable((file,))
        yield Durable(folders=(self.path,))

    def _write(self, write: SegmentWrite, *, at_once: bool) -> None:
        """`at_once`: what one call can make durable is, when this returns."""
        buffers: list[Buffer] = []
        position = write.position
        offset = None
        for header, pieces in write.batches:
            check_bytes_to_write(header, pieces, Offset(header.base_offset if offset is None else offset))
            offset = header.end_offset
            position += header.total_bytes
            buffers += pieces
        if not buffers and not write.sync:
            return
        file = self._file_of(write)
        size = file.size()
        if size > write.position and self.again:
            file.truncate(write.position)
        elif size != write.position:
            raise InvariantViolation(
                f"{self.path}: segment {write.base_offset} has {size} bytes, {write.position} are known"
            )
        if buffers:
            try:
                if at_once and write.sync and write.alone:
                    file.pwritev_stable(buffers, write.position)
                else:
                    file.pwritev(buffers, write.position)
            except DiskHindered:
                # What was written of it is cut off again; where even that fails the log has failed.
                file.truncate(write.position)
                raise

    def _file_of(self, write: SegmentWrite) -> File:
        file = write.file or write.opened
        if file is None:
            file = write.opened = self.disk.open(self._name(segment_name(write.base_offset)), create=True, bulk=True)
        return file

    def _open(self, base_offset: Offset) -> File:
        try:
            return self.disk.open(self._name(segment_name(base_offset)), bulk=True)
        except FileNotFoundError:
            raise DiskFailed(f"{self.path}: segment {base_offset} is gone") from None

    def _name(self, name: str) -> str:
        return f"{self.path}/{name}"


def check_bytes_to_write(header: BatchHeader, pieces: Sequence[Buffer], expected_offset: Offset) -> None:
    """The bytes that are about to be written say what the log believes of them. Raises `InvariantViolation`."""
    first = memoryview(pieces[0]).cast("B")
    front = (
        first if first.nbytes >= HEADER_BYTES else b"".join(memoryview(piece)[:HEADER_BYTES] for piece in pieces[:4])
    )
    try:
        found = parse_header(front)
        check_placement(found, expected_offset, header.leader_epoch)  # type: ignore[arg-type]
    except CorruptBatch as error:
        raise InvariantViolation(f"about to write a bad batch: {error.detail}") from None
    if found.total_bytes != sum(memoryview(piece).nbytes for piece in pieces):
        raise InvariantViolation(f"the batch at {expected_offset} has not the {found.total_bytes} bytes that it says")
